"""Segments of text with inline tags, and their translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dragoman.pipelines.translation import Translator

__all__ = ["Segment", "Tag", "translate_segments"]


@dataclass(frozen=True)
class Tag:
    """An inline tag of a segment.

    kind: "open", "close", or "empty" (a void tag, or content that is not translated, moved as a whole).  raw: what
    stands in the output for the tag, exactly as in the source, such as '<b class="x">'.  pair: number shared by an
    open tag and its close tag, unique in the segment; empty tags have a number of their own.
    """

    kind: Literal["open", "close", "empty"]
    raw: str
    pair: int


Segment = list[str | Tag]
"""Text (plain characters, entities decoded) and tags in order; tags are well nested."""


def translate_segments(translator: Translator, segments: Sequence[Segment], **settings: Any) -> list[Segment]:
    """Translate segments; each result has exactly the tags of its source, well nested, at proportional positions.

    The text of a result without its tags equals the translation of the text of its segment.  Raises UsageError.
    """
    texts = ["".join(item for item in segment if isinstance(item, str)) for segment in segments]
    translations = translator.translate(texts, **settings)
    return [_place(segment, found.text) for segment, found in zip(segments, translations, strict=True)]


def _place(segment: Segment, text: str) -> Segment:
    total = sum(len(item) for item in segment if isinstance(item, str))
    result: Segment = []
    before = written = 0
    for item in segment:
        if isinstance(item, str):
            before += len(item)
            end = len(text) * before // total if total else len(text)
            result += [text[written:end]] if end > written else []
            written = end
        else:
            result.append(item)
    return result
