"""Word alignment: read a given one, make one of attention, and say how far they agree.

    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)                                                  (Och and Ney 2003)

A are the links that were found, S the given links that are sure, P those that are possible, the sure ones among them.
Attention links each word of the target to the word of the source that it looks at most.  Words come in pieces: the
weights on the pieces of a source word are added, those of the pieces of a target word averaged.

Letters: H heads, T target pieces, S source pieces, n units of the target, m units of the source.
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

from dragoman.data.spelled_numbers import ENGLISH_MONTHS, ENGLISH_WEEKDAYS, GERMAN_MONTHS, GERMAN_WEEKDAYS
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import clip, read_lines

__all__ = [
    "Agreement",
    "Gold",
    "Link",
    "Unit",
    "alignment_error_rate",
    "join_pieces",
    "read_alignment",
    "spelled_numbers_alignment",
    "unit_of_piece",
    "word_count",
]

Link = tuple[int, int]
"""A unit of the source and one of the target, by their numbers from 0."""

_END = 1 << 30
_MOST_PROBLEMS = 5
_SPECIAL = ("<s>", "</s>", "<pad>")


class Unit(NamedTuple):
    """A word of a text, or the part of it from character `begin` to `end` (not included)."""

    word: int
    begin: int = 0
    end: int = _END


@dataclass(frozen=True)
class Gold:
    """The given alignment of a sentence pair.  Attention at pieces that belong to no unit does not count."""

    source: tuple[Unit, ...]
    target: tuple[Unit, ...]
    sure: frozenset[Link]
    possible: frozenset[Link]
    """The sure ones among them."""


# -------------------------------------------------------------------------------------------------------- given links


def read_alignment(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[Gold]:
    """The alignment of each pair from a file in Pharaoh's format, one pair a line: `0-0 1-2 2?1`.

    A link is a word of the source and one of the target, from 0, words being what spaces part; `-` is sure, `?` or `p`
    possible.  Raises DataError, with the first problems at once, for another number of lines, what is no link, and
    words that there are not.
    """
    lines = list(read_lines(path))
    if not len(lines) == len(sources) == len(targets):
        raise DataError(
            f"{path} has {len(lines):,} lines, the source {len(sources):,} and the target {len(targets):,}: line n of "
            "one belongs to line n of the others; give the files that the alignment was made for"
        )
    golds, problems = [], []
    for number, row in enumerate(zip(lines, sources, targets, strict=True), start=1):
        text, source, target = row[0], row[1].split(), row[2].split()
        sure, possible, wrong = _links(text, len(source), len(target))
        problems += [f"{path}, line {number:,}: {problem}" for problem in wrong]
        golds.append(Gold(_words(source), _words(target), sure, sure | possible))
    if problems:
        more = ["..."] if len(problems) > _MOST_PROBLEMS else []
        accepted = "accepted: links such as 0-0 (sure) or 1?2 (possible), source word and target word from 0"
        raise DataError("\n".join([*problems[:_MOST_PROBLEMS], *more, accepted]))
    return golds


def _words(words: Sequence[str]) -> tuple[Unit, ...]:
    return tuple(Unit(number) for number in range(len(words)))


def _links(text: str, m: int, n: int) -> tuple[frozenset[Link], frozenset[Link], list[str]]:
    """Sure and possible links of a line for m source and n target words, and what is wrong with it."""
    found: dict[str, set[Link]] = {"-": set(), "?": set()}
    wrong = []
    for token in text.split():
        match = re.fullmatch(r"(\d+)([-?p])(\d+)", token)
        if match is None:
            wrong.append(f'"{clip(token, 40)}" is no link')
            continue
        link = int(match[1]), int(match[3])
        if link[0] >= m or link[1] >= n:
            wrong.append(f"{token}: the source has {m} words here and the target {n}")
        found["-" if match[2] == "-" else "?"].add(link)
    return frozenset(found["-"]), frozenset(found["?"]), wrong


def alignment_error_rate(found: Iterable[Collection[Link]], golds: Iterable[Gold]) -> float:
    """AER of links found against those given, over a whole corpus; 0 is perfect.

    Raises UsageError where there is neither a found nor a sure link, or the numbers of sentences differ.
    """
    hits = total = 0
    try:
        for links, gold in zip(found, golds, strict=True):
            a = set(links)
            hits += len(a & gold.sure) + len(a & gold.possible)
            total += len(a) + len(gold.sure)
    except ValueError:
        raise UsageError("the numbers of sentences found and given differ: give the links of the same ones") from None
    if not total:
        raise UsageError("no link was found and none given: there is nothing to compare")
    return 1 - hits / total


# ------------------------------------------------------------------------------------------------ from pieces to units


def _places(pieces: Iterable[str]) -> Iterator[Unit]:
    """Where each piece lies: its word, and from which character of it to which.

    sentencepiece writes a space as "▁", so that it marks where words begin.
    """
    word, place, ended = -1, 0, True
    for piece in pieces:
        if piece in _SPECIAL:
            yield Unit(-1)
            continue
        letters = piece.replace("▁", "")
        if word < 0 or (piece.startswith("▁") and not ended):
            word, place, ended = word + 1, 0, True
        yield Unit(word, place, place + len(letters))
        place, ended = place + len(letters), ended and not letters


def word_count(pieces: Sequence[str]) -> int:
    """How many words the pieces make: as many as spaces part in the text, unless it was changed to be cut up."""
    return len({place.word for place in _places(pieces) if place.end > place.begin and place.word >= 0})


def unit_of_piece(pieces: Sequence[str], units: Sequence[Unit]) -> list[int]:
    """For each piece the unit that it shares the most characters with, or -1 (ends of sentence, what is in none)."""
    of_word = defaultdict(list)
    for number, unit in enumerate(units):
        of_word[unit.word].append((number, unit))
    found = []
    for place in _places(pieces):
        shared = [(min(place.end, u.end) - max(place.begin, u.begin), -number) for number, u in of_word[place.word]]
        most, number = max(shared, default=(-1, 1))
        found.append(-number if most > 0 or (most == 0 and place.begin == place.end) else -1)
    return found


def join_pieces(weights: Tensor, rows: Sequence[int], columns: Sequence[int], n: int, m: int) -> Tensor:
    """weights (..., T, S) of pieces -> (..., n, m) of units: the mean over target pieces of the sum over source pieces.

    rows, columns: the unit of each piece, -1 for none.  A unit without pieces has zeros.
    """
    of_rows = _membership(rows, n).to(weights)
    of_rows = of_rows / of_rows.sum(-1, keepdim=True).clamp_min(1)
    return of_rows @ weights @ _membership(columns, m).to(weights).T


def _membership(units: Sequence[int], count: int) -> Tensor:
    """(count, pieces) 1 where the piece belongs to the unit."""
    return torch.arange(count)[:, None] == torch.tensor(units, dtype=torch.long)


class Agreement:
    """Sums over sentences of how far the strongest links of H heads agree with the given ones."""

    def __init__(self) -> None:
        self.hits: Tensor | None = None
        self.total = 0

    def add(self, weights: Tensor, target: Sequence[str], source: Sequence[str], gold: Gold) -> None:
        """weights (H, T, S) at target pieces (rows) and source pieces (columns) of one sentence pair."""
        rows, columns = unit_of_piece(target, gold.target), unit_of_piece(source, gold.source)
        there, here = sorted({*rows} - {-1}), {*columns}
        if not there or here <= {-1}:
            return
        n, m = len(gold.target), len(gold.source)
        chosen = join_pieces(weights, rows, columns, n, m).argmax(-1).cpu()  # (H, n)
        sure = {link for link in gold.sure if link[0] in here and link[1] in there}
        hits = _table(sure, n, m)[torch.arange(n), chosen].int() + _table(gold.possible, n, m)[torch.arange(n), chosen]
        self.hits = hits[:, there].sum(-1) + (0 if self.hits is None else self.hits)
        self.total += len(there) + len(sure)

    @property
    def error_rates(self) -> list[float] | None:
        """AER of each head; None where no sentence had links."""
        return None if self.hits is None else (1 - self.hits / self.total).tolist()


def _table(links: Collection[Link], n: int, m: int) -> Tensor:
    """(n, m) True where there is a link."""
    table = torch.zeros(n, m, dtype=torch.bool)
    for source, target in links:
        table[target, source] = True
    return table


# ------------------------------------------------------------------------------------------------- the built-in corpus


def _numbered(words: str, first: int = 0, step: int = 1) -> dict[str, int]:
    return {word: first + step * i for i, word in enumerate(words.split())}


_ENGLISH = (
    _numbered("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
              " sixteen seventeen eighteen nineteen")
    | _numbered("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10)
    | {"hundred": 100, "thousand": 1000}
)  # fmt: skip
_ENGLISH_ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
_GERMAN = (
    _numbered("null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn"
              " sechzehn siebzehn achtzehn neunzehn")
    | _numbered("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig", 20, 10)
    | {"hundert": 100, "tausend": 1000, "erste": 1, "dritte": 3, "siebte": 7}
)  # fmt: skip
_NAMES = {
    name: -number
    for names in ((*ENGLISH_MONTHS, *ENGLISH_WEEKDAYS, "year"), (*GERMAN_MONTHS, *GERMAN_WEEKDAYS, "Jahr"))
    for number, name in enumerate(names, start=1)
}
_GERMAN_PART = re.compile("|".join(sorted(_GERMAN, key=len, reverse=True)))
_GERMAN_ENDING = re.compile(r"(?:s|(?:s?t)?e)?n?$")


def spelled_numbers_alignment(english: str, german: str) -> Gold:
    """The alignment of a pair of the built-in corpus, which follows from how it was made.

    The units are the parts that mean the same on both sides, numbers (`vier|und|zwanzig`: 4 and 20), months, weekdays;
    what has no partner (`und`, articles) is no unit.  All links are sure.  Of other texts nothing is linked.
    """
    parts = [list(_english_parts(english)), list(_german_parts(german))]
    counts = [Counter(meaning for meaning, _ in some) for some in parts]
    places: list[dict[tuple[int, int], Unit]] = [{}, {}]
    for some, own in zip(parts, places, strict=True):
        seen: Counter[int] = Counter()
        for meaning, unit in some:
            if counts[0][meaning] == counts[1][meaning]:
                own[meaning, seen[meaning]] = unit  # the second 4 of one side is the second 4 of the other
                seen[meaning] += 1
    keys = list(places[0])
    links = frozenset((i, i) for i in range(len(keys)))
    return Gold(tuple(places[0][k] for k in keys), tuple(places[1][k] for k in keys), links, links)


def _english_parts(text: str) -> Iterator[tuple[int, Unit]]:
    for number, word in enumerate(text.split()):
        for match in re.finditer(r"[A-Za-z]+", word):
            found = match[0]
            tens = found.removesuffix("ieth") + "y" if found.endswith("ieth") else found
            for name in (found, tens, found.removesuffix("th")):
                meaning = _NAMES.get(name, _ENGLISH.get(name, _ENGLISH_ORDINALS.get(name)))
                if meaning is not None:
                    yield meaning, Unit(number, match.start(), match.end())
                    break


def _german_parts(text: str) -> Iterator[tuple[int, Unit]]:
    for number, word in enumerate(text.split()):
        whole = word.rstrip(",")
        if whole in _NAMES:
            yield _NAMES[whole], Unit(number, 0, len(whole))
            continue
        parts, place = [], 0
        while match := _GERMAN_PART.match(whole, place):
            end = len(whole) if _GERMAN_ENDING.fullmatch(whole, match.end()) else match.end()
            parts.append((_GERMAN[match[0]], Unit(number, place, end)))
            place = end + 3 if whole.startswith("und", end) else end
        if place == len(whole):  # read to the end, so that it is a number
            yield from parts
