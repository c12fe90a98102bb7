"""Special token ids, the same in every vocabulary."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "UNK"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
