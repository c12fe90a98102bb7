"""Translation memories (TMX): units without a variant in the target language receive one."""

from __future__ import annotations

from dragoman.data.languages import language_code
from dragoman.documents.inline import Inline, Role
from dragoman.documents.segments import DocumentTranslator
from dragoman.documents.xml_spans import Edits, Node, parse_xml
from dragoman.errors import DataError, UsageError
from dragoman.markup.segment import Segment


class _Translation(Inline):
    """A segment of the source language, whose translation is written into the variant of the target language.

    variant: None: a new variant is added.
    """

    def __init__(self, unit: Node, source: Node, variant: Node | None, language: str, edits: Edits) -> None:
        super().__init__(source, edits, _role, collapse=True)
        self._unit, self._variant, self._language = unit, variant, language

    def replace(self, translated: Segment) -> None:
        """Write the translation into the empty segment of the target language, or into a new variant."""
        empty = self._variant.child("seg") if self._variant else None
        if empty is not None:
            self._edits.replace((empty.start, empty.end), lambda: b"<seg>%b</seg>" % self.written(translated))
            return
        variants = [node for node in self._unit.nodes if node.name == "tuv"]
        first, before = variants[0], variants[-1].end
        space = _indentation(self._edits.source, first.start)
        language = self._language.replace("_", "-").encode()
        form = b'%b<tuv xml:lang="%b"><seg>%%b</seg></tuv>' % (space, language)
        self._edits.replace((before, before), lambda: form % self.written(translated))


def translate_tmx(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate the units of a TMX file that have a text in the source language of the model and none in its target.

    Raises UsageError if the model has no language codes, and DataError if no unit has its source language.
    """
    source_language, target_language = translator.languages
    if not source_language or not target_language:
        raise UsageError(
            "the model has no language codes, which select the variants of a TMX file; set data.source_language and "
            "data.target_language in the configuration of the model"
        )
    root, source, encode = parse_xml(data, {})
    if root.name != "tmx":
        raise DataError(f"the root element is <{root.name}>; accepted: a TMX file, whose root is <tmx>")
    edits = Edits(source)
    found: list[_Translation] = []
    languages: set[str | None] = set()
    for unit in root.iter():
        if unit.name != "tu":
            continue
        variants = {language_code(_language(node)): node for node in reversed([*unit.nodes]) if node.name == "tuv"}
        languages.update(variants)
        segment = _segment(variants.get(language_code(source_language)))
        variant = variants.get(language_code(target_language))
        target = _segment(variant)
        if segment is not None and segment.text.strip() and (target is None or not target.text.strip()):
            found.append(_Translation(unit, segment, variant if target else None, target_language, edits))
    if language_code(source_language) not in languages:
        known = ", ".join(sorted(filter(None, languages))) or "none"
        raise DataError(
            f"no unit has a variant in {source_language!r}, the source language of the model (has: {known})"
        )
    translator.translate_blocks(found)
    return encode(edits.render())


def _indentation(source: bytes, start: int) -> bytes:
    """Return the line end and the spaces before an element, b"" if something else stands on its line."""
    line = source.rfind(b"\n", 0, start)
    space = source[line:start] if line >= 0 else b"-"
    return b"" if space.strip() else space


def _language(variant: Node) -> str:
    return variant.attributes.get("xml:lang") or variant.attributes.get("lang") or ""


def _segment(variant: Node | None) -> Node | None:
    return variant.child("seg") if variant is not None else None


def _role(node: Node) -> Role:
    if node.name == "hi":
        return Role("pair")
    if node.name in ("bpt", "ept") and "i" in node.attributes:
        return Role("open" if node.name == "bpt" else "close", node.attributes["i"])
    return Role("empty")
