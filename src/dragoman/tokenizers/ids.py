"""Special token ids, the same in every vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_NAMES = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special tokens, in the order of their ids."""


def before_end(ids: Sequence[int]) -> Sequence[int]:
    """Return the ids before EOS; all ids of a source that has no end."""
    return ids[: ids.index(EOS)] if EOS in ids else ids
