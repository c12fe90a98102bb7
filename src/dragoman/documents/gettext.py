"""Message catalogues of GNU gettext (po): entries without a translation receive one, all other lines are kept.

Existing translations stay, fuzzy ones as well, because a person has to decide about them.  New translations are not
marked as fuzzy: programs ignore fuzzy entries.
"""

from __future__ import annotations

import gettext as python_gettext
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dragoman.documents.encoding import decode_text
from dragoman.documents.marks import translate_messages
from dragoman.documents.segments import DocumentTranslator
from dragoman.errors import DataError, clip

_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?P<key>msgctxt|msgid_plural|msgid|msgstr(?:\[(?P<number>\d+)\])?)?[ \t]*(?P<text>\".*\")[ \t]*"
)
_ESCAPED = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_LANGUAGE = re.compile(r"^Language:[ \t]*([\w@.-]+)", re.MULTILINE)
_PLURALS = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;\n]+)")


@dataclass
class _Entry:
    """An entry: its texts by key, such as "msgid" or "msgstr[0]", and the lines of each."""

    texts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)

    @property
    def forms(self) -> list[str]:
        """The keys of the translations."""
        return [key for key in self.texts if key.startswith("msgstr")]

    @property
    def is_open(self) -> bool:
        """Whether the entry has a text and no translation."""
        return bool(self.texts.get("msgid")) and bool(self.forms) and not any(self.texts[key] for key in self.forms)


def translate_po(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate the entries of a catalogue that have no translation.  Raises DataError.

    The plural form of one is translated from `msgid`, the others from `msgid_plural`.
    """
    charset = _CHARSET.search(data)
    name = charset[1].decode() if charset else None
    text, encode = _decoded(data, None if name in (None, "CHARSET") else name)
    lines = text.split("\n")
    entries = _entries(lines)
    if not entries:
        raise DataError("contains no entry (msgid and msgstr). Give a catalogue of gettext")
    header = next((entry.texts.get("msgstr", "") for entry in entries if entry.texts.get("msgid") == ""), "")
    language = _LANGUAGE.search(header)
    translator.check_languages(target=language[1] if language else None)
    singular = _index_of_one(header)
    chosen = [entry for entry in entries if entry.is_open]
    sources = [_sources(entry, singular) for entry in chosen]
    unique = list(dict.fromkeys(source for own in sources for source in own.values()))
    translated = dict(zip(unique, translate_messages(translator, unique), strict=True))
    replaced: dict[int, list[str]] = {}
    for entry, own in zip(chosen, sources, strict=True):
        for key, source in own.items():
            first, *others = entry.lines[key]
            replaced[first] = _written(key, translated[source], lines[first])
            replaced.update((index, []) for index in others)
    kept = (replaced.get(index, [line]) for index, line in enumerate(lines))
    return encode("\n".join(line for group in kept for line in group))


def _decoded(data: bytes, charset: str | None) -> tuple[str, Callable[[str], bytes]]:
    try:
        return decode_text(data, charset)
    except LookupError:
        raise DataError(f"declares the unknown charset {clip(str(charset), 40)!r}; save the file as UTF-8") from None


def _entries(lines: Sequence[str]) -> list[_Entry]:
    entries: list[_Entry] = []
    key = ""
    for index, line in enumerate(lines):
        line = line.rstrip("\r")
        match = _LINE.fullmatch(line)
        if match is None:
            if line.strip() and not line.lstrip().startswith("#"):
                raise DataError(f"line {index + 1:,}: {clip(line)!r} is not a line of a catalogue. Repair the line.")
            key = ""
            continue
        if match["key"]:
            key = match["key"]
            if not entries or key == "msgctxt" or (key == "msgid" and entries[-1].texts.keys() - {"msgctxt"}):
                entries.append(_Entry())
            entries[-1].texts[key], entries[-1].lines[key] = "", []
        if not key:
            raise DataError(f"line {index + 1:,}: a text that belongs to no msgid or msgstr. Repair the line.")
        entries[-1].texts[key] += _unescaped(match["text"][1:-1])
        entries[-1].lines[key].append(index)
    return entries


def _sources(entry: _Entry, singular: int) -> dict[str, str]:
    """Return the text to translate for each form."""
    plural = entry.texts.get("msgid_plural")
    if plural is None:
        return dict.fromkeys(entry.forms, entry.texts["msgid"])
    only_one = len(entry.forms) == 1
    return {
        key: entry.texts["msgid"] if key == f"msgstr[{singular}]" and not only_one else plural for key in entry.forms
    }


def _index_of_one(header: str) -> int:
    """Return the number of the plural form for one, by the rule of the header."""
    match = _PLURALS.search(header)
    if match is None:
        return 0
    try:
        return int(python_gettext.c2py(match[2].strip())(1))
    except (ValueError, ArithmeticError, RecursionError):
        return 0


def _written(key: str, text: str, line: str) -> list[str]:
    """Return the lines of a translation: one, or one per line of the text after an empty one."""
    end = "\r" if line.endswith("\r") else ""
    parts = re.findall(r"[^\n]*\n|[^\n]+", text) or [""]
    quoted = [f'"{_escape(part)}"' for part in parts]
    return [f"{key} {quoted[0]}{end}"] if len(parts) == 1 else [f'{key} ""{end}', *(one + end for one in quoted)]


def _escape(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] in "01234567":
            return chr(int(escape, 8))
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPES.get(escape, escape)

    return _ESCAPED.sub(replaced, text)
