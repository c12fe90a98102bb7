"""Vocabularies that list the pieces of sentencepiece in another order, as those of imported models do.

sentencepiece segments the text; a piece then has the id of its position in a list, and UNK if it is not listed.  Ids of
special tokens are ours (`data.ids`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import sentencepiece as spm

from dragoman.data.ids import BOS, EOS, PAD, UNK, SpecialIds
from dragoman.data.sentinels import sentinel_parts
from dragoman.data.subword_sampling import SubwordSampler

__all__ = ["PIECES_FILE", "ListedPieces", "PieceLists", "SentinelPieces"]

PIECES_FILE = "pieces.json"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece


@dataclass(frozen=True)
class PieceLists:
    """The file `pieces.json` of a model folder.

    source, target: pieces in the order of their ids, the special ones first; target None: one list for both sides.
    tags: whether `>>xx<<` at the start of a text is one token, the target language of a multilingual model.  sentinels:
    whether the tokens of T5 are handled as in `SentinelPieces`.
    """

    source: list[str]
    target: list[str] | None
    tags: bool
    sentinels: bool = False

    @classmethod
    def parse(cls, content: bytes) -> PieceLists:
        """Read the file.  Raises ValueError with all problems."""
        try:
            fields = json.loads(content)
        except RecursionError:
            raise ValueError("brackets nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")
        problems = [f"{side} {problem}" for side in ("source", "target") if (problem := _problem(fields, side))]
        if not isinstance(fields.get("tags"), bool):
            problems.append("tags is neither true nor false")
        if not isinstance(fields.get("sentinels", False), bool):
            problems.append("sentinels is neither true nor false")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(fields["source"], fields["target"], fields["tags"], fields.get("sentinels", False))

    def file(self) -> bytes:
        content: dict[str, Any] = {"source": self.source, "target": self.target, "tags": self.tags}
        if self.sentinels:
            content["sentinels"] = True
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    def applied(
        self, source: spm.SentencePieceProcessor, target: spm.SentencePieceProcessor
    ) -> tuple[ListedPieces, ListedPieces]:
        """Return the segmentation of each side with the ids of its list."""
        kind = SentinelPieces if self.sentinels else ListedPieces
        return (
            kind(source, self.source, self.tags),
            kind(target, self.source if self.target is None else self.target, self.tags),
        )


def _problem(fields: dict[str, Any], side: str) -> str:
    pieces = fields.get(side)
    if side == "target" and pieces is None:
        return ""
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        return "is not a list of texts"
    if len(pieces) <= EOS or len(set(pieces)) < len(pieces):
        return "has fewer than 4 pieces, or the same piece twice"
    return ""


class ListedPieces(SpecialIds):
    """A sentencepiece model with other ids; the methods are those of `SentencePieceProcessor` that `Tokenizer` uses.

    UNK is decoded to nothing, as `transformers` does, instead of to a question mark.
    """

    def __init__(self, model: spm.SentencePieceProcessor, pieces: Sequence[str], tags: bool) -> None:
        self._model, self._pieces, self._tags = model, pieces, tags
        special = {PAD, UNK, BOS, EOS}  # text never becomes a special token
        self._ids = {piece: token for token, piece in enumerate(pieces) if token not in special}

    @property
    def tags(self) -> dict[str, int]:
        """Target languages that a tag `>>xx<<` names, with the ids of the tags."""
        names = {piece[2:-2]: token for piece, token in self._ids.items() if re.fullmatch(r">>[\w.-]+<<", piece)}
        return names if self._tags else {}

    def get_piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, token: int) -> str:
        return self._pieces[token]

    def piece_to_id(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, UNK) for piece in pieces]

    def encode(self, text: str | Sequence[str], return_type: Literal["offset_mapping"] | None = None) -> Any:
        """Return the ids of a text, or of each of several; or, for "offset_mapping", ids and spans of a text."""
        if not isinstance(text, str):
            return [self.encode(each) for each in text]
        tag, rest = self._split_tag(text)
        ids = self.piece_to_id([tag]) if tag else []
        if return_type is None:
            return ids + self.piece_to_id(self._model.encode(rest, out_type=str))
        found = self._model.encode(rest, return_type=return_type)
        start = len(tag)
        spans = [(0, start)] * len(ids) + [(begin + start, end + start) for begin, end in found["offsets"]]
        return {"ids": ids + self.piece_to_id(found["pieces"]), "offsets": spans}

    def draw(self, text: str, rate: float, rng: random.Random) -> list[int]:
        """Return the ids of a sampled segmentation; see `SubwordSampler.draw`."""
        tag, rest = self._split_tag(text)
        drawn = [str(self._model.id_to_piece(token)) for token in self._sampler.draw(rest, rate, rng)]
        return self.piece_to_id([*([tag] if tag else []), *drawn])

    def decode(self, ids: Sequence[int], return_type: Literal["offset_mapping"] | None = None) -> Any:
        """Return the text of ids; or, for "offset_mapping", text and spans."""
        kept = [self._pieces[token] for token in ids if token != UNK]
        if return_type is None:
            return str(self._model.decode(kept)).replace(_SPACE, " ").strip() if kept else ""
        found = self._model.decode(kept, return_type=return_type)
        text = str(found["text"]).replace(_SPACE, " ")
        start, length = len(text) - len(text.lstrip()), len(text.strip())
        spans = iter([(_within(a - start, length), _within(b - start, length)) for a, b in found["offsets"]])
        end, offsets = 0, []
        for token in ids:
            begin, end = (end, end) if token == UNK else next(spans)
            offsets.append((begin, end))
        return {"text": text.strip(), "offsets": offsets}

    @cached_property
    def _sampler(self) -> SubwordSampler:
        return SubwordSampler(self._model)

    def _split_tag(self, text: str) -> tuple[str, str]:
        """Return a language tag at the start of a text, "" if there is none, and the rest."""
        end = text.find("<<") if self._tags and text.startswith(">>") else -1
        return ("", text) if end < 0 else (text[: end + 2], text[end + 2 :])


class SentinelPieces(ListedPieces):
    """The pieces of T5: sentinels such as `<extra_id_0>` in a text are single tokens, and the text ends before them.

    Sentinels, unused ids and UNK are decoded to nothing, as `transformers` does.
    """

    def encode(self, text: str | Sequence[str], return_type: Literal["offset_mapping"] | None = None) -> Any:
        if not isinstance(text, str):
            return [self.encode(each) for each in text]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, part, is_sentinel in sentinel_parts(text, self._ids):
            if is_sentinel:
                ids.append(self._ids[part])
                spans.append((start, start + len(part)))
            else:
                found = super().encode(part, return_type="offset_mapping")
                ids += found["ids"]
                spans += [(begin + start, end + start) for begin, end in found["offsets"]]
        return ids if return_type is None else {"ids": ids, "offsets": spans}

    def draw(self, text: str, rate: float, rng: random.Random) -> list[int]:
        drawn: list[int] = []
        for _, part, is_sentinel in sentinel_parts(text, self._ids):
            drawn += [self._ids[part]] if is_sentinel else super().draw(part, rate, rng)
        return drawn

    def decode(self, ids: Sequence[int], return_type: Literal["offset_mapping"] | None = None) -> Any:
        parts = []
        is_first = True
        for token in ids:
            piece = self._pieces[token] if token in self._written else ""
            parts.append(piece.replace(_SPACE, "" if is_first else " "))
            is_first = is_first and not piece
        text = "".join(parts)
        if return_type is None:
            return text
        ends = list(accumulate(map(len, parts)))
        return {"text": text, "offsets": list(zip([0, *ends], ends, strict=False))}

    @cached_property
    def _written(self) -> set[int]:
        """Ids of pieces that sentencepiece has, as text."""
        model, special = self._model, {PAD, UNK, BOS, EOS}
        own = {str(model.id_to_piece(i)) for i in range(model.get_piece_size()) if not model.is_control(i)}
        return {token for token, piece in enumerate(self._pieces) if token not in special and piece in own}


def _within(position: int, length: int) -> int:
    return min(max(position, 0), length)
