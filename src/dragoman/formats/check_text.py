"""The text on which two programs are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dragoman.data.corpus import CorpusSpec, read_pairs
from dragoman.io.lines import read_lines

_LINES = 200


@dataclass(frozen=True)
class CheckText:
    """source: file with one text per line.  reference: file with its translations, for BLEU."""

    source: Path
    reference: Path | None = None

    def __str__(self) -> str:
        return str(self.source)

    def first_lines(self) -> list[str]:
        """Return the first 200 lines of the source."""
        return list(islice(read_lines(self.source), _LINES))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each line with its translation, or with an empty text.  Raises DataError if the files do not align."""
        if self.reference is None:
            yield from ((line, "") for line in read_lines(self.source))
        else:
            yield from [(pair.source, pair.target) for pair in read_pairs(CorpusSpec(self.source, self.reference))]


def check_text(check: str | Path | None, reference: str | Path | None) -> CheckText | None:
    """Return the text of the options `--check` and `--reference`, None without it."""
    return None if check is None else CheckText(Path(check), None if reference is None else Path(reference))


def check_text_problems(check: str | Path | None, reference: str | Path | None) -> list[str]:
    """Return what is wrong with the options."""
    files = {"check": check, "reference": reference}
    problems = [f"--{name} {path}: no such file" for name, path in files.items() if path and not Path(path).is_file()]
    if reference is not None and check is None:
        problems.append(f"--reference {reference}: the translations of --check FILE, which is missing")
    return problems
