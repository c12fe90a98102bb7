"""From what was counted in the data to what is worth saying about it."""

from __future__ import annotations

from dragoman.data.doctor.diagnosis import CorpusReport, Diagnosis, Places, Severity, SideReport

__all__ = ["add_findings"]

_MANY = 0.1
_SWAPPED = 0.5

_TRAPS: dict[str, tuple[Severity, str]] = {
    "invalid UTF-8": (
        "error",
        "Convert the file to UTF-8 (iconv -f WINDOWS-1252 -t UTF-8, for example) or repair these lines.",
    ),
    "byte order mark inside": (
        "warning",
        "U+FEFF inside the text comes from files joined end to end, or stands for nothing: delete it.",
    ),
    "line or paragraph separator": (
        "warning",
        'U+2028, U+2029 or U+0085 inside a line; here a line ends at "\\n" only, but tools that cut there lose the '
        "alignment. Replace them by a space.",
    ),
    "control character": ("warning", "These are not text: delete them, on this side only, keeping the line."),
    "replacement character": (
        "warning",
        "U+FFFD says that an earlier conversion lost characters: convert again from the original.",
    ),
    "byte order mark": ("info", "Dropped on reading."),
    "CRLF": ("info", 'Lines end in "\\r\\n"; the "\\r" is dropped on reading.'),
    "no-break or zero-width space": ("info", "Kept as they are; replace them by a plain space if they mean nothing."),
}


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"


def _side_findings(diagnosis: Diagnosis, side: SideReport) -> None:
    for kind, (severity, advice) in _TRAPS.items():
        if kind in side.traps:
            places = side.traps[kind]
            diagnosis.add(severity, f"{kind}: {_lines(places.count)}", f"{side.name}, {places}", advice)
    if side.empty.count:
        diagnosis.add(
            "info" if side.empty.count < _MANY * side.lines else "warning",
            f"empty: {_lines(side.empty.count)}",
            f"{side.name}, {side.empty}",
            "The filter drops the pair, both sides together; never delete a blank line from one file alone.",
        )
    suspects = side.wrong_language
    if suspects.count > _SWAPPED * side.lines:
        diagnosis.add(
            "error",
            f"not in {side.language}: {suspects.count:,} of {_lines(side.lines)}",
            f"{side.name}, {suspects}",
            "Are source and target the wrong way round, or the languages named wrongly?",
        )
    elif suspects.count:
        diagnosis.add(
            "warning",
            f"perhaps not in {side.language}: {_lines(suspects.count)}",
            f"{side.name}, {suspects}",
            "Look at them: untranslated lines teach the model to copy. Take out such pairs from both sides.",
        )
    if side.unseen_characters:
        shown = " ".join(f"{c} (U+{ord(c):04X})" for c in side.unseen_characters[:8])
        diagnosis.add(
            "info",
            f"{len(side.unseen_characters)} characters that never occur in training",
            f"{side.name}: {shown}{' ...' if len(side.unseen_characters) > 8 else ''}",
            "Without byte fallback in the tokenizer they become the unknown symbol.",
        )
    if side.unknown_rate:
        diagnosis.add(
            "warning" if side.unknown_rate > 0.001 else "info",
            f"unknown symbols: {side.unknown_rate:.3%} of the tokens",
            side.name,
            "Train the tokenizer with byte fallback or a higher character coverage.",
        )


def _pair_findings(diagnosis: Diagnosis, corpus: CorpusReport) -> None:
    def tell(places: Places, what: str, advice: str, warn_from: float) -> None:
        if places.count:
            severity: Severity = "warning" if places.count > warn_from * corpus.pairs else "info"
            diagnosis.add(severity, f"{what}: {places.count:,} of {corpus.pairs:,}", f"{corpus.name}, {places}", advice)

    tell(corpus.duplicates, "pairs that occur before", "The filter keeps the first of each.", _MANY)
    tell(
        corpus.other_targets, "sources with another target before", "Kept: one text may have many translations.", _MANY
    )
    tell(corpus.identical, "source and target the same", "The filter drops them: they teach the model to copy.", 0.02)
    tell(
        corpus.ratio_outliers, "lengths far off the usual ratio", "Look at them: a wrong or partial translation?", 0.02
    )
    if corpus.bad_rows.count:
        diagnosis.add(
            "error",
            f"rows that do not hold a pair: {_lines(corpus.bad_rows.count)}",
            f"{corpus.name}, {corpus.bad_rows}; the first: {corpus.first_bad_row}",
            "Each line needs both texts (tab-separated columns, or one JSON value with both keys): repair the lines or "
            "choose other keys.",
        )


def _overlap_findings(diagnosis: Diagnosis) -> None:
    for overlap in diagnosis.overlaps:
        for places, what in ((overlap.seen_pairs, "pairs"), (overlap.seen_sources, "sources")):
            if places.count:
                share = places.count / max(1, overlap.pairs)
                diagnosis.add(
                    "warning" if what == "pairs" or share > 0.01 else "info",
                    f"{what} that are also in training: {places.count:,} of {overlap.pairs:,} ({share:.1%})",
                    f"{overlap.name}, {places}",
                    "Scores on them measure memory, not translation: take them out of the training corpora.",
                )


def add_findings(diagnosis: Diagnosis, *, kept: int) -> None:
    """Add the findings that follow from the reports; `kept` is how many training pairs the filters leave."""
    for corpus in diagnosis.corpora:
        for side in (corpus.source, corpus.target):
            _side_findings(diagnosis, side)
        _pair_findings(diagnosis, corpus)
        if not corpus.source.lines and not corpus.target.lines:
            diagnosis.add("error", "an empty corpus", corpus.name, "Give files that hold text.")
        if not any(side.language for side in (corpus.source, corpus.target)):
            diagnosis.add(
                "info",
                "the languages are not known, so lines in a wrong language were not looked for",
                corpus.name,
                "Name the languages, or give the files suffixes such as .en and .de.",
            )
    _overlap_findings(diagnosis)
    if kept == 0 and diagnosis.corpora:
        diagnosis.add("error", "no training pair is left", diagnosis.account, "Loosen the filters or give other data.")
