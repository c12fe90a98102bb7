"""Docstrings as reStructuredText for autodoc.

Docstrings are plain text: code in backticks, and parameters either in a block "Args:" or in a run-in list
("beam: hypotheses per step.  alpha: exponent of the length penalty."), which become lists of parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

_CODE = re.compile(r'`([^`]+)`|("[\w.-]*")')
"""Code in backticks, or a string without spaces."""
_MARKUP = re.compile(r"([\\*|])|(_)(?!\w)")
_EXCEPTION = re.compile(r"\b([A-Z]\w+Error)\b")
_REFERENCE = re.compile(r"[A-Z]\w*(?:\.\w+)*")
_LABEL = re.compile(r"(\w+)(?: (\([^)]*\)))?")
_RUN_IN = re.compile(rf"(?:(?<=[.;)])\s+|^)({_LABEL.pattern}(?:, {_LABEL.pattern})*): ")
_RAISES = re.compile(r"(?:(?<=\.)\s+|^)(?=Raises )")
_ARGUMENT = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def escaped(text: str) -> str:
    """Return plain text as reStructuredText, code in backticks as code or as a link to a documented name."""
    result, end = "", 0
    for found in _CODE.finditer(text):
        code = found[1] or found[2]
        result += _plain(text[end : found.start()])
        result += f":py:obj:`.{code}`" if _REFERENCE.fullmatch(code) else f"``{code}``"
        end = found.end()
        result += "\\ " if text[end : end + 1].isalnum() else ""  # markup ends before a space or punctuation
    return result + _plain(text[end:])


def _plain(text: str) -> str:
    return _EXCEPTION.sub(r":py:exc:`.\1`", _MARKUP.sub(lambda found: "\\" + found[0], text))


def names_of(documented: Any) -> set[str]:
    """Return the names of the parameters of a function or class, and of the fields of a class."""
    names: set[str] = set()
    if inspect.isclass(documented):
        names.update(dir(documented))
        for base in documented.__mro__:
            names.update(getattr(base, "__annotations__", {}))
    with suppress(TypeError, ValueError):  # classes implemented in C, such as exceptions, have no signature
        names.update(inspect.signature(documented).parameters)
    return names


def entries(label: str, text: str) -> Iterator[str]:
    """Yield one entry per name of a label such as "top_k (0 = off), seed"."""
    for name, remark in _LABEL.findall(label):
        yield f":param {name}: {escaped(f'{remark}: {text}' if remark else text)}"


def run_in(text: str, names: set[str]) -> Iterator[str]:
    """Yield the paragraphs of one paragraph: its beginning, one entry per parameter, what is raised."""
    for part in _RAISES.split(text):
        found = [m for m in _RUN_IN.finditer(part) if {name for name, _ in _LABEL.findall(m[1])} <= names]
        if beginning := part[: found[0].start() if found else len(part)].strip():
            yield escaped(beginning)
        ends = [*(match.start() for match in found[1:]), len(part)]
        for match, end in zip(found, ends, strict=False):
            yield from entries(match[1], re.sub(";$", ".", part[match.end() : end].strip()))


def arguments(lines: list[str]) -> Iterator[str]:
    """Yield one entry per parameter of a block "Args:"."""
    found: list[list[str]] = []
    for line in lines:
        if match := _ARGUMENT.fullmatch(line):
            found.append([match[1], match[2]])
        else:
            found[-1][1] += " " + line.strip()
    for label, text in found:
        yield from entries(label, text)


def converted(lines: list[str], names: set[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText."""
    paragraphs: list[str] = []
    for block in "\n".join(lines).strip().split("\n\n"):
        rows = block.split("\n")
        if rows[0] == "Args:":
            paragraphs += arguments(rows[1:])
        else:
            paragraphs += run_in(" ".join(row.strip() for row in rows), names)
    result: list[str] = []
    for paragraph, following in zip(paragraphs, [*paragraphs[1:], ""], strict=True):
        result.append(paragraph)
        if not (paragraph.startswith(":param") and following.startswith(":param")):
            result.append("")
    return result


def setup(app: Sphinx) -> dict[str, bool]:
    def docstring(_app: Sphinx, _what: str, _name: str, documented: Any, _options: Any, lines: list[str]) -> None:
        # The translators receive the text of the page only: docstrings are English in all languages.
        lines[:] = [] if app.builder.name == "gettext" else converted(lines, names_of(documented))

    def signature(
        _app: Sphinx, _what: str, _name: str, documented: Any, _options: Any, given: str | None, result: str | None
    ) -> tuple[str | None, str | None]:
        model = inspect.isclass(documented) and issubclass(documented, BaseModel)
        return ("", None) if model else (given, result)  # its keys are in the reference of configurations

    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}
