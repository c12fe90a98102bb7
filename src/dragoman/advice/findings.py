"""Derivation of findings, with severity and advice, from the counts in the reports."""

from __future__ import annotations

from dragoman.advice.diagnosis import CorpusReport, Diagnosis, LineNumbers, Severity, SideReport

_MANY = 0.1
_SWAPPED = 0.5
_SUSPICIOUS = 0.001
"""Share of lines from which suspected languages are a warning: ten times the most false alarms of a shared corpus.

Of 554,244 correct lines of five corpora in en, de, fr, cs and zh, 2 are suspected, both in one corpus (0.01 %).
"""

_TRAPS: dict[str, tuple[Severity, str]] = {
    "invalid UTF-8": (
        "error",
        "Convert the file to UTF-8 (for example with iconv -f WINDOWS-1252 -t UTF-8), or repair these lines.",
    ),
    "byte order mark inside": (
        "warning",
        "U+FEFF inside the text is meaningless and usually comes from concatenated files: delete it.",
    ),
    "line or paragraph separator": (
        "warning",
        'U+2028, U+2029 or U+0085 inside a line. Only "\\n" ends a line here, but tools that split at these characters '
        "lose the alignment: replace them with a space.",
    ),
    "control character": ("warning", "Control characters are not text: delete them, but keep the line."),
    "replacement character": (
        "warning",
        "U+FFFD shows that an earlier conversion lost characters: convert the original file again.",
    ),
    "byte order mark": ("info", "It is ignored when the file is read."),
    "CRLF": ("info", 'The "\\r" at the end of a line is ignored when the file is read.'),
    "no-break space": (
        "info",
        "Correct in French punctuation and inside of numbers. The default normalization of the tokenizer replaces it "
        "with a plain space.",
    ),
    "zero-width space": ("info", "Remove it, except in scripts that separate words with it, such as Thai and Khmer."),
}


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


def _side_findings(diagnosis: Diagnosis, side: SideReport) -> None:
    def add(severity: Severity, what: str, lines: LineNumbers, advice: str) -> None:
        diagnosis.add(severity, f"{what}: {_lines(lines.count)}", f"{side.name}, {lines}", advice)

    for kind, (severity, advice) in _TRAPS.items():
        if kind in side.traps:
            add(severity, kind, side.traps[kind], advice)
    if side.empty.count:
        advice = "The filter drops these pairs. Do not delete blank lines from one file alone."
        add("info" if side.empty.count < _MANY * side.lines else "warning", "empty", side.empty, advice)
    suspects = side.wrong_language
    if suspects.count > _SWAPPED * side.lines:
        advice = "Check whether source and target are swapped or the languages are configured wrongly."
        what = f"not in {side.language}: {suspects.count:,} of {_lines(side.lines)}"
        diagnosis.add("error", what, f"{side.name}, {suspects}", advice)
    elif suspects.count:
        advice = "Check these lines: untranslated text teaches the model to copy. Remove such pairs from both sides."
        many = suspects.count > _SUSPICIOUS * side.lines
        add("warning" if many else "info", f"perhaps not in {side.language}", suspects, advice)
    if side.unseen_characters:
        shown = " ".join(f"{c} (U+{ord(c):04X})" for c in side.unseen_characters[:8])
        diagnosis.add(
            "info",
            f"{len(side.unseen_characters)} characters that do not occur in the training data",
            f"{side.name}: {shown}{' ...' if len(side.unseen_characters) > 8 else ''}",
            "They become unknown tokens unless the tokenizer uses byte fallback.",
        )
    if side.unknown_rate:
        diagnosis.add(
            "warning" if side.unknown_rate > 0.001 else "info",
            f"unknown tokens: {side.unknown_rate:.3%}",
            side.name,
            "Train the tokenizer with byte fallback or a higher character coverage.",
        )


def _pair_findings(diagnosis: Diagnosis, corpus: CorpusReport) -> None:
    def add(lines: LineNumbers, what: str, advice: str, warn_from: float) -> None:
        if lines.count:
            severity: Severity = "warning" if lines.count > warn_from * corpus.pairs else "info"
            diagnosis.add(severity, f"{what}: {lines.count:,} of {corpus.pairs:,}", f"{corpus.name}, {lines}", advice)

    add(corpus.duplicates, "duplicate pairs", "The filter keeps the first of each.", _MANY)
    add(corpus.identical, "identical source and target", "The filter drops them: they teach the model to copy.", 0.02)
    add(corpus.ratio_outliers, "unusual ratio of lengths", "Check for wrong or incomplete translations.", 0.02)
    if corpus.bad_rows.count:
        diagnosis.add(
            "error",
            f"invalid rows: {_lines(corpus.bad_rows.count)}",
            f"{corpus.name}, {corpus.bad_rows}; the first: {corpus.first_bad_row}",
            "Each line or row needs a text for both keys: repair these lines or choose other keys.",
        )


def _repeated_sources(diagnosis: Diagnosis) -> None:
    ambiguous = [corpus for corpus in diagnosis.corpora if corpus.other_targets.count]
    if ambiguous:
        pairs = sum(corpus.other_targets.count for corpus in ambiguous)
        diagnosis.add(
            "info",
            f"repeated sources with another target: {pairs:,} of {sum(corpus.pairs for corpus in ambiguous):,} pairs",
            "; ".join(f"{corpus.name}, {corpus.other_targets}" for corpus in ambiguous),
            "They are kept: a text can have several translations.",
        )


def _overlap_findings(diagnosis: Diagnosis) -> None:
    for overlap in diagnosis.overlaps:
        for lines, what in ((overlap.seen_pairs, "pairs"), (overlap.seen_sources, "sources")):
            if lines.count:
                share = lines.count / max(1, overlap.pairs)
                diagnosis.add(
                    "warning" if what == "pairs" or share > 0.01 else "info",
                    f"{what} that are also in training: {lines.count:,} of {overlap.pairs:,} ({share:.1%})",
                    f"{overlap.name}, {lines}",
                    "Their scores measure memorization, not translation: remove them from the training corpora.",
                )


def add_findings(diagnosis: Diagnosis, *, kept: int) -> None:
    """Add the findings that follow from the reports.  kept: training pairs that pass the filters."""
    for corpus in diagnosis.corpora:
        for side in (corpus.source, corpus.target):
            _side_findings(diagnosis, side)
        _pair_findings(diagnosis, corpus)
        if not corpus.source.lines and not corpus.target.lines:
            diagnosis.add("error", "empty corpus", corpus.name, "Provide files that contain text.")
        if not any(side.language for side in (corpus.source, corpus.target)):
            diagnosis.add(
                "info",
                "unknown languages: lines in a wrong language cannot be detected",
                corpus.name,
                "Set the languages, or use file suffixes such as .en and .de.",
            )
    _repeated_sources(diagnosis)
    _overlap_findings(diagnosis)
    if kept == 0 and diagnosis.corpora:
        diagnosis.add(
            "error", "no training pair is left", diagnosis.account, "Relax the filters or provide other data."
        )
