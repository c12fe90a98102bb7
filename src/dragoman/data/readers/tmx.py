"""Translation memories: TMX files (LISA TMX 1.1 to 1.4b), read as a stream.

A file is a list of units (`tu`), each with one variant per language (`tuv`) that holds a segment (`seg`).  Elements of
formatting codes inside a segment (`bpt`, `ept`, `ph`, `it`, `ut`) are left out, because they are not text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.entities import name2codepoint
from itertools import islice
from pathlib import Path
from xml.parsers import expat

from dragoman.data.languages import language_code
from dragoman.errors import DataError, UsageError, clip
from dragoman.io.lines import read_chunks

__all__ = ["TmxCount", "TmxUnit", "counted_languages", "read_tmx", "tmx_languages", "tmx_pairs"]

_CODES = {"bpt", "ept", "ph", "it", "ut"}
_MAX_SEGMENT = 1 << 20
"""Longest segment in characters: a sentence or paragraph has thousands; more means a file that is not a TMX."""
_SAMPLE = 10_000
_SPACES = re.compile("[ \t\r\n]+")  # other spaces, such as U+00A0 before French punctuation, belong to the text

TmxUnit = list[tuple[str, str]]
"""(language, text) of the variants of a unit, in the order of the file."""


@dataclass
class TmxCount:
    """Numbers of units: read, without a text in one of the two languages, and with a variant in each language."""

    read: int = 0
    incomplete: int = 0
    languages: Counter[str] = field(default_factory=Counter)


class _Collector:
    """Handlers of expat that collect units.

    Declarations of entities are refused: nested ones expand a small file to gigabytes, and no TMX needs them.  An
    external DTD is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source_language = ""
        self.units: list[TmxUnit] = []
        self._unit: TmxUnit = []
        self._language, self._codes, self._size = "", 0, 0
        self._text: list[str] | None = None
        self._root = ""
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._declared
        parser.SkippedEntityHandler = self._skipped

    def error(self, what: str) -> DataError:
        return DataError(f"{self.path}, line {self.parser.CurrentLineNumber:,}: {what}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._root:
            self._root = name
            if name != "tmx":
                raise self.error(f"the root element is <{clip(name, 40)}>; accepted: a TMX file, whose root is <tmx>")
        if name == "header":
            self.source_language = attributes.get("srclang", "")
        elif name == "tu":
            self._unit = []
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._text, self._size, self._codes = [], 0, 0
        elif name in _CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        if name == "tu":
            self.units.append(self._unit)
        elif name == "seg" and self._text is not None:
            self._unit.append((self._language, _SPACES.sub(" ", "".join(self._text)).strip(" ")))
            self._text = None
        elif name in _CODES:
            self._codes -= 1

    def _characters(self, text: str) -> None:
        if self._text is None or self._codes:
            return
        self._text.append(text)
        self._size += len(text)
        if self._size > _MAX_SEGMENT:
            raise self.error(f"a segment has more than {_MAX_SEGMENT:,} characters; accepted: sentences or paragraphs")

    def _declared(self, name: str, *_: object) -> None:
        raise self.error(
            f"declares the entity {clip(name, 40)!r}, which is refused because entities can expand without bound; "
            "export the file again without a document type, or replace its entities by their characters"
        )

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            if name not in name2codepoint:
                raise self.error(f"the entity &{clip(name, 40)}; has no declaration; replace it by its character")
            self._characters(chr(name2codepoint[name]))


def _units(path: Path) -> Iterator[tuple[TmxUnit, str]]:
    """Yield the units, each with the source language of the header."""
    collector = _Collector(path)
    try:
        for chunk in read_chunks(path):
            collector.parser.Parse(chunk, False)
            yield from ((unit, collector.source_language) for unit in collector.units)
            collector.units = []
        collector.parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise DataError(
            f"{path}, line {error.lineno:,}: not well-formed XML ({expat.errors.messages[error.code]}). Export the TMX "
            "file again, or repair this line."
        ) from None
    except (LookupError, ValueError) as error:  # an encoding that Python does not know
        raise DataError(f"{path}: not readable as XML: {error}. Export the TMX file again as UTF-8.") from None
    yield from ((unit, collector.source_language) for unit in collector.units)


def read_tmx(path: Path) -> Iterator[TmxUnit]:
    """Yield the units of a TMX file.

    Raises DataError if the file cannot be read, is not well-formed, is not a TMX or declares entities.
    """
    return (unit for unit, _ in _units(path))


def tmx_languages(path: Path) -> tuple[str, str]:
    """Return the two languages of a file: that of the header's srclang first, else that of the first variant.

    The first 10,000 units are read.  Raises UsageError if they do not have exactly two languages.
    """
    counts: Counter[str] = Counter()
    source = ""
    for unit, header in islice(_units(path), _SAMPLE):
        counts.update(list(dict.fromkeys(language_code(language) or "" for language, _ in unit)))
        source = language_code(header) or ""
    found = [language for language in counts if language]
    if len(found) != 2:
        raise UsageError(
            f"{path}: has variants in {counted_languages(counts)}; two languages are needed: name them, source first, "
            "with --languages, for example --languages de en"
        )
    first, second = found
    return (second, first) if source == second else (first, second)


def counted_languages(counts: Counter[str]) -> str:
    """Return the most frequent languages with their numbers of units."""
    shown = ", ".join(f"{language} ({count:,})" for language, count in counts.most_common(8) if language)
    return shown or "no language"


def tmx_pairs(path: Path, languages: tuple[str, str], count: TmxCount) -> Iterator[tuple[str, str]]:
    """Yield the pairs of all units with a text in both languages; `count` is updated.

    A language such as `en` also accepts its regions, such as `en-GB`, and the code of three letters, `eng`.  Of several
    variants of a language, the first one counts.
    """
    for unit in read_tmx(path):
        count.read += 1
        count.languages.update(dict.fromkeys((language for language, _ in unit), 1))
        texts = [_variant(unit, language) for language in languages]
        if all(texts):
            yield texts[0], texts[1]
        else:
            count.incomplete += 1


def _variant(unit: TmxUnit, language: str) -> str:
    """Return the text in a language, "" if there is none."""
    wanted = language.casefold().replace("_", "-")
    is_plain = "-" not in wanted
    for found, text in unit:
        code = found.casefold().replace("_", "-")
        if code.startswith(f"{wanted}-") or code == wanted:
            return text
        if is_plain and language_code(code) == language_code(wanted):
            return text
    return ""
