"""Elements with text and inline elements, as in OpenDocument, XLIFF and TMX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dragoman.documents.marks import Mark, MarkedText, pair_marks
from dragoman.documents.xml_spans import Edits, Node, Span, escape
from dragoman.markup.segment import Segment

_SPACES = re.compile(r"[ \t\r\n]+")


@dataclass(frozen=True)
class Role:
    """What an inline element is.

    kind: "pair" (its content is text), "empty", "break" (it ends a sentence), or "open" and "close" for elements that
    mark the two ends of a formatting, with the same `key`.
    """

    kind: Literal["pair", "empty", "break", "open", "close"] = "empty"
    key: str = ""


EMPTY = Role()


class Inline:
    """The content of an element as a segment.

    role: returns what an inline element is.  collapse: whether a sequence of whitespace counts as one space.
    """

    def __init__(
        self,
        node: Node,
        edits: Edits,
        role: Callable[[Node], Role],
        collapse: bool = False,
    ) -> None:
        self._node, self._edits, self._role, self._collapse = node, edits, role, collapse
        self._marked: MarkedText = pair_marks(self._items(node))

    @property
    def segment(self) -> Segment:
        """The text with its tags."""
        return self._marked.segment

    def replace(self, translated: Segment) -> None:
        """Write the translation, which has the tags of `segment`, into the element."""
        if translated != self.segment:
            self._edits.replace((self._node.inner_start, self._node.inner_end), lambda: self.written(translated))

    def written(self, segment: Segment) -> bytes:
        """Return the source of a segment with these tags."""
        return b"".join(
            escape(item) if isinstance(item, str) else self._edits.render(*self._marked.mark(item).content)
            for item in segment
        )

    def _items(self, parent: Node) -> list[str | Mark]:
        items: list[str | Mark] = []
        for child in parent.children:
            if isinstance(child, str):
                items.append(_SPACES.sub(" ", child) if self._collapse else child)
                continue
            role = EMPTY if child.name in "!?" else self._role(child)
            if role.kind == "pair" and child.inner_end > child.inner_start:
                key = f"pair {child.start}"
                items.append(self._mark("open", child.open_span, key))
                items += self._items(child)
                items.append(self._mark("close", child.close_span, key))
            else:
                kind = "empty" if role.kind == "pair" else role.kind
                items.append(self._mark(kind, (child.start, child.end), role.key))
        return items

    def _mark(self, kind: Literal["open", "close", "empty", "break"], span: Span, key: str = "") -> Mark:
        return Mark(kind, self._edits.source[span[0] : span[1]].decode(), key, span)
