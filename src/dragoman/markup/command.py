"""Translation of one page of HTML or one XML document, as `dragoman translate --format`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dragoman.cli.streams import log, log_flags, open_output
from dragoman.errors import DataError, UsageError

_LARGEST = 1 << 28
"""Largest document, in bytes."""


def translate_markup(
    models: Sequence[Path],
    options: Mapping[str, Any],
    source: Path | None,
    output: Path | None,
    form: str,
    settings: Mapping[str, Any],
) -> None:
    """Translate a document; what is not translated keeps its bytes.  settings: arguments of `translate_html`."""
    from dragoman.markup import translate_html, translate_xml
    from dragoman.markup.html import in_language
    from dragoman.markup.segment import ObservedTranslator
    from dragoman.pipelines.lines import FlaggedText, FlagReport
    from dragoman.pipelines.translation import Translator

    translator = ObservedTranslator(Translator.load(models, **options))
    log(translator.description)
    text = _read(source)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    translate = translate_html if form == "html" else translate_xml
    places: list[tuple[int, int]] = []
    (result,) = translate(cast(Translator, translator), [text.removeprefix(mark)], places=places, **settings)
    language: str | None = settings.get("target_language") or translator.languages[1]
    if form == "html" and language and result != text.removeprefix(mark):
        result = in_language(result, language.replace("_", "-"))
    with open_output(output, source, end="") as write:
        write(mark + result)
    report = FlagReport()
    for number, ((_, line), flags) in enumerate(zip(places, translator.flags, strict=True), start=1):
        report.add(FlaggedText(number, line, flags))
    log_flags(report)


def _read(source: Path | None) -> str:
    """Return the text of a file or of standard input.  Raises DataError if it is not UTF-8."""
    from dragoman.io.lines import decode_line
    from dragoman.io.reading import read_bytes

    if source is not None:
        data = read_bytes(source, DataError, "Specify one file of HTML or XML with --input.", _LARGEST)
    elif sys.stdin is None:
        raise UsageError("standard input is closed: specify a file with --input, or pipe text into the command")
    else:
        data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start)
        return decode_line(data.split(b"\n")[line], line + 1, str(source or "standard input"))
