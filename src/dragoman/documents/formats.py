"""The formats of documents: one table, from which the command line, the server and docs/documents.md list them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format of documents.

    function: module in this package and name of translate(data: bytes, work: DocumentTranslator, **options) -> bytes,
    which raises DataError for a damaged document; subtitles.py is a short example.  suffixes: in small letters.
    translated, kept: what is translated, and what is not.  options: further parameters of the function.  has_lines:
    whether a text has a line, which reports name.
    """

    name: str
    suffixes: tuple[str, ...]
    function: str
    translated: str
    kept: str
    options: tuple[str, ...] = ()
    has_lines: bool = True

    @property
    def translate(self) -> Callable[..., bytes]:
        """The function, whose module is imported here."""
        module, _, name = self.function.partition(":")
        function: Callable[..., bytes] = getattr(importlib.import_module(f"dragoman.documents.{module}"), name)
        return function


_TABLE = "cells with words, or the columns given by `--column` (`columns=[...]`: names, or numbers from 0)"
_KEPT_IN_TABLES = (
    "numbers, identifiers such as `A12`, keys (single words below `key` or `id`), formulas, a first row that names the "
    "columns (`--no-header` translates it), quoting, separators"
)
_TRANSLATIONS = 'other targets, notes, `translate="no"`, `mrk` of the type `protected`'
FORMATS = {
    format.name: format
    for format in (
        Format("txt", (".txt", ".text"), "plain:translate_txt", "each line",
               "line ends, blank lines, indentation, byte order mark"),
        Format("md", (".md", ".markdown", ".mdx", ".qmd", ".rmd"), "markdown:translate_markdown",
               "paragraphs, headings, list items, table cells; emphasis and links are inline tags; blocks of HTML "
               "outside of quotations and without `{`, as HTML",
               "code (also `<code>`, `<kbd>`), addresses, images, front matter, and the syntax of "
               "dialects ([below](#markdown-dialects))"),
        Format("html", (".html", ".htm", ".xhtml"), "web:translate_html_file",
               "text of all elements (`dragoman.markup.html`); `lang` becomes the target language",
               "tags, scripts, styles, code, `translate=\"no\"`; `alt`, `title` and `placeholder` unless "
               "`attributes=True` in Python", ("attributes",)),
        Format("srt", (".srt",), "subtitles:translate_srt", "the text of each cue", "numbers, times, positions"),
        Format("vtt", (".vtt",), "subtitles:translate_vtt", "the text of each cue",
               "times, positions, voices, styles, notes"),
        Format("usfm", (".usfm", ".sfm"), "usfm:translate_usfm",
               "verses, paragraphs, headings and footnotes, each line and verse on its own; markers of characters are "
               "inline tags",
               "markers, numbers, line ends, identification (`\\id`), remarks, references, cross references (`\\x`), "
               "figures"),
        Format("po", (".po", ".pot"), "exchange:translate_po", "entries without a translation, with plural forms",
               "existing translations, fuzzy ones as well; comments, header, obsolete entries"),
        Format("xliff", (".xliff", ".xlf"), "exchange:translate_xliff",
               "units without a target, targets in the state `new` or `needs-translation` (1.2), and copies of the "
               "source in the state `initial` (2.0)",
               _TRANSLATIONS),
        Format("tmx", (".tmx",), "exchange:translate_tmx",
               "units with a text in the source language of the model and none in its target language",
               "existing variants"),
        Format("csv", (".csv",), "plain:translate_csv", _TABLE, _KEPT_IN_TABLES, ("columns", "header")),
        Format("tsv", (".tsv",), "plain:translate_tsv", _TABLE, _KEPT_IN_TABLES, ("columns", "header")),
        Format("json", (".json", ".arb"), "plain:translate_json", "string values",
               "keys, numbers, identifiers such as `en_US`, messages with ICU alternatives (`{n, plural, ...}`), "
               "values of keys that begin with `@`, formatting"),
        Format("docx", (".docx", ".docm", ".dotx"), "office:translate_office",
               "body, tables, text boxes, headers, footers, footnotes, endnotes, inserted text, charts, SmartArt",
               "comments, deleted text, fields (page numbers, dates, references), formulas, metadata",
               ("format",), has_lines=False),
        Format("pptx", (".pptx", ".pptm", ".ppsx", ".potx"), "office:translate_office",
               "slides, tables, notes, charts, SmartArt", "slide masters and layouts, comments, fields, metadata",
               ("format",), has_lines=False),
        Format("xlsx", (".xlsx", ".xlsm", ".xltx"), "office:translate_office",
               "cells with text (shared and inline strings), text boxes, charts",
               "formulas and their stored results, numbers, dates, sheet names, comments, identifiers, texts that name "
               "columns of tables or fields of pivot tables", ("format",), has_lines=False),
        Format("odt", (".odt", ".ott"), "office:translate_odt",
               "paragraphs and headings in body, tables, headers, footers, notes, frames",
               "comments, tracked deletions, fields, cells with numbers or formulas", has_lines=False),
        Format("epub", (".epub",), "web:translate_epub",
               "chapters (XHTML) and the table of contents (`toc.ncx`); `dc:language` becomes the target language",
               "other metadata, such as the title of the book; images, styles, fonts", ("attributes",),
               has_lines=False),
    )
}  # fmt: skip
SUFFIXES = {suffix: format.name for format in FORMATS.values() for suffix in format.suffixes}
"""Suffixes of file names -> names of formats."""


def formats_text() -> str:
    """Return the suffixes and what is translated, in one sentence per format."""
    parts = (f"{' '.join(format.suffixes)}: {format.translated}." for format in FORMATS.values())
    return " ".join(parts).replace("`", "")
