"""Vocabularies that list the pieces of sentencepiece in another order, as those of imported models do.

sentencepiece segments the text; a piece then has the id of its position in a list, and UNK if it is not listed.  Ids of
special tokens are ours (`tokenizers.pieces`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dragoman.tokenizers.pieces import (
    EOS,
    SPACE,
    UNK,
    NamedPieces,
    SentencePieces,
    Spans,
    joined_spans,
    parse_object,
    sentinel_parts,
)

PIECES_FILE = "pieces.json"


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
        fields = parse_object(content)
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


def _problem(fields: dict[str, Any], side: str) -> str:
    pieces = fields.get(side)
    if side == "target" and pieces is None:
        return ""
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        return "is not a list of texts"
    if len(pieces) <= EOS or len(set(pieces)) < len(pieces):
        return "has fewer than 4 pieces, or the same piece twice"
    return ""


class ListedPieces(NamedPieces):
    """A sentencepiece model with other ids.

    UNK is decoded to nothing, as `transformers` does, instead of to a question mark.
    """

    def __init__(self, model: SentencePieces, pieces: Sequence[str], tags: bool) -> None:
        self._segmenter, self._names, self._has_tags = model, pieces, tags
        names = {piece[2:-2]: token for piece, token in self._ids.items() if re.fullmatch(r">>[\w.-]+<<", piece)}
        self.tags = names if tags else {}

    def encode(self, text: str) -> list[int]:
        tag, rest = self._split_tag(text)
        ids = self.piece_ids([tag]) if tag else []
        return ids + self.piece_ids(self._segmenter.model.encode(rest, out_type=str))

    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        tag, rest = self._split_tag(text)
        encoded = self._segmenter.model.encode(rest, return_type="offset_mapping")
        start = len(tag)
        ids = self.piece_ids([*([tag] if tag else []), *encoded["pieces"]])
        return ids, [*([(0, start)] if tag else []), *((a + start, b + start) for a, b in encoded["offsets"])]

    def sample(self, text: str, rate: float, rng: random.Random) -> list[int]:
        tag, rest = self._split_tag(text)
        drawn = map(self._segmenter.piece, self._segmenter.sample(rest, rate, rng))
        return self.piece_ids([*([tag] if tag else []), *drawn])

    def decode(self, ids: Sequence[int]) -> str:
        kept = [self._names[token] for token in ids if token != UNK]
        return str(self._segmenter.model.decode(kept)).replace(SPACE, " ").strip() if kept else ""

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, Spans]:
        kept = [self._names[token] for token in ids if token != UNK]
        decoded = self._segmenter.model.decode(kept, return_type="offset_mapping")
        text = str(decoded["text"]).replace(SPACE, " ")
        start, length = len(text) - len(text.lstrip()), len(text.strip())
        spans = iter([(_within(a - start, length), _within(b - start, length)) for a, b in decoded["offsets"]])
        end, offsets = 0, []
        for token in ids:
            begin, end = (end, end) if token == UNK else next(spans)
            offsets.append((begin, end))
        return text.strip(), offsets

    def _split_tag(self, text: str) -> tuple[str, str]:
        """Return a language tag at the start of a text, "" if there is none, and the rest."""
        end = text.find("<<") if self._has_tags and text.startswith(">>") else -1
        return ("", text) if end < 0 else (text[: end + 2], text[end + 2 :])


class SentinelPieces(ListedPieces):
    """The pieces of T5: sentinels such as `<extra_id_0>` in a text are single tokens, and the text ends before them.

    Sentinels, unused ids and UNK are decoded to nothing, as `transformers` does.
    """

    encode, decode = NamedPieces.encode, NamedPieces.decode  # by the methods with spans

    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        ids: list[int] = []
        spans: Spans = []
        for start, part, is_sentinel in sentinel_parts(text, self._ids):
            if is_sentinel:
                ids.append(self._ids[part])
                spans.append((start, start + len(part)))
            else:
                tokens, offsets = super().encode_with_spans(part)
                ids += tokens
                spans += [(begin + start, end + start) for begin, end in offsets]
        return ids, spans

    def sample(self, text: str, rate: float, rng: random.Random) -> list[int]:
        drawn: list[int] = []
        for _, part, is_sentinel in sentinel_parts(text, self._ids):
            drawn += [self._ids[part]] if is_sentinel else super().sample(part, rate, rng)
        return drawn

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, Spans]:
        parts = []
        is_first = True
        for token in ids:
            piece = self._names[token] if token in self._written else ""
            parts.append(piece.replace(SPACE, "" if is_first else " "))
            is_first = is_first and not piece
        return "".join(parts), joined_spans(parts)

    @cached_property
    def _written(self) -> set[int]:
        """Ids of pieces that sentencepiece has, as text."""
        segmenter = self._segmenter
        known = {segmenter.piece(token) for token in range(segmenter.size) if not segmenter.is_control(token)}
        return {token for token, piece in enumerate(self._names) if token > EOS and piece in known}


def _within(position: int, length: int) -> int:
    return min(max(position, 0), length)
