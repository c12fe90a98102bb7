"""Translators for tests of documents, whose translations and alignments can be computed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.search_types import Hypothesis
from dragoman.pipelines.lines import Translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS

TOKEN = re.compile(r"%(?:\(\w+\)|\d\$)?[ds]|\{\w+\}|\s+|\w+|[^\w\s]")
"""Placeholders, spaces, words and other characters."""


class Pieces:
    """A tokenizer whose tokens are the pieces of a text, spaces included."""

    def __init__(self) -> None:
        self.pieces = ["<pad>", "<unk>", "<s>", "</s>"]

    def number(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)

    def encode_source(self, text: str) -> list[int]:
        return [*map(self.number, TOKEN.findall(text)), EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids if i > EOS)

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        return [found.span() for found in TOKEN.finditer(text)]

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        ends = np.cumsum([len(self.pieces[i]) for i in ids if i > EOS]).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []

    def source_piece(self, token: int) -> str:
        return self.pieces[token]

    def target_ids(self, pieces: Sequence[str]) -> list[int]:
        return [self.pieces.index(piece) for piece in pieces]

    encode_target, target_piece = encode_source, source_piece


class PieceBackend(DecodingBackend):
    """Applies a function to the pieces of a text; each piece of the result is aligned with the one at its index."""

    device, description = "cpu", "pieces"

    def __init__(self, tokenizer: Pieces, function: Callable[[list[str]], list[str]]) -> None:
        self.tokenizer, self.function = tokenizer, function

    def search(self, sources: Any, prefixes: Any, settings: Any, batch_tokens: int) -> list[list[Hypothesis]]:
        found = []
        for source in sources:
            pieces = self.function([self.tokenizer.pieces[i] for i in source[:-1]])
            ids = [self.tokenizer.number(piece) for piece in pieces]
            found.append([Hypothesis(ids, -1.0, -1.0, [-0.1] * (len(ids) + 1), False)])
        return found

    def align(self, pairs: Any, batch_tokens: int) -> Any:
        found = []
        for source, target in pairs:
            weights = np.full((len(target), len(source)), 0.01, np.float32)
            for row in range(len(target)):
                weights[row, min(row, len(source) - 1)] = 1
            found.append(weights / weights.sum(1, keepdims=True))
        return found

    def score(self, pairs: Any, batch_tokens: int) -> Any:
        raise NotImplementedError

    stepper = to_torch = score  # type: ignore[assignment]


class PieceTranslator(Translator):
    """calls: the texts of each call of `translate`.  settings: those of the last call."""

    def __init__(self, function: Callable[[list[str]], list[str]]) -> None:
        tokenizer = Pieces()
        super().__init__(PieceBackend(tokenizer, function), tokenizer, max_source=10_000)  # type: ignore[arg-type]
        self.describe_data(None, ("en", "de"))
        self.calls: list[list[str]] = []
        self.given: dict[str, Any] = {}

    def translate(self, texts: Iterable[str], **settings: Any) -> list[Translation]:  # type: ignore[override]
        texts = list(texts)
        self.calls.append(texts)
        self.given = settings
        return super().translate(texts, **settings)

    @property
    def texts(self) -> list[str]:
        return [text for call in self.calls for text in call]


def upper() -> PieceTranslator:
    """Upper case; placeholders are kept."""
    return PieceTranslator(lambda pieces: [piece.upper() if piece[0] not in "%{" else piece for piece in pieces])


def says(text: str) -> PieceTranslator:
    """Translates everything to the same text."""
    return PieceTranslator(lambda pieces: TOKEN.findall(text))


NASTY = ["«", " ", "&", " ", "<", "more", ">", " ", '"', "5", " ", "*", " ", "3", '"', ";", "[", "x", "]", "\\", "'"]


def longer() -> PieceTranslator:
    """Upper case, in reversed order, with characters that formats have to escape."""
    return PieceTranslator(lambda pieces: [*(piece.upper() for piece in reversed(pieces)), " ", *NASTY])


def translated(format: str, data: bytes | str, translator: Translator | None = None, **options: Any) -> bytes:
    """The content of a document after its translation, to upper case by default."""
    from dragoman.documents import translate_bytes

    data = data.encode() if isinstance(data, str) else data
    return translate_bytes(translator or upper(), data, format, **options)[0]
