"""Special token ids, the same in every vocabulary."""

from __future__ import annotations

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_NAMES = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special tokens, in the order of their ids."""
