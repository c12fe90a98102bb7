"""Result of an examination: plain records, exported as JSON or printed as a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dragoman.cli.console import plain_table, print_table

Severity = Literal["error", "warning", "info"]
Role = Literal["train", "valid", "test"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

_MAX_SHOWN = 5
_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "info": ("·", "cyan")}


@dataclass(frozen=True)
class Finding:
    """A problem or observation: what, where, and what to do about it."""

    severity: Severity
    what: str
    where: str
    advice: str


@dataclass
class LineNumbers:
    """Number of lines with some property, and the first of their line numbers (from 1)."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < _MAX_SHOWN:
            self.lines.append(line)

    def __str__(self) -> str:
        shown = ", ".join(f"{line:,}" for line in self.lines)
        return f"line{'s' if self.count > 1 else ''} {shown}{', ...' if self.count > len(self.lines) else ''}"


@dataclass(frozen=True)
class LengthSummary:
    """Median, 95th percentile and maximum."""

    median: float
    p95: float
    maximum: int


@dataclass
class SideReport:
    """One side of a corpus; lengths are None without text, `tokens` without a tokenizer."""

    name: str
    language: str | None
    lines: int = 0
    characters: LengthSummary | None = None
    words: LengthSummary | None = None
    tokens: LengthSummary | None = None
    unknown_rate: float | None = None
    traps: dict[str, LineNumbers] = field(default_factory=dict)
    empty: LineNumbers = field(default_factory=LineNumbers)
    wrong_language: LineNumbers = field(default_factory=LineNumbers)
    unseen_characters: str = ""


@dataclass
class CorpusReport:
    """One corpus; `pairs` counts the examined ones, fewer than the lines if the corpus is misaligned."""

    role: Role
    name: str
    source: SideReport
    target: SideReport
    pairs: int = 0
    duplicates: LineNumbers = field(default_factory=LineNumbers)
    other_targets: LineNumbers = field(default_factory=LineNumbers)
    identical: LineNumbers = field(default_factory=LineNumbers)
    ratio_outliers: LineNumbers = field(default_factory=LineNumbers)
    bad_rows: LineNumbers = field(default_factory=LineNumbers)
    first_bad_row: str = ""


@dataclass
class SplitOverlap:
    """Pairs and sources of a held-out corpus that occur in the training corpora, ignoring case and spacing."""

    name: str
    pairs: int = 0
    seen_pairs: LineNumbers = field(default_factory=LineNumbers)
    seen_sources: LineNumbers = field(default_factory=LineNumbers)


@dataclass
class Diagnosis:
    """All reports and findings; `account` contains the filter statistics of the training corpora."""

    corpora: list[CorpusReport] = field(default_factory=list)
    overlaps: list[SplitOverlap] = field(default_factory=list)
    account: str = ""
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, what: str, where: str, advice: str) -> None:
        self.findings.append(Finding(severity, what, where, advice))

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def healthy(self) -> bool:
        return self.count("error") == 0

    def to_json(self) -> dict[str, Any]:
        """Return all records as plain dictionaries, lists, strings and numbers."""
        return {"healthy": self.healthy, **asdict(self)}


def _lengths(summary: LengthSummary | None) -> str:
    return f"{summary.median:,.0f} / {summary.p95:,.0f} / {summary.maximum:,}" if summary else "–"


def _corpus_table(diagnosis: Diagnosis) -> Table:
    tokenized = any(side.tokens for c in diagnosis.corpora for side in (c.source, c.target))
    table = plain_table(
        "use", "side", "lines", "characters", "words", *(["tokens"] if tokenized else ()), left=("side",)
    )
    for corpus in diagnosis.corpora:
        for side, name in ((corpus.source, "source"), (corpus.target, "target")):
            lengths = [_lengths(side.characters), _lengths(side.words), *([_lengths(side.tokens)] if tokenized else ())]
            use = corpus.role if side is corpus.source else ""
            table.add_row(Text(use, "bold"), Text(side.language or name), f"{side.lines:,}", *lengths)
    return table


def _pair_table(diagnosis: Diagnosis) -> Table:
    overlaps = {overlap.name: overlap for overlap in diagnosis.overlaps}
    heads = ("examined", "duplicate", "other\ntargets", "identical", "unusual\nlengths", "seen in\ntraining")
    table = plain_table("use", *heads)
    for corpus in diagnosis.corpora:
        seen = overlaps.get(corpus.name) if corpus.role != "train" else None
        lines = (corpus.duplicates, corpus.other_targets, corpus.identical, corpus.ratio_outliers)
        counts = [f"{found.count:,}" for found in lines]
        last = f"{seen.seen_pairs.count:,}" if seen else "–"
        table.add_row(Text(corpus.role, "bold"), f"{corpus.pairs:,}", *counts, last)
    return table


def _finding(finding: Finding) -> Group:
    mark, style = _MARKS[finding.severity]
    return Group(
        Text.assemble((f"{mark} {finding.severity}  ", style), (finding.what, "bold")),
        Padding(Text(finding.where, style="dim"), (0, 0, 0, 2), expand=False),
        Padding(Text(f"→ {finding.advice}"), (0, 0, 1, 2), expand=False),
    )


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the tables and all findings, errors first."""
    if diagnosis.corpora:
        console.print("[bold]Corpora[/bold]")
        for corpus in diagnosis.corpora:
            console.print(Text(f"{corpus.role}: {corpus.name}", style="dim"), soft_wrap=True)
        print_table(console, _corpus_table(diagnosis))
        console.print("[bold]Pairs[/bold]")
        print_table(console, _pair_table(diagnosis))
        console.print(Text("Lengths: median / 95th percentile / maximum.", style="dim"))
    if diagnosis.account:
        title = "Filtered training pairs: " if diagnosis.corpora else "Training data: "
        console.print(Text.assemble((title, "bold"), diagnosis.account))
    console.print()
    for finding in sorted(diagnosis.findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        console.print(_finding(finding))
    errors, warnings = diagnosis.count("error"), diagnosis.count("warning")
    counts = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    verdict = "Not ready" if errors else "Ready"
    style = "bold red" if errors else "bold yellow" if warnings else "bold green"
    console.print(Text(f"{verdict} for training: {counts}.", style=style))
