"""Marks in running text, such as tags and placeholders, and the segments that they form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dragoman.documents.segments import Break, DocumentTranslator, source_text
from dragoman.markup.segment import Segment, Tag

_BREAK = r"(?P<break>\r\n|\n|\r)"
_ELEMENT = r"(?P<element></?[A-Za-z][^\s<>/]*(?:\s[^<>]*)?/?>)"
_PLACEHOLDER = (
    r"\$?\{\{?[^{}\n]{0,80}\}?\}"  # {name}, {{name}}, ${name}, {0:.2f}
    r"|%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|ll|[hljztL])?[diouxXeEfFgGcrsap@](?![A-Za-z])"
    r"|%%|%\w+%"
)
_MESSAGE = re.compile(rf"{_BREAK}|{_ELEMENT}")
_PROTECTED = re.compile(rf"{_BREAK}|{_ELEMENT}|(?P<empty>{_PLACEHOLDER})")
_PLACEHOLDERS = re.compile(_PLACEHOLDER)
_ALTERNATIVES = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,")
_NAME = re.compile(r"</?([^\s/>]+)")


_MAX_DEPTH = 100


@dataclass(frozen=True)
class Mark:
    """A tag before pairs are formed.

    role: marks "open" and "close" of the same key are a pair; "break" ends a sentence.  raw: its source.  content: what
    a reader needs to write it.
    """

    role: Literal["open", "close", "empty", "break"]
    raw: str
    key: str = ""
    content: Any = None


@dataclass(frozen=True)
class MarkedText:
    """A segment, and the marks of its tags by kind and pair."""

    segment: Segment
    marks: dict[tuple[str, int], Mark]

    def mark(self, tag: Tag) -> Mark:
        """Return the mark of a tag."""
        return self.marks[tag.kind, tag.pair]


def pair_marks(items: Sequence[str | Mark]) -> MarkedText:
    """Return the segment of texts and marks.  Marks without a partner, pairs that overlap, and pairs
    inside of 100 others become empty tags."""
    partners: dict[int, int] = {}  # index of the close mark -> index of the open mark
    open_marks: list[tuple[int, str]] = []
    for index, item in enumerate(items):
        if isinstance(item, str):
            continue
        if item.role == "open" and len(open_marks) < _MAX_DEPTH:
            open_marks.append((index, item.key))
        elif item.role == "close":
            opening = next((i for i in reversed(range(len(open_marks))) if open_marks[i][1] == item.key), None)
            if opening is not None:
                partners[index] = open_marks[opening][0]
                del open_marks[opening:]
    opened = set(partners.values())
    segment: Segment = []
    marks: dict[tuple[str, int], Mark] = {}
    for index, item in enumerate(items):
        if isinstance(item, str):
            if segment and isinstance(segment[-1], str):
                segment[-1] += item
            elif item:
                segment.append(item)
            continue
        if index in partners:
            tag = Tag("close", item.raw, partners[index])
        elif index in opened:
            tag = Tag("open", item.raw, index)
        else:
            tag = (Break if item.role == "break" else Tag)("empty", item.raw, index)
        marks[tag.kind, tag.pair] = item
        segment.append(tag)
    return MarkedText(segment, marks)


def find_marks(text: str, pattern: re.Pattern[str]) -> Segment:
    """Return a text as a segment.

    pattern: its named groups are `element` (a tag in angle brackets), `break` and `empty`.
    """
    return pair_marks(list(_marks(text, pattern))).segment


def _marks(text: str, pattern: re.Pattern[str]) -> Iterator[str | Mark]:
    end = 0
    for match in pattern.finditer(text):
        yield text[end : match.start()]
        end, raw = match.end(), match[0]
        if match.lastgroup == "element" and not raw.endswith("/>"):
            name = _NAME.match(raw)
            assert name is not None
            yield Mark("close" if raw.startswith("</") else "open", raw, name[1].partition(".")[0])
        else:
            yield Mark("break" if match.lastgroup == "break" else "empty", raw)
    yield text[end:]


def translate_messages(translator: DocumentTranslator, texts: Sequence[str]) -> list[str]:
    """Translate messages of software, with tags such as <b> and placeholders such as %s and {name}.

    Line ends divide a message.  The model sees the placeholders; if its translation has others than the source, the
    message is translated without them, and they are put to the aligned positions.  Messages with alternatives in ICU
    syntax, such as {count, plural, ...}, are returned unchanged, because their keywords would be translated.
    """
    restored = list(texts)
    pending = [i for i, text in enumerate(texts) if not _ALTERNATIVES.search(text)]
    for pattern in (_MESSAGE, _PROTECTED):
        segments = translator.segments([find_marks(texts[i], pattern) for i in pending])
        for index, segment in zip(pending, segments, strict=True):
            restored[index] = source_text(segment)
        pending = [i for i in pending if _placeholders(texts[i]) != _placeholders(restored[i])]
    return restored


def _placeholders(text: str) -> Counter[str]:
    return Counter(_PLACEHOLDERS.findall(text))
