"""Translation of text with tags: segments, HTML, XML and XLIFF."""

from dragoman.markup.html import translate_html
from dragoman.markup.segment import Segment, Tag, plain_text, translate_segments
from dragoman.markup.xml import translate_xliff, translate_xml

__all__ = ["Segment", "Tag", "plain_text", "translate_html", "translate_segments", "translate_xliff", "translate_xml"]
