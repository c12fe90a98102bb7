"""Translation of documents that consist of text, inline tags and breaks; what HTML and XML have in common."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dragoman.errors import UsageError
from dragoman.markup.segment import Segment, Tag, has_same_words, pair_tags, plain_text, translate_segments
from dragoman.pipelines.protection import LEADING

if TYPE_CHECKING:
    from dragoman.pipelines.translation import Translator

MAX_DEPTH = 500
"""Maximum depth of nested inline tags; deeper ones are moved like empty tags."""

_CDATA_START, _CDATA_END = "<![CDATA[", "]]>"

_SPACE = " \t\n\r\f"
_BEFORE = {"", *_SPACE, *"([{«“‘„¿¡"}
_AFTER = {"", *_SPACE, *".,;:!?)]}»”’…"}
"""What may stand before and after a word besides a space on the other side; "" is an end of the text."""
_INVALID = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow."""
_SPACES = re.compile(r"\s++|&(?:nbsp|#160|#[xX][aA]0);")
_REVERSED_SPACES = re.compile(r"\s++|;(?:psbn|061#|0[aA][xX]#)&")
_LINE_END = re.compile(r"(?<![ \t\n\r\f]) *+[\t\n\r\f][ \t\n\r\f]*")


@dataclass(frozen=True)
class Item:
    """A piece of a document.

    kind: "text", an inline tag ("open", "close", "empty"), or "break", which ends a segment and remains in its place.
    raw: the piece as it stands in the document.  text: of text, decoded.  name: of open and close tags.
    """

    kind: Literal["text", "open", "close", "empty", "break"]
    raw: str
    text: str = ""
    name: str = ""


@dataclass(frozen=True)
class Document:
    """The items of a document in order: their `raw` joined is the document.

    encode: converts translated text to markup.  keep_lines: whether line ends separate sentences; otherwise they count
    as spaces.
    """

    items: Sequence[Item]
    encode: Callable[[str], str]
    keep_lines: bool = False


@dataclass(frozen=True)
class _Run:
    """Items between breaks that are translated as one segment, and the spaces beside their empty tags."""

    items: Sequence[Item]
    segment: Segment
    spaces: dict[int, tuple[str, bool]]
    document: Document


def translate_documents(
    translator: Translator, documents: Sequence[Document], places: list[tuple[int, int]] | None = None, **settings: Any
) -> list[str]:
    """Translate the text of documents; everything else stays in its place or moves with the text around it.

    Items between breaks are a segment, without the whitespace and the empty tags at its ends.  Segments without letters
    and digits, and segments that are equal to their translation but for white space, keep their bytes.

    places: receives the index of the document and the line of each segment that is translated.  settings: arguments of
    `translate_segments`.  Raises UsageError for `prefix` and `nbest`, which have no meaning for segments.
    """
    for name in ("prefix", "nbest"):
        if settings.get(name) not in (None, "", 1):
            raise UsageError(f"{name} = {settings[name]!r:.40}: not supported for markup; omit it")
    parts = [list(_parts(document)) for document in documents]
    runs = [part for part in itertools.chain.from_iterable(parts) if isinstance(part, _Run)]
    if places is not None:
        for number, own in enumerate(parts):
            line = 1
            for part in own:
                if isinstance(part, _Run):
                    places.append((number, line))
                line += (part if isinstance(part, str) else _raw(part.items)).count("\n")
    translated = iter(translate_segments(translator, [run.segment for run in runs], **settings))
    return ["".join(part if isinstance(part, str) else _write(part, next(translated)) for part in own) for own in parts]


def _parts(document: Document) -> Iterator[str | _Run]:
    """Yield the runs of a document, and what stands between them."""
    for is_break, group in itertools.groupby(document.items, key=lambda item: item.kind == "break"):
        items = list(group)
        if is_break:
            yield _raw(items)
            continue
        items = [piece for item in _merge_textless(_pair(items)) for piece in _split_space(item)]
        first, last = 0, len(items)
        while first < last and _is_edge(items[first]):
            first += 1
        if first < last and items[first].kind == "text" and any(item.kind == "empty" for item in items[:first]):
            item = items[first]
            if (leading := LEADING.match(item.text)) and item.raw.startswith(leading[0]):  # stays beside the tag
                size = leading.end()
                halves = (
                    Item("text", item.raw[:size], item.text[:size]),
                    Item("text", item.raw[size:], item.text[size:]),
                )
                items[first : first + 1] = halves
                first, last = first + 1, last + 1
        while first < last and _is_edge(items[last - 1]):
            last -= 1
        run = _run(items[first:last], document)
        yield _raw(items[:first])
        yield run if any(map(str.isalnum, plain_text(run.segment))) else _raw(run.items)
        yield _raw(items[last:])


def _is_edge(item: Item) -> bool:
    return item.kind == "empty" or (item.kind == "text" and not item.text.strip())


def _leading(pattern: re.Pattern[str], text: str) -> str:
    """Return what `pattern` matches at the beginning of a text, repeatedly."""
    end = 0
    while found := pattern.match(text, end):
        end = found.end()
    return text[:end]


def _split_space(item: Item) -> list[Item]:
    """Return the whitespace at the beginning and at the end of text, with no-break spaces, as items of their own."""
    if item.kind != "text" or not item.text.strip():
        return [item]
    raw, text = item.raw, item.text
    if raw == text:
        left, right = raw[: len(raw) - len(raw.lstrip())], raw[len(raw.rstrip()) :]
    else:
        left, right = _leading(_SPACES, raw), _leading(_REVERSED_SPACES, raw[::-1])[::-1]
    before, after = html.unescape(left), html.unescape(right)
    pieces = [
        (left, before),
        (raw[len(left) : len(raw) - len(right)], text[len(before) : len(text) - len(after)]),
        (right, after),
    ]
    return [Item("text", raw, text) for raw, text in pieces if raw]


def _raw(items: Iterable[Item]) -> str:
    return "".join(item.raw for item in items)


def _pair(items: Sequence[Item]) -> list[Item]:
    """Return items whose tags are well nested: tags without a counterpart become empty tags."""
    partners = pair_tags(((item.kind, item.name) for item in items), MAX_DEPTH)
    kept = {*partners, *partners.values()}
    return [
        Item("empty", item.raw) if item.kind in ("open", "close") and index not in kept else item
        for index, item in enumerate(items)
    ]


def _merge_textless(items: Sequence[Item]) -> list[Item]:
    """Return well nested items in which a pair of tags that contains only empty tags and whitespace is one empty tag.

    Whitespace in it still separates the words around it.  A pair that contains only whitespace is not changed.
    """
    result: list[Item] = []
    opened: list[tuple[int, bool]] = []  # index in the result, and whether text follows
    for item in items:
        result.append(item)
        if item.kind == "open":
            opened.append((len(result) - 1, False))
        elif item.kind == "text" and item.text.strip() and opened:
            opened[-1] = opened[-1][0], True
        elif item.kind == "close":
            start, has_text = opened.pop()
            kinds = set() if has_text else {inner.kind for inner in result[start:]}
            if not has_text and ("text" not in kinds or "empty" in kinds):
                result[start:] = [Item("empty", _raw(result[start:])), *[Item("text", "", " ")] * ("text" in kinds)]
            elif has_text and opened:
                opened[-1] = opened[-1][0], True
    return result


def _run(items: Sequence[Item], document: Document) -> _Run:
    segment: Segment = []
    opened: list[int] = []
    for number, item in enumerate(items):
        if item.kind == "text":
            text = item.text if document.keep_lines else _LINE_END.sub(" ", item.text)
            last = segment.pop() if segment and isinstance(segment[-1], str) else ""
            segment.append(f"{last}{text}")
        elif item.kind == "close":
            segment.append(Tag("close", item.raw, opened.pop()))
        elif item.kind != "break":
            segment.append(Tag(item.kind, item.raw, number))
            if item.kind == "open":
                opened.append(number)
    return _Run(items, segment, _take_spaces(segment), document)


def _take_spaces(segment: Segment) -> dict[int, tuple[str, bool]]:
    """Remove the space before or after each empty tag that stands as a word of its own.

    "a <x/> b" becomes "a<x/> b", so that the text has one space without the tag, and "a <x/>." becomes "a<x/>.".
    Return the removed spaces by the number of the tag, and whether they stood before the tag.
    """
    spaces: dict[int, tuple[str, bool]] = {}
    following = _following(segment)
    before = ""  # the last character before the tag
    for index, item in enumerate(segment):
        if isinstance(item, str):
            before = item[-1:] or before
        elif item.kind == "empty":
            left, right = segment[index - 1] if index else "", segment[index + 1] if index + 1 < len(segment) else ""
            if isinstance(left, str) and left.rstrip(_SPACE) != left and following[index] in _AFTER:
                segment[index - 1] = kept = left.rstrip(_SPACE)
                spaces[item.pair], before = (left[len(kept) :], True), kept[-1:]
            elif isinstance(right, str) and right.lstrip(_SPACE) != right and before in _BEFORE:
                segment[index + 1] = kept = right.lstrip(_SPACE)
                spaces[item.pair] = right[: len(right) - len(kept)], False
    segment[:] = [item for item in segment if item != ""]
    return spaces


def _following(segment: Segment) -> list[str]:
    """Return the next character of the text after each item."""
    found, after = [], ""
    for item in reversed(segment):
        found.append(after)
        after = item[0] if isinstance(item, str) and item else after
    return found[::-1]


def _write(run: _Run, translated: Segment) -> str:
    """Return the markup of a translated run."""
    if has_same_words(plain_text(run.segment), plain_text(translated)):
        return _raw(run.items)
    following = _following(translated)
    result: list[str] = []
    before, verbatim = "", False
    for item, after in zip(translated, following, strict=True):
        if isinstance(item, str):
            if verbatim:  # "]]>" is divided between two CDATA sections
                text = _INVALID.sub("\ufffd", item).replace(_CDATA_END, f"]]{_CDATA_END}{_CDATA_START}>")
            else:
                text = run.document.encode(item)
            result.append(text)
            before = item[-1:] or before
            continue
        space, first = run.spaces.get(item.pair, ("", True)) if item.kind == "empty" else ("", True)
        if space and before.strip() and (first or (before.isalnum() and after in _AFTER)):
            result += [space, item.raw]
        elif space and after.strip():
            result += [item.raw, space]
            before = space
        else:
            result.append(item.raw)
        verbatim = item.raw == _CDATA_START or (verbatim and item.raw != _CDATA_END)
    return "".join(result)


def encoder(source: str) -> Callable[[str], str]:
    """Return a function that encodes text as markup.

    "&", "<" and "]]>" are encoded, other ">" and no-break spaces as they are in `source`; characters that XML does not
    allow become U+FFFD.
    """
    written = {"&": "&amp;", "<": "&lt;"}
    if "&gt;" in source:
        written[">"] = "&gt;"
    for reference in ("&nbsp;", "&#160;", "&#xa0;", "&#xA0;"):
        if reference in source:
            written["\u00a0"] = reference
            break
    table = str.maketrans(written)
    return lambda text: _INVALID.sub("\ufffd", text).translate(table).replace(_CDATA_END, "]]&gt;")
