"""The interface of a vocabulary of pieces, and its implementation by sentencepiece.

Other implementations: `listed_pieces` (sentencepiece with other ids), `json_pieces` (Hugging Face), `byte_pieces`
(ByT5).
"""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import sentencepiece as spm

from dragoman.tokenizers.ids import BOS, EOS, PAD, UNK
from dragoman.tokenizers.subword_sampling import SubwordSampler

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Stands for a space in a piece."""
Spans = list[tuple[int, int]]
"""First and next character of each token in a text."""
_SENTINEL = re.compile(r"<extra_id_\d+>")


class Pieces(ABC):
    """Pieces of text with ids, of which the first four are the special ids.

    A subclass may override what is computed faster or is different for it; by default a text has one segmentation.
    """

    tags: Mapping[str, int] = {}
    """Target languages that a tag `>>xx<<` at the start of a text names, with the ids of the tags."""
    mask: int | None = None
    """Id of a masked token, if the vocabulary has one."""

    @property
    def special_ids(self) -> list[int]:
        """Ids of padding, unknown, begin and end of sentence."""
        return [PAD, UNK, BOS, EOS]

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ids."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """Return the piece of an id as people read it, with "▁" for a space."""

    @abstractmethod
    def piece_ids(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of pieces, UNK for an unknown one."""

    @abstractmethod
    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        """Return the ids of a text, and the characters of the text that each one stands for."""

    @abstractmethod
    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, Spans]:
        """Return the text of ids, and the characters of the text that each one stands for."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.encode_with_spans(text)[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def sample(self, text: str, rate: float, rng: random.Random) -> list[int]:
        """Return the ids of a sampled segmentation (see `SubwordSampler.draw`)."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.decode_with_spans(ids)[0]

    def is_control(self, token: int) -> bool:
        """Return whether no text is encoded into an id, and it is decoded to nothing."""
        return token in (PAD, BOS, EOS)


class SentencePieces(Pieces):
    """The pieces of a sentencepiece model, with its ids."""

    def __init__(self, model: spm.SentencePieceProcessor) -> None:
        self.model = model

    @property
    def special_ids(self) -> list[int]:
        return [self.model.pad_id(), self.model.unk_id(), self.model.bos_id(), self.model.eos_id()]

    @property
    def size(self) -> int:
        return int(self.model.get_piece_size())

    def piece(self, token: int) -> str:
        return str(self.model.id_to_piece(token))

    def piece_ids(self, pieces: Sequence[str]) -> list[int]:
        return list(self.model.piece_to_id(list(pieces)))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.model.encode(text)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self.model.encode(list(texts)))

    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        encoded = self.model.encode(text, return_type="offset_mapping")
        return encoded["ids"], encoded["offsets"]

    def sample(self, text: str, rate: float, rng: random.Random) -> list[int]:
        return self._sampler.draw(text, rate, rng)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.model.decode(ids))

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, Spans]:
        decoded = self.model.decode(ids, return_type="offset_mapping")
        return decoded["text"], decoded["offsets"]

    def is_control(self, token: int) -> bool:
        return bool(self.model.is_control(token))

    @cached_property
    def _sampler(self) -> SubwordSampler:
        return SubwordSampler(self.model)


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a file.  Raises ValueError."""
    try:
        fields = json.loads(content)
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def joined_spans(parts: Sequence[str]) -> Spans:
    """Return the span of each part in their concatenation."""
    ends = [0, *accumulate(map(len, parts))]
    return list(pairwise(ends))


def sentinel_parts(text: str, known: Container[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield the known sentinels of a text and what is between them: start, part, whether it is a sentinel.

    A sentinel of T5 (Raffel et al. 2020), such as `<extra_id_0>`, stands for a span that was removed from a text.
    """
    start = 0
    for match in _SENTINEL.finditer(text):
        if match[0] in known:
            yield start, text[start : match.start()], False
            yield match.start(), match[0], True
            start = match.end()
    yield start, text[start:], False
