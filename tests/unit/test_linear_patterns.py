"""The time of every regular expression of the package grows linearly with its text, whatever the text is.

One call of `re` holds the interpreter lock until it ends: a pattern that backtracks stops a whole server.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dragoman
from dragoman.data import literals
from dragoman.formats.importing import bert
from growth import TOO_STEEP, Hostile, applied, steepness

ROOT = Path(dragoman.__file__).parent
FUNCTIONS = {"compile", "sub", "subn", "split", "match", "search", "fullmatch", "findall", "finditer"}


def unused_tensors() -> list[str]:
    """The patterns of names that the families of imported checkpoints ignore."""
    found = [*bert._UNUSED.values()]
    for path in (ROOT / "formats" / "importing").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="unused", value=value):
                    found += [one.value for one in ast.walk(value) if isinstance(one, ast.Constant)]
    return [pattern for pattern in found if isinstance(pattern, str)]


UNUSED = unused_tensors()
EXAMPLES = {
    "cli/__init__.py: _with_flags": [r"(?<![\w.])lowercase = True\b", r"(?<![\w.])beam = "],
    "data/literals.py: _spoken_parts": [*literals._QUARTER_WORDS.values()],
    "data/literals.py: _is_spelled": [r"\bXLIV(?:er?|ère|ème|th|st|nd|rd)?\b"],
    "config/train.py: _expression": ["[A-Z]{2}-[0-9]+"],
    "data/spans.py: compile_patterns": ["[A-Z]{2}-[0-9]+"],
    "documents/markdown.py: _match": [r"(?:[ \t]*|\\)\n[ \t]*", "<[^<>]*>", "``(?!`).*?(?<!`)``(?!`)", r"\(\s*", r"\]"],
    "documents/markdown_syntax.py: _end": [r"\{(?:%-?[ \t]*end|\{[<%][ \t]*/[ \t]*)raw\b"],
    "documents/plain.py: _rows": [
        r'(?:"(?P<quoted>[^"]*(?:""[^"]*)*)"|(?P<plain>(?!")[^,\r\n]*))(?P<end>,|\r?\n|\r|\Z)',
        r'(?:"(?P<quoted>[^"\r\n]*(?:""[^"\r\n]*)*)"|(?P<plain>[^\t\r\n]*))(?P<end>\t|\r?\n|\r|\Z)',
    ],
    "formats/importing/ctranslate2_files.py: layers": [r"encoder/layer_(\d{1,4})/"],
    "formats/importing/importer.py: _tensor_problems": UNUSED,
    "formats/importing/name_tables.py: table_problems": UNUSED,
    "markup/html.py: _scan": [r"</style(?=[ \t\n\f\r/>])"],
    "tokenizers/pieces.py: __init__": ["(<extra_id_11>|<extra_id_1>|aaab|aaa)"],
}
"""What patterns that are made while a function runs look like, by the file and the function."""


class Use(NamedTuple):
    """A call of `re`.  function: that contains it.  methods: of `re` that apply the pattern to texts."""

    file: str
    line: int
    function: str
    methods: set[str]
    argument: ast.expr
    flags: ast.expr | None


@functools.cache
def uses() -> list[Use]:
    """All calls of `re` in the source of the package."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
    everywhere = defaultdict(set)  # the methods that are called with a variable, by its name
    for tree in trees.values():
        for name, methods in called(tree).items():
            everywhere[name] |= methods
    return [use for file, tree in sorted(trees.items()) for use in uses_in(file, tree, everywhere)]


def called(tree: ast.Module) -> dict[str, set[str]]:
    found = defaultdict(set)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in FUNCTIONS:
                found[name].add(method)
    return found


def uses_in(file: str, tree: ast.Module, everywhere: dict[str, set[str]]) -> Iterator[Use]:
    names, chained, inside = {}, {}, {}
    here = called(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="re"):
                raise AssertionError(f"{file}: import re, so that this test finds its patterns")
            case ast.FunctionDef(name=name):
                inside |= dict.fromkeys(map(id, ast.walk(node)), name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[id(value)] = name
            case ast.Attribute(value=ast.Call() as value, attr=method):
                chained[id(value)] = method
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=function)) if function in FUNCTIONS:
                flags = next((word.value for word in node.keywords if word.arg == "flags"), None)
                position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2)
                flags = node.args[position] if len(node.args) > position else flags
                methods = {function}
                if function == "compile":
                    name = names.get(id(node), "")
                    methods = {chained[id(node)]} if id(node) in chained else set(here[name])
                    methods = methods or everywhere.get(name, set()) if not name.startswith("_") else methods
                yield Use(file, node.lineno, inside.get(id(node), ""), methods or {"search"}, node.args[0], flags)


def patterns(use: Use) -> list[re.Pattern[Any]]:
    """The patterns of a call."""
    module = "dragoman." + use.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    names = dict(vars(importlib.import_module(module)))

    def value(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), use.file, "eval"), names)

    try:
        found = [value(use.argument)]
    except NameError:
        assert f"{use.file}: {use.function}" in EXAMPLES, f"add an example of the pattern in {use.file}:{use.line}"
        found = EXAMPLES[f"{use.file}: {use.function}"]
    flags = value(use.flags) if use.flags is not None else 0
    return [re.compile(one, flags) if isinstance(one, str | bytes) else one for one in found]


@pytest.mark.parametrize(
    "pattern", [r"\s+x", r"\{\{.*?\}\}", "%[0-9]*0*s", "<[^>]*>", r"(\w+\s?)*$", "-*a?-*b|c", "x(a|b|ab)*y"]
)
def test_growth_is_found(pattern: str) -> None:
    [run] = applied(re.compile(pattern), ["sub"])
    assert any(steepness(run, make) > TOO_STEEP for _, make in Hostile(re.compile(pattern)).texts())


@pytest.mark.parametrize("file", sorted({use.file for use in uses()}))
def test_time_is_linear(file: str) -> None:
    found = []
    for use in uses():
        for pattern in patterns(use) if use.file == file else []:
            for run in applied(pattern, use.methods):
                ratios = ((name, steepness(run, make)) for name, make in Hostile(pattern).texts())
                steep = next(((name, ratio) for name, ratio in ratios if ratio > TOO_STEEP), None)
                if steep:
                    found.append(f"{file}:{use.line}: {pattern.pattern!r:.90}: {steep[0]}: {steep[1]:.0f}")
    assert found == []
