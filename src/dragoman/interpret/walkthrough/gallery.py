"""A page of worked examples from texts on the Transformer, each number beside the result of this package.

The examples are data:

    gallery.toml          the printed numbers, and the matrices from which the computed ones follow
    gallery_step.toml     the longest example, one training step on "I am" -> "我 是"
    gallery_numbers.toml  the computed numbers

The source of the training step lacks its inputs, some matrices and most parameters of its norms.  Those in
`gallery.toml` were reconstructed from the printed numbers and reproduce all that depend on them, backwards as well as
forwards; the first feed-forward network is one of several that do.  The walkthrough of a whole model with these
matrices follows with every number of the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from dragoman.interpret.walkthrough.build import compact
from dragoman.interpret.walkthrough.steps import Text, read_data
from dragoman.interpret.walkthrough.tiny_preset import WORKED_MATRICES, tiny_walkthrough
from dragoman.pages.page import render, write_page

Verdict = Literal["equal", "explained", "given"]
"""A printed number is the computed one within its last decimal, differs for the reason in the note, or is an input."""


@dataclass
class WorkedExample:
    """A computed matrix and the numbers that a source prints for it.

    printed: rows as in `computed`, None (in the data nan) for a number that is not printed; None if nothing is.
    mistake: whether the numbers rest on a mistake of the source, which the note names, even if they agree.
    given: whether the source states all numbers without a calculation that could be repeated, or the (row, column) of
    those that it does.  computed: None if all are given.  verdicts: one per printed number.  as_printed: the numbers in
    the notation of the source.  difference: the largest difference between a printed number and the computed one,
    except those of the verdict "explained".
    """

    title: Text
    formula: str
    computed: list[list[float]] | None = None
    printed: list[list[float | None]] | None = None
    note: Text | None = None
    given: bool | list[list[int]] = False
    mistake: bool = False
    verdicts: list[list[Verdict | None]] | None = field(default=None, init=False)
    as_printed: list[list[str]] | None = field(default=None, init=False)
    difference: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.printed is None:
            return
        source: list[list[Any]] = self.printed
        computed: list[list[Any]] = source if self.computed is None else self.computed
        self.verdicts, differences = [], []
        for i, rows in enumerate(zip(source, computed, strict=True)):
            self.verdicts.append([])
            for j, (number, ours) in enumerate(zip(*rows, strict=True)):
                difference = 0.0 if float(number) == ours else abs(float(number) - float(ours))
                verdict: Verdict | None = "equal" if difference <= _half_unit(number) + 1e-9 else "explained"
                if math.isnan(number):
                    verdict = None
                elif self.given is True or (self.given and [i, j] in self.given):
                    verdict = "given"
                self.verdicts[-1].append(verdict)
                differences += [difference] if verdict == "equal" else []
        self.difference = max(differences, default=None)
        self.as_printed = [[*map(_notation, row)] for row in source]
        self.printed = [[None if math.isnan(x) else float(x) for x in row] for row in source]


def _notation(printed: Decimal | int) -> str:
    """Return a number as its source writes it; "…" if it is not printed."""
    if math.isnan(printed):
        return "…"
    return ("−∞" if printed == -math.inf else str(printed)).replace("-", "−")


def _half_unit(printed: Decimal | int) -> float:
    """Return half a unit of the last printed decimal; whole numbers are taken as exact to three decimals."""
    exponent = printed.as_tuple().exponent if isinstance(printed, Decimal) else 0
    return 0.5 * 10.0**exponent if isinstance(exponent, int) and exponent < 0 else 5e-4


@dataclass(frozen=True)
class GalleryChapter:
    title: Text
    text: Text
    examples: list[WorkedExample]

    @property
    def counts(self) -> dict[str, int]:
        """Number of printed numbers by verdict."""
        counter = Counter(verdict for example in self.examples for row in example.verdicts or [] for verdict in row)
        return {verdict: counter[verdict] for verdict in ("equal", "explained", "given")}


def gallery() -> list[GalleryChapter]:
    """Return the worked examples."""
    computed = read_data("gallery_numbers.toml")
    chapters = []
    for name in ("gallery.toml", "gallery_step.toml"):
        for chapter in read_data(name, Decimal)["chapters"]:
            entries = [entry | {"computed": computed.get(entry.get("computed"))} for entry in chapter["examples"]]
            chapters.append(GalleryChapter(**{**chapter, "examples": [WorkedExample(**entry) for entry in entries]}))
    return chapters


def write_gallery(path: str | Path, language: str = "auto") -> Path:
    """Write the page, which opens in `language` (see `render`), to `path` atomically and return `path`.

    Raises DragomanError if it cannot be written.
    """
    chapters = [{**asdict(chapter), "counts": chapter.counts} for chapter in gallery()]
    data = {"chapters": _with_infinity(chapters), "walkthrough": compact(tiny_walkthrough(WORKED_MATRICES))}
    title = "Dragoman: numbers worked out by hand"
    page = render("gallery.html", language=language, title=title, data=data, gallery=True)
    return write_page(Path(path), page)


def write_walkthrough(
    path: str | Path,
    walkthrough: Mapping[str, Any],
    language: str = "auto",
    *,
    worked: bool = False,
    replaced: Sequence[str] = (),
    heads: int = 1,
) -> Path:
    """Write a page with the walkthrough of the tiny model (`tiny_walkthrough`); as `write_gallery`.

    worked: whether its matrices are `WORKED_MATRICES`.  replaced: names of those that are the user's.  The page names
    both, the heads and the learning rate.
    """
    title, data = "Dragoman: one training step", {"chapters": [], "walkthrough": compact(walkthrough)}
    settings = {"worked": worked, "replaced": [*replaced], "heads": heads}
    page = render("gallery.html", language=language, title=title, data=data, gallery=False, **settings)
    return write_page(Path(path), page)


def _with_infinity(data: Any) -> Any:
    """Return `data` with -inf, which JSON lacks, as a text."""
    if isinstance(data, dict):
        return {key: _with_infinity(value) for key, value in data.items()}
    if isinstance(data, list):
        return [*map(_with_infinity, data)]
    return "−∞" if data == -math.inf else data
