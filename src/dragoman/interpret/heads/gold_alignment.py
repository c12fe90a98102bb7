"""Word alignments: gold alignments, links from attention weights, and their agreement.

    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)                                                  (Och and Ney 2003)

A are the predicted links, S the sure gold links, P the possible gold links, which include the sure ones.  Attention
links each target word to the source word with the largest weight, after summing the weights over the pieces of a source
word and averaging them over the pieces of a target word.

Letters: H heads, T target pieces, S source pieces, n target units, m source units.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.data.spelled_numbers import (
    ENGLISH_MONTHS,
    ENGLISH_WEEKDAYS,
    GERMAN_MONTHS,
    GERMAN_WEEKDAYS,
    cardinal_pair,
    ordinal_pair,
)
from dragoman.errors import DataError, UsageError, clip
from dragoman.io.lines import read_lines

Link = tuple[int, int]
"""Index of a source unit and of a target unit."""

_END = 1 << 30
_MAX_PROBLEMS = 5
_SPECIAL = ("<s>", "</s>", "<pad>")


class Unit(NamedTuple):
    """A word of a text, or its characters from `begin` to `end` (exclusive)."""

    word: int
    begin: int = 0
    end: int = _END


@dataclass(frozen=True)
class GoldAlignment:
    """The gold alignment of a sentence pair; pieces outside all units are ignored.  possible: includes `sure`."""

    source: tuple[Unit, ...]
    target: tuple[Unit, ...]
    sure: frozenset[Link]
    possible: frozenset[Link]


def read_alignment(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[GoldAlignment]:
    """Read a file in Pharaoh format, one sentence pair per line: `0-0 1-2 2?1`.

    A link joins a source word and a target word, counted from 0 and separated by spaces in the text; `-` is sure, `?`
    or `p` possible.  Raises DataError that lists the first problems: another number of lines, malformed links, indices
    out of range.
    """
    lines = list(read_lines(path))
    if not len(lines) == len(sources) == len(targets):
        raise DataError(
            f"{path} has {len(lines):,} lines, the source {len(sources):,} and the target {len(targets):,}; give files "
            "whose lines correspond"
        )
    golds, problems = [], []
    for number, (text, source, target) in enumerate(zip(lines, sources, targets, strict=True), start=1):
        m, n = len(source.split()), len(target.split())
        links: dict[str, set[Link]] = {"-": set(), "?": set(), "p": set()}
        for token in text.split():
            match = re.fullmatch(r"(\d+)([-?p])(\d+)", token)
            if match is None:
                problems.append(f'{path}, line {number:,}: invalid link "{clip(token, 40)}"')
                continue
            link = int(match[1]), int(match[3])
            if link[0] >= m or link[1] >= n:
                problems.append(f"{path}, line {number:,}: {token}: the source has {m} words and the target {n}")
            links[match[2]].add(link)
        sure, possible = frozenset(links["-"]), frozenset(links["-"] | links["?"] | links["p"])
        golds.append(GoldAlignment(tuple(map(Unit, range(m))), tuple(map(Unit, range(n))), sure, possible))
    if problems:
        more = ["..."] if len(problems) > _MAX_PROBLEMS else []
        accepted = "accepted: links such as 0-0 (sure) or 1?2 (possible), source word and target word from 0"
        raise DataError("\n".join([*problems[:_MAX_PROBLEMS], *more, accepted]))
    return golds


def alignment_error_rate(predicted: Iterable[Collection[Link]], golds: Iterable[GoldAlignment]) -> float:
    """Return the AER of predicted links over a corpus, from 0 (perfect) to 1.

    Raises UsageError if there is no predicted and no sure link, or if the numbers of sentences differ.
    """
    hits = total = 0
    try:
        for links, gold in zip(predicted, golds, strict=True):
            a = set(links)
            hits += len(a & gold.sure) + len(a & gold.possible)
            total += len(a) + len(gold.sure)
    except ValueError:
        raise UsageError("the numbers of sentences differ; give predicted and gold links of the same ones") from None
    if not total:
        raise UsageError("no predicted and no sure links to compare; give at least one")
    return 1 - hits / total


# ------------------------------------------------------------------------------------------------ from pieces to units


def _spans(pieces: Iterable[str]) -> Iterator[Unit]:
    """Yield the word and the characters of each piece; in sentencepiece, "▁" stands for a space."""
    word, begin, ended = -1, 0, True
    for piece in pieces:
        if piece in _SPECIAL:
            yield Unit(-1)
            continue
        letters = piece.replace("▁", "")
        if word < 0 or (piece.startswith("▁") and not ended):
            word, begin, ended = word + 1, 0, True
        yield Unit(word, begin, begin + len(letters))
        begin, ended = begin + len(letters), ended and not letters


def word_count(pieces: Sequence[str]) -> int:
    """Return the number of words that the pieces form; unlike that of the text if the tokenizer normalizes spaces."""
    return len({span.word for span in _spans(pieces) if span.end > span.begin and span.word >= 0})


def unit_of_piece(pieces: Sequence[str], units: Sequence[Unit]) -> list[int]:
    """Return per piece the unit with which it shares the most characters, -1 if there is none."""
    of_word = defaultdict(list)
    for number, unit in enumerate(units):
        of_word[unit.word].append((number, unit))
    found = []
    for span in _spans(pieces):
        shared = [(min(span.end, u.end) - max(span.begin, u.begin), -number) for number, u in of_word[span.word]]
        most, number = max(shared, default=(-1, 1))
        found.append(-number if most > 0 or (most == 0 and span.begin == span.end) else -1)
    return found


def join_pieces(weights: Tensor, rows: Sequence[int], columns: Sequence[int], n: int, m: int) -> Tensor:
    """Convert weights (..., T, S) of pieces to units (..., n, m): sums over source pieces, means over target pieces.

    rows, columns: the unit of each piece, -1 for none.  A unit without pieces has zeros.
    """
    # (units, pieces): 1 where the piece belongs to the unit
    of_rows, of_columns = (
        (torch.arange(count)[:, None] == torch.tensor(units, dtype=torch.long)).to(weights)
        for units, count in ((rows, n), (columns, m))
    )
    return of_rows / of_rows.sum(-1, keepdim=True).clamp_min(1) @ weights @ of_columns.T


class Agreement:
    """Counts over sentences that give the AER of the strongest links of H heads."""

    def __init__(self) -> None:
        self.hits: Tensor | None = None
        self.total = 0

    def add(self, weights: Tensor, target: Sequence[str], source: Sequence[str], gold: GoldAlignment) -> None:
        """Add a sentence pair.  weights: (H, T, S); target, source: the pieces of its rows and columns."""
        rows, columns = unit_of_piece(target, gold.target), unit_of_piece(source, gold.source)
        targets, sources = sorted({*rows} - {-1}), {*columns} - {-1}
        if not targets or not sources:
            return
        n, m = len(gold.target), len(gold.source)
        links = torch.arange(n), join_pieces(weights, rows, columns, n, m).argmax(-1).cpu()  # (n,), (H, n)
        sure = {link for link in gold.sure if link[0] in sources and link[1] in targets}
        hits = _link_matrix(sure, n, m)[links].int() + _link_matrix(gold.possible, n, m)[links]
        self.hits = hits[:, targets].sum(-1) + (0 if self.hits is None else self.hits)
        self.total += len(targets) + len(sure)

    @property
    def error_rates(self) -> list[float] | None:
        """The AER of each head; None if no sentence had links."""
        return None if self.hits is None else (1 - self.hits / self.total).tolist()


def _link_matrix(links: Collection[Link], n: int, m: int) -> Tensor:
    """Return (n, m), True where there is a link."""
    matrix = torch.zeros(n, m, dtype=torch.bool)
    for source, target in links:
        matrix[target, source] = True
    return matrix


# ------------------------------------------------------------------------------------------------- the built-in corpus


_BASE_NUMBERS = (*range(21), *range(30, 100, 10), 100, 1000)
_ENGLISH = {
    text.split()[-1]: number
    for number in _BASE_NUMBERS
    for text, _ in [cardinal_pair(number), *([ordinal_pair(number)] if number else [])]
}
"""The last word of "twelve", "the twelfth", "one hundred" -> the number."""
_GERMAN_WORDS = """
    null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn
    achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend
"""
_GERMAN = dict(zip(_GERMAN_WORDS.split(), _BASE_NUMBERS, strict=True), erste=1, dritte=3, siebte=7)
_NAMES = {
    name: -number
    for names in ((*ENGLISH_MONTHS, *ENGLISH_WEEKDAYS, "year"), (*GERMAN_MONTHS, *GERMAN_WEEKDAYS, "Jahr"))
    for number, name in enumerate(names, start=1)
}
_GERMAN_PART = re.compile("|".join(sorted(_GERMAN, key=len, reverse=True)))
_GERMAN_ENDING = re.compile(r"(?:s|(?:s?t)?e)?n?$")


def spelled_numbers_alignment(english: str, german: str) -> GoldAlignment:
    """Return the alignment of a pair of the built-in corpus, derived from its construction; all links are sure.

    Units are the parts with the same meaning on both sides: numbers (`vier|und|zwanzig`: 4 and 20), months, weekdays.
    Words without a counterpart (`und`, articles) belong to no unit.  Texts outside of the corpus have no links.
    """
    parts = [list(_english_parts(english)), list(_german_parts(german))]
    counts = [Counter(meaning for meaning, _ in side) for side in parts]
    units: list[dict[tuple[int, int], Unit]] = [{}, {}]
    for side, found in zip(parts, units, strict=True):
        seen: Counter[int] = Counter()
        for meaning, unit in side:
            if counts[0][meaning] == counts[1][meaning]:
                found[meaning, seen[meaning]] = unit  # the k-th 4 of one side corresponds to the k-th 4 of the other
                seen[meaning] += 1
    keys = list(units[0])
    links = frozenset((i, i) for i in range(len(keys)))
    return GoldAlignment(tuple(units[0][k] for k in keys), tuple(units[1][k] for k in keys), links, links)


def _english_parts(text: str) -> Iterator[tuple[int, Unit]]:
    for number, word in enumerate(text.split()):
        for match in re.finditer(r"[A-Za-z]+", word):
            if (meaning := _NAMES.get(match[0], _ENGLISH.get(match[0]))) is not None:
                yield meaning, Unit(number, match.start(), match.end())


def _german_parts(text: str) -> Iterator[tuple[int, Unit]]:
    for number, token in enumerate(text.split()):
        word = token.rstrip(",")
        if word in _NAMES:
            yield _NAMES[word], Unit(number, 0, len(word))
            continue
        parts, begin = [], 0
        while match := _GERMAN_PART.match(word, begin):
            end = len(word) if _GERMAN_ENDING.fullmatch(word, match.end()) else match.end()
            parts.append((_GERMAN[match[0]], Unit(number, begin, end)))
            begin = end + 3 if word.startswith("und", end) else end
        if begin == len(word):  # all of it is a number
            yield from parts
