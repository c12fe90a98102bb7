"""Streaming reader for translation memories: TMX files (LISA TMX 1.1 to 1.4b).

A file is a list of units (`tu`), each with one variant per language (`tuv`) that contains a segment (`seg`).  Elements
of formatting codes inside a segment (`bpt`, `ept`, `ph`, `it`, `ut`) are removed, because they are not text.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from html.entities import name2codepoint
from itertools import chain, islice
from pathlib import Path
from xml.parsers import expat

from dragoman.data.languages import language_code
from dragoman.errors import DataError, UsageError, clip
from dragoman.io.lines import read_chunks
from dragoman.io.reading import declared_charset

_CODES = {"bpt", "ept", "ph", "it", "ut"}
_STANDALONE = {"ph", "ut"}
"""Codes that may replace a line break, unlike the ends of a pair, such as those of bold letters."""
_BREAK = "\0"  # not allowed in XML
_CJK = r"\u3040-\u30ff\u3400-\u9fff"  # written without spaces
_BETWEEN_WORDS = re.compile(rf"(?<=[^\W{_CJK}]|[.,;:!?)\]»”]){_BREAK}+(?=[^\W{_CJK}])")
_MAX_SEGMENT = 1 << 20
"""Longest segment in characters: a sentence or paragraph has thousands; more means a file that is not a TMX."""
_SAMPLE = 10_000
_SPACES = re.compile("[ \t\r\n]+")  # other spaces, such as U+00A0 before French punctuation, belong to the text
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
         (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))  # fmt: skip
_DECLARATION = re.compile(rb"\s*<\?xml[^>]*?\sencoding\s*=\s*[\"']([^\"']*)")
_ENOUGH = 8
"""Bytes outside of ASCII that show, if they are valid UTF-8, that a file is UTF-8."""
_MOST_SHOWN = 5

_INVALID_BYTE = re.compile("[\udc80-\udcff]")  # as decoded with "surrogateescape"
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#(?:x[0-9a-fA-F]{1,8}|[0-9]{1,9});")
_LONGEST_REFERENCE = 12
_LINE_BREAKS = "\x0b\x0c"  # vertical tab and form feed separate words


class TmxUnit(list[tuple[str, str]]):
    """(language, text) of the variants of a unit, in the order of the file.

    line: at which it begins.  name: its `tuid`, or "".
    """

    def __init__(self, line: int = 0, name: str = "") -> None:
        super().__init__()
        self.line, self.name = line, name


@dataclass
class TmxCount:
    """Statistics of a TMX file.

    source_language: the srclang of the header.  read: units.  incomplete: units without a text in one of the two
    languages.  languages: units per language.  further: variants that are not used because the language has an earlier
    one.  codes: removed formatting codes.  controls: removed characters that XML does not allow.  number, place: of the
    unit of the last pair; the place is its number, `tuid` and line.
    """

    source_language: str = ""
    read: int = 0
    incomplete: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    further: int = 0
    codes: int = 0
    controls: int = 0
    number: int = 0
    place: str = ""

    def __str__(self) -> str:
        """Format what was left out, "" if nothing was."""
        dropped = (
            (self.further, "further variants of the same language"),
            (self.codes, "formatting codes"),
            (self.controls, "characters that XML does not allow"),
        )
        return ", ".join(f"{what} {number:,}" for number, what in dropped if number)


class _Collector:
    """Handlers of expat that collect units.

    Declarations of entities are refused: nested ones expand a small file to gigabytes, and no TMX needs them.  An
    external DTD is not read.
    """

    def __init__(self, path: Path, count: TmxCount) -> None:
        self.path, self.count = path, count
        self.units: list[TmxUnit] = []
        self._unit = TmxUnit()
        self._language, self._codes, self._size = "", 0, 0
        self._text: list[str] | None = None
        self.root = ""
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._declared
        parser.SkippedEntityHandler = self._skipped

    def error(self, what: str) -> DataError:
        return DataError(f"{self.path}, line {self.parser.CurrentLineNumber:,}: {what}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.root:
            self.root = name
            if name != "tmx":
                raise self.error(f"the root element is <{clip(name, 40)}>; accepted: a TMX file, whose root is <tmx>")
        if name == "header":
            self.count.source_language = attributes.get("srclang", "")
        elif name == "tu":
            self._unit = TmxUnit(self.parser.CurrentLineNumber, attributes.get("tuid", ""))
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._text, self._size, self._codes = [], 0, 0
        elif name in _CODES and self._text is not None:
            self._codes += 1
            self.count.codes += self._codes == 1

    def _end(self, name: str) -> None:
        if name == "tu":
            self.units.append(self._unit)
            self.count.read += 1
        elif name == "seg" and self._text is not None:
            text = _BETWEEN_WORDS.sub(" ", "".join(self._text)).replace(_BREAK, "")
            self._unit.append((self._language, _SPACES.sub(" ", text).strip(" ")))
            self._text = None
        elif name in _CODES and self._text is not None:
            self._codes -= 1
            if not self._codes and name in _STANDALONE:
                self._text.append(_BREAK)

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


def read_tmx(path: Path, count: TmxCount | None = None) -> Iterator[TmxUnit]:
    """Yield the units of a TMX file; `count` is updated.

    Raises DataError if the file cannot be read, is truncated or not well-formed, contains invalid bytes, is not a TMX
    or declares entities.
    """
    count = count or TmxCount()
    collector = _Collector(path, count)
    is_final = False
    try:
        for text in _read_xml(path, count):
            collector.parser.Parse(text, False)
            yield from collector.units
            collector.units = []
        is_final = True
        collector.parser.Parse("", True)
    except expat.ExpatError as error:
        problem = expat.errors.messages[error.code]
        if is_final and collector.root:
            raise DataError(
                f"{path}: ends too early, after {count.read:,} complete units (line {error.lineno:,}: {problem}). "
                "Export or copy the TMX file again; or, to use these units, delete the text after the last </tu> and "
                "append </body></tmx>."
            ) from None
        raise DataError(
            f"{path}, line {error.lineno:,}: not well-formed XML ({problem}). Export the TMX file again, or repair "
            "this line."
        ) from None
    yield from collector.units


def tmx_languages(path: Path) -> tuple[str, str]:
    """Return the two languages of a file: that of the header's srclang first, else that of the first variant.

    The first 10,000 units are read.  Raises UsageError if they do not have exactly two languages, and DataError if they
    have less than two.
    """
    count = TmxCount()
    for unit in islice(read_tmx(path, count), _SAMPLE):
        count.languages.update(dict.fromkeys((language_code(language) or "" for language, _ in unit), 1))
    check_languages(path, count)
    found = [language for language in count.languages if language]
    if len(found) > 2:
        first, second = [language for language, _ in count.languages.most_common() if language][:2]
        raise UsageError(
            f"{path}: has variants in {_listed(count.languages)}; specify the two to use, source first: "
            f"for example --languages {first} {second} for 'new', 'doctor' and 'clean', or source_key = {first!r} and "
            f"target_key = {second!r} in a configuration"
        )
    first, second = found
    return (second, first) if language_code(count.source_language) == second else (first, second)


def check_languages(path: Path, count: TmxCount, wanted: tuple[str, str] | None = None) -> None:
    """Raise DataError if the units that were read have less than two languages, or, with `wanted`, anyway.

    wanted: languages that no unit has both.
    """
    found = [language for language in count.languages if language]
    if not count.read:
        raise DataError(f"{path}: contains no unit (tu). Export the TMX file again.")
    if not found:
        raise DataError(
            f"{path}: no variant (tuv) has a language (xml:lang). Export the TMX file again with languages, or use "
            "two text files: dragoman new SOURCE TARGET --languages en fr"
        )
    if len(found) < 2:
        raise DataError(
            f"{path}: has variants only in {_listed(count.languages)}; two languages are needed. Export the TMX file "
            "again with both languages."
        )
    if wanted:
        raise DataError(
            f"{path}: no unit has a text in both {wanted[0]!r} and {wanted[1]!r} (found: {_listed(count.languages)}); "
            "specify two of these languages: source_key and target_key in a configuration, --languages for "
            "'new', 'doctor' and 'clean'"
        )


def _listed(languages: Counter[str]) -> str:
    """Format the most frequent languages with their numbers of units."""
    return ", ".join(f"{language or 'no language'} ({count:,})" for language, count in languages.most_common(8))


def tmx_pairs(path: Path, languages: tuple[str, str], count: TmxCount) -> Iterator[tuple[str, str]]:
    """Yield the pairs of all units with a text in both languages; `count` is updated.

    A language such as `en` also matches its regions, such as `en-GB`, and the code of three letters, `eng`.  Of several
    texts of a language in a unit, the first one is used.
    """
    wanted = [language.casefold().replace("_", "-") for language in languages]

    def is_in(code: str, language: str) -> bool:
        is_same = "-" not in language and language_code(code) == language_code(language)
        return is_same or code == language or code.startswith(f"{language}-")

    for number, unit in enumerate(read_tmx(path, count), start=1):
        count.languages.update(dict.fromkeys((language for language, _ in unit), 1))
        codes = [(found.casefold().replace("_", "-"), text) for found, text in unit if text]
        texts = [[text for code, text in codes if is_in(code, language)] for language in wanted]
        if all(texts):
            count.further += sum(len(variants) - 1 for variants in texts)
            named = f" (tuid {clip(unit.name, 60)!r})" * bool(unit.name)
            count.number, count.place = number, f"unit {number:,}{named}, line {unit.line:,}"
            yield texts[0][0], texts[1][0]
        else:
            count.incomplete += 1


def _read_xml(path: Path, count: TmxCount) -> Iterator[str]:
    """Yield the text of an XML file in chunks, without characters that XML does not allow, which are counted.

    Raises DataError if the file cannot be read, if its encoding is unknown, and at the end, if it contains invalid
    bytes, with all of their lines.
    """

    def allowed(match: re.Match[str]) -> str:
        reference = match[0]
        if reference.startswith("&"):
            code = int(reference[3:-1], 16) if reference[2] == "x" else int(reference[2:-1])
            is_surrogate = 0xD800 <= code <= 0xDFFF
            if code <= 0x10FFFF and not is_surrogate and not _FORBIDDEN.match(chr(code)):
                return reference
            reference = chr(min(code, 0x10FFFF))
        count.controls += 1
        return " " if reference in _LINE_BREAKS else ""

    chunks = read_chunks(path)
    head = next(chunks, b"")
    encoding = _encoding(path, head)
    kept = ""
    for text in _decoded(path, encoding, chain([head], chunks)):
        text = kept + text
        start = text.rfind("&", max(0, len(text) - _LONGEST_REFERENCE))
        end = len(text) if start < 0 or ";" in text[start:] else start  # a reference may continue in the next chunk
        yield _FORBIDDEN.sub(allowed, text[:end])
        kept = text[end:]
    yield _FORBIDDEN.sub(allowed, kept)


def _decoded(path: Path, encoding: str, chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield decoded chunks until the first invalid byte; raise DataError at the end if there is one."""
    is_wide = encoding.startswith(("utf-16", "utf-32"))  # these do not support "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)("strict" if is_wide else "surrogateescape")
    invalid: dict[int, str] = {}
    lines, name = 1, encoding.removesuffix("-sig").upper()
    try:
        for chunk in chain(chunks, [b""]):
            text = decoder.decode(chunk, final=not chunk)
            for match in _INVALID_BYTE.finditer(text):
                line = lines + text.count("\n", 0, match.start())
                byte = ord(match[0]) - 0xDC00
                around = text[max(0, match.start() - 20) : match.end() + 20]
                excerpt = _INVALID_BYTE.sub("\ufffd", around).replace("\n", " ").strip()
                invalid.setdefault(line, f'line {line:,}: byte 0x{byte:02x} ("{clip(excerpt)}")')
            lines += text.count("\n")
            if not invalid:
                yield text
    except UnicodeError as error:
        raise DataError(f"{path}: not valid {name}: {error}. Export the TMX file again as UTF-8.") from None
    if invalid:
        shown = [*invalid.values()][:_MOST_SHOWN]
        more = [f"... and {len(invalid) - len(shown):,} more"] if len(invalid) > len(shown) else []
        raise DataError(
            f"{path}: {len(invalid):,} line{'s' * (len(invalid) != 1)} with bytes that are not valid "
            f"{name}:\n" + "\n".join([*shown, *more]) + "\nRepair these lines; or, if the whole file has "
            "another encoding, export it again as UTF-8, or declare the encoding in its first line: "
            '<?xml version="1.0" encoding="windows-1252"?>.'
        )


def _encoding(path: Path, head: bytes) -> str:
    """Return the encoding by the byte order mark, the first characters, or the declaration; UTF-8 without any."""
    for start, encoding in _BOMS:
        if head.startswith(start):
            return encoding
    match = _DECLARATION.match(head)
    declared = match[1].decode("ascii", "replace") if match else "utf-8"
    if declared_charset(declared, str(path)) == "utf-8":
        return "utf-8"
    if sum(byte > 0x7F for byte in head) >= _ENOUGH:
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(head)
            raise DataError(
                f"{path}: declares the encoding {declared}, but is UTF-8. Correct its first line: "
                '<?xml version="1.0" encoding="UTF-8"?>.'
            )
    return declared.lower()
