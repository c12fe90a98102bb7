"""Translation of one document, as `dragoman translate --input FILE.docx --output OUT.docx`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.streams import log, log_flags, show_progress
from dragoman.documents.formats import FORMATS, SUFFIXES
from dragoman.documents.translation import document_format, suffix_format, translate_document
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.pipelines.lines import Form

_ARCHIVES = {suffix for suffix, name in SUFFIXES.items() if not FORMATS[name].has_lines}


def find_document(inputs: Sequence[Path], output: Path | None) -> Path | None:
    """Return the first input that is a document, None if there is none.  Raises UsageError if only the output is."""
    known = (path for path in inputs if path.suffix and (suffix_format(path.suffix.casefold()) or "txt") != "txt")
    document = next((path for path in known if not path.is_dir()), None)
    if not document and output and output.suffix.casefold() in _ARCHIVES and not output.is_dir():
        raise UsageError(f"{output}: text is not converted to {output.suffix}; give the output the suffix .txt")
    return document


def check_document(document: Path, inputs: Sequence[Path], output: Path | None, form: Form, prefix: str | None) -> None:
    """Raise UsageError for options that a document does not have."""
    if len(inputs) > 1:
        raise UsageError(f"{document}: one document is translated at a time, but there are {len(inputs)} inputs")
    if form != "text" or prefix is not None:
        raise UsageError(
            f"{document}: --nbest, --jsonl, --verbose and --prefix: not for documents; omit the option, or pipe the "
            "file into the command to translate its lines"
        )
    if output is None:
        raise UsageError(
            f"{document}: a translated document is written to a file; add --output FILE (and, for one column of a "
            "table, --column NAME)"
        )


def translate_file(
    models: Sequence[Path],
    options: Mapping[str, Any],
    source: Path,
    output: Path | None,
    column: Sequence[str],
    header: bool | None,
    settings: Mapping[str, Any],
) -> None:
    """Translate a document, and show progress at a terminal."""
    from dragoman.pipelines.lines import FlagReport
    from dragoman.pipelines.translation import Translator

    assert output is not None
    target = output / source.name if output.is_dir() else output
    if document_format(target) != document_format(source):
        raise UsageError(f"{target}: a {source.suffix} file stays one; give the output the suffix {source.suffix}")
    translator = Translator.load(models, **options)
    log(translator.description)
    columns = [int(name) if name.isdecimal() else name for name in column] or None
    report = translate_document(
        translator, source, target, columns=columns, header=header,
        track=lambda segments, total: show_progress(segments, "translating", total), **settings,
    )  # fmt: skip
    log(f"{target}: {report.segments:,} texts translated")
    if settings["glossary"] is not None:
        applied = sum(count for term, count in report.terms.items() if term.applied)
        log(f"glossary: {applied:,} of {report.terms.total():,} terms applied")
    for note in report.notes:
        log(f"{source}: {note}")
    log_flags(FlagReport(counts=report.flags, flagged=report.flagged))
