"""Text with inline tags: translation that moves the tags along."""

from __future__ import annotations

from dragoman.markup.segment import Segment, Tag, translate_segments

__all__ = ["Segment", "Tag", "translate_segments"]
