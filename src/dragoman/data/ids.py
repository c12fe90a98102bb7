"""Special token ids, the same in every vocabulary."""

from __future__ import annotations

__all__ = ["BOS", "EOS", "PAD", "SPECIAL_NAMES", "UNK", "SpecialIds"]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_NAMES = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special tokens, in the order of their ids."""


class SpecialIds:
    """The methods of `SentencePieceProcessor` that return special ids, for tokenizers that are not sentencepiece."""

    def pad_id(self) -> int:
        return PAD

    def unk_id(self) -> int:
        return UNK

    def bos_id(self) -> int:
        return BOS

    def eos_id(self) -> int:
        return EOS

    def is_control(self, token: int) -> bool:
        return token in (PAD, BOS, EOS)
