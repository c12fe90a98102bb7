"""XML documents with the position of every element, so that parts are replaced and all other bytes stay as they are.

An XML library that parses and writes a document changes its quotes, entities, line ends and empty elements.  Here the
parser only locates the text; the output is the source with some spans replaced.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dragoman.documents.plain import decode_text
from dragoman.documents.segments import Mark, pair_marks, source_text, split_marks
from dragoman.errors import clip
from dragoman.markup.segment import Segment
from dragoman.markup.xml import XmlScanner

_MAX_DEPTH = 200
_TAG = re.compile(rb"<(?:[^>\"']|\"[^\"]*\"|'[^']*')*>")
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?\sencoding\s*=\s*[\"']([^\"']*)")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_XML = "http://www.w3.org/XML/1998/namespace"

Span = tuple[int, int]
"""Start and end in the bytes of a document."""


class Node:
    """An element of a document, or a comment or processing instruction, whose name is "!" or "?".

    name: with the prefix that the reader has chosen for its namespace, such as "w:p"; no prefix for other namespaces.
    attributes: by name, in the same way.  start, end: the whole element; inner_start, inner_end: its content.
    children: nodes and texts, in order.
    """

    __slots__ = ("attributes", "children", "end", "inner_end", "inner_start", "name", "start")

    def __init__(self, name: str, attributes: dict[str, str], start: int, inner_start: int, end: int) -> None:
        self.name, self.attributes = name, attributes
        self.start, self.inner_start = start, inner_start
        self.inner_end = self.end = end
        self.children: list[Node | str] = []

    @property
    def nodes(self) -> Iterator[Node]:
        """The children that are not text."""
        return (child for child in self.children if isinstance(child, Node))

    def iter(self, skip: Callable[[Node], bool] = lambda node: False) -> Iterator[Node]:
        """Yield the node and everything in it, in document order, without the nodes for which `skip` is true."""
        pending = [self]
        while pending:
            node = pending.pop()
            if not skip(node):
                yield node
                pending += reversed([*node.nodes])

    def child(self, name: str) -> Node | None:
        """Return the first child of a name."""
        return next((node for node in self.nodes if node.name == name), None)

    @property
    def text(self) -> str:
        """The text of the node and everything in it."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def open_span(self) -> Span:
        """The span of the start tag."""
        return self.start, self.inner_start

    @property
    def close_span(self) -> Span:
        """The span of the end tag, empty if there is none."""
        return self.inner_end, self.end


class _Builder(XmlScanner):
    """Builds the nodes of a document."""

    def __init__(self, data: bytes, prefixes: Mapping[str, str]) -> None:
        super().__init__("", _MAX_DEPTH, "Save or export the file again.", separator="}")
        self._data, self._prefixes = data, {**prefixes, _XML: "xml"}
        self.root: Node | None = None
        self._open: list[Node] = []
        self._names: dict[str, str] = {}
        parser = self.parser
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.CommentHandler = lambda _: self._skip("!", b"-->")
        parser.ProcessingInstructionHandler = lambda *_: self._skip("?", b"?>")
        parser.SkippedEntityHandler = self._skipped

    def _name(self, name: str) -> str:
        full_name = self._names.get(name)
        if full_name is None:
            uri, _, local = name.rpartition("}")
            prefix = self._prefixes.get(uri)
            full_name = self._names[name] = f"{prefix}:{local}" if prefix else local
        return full_name

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        start = self.parser.CurrentByteIndex
        tag = _TAG.match(self._data, start)
        assert tag is not None
        self.check_depth(len(self._open) + 1)
        named = {self._name(key): value for key, value in attributes.items()}
        node = Node(self._name(name), named, start, tag.end(), tag.end())
        self._add(node)
        if self.root is None:
            self.root = node
        self._open.append(node)

    def _end(self, name: str) -> None:
        node = self._open.pop()
        if not self._data.startswith(b"/>", node.inner_start - 2):  # an empty-element tag has no end tag
            node.inner_end = self.parser.CurrentByteIndex
            node.end = self._data.index(b">", node.inner_end) + 1

    def _skip(self, name: str, ending: bytes) -> None:
        start = self.parser.CurrentByteIndex
        end = self._data.index(ending, start + 2) + len(ending)
        self._add(Node(name, {}, start, end, end))

    def _characters(self, text: str) -> None:
        if self._open:
            self._open[-1].children.append(text)

    def _add(self, node: Node) -> None:
        if self._open:
            self._open[-1].children.append(node)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            self.refuse(f"the entity &{clip(name, 40)}; has no declaration")


def parse_xml(data: bytes, prefixes: Mapping[str, str]) -> tuple[Node, bytes, Callable[[bytes], bytes]]:
    """Parse a document.

    Returns its root, the document in UTF-8, to which all positions refer, and a function that encodes an edited
    document as the source was encoded.  prefixes: namespace -> prefix of names.  Raises DataError for documents that
    are not well-formed, nested deeper than 200 levels, or declare entities.  External entities are never read.
    """
    text, encode = decode_text(data, _DECLARED.match(data), "xmlcharrefreplace")
    content = text.encode()
    del text  # it may need four times as much memory, and one copy of UTF-8 is enough
    content = data if content == data else content
    builder = _Builder(content, prefixes)
    builder.parse(content)
    assert builder.root is not None
    return builder.root, content, lambda edited: edited if content is data else encode(edited.decode())


class Edits:
    """Replacements of spans of a document."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._edits: list[tuple[int, int, Callable[[], bytes]]] = []
        self._is_sorted = True

    def replace(self, span: Span, content: bytes | Callable[[], bytes]) -> None:
        """Replace a span; an empty one inserts.

        A span that contains others is written by a function, which calls `render` for the parts that it keeps.
        """
        self._edits.append((*span, content if callable(content) else lambda: content))
        self._is_sorted = False

    def __len__(self) -> int:
        return len(self._edits)

    def render(self, start: int = 0, end: int | None = None) -> bytes:
        """Return a span of the document, by default all of it, with the replacements inside it.

        Of nested replacements, the outermost one is written.
        """
        if not self._is_sorted:
            self._edits.sort(key=lambda edit: (edit[0], edit[1] > edit[0], -edit[1]))  # insertions first
            self._is_sorted = True
        end = len(self.source) if end is None else end
        parts: list[bytes] = []
        position = start
        for index in range(bisect.bisect_left(self._edits, start, key=lambda edit: edit[0]), len(self._edits)):
            first, last, content = self._edits[index]
            if first >= end:
                break
            if first < position or last > end:
                continue  # inside the previous one, or around this span
            parts += [self.source[position:first], content()]
            position = last
        return b"".join([*parts, self.source[position:end]])


def escape(text: str) -> bytes:
    """Return text as content of an XML element, without characters that XML does not allow."""
    text = _FORBIDDEN.sub("", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.encode()


_SPACES = re.compile(r"[ \t\r\n]+")


@dataclass(frozen=True)
class Role:
    """What an inline element is.

    kind: "pair" (its content is text), "empty", "break" (it ends a sentence, and its content, if any, is a text of its
    own), or "open" and "close" for elements that mark the two ends of a formatting, with the same `key`.
    """

    kind: Literal["pair", "empty", "break", "open", "close"] = "empty"
    key: str = ""


EMPTY = Role()


class Inline:
    """The content of an element as a segment: its text with tags.

    role: returns what an inline element is.  collapse: whether a sequence of whitespace counts as one space.
    """

    def __init__(self, node: Node, edits: Edits, role: Callable[[Node], Role], collapse: bool = False) -> None:
        self._node, self._edits, self._role, self._collapse = node, edits, role, collapse
        self._marked = pair_marks(self._items(node))
        self.segment = self._marked.segment

    def replace(self, translated: Segment) -> None:
        """Write the translation, which has the tags of `segment`, into the element."""
        if translated != self.segment:
            self._edits.replace((self._node.inner_start, self._node.inner_end), lambda: self.written(translated))

    def written(self, segment: Segment) -> bytes:
        """Return the source of a segment with these tags: that of the document if nothing was changed."""
        if segment == self.segment:
            return self._edits.render(self._node.inner_start, self._node.inner_end)
        spans = [None if isinstance(item, str) else self._marked.mark(item).content for item in segment]
        return b"".join(
            escape(source_text([item])) if span is None else self._edits.render(*span)
            for item, span in zip(segment, spans, strict=True)
        )

    def _items(self, parent: Node) -> list[str | Mark]:
        items: list[str | Mark] = []
        for child in parent.children:
            if isinstance(child, str):
                items += split_marks(_SPACES.sub(" ", child) if self._collapse else child)
                continue
            role = EMPTY if child.name in "!?" else self._role(child)
            if role.kind in ("pair", "break") and child.inner_end > child.inner_start:
                key, is_pair = f"pair {child.start}", role.kind == "pair"
                items.append(self._mark("open" if is_pair else "break", child.open_span, key))
                items += self._items(child)
                items.append(self._mark("close" if is_pair else "break", child.close_span, key))
            else:
                kind = "empty" if role.kind == "pair" else role.kind
                items.append(self._mark(kind, (child.start, child.end), role.key))
        return items

    def _mark(self, kind: Literal["open", "close", "empty", "break"], span: Span, key: str = "") -> Mark:
        return Mark(kind, self._edits.source[span[0] : span[1]].decode(), key, span)
