"""The ids that every vocabulary begins with."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "UNK"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
