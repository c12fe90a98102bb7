"""XLIFF 1.2 and 2.0: units without a translation receive one; inline elements are tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dragoman.documents.inline import Inline, Role
from dragoman.documents.segments import DocumentTranslator
from dragoman.documents.xml_spans import Edits, Node, parse_xml
from dragoman.errors import DataError
from dragoman.markup.segment import Segment

_PREFIXES = {"urn:oasis:names:tc:xliff:document:1.2": "1", "urn:oasis:names:tc:xliff:document:2.0": "2"}
_PAIRS = {"1:g", "1:mrk", "2:pc", "2:mrk"}
_OPENING = {"1:bpt": ("rid", "id"), "1:bx": ("rid", "id"), "2:sc": ("id",), "2:sm": ("id",)}
_CLOSING = {"1:ept": ("rid", "id"), "1:ex": ("rid", "id"), "2:ec": ("startRef",), "2:em": ("startRef",)}
_STATE = re.compile(rb"\sstate(?:-qualifier)?\s*=\s*(?:\"[^\"]*\"|'[^']*')")
_OPEN_STATES = {"new", "needs-translation"}
_MACHINE = b' state="needs-review-translation" state-qualifier="mt-suggestion"'


class _Unit(NamedTuple):
    """A unit: the elements source and target, and the element whose state is that of the translation."""

    source: Node
    target: Node | None
    holder: Node

    @property
    def is_open(self) -> bool:
        """Whether there is a text without a translation; a target in the state "new" is a copy of the source."""
        target = self.target
        is_missing = target is None or not (target.text.strip() or [*target.nodes])
        is_new = target is not None and target.attributes.get("state") in _OPEN_STATES
        return bool(self.source.text.strip()) and (is_missing or is_new)


class _Translation(Inline):
    """The source of a unit, whose translation is written into the target."""

    def __init__(self, unit: _Unit, edits: Edits) -> None:
        keeps_space = "preserve" in (node.attributes.get("xml:space") for node in (unit.source, unit.holder))
        super().__init__(unit.source, edits, _role, collapse=not keeps_space)
        self._unit = unit

    def replace(self, translated: Segment) -> None:
        """Write the translation into the target, which is created if it is missing."""
        source, target, holder = self._unit
        text = self._edits.source
        is_first = source.name == "1:source"
        if target is None:
            tag = re.sub(rb"source$", b"target", _qualified_name(text, source))
        else:
            tag = _STATE.sub(b"", text[target.start + 1 : target.inner_start].rstrip(b"/> \t\r\n"))
        form = b"<%b%b>%%b</%b>" % (tag.replace(b"%", b"%%"), _MACHINE if is_first else b"", tag.split()[0])
        span = (target.start, target.end) if target else (source.end, source.end)
        self._edits.replace(span, lambda: form % self.written(translated))
        if not is_first:
            self._set_state(holder)

    def _set_state(self, segment: Node) -> None:
        if "state" not in segment.attributes:
            end = segment.inner_start - (2 if self._edits.source[segment.inner_start - 2] == ord("/") else 1)
            self._edits.replace((end, end), b' state="translated"')
            return
        tag = self._edits.source[segment.start : segment.inner_start]
        match = re.search(rb"\sstate\s*=\s*[\"']([^\"']*)", tag)
        if match:
            self._edits.replace((segment.start + match.start(1), segment.start + match.end(1)), b"translated")


def translate_xliff(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate the units of an XLIFF file that have no translation.

    Raises DataError if the file is damaged or of another version, or if its languages are not those of the model.
    """
    root, source, encode = parse_xml(data, _PREFIXES)
    if root.name not in ("1:xliff", "2:xliff"):
        raise DataError(f"the root element is <{root.name}>; accepted: <xliff> in the namespace of version 1.2 or 2.0")
    for node in root.iter():
        if node.name in ("1:file", "2:xliff"):
            names = ("source-language", "target-language") if node.name == "1:file" else ("srcLang", "trgLang")
            translator.check_languages(*(node.attributes.get(name) for name in names))
    edits = Edits(source)
    units = _units_of_first(root) if root.name == "1:xliff" else _units_of_second(root)
    translator.translate_blocks([_Translation(unit, edits) for unit in units if unit.is_open])
    _set_target_language(root, edits, translator.languages[1])
    return encode(edits.render())


def _is_kept(node: Node) -> bool:
    return node.attributes.get("translate") == "no"


def _units_of_first(root: Node) -> Iterator[_Unit]:
    for node in root.iter(_is_kept):
        source = node.child("1:source") if node.name == "1:trans-unit" else None
        if source is not None:
            yield _Unit(source, node.child("1:target"), node)


def _units_of_second(root: Node) -> Iterator[_Unit]:
    for node in root.iter(_is_kept):
        source = node.child("2:source") if node.name == "2:segment" else None
        if source is not None:
            yield _Unit(source, node.child("2:target"), node)


def _role(node: Node) -> Role:
    if node.name in _PAIRS and not _is_kept(node) and node.attributes.get("mtype") != "protected":
        return Role("pair")
    for elements, kind in ((_OPENING, "open"), (_CLOSING, "close")):
        names = elements.get(node.name, ())
        key = next((node.attributes[name] for name in names if name in node.attributes), None)
        if key is not None:
            return Role("open" if kind == "open" else "close", f"{node.name[0]} {key}")
    return Role("empty")


def _qualified_name(source: bytes, node: Node) -> bytes:
    match = re.compile(rb"<([^\s/>]+)").match(source, node.start)
    assert match is not None
    return match[1]


def _set_target_language(root: Node, edits: Edits, language: str | None) -> None:
    """Add the target language to a file of version 2.0, which requires it, if it is missing."""
    if root.name == "2:xliff" and "trgLang" not in root.attributes and language and edits:
        edits.replace((root.inner_start - 1,) * 2, f' trgLang="{language.replace("_", "-")}"'.encode())
