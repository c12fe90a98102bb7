"""The mutants of a source file, made by the operators of cosmic-ray.

A site is a place in the source together with a kind of change: one comparison, one number, one `and`.  A site has one
to six mutants; sampling by site keeps `a + b`, which has six replacements, from counting six times.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

SOURCE = Path(__file__).resolve().parents[1] / "src"
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
TYPING_DECORATORS = {"abstractmethod", "overload", "override"}
Position = tuple[int, int]


@dataclass(frozen=True)
class Site:
    """One place and one kind of change.  mutants: pairs of operator name and occurrence, as cosmic-ray counts them."""

    path: str
    line: int
    column: int
    kind: str
    mutants: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column}:{self.kind}"


def kind_of(operator: str) -> str | None:
    """The kind of change of an operator; None for operators that are not used.

    A binary operator is replaced by one of its own group (arithmetic or bitwise): the others raise TypeError on floats
    and sets, which says nothing about the tests.  `==` is not replaced by `is`, which agrees with it on small numbers
    and interned strings.
    """
    name = operator.partition("/")[2]
    head, _, change = name.partition("_")
    if head == "ReplaceBinaryOperator":
        before, after = change.split("_")
        return head if (before in ARITHMETIC) == (after in ARITHMETIC) else None
    if head == "ReplaceComparisonOperator":
        before, after = change.split("_")
        return None if "Is" in after and "Is" not in before else head
    if head in ("VariableReplacer", "VariableInserter"):
        return None  # they need variables to be named in advance
    return "ReplaceUnaryOperator" if head == "ReplaceUnaryOperator" else name


def sites(path: Path) -> list[Site]:
    """All sites of a file, in order of appearance."""
    source = path.read_text(encoding="utf-8")
    skipped = list(left_out(ast.parse(source)))
    nodes = list(ast_nodes(parso.parse(source)))
    found: dict[tuple[Position, str], list[tuple[str, int]]] = {}
    for name in operator_names():
        if (kind := kind_of(name)) is None:
            continue
        operator: Operator = get_operator(name)()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if not any(first <= start < last for first, last in skipped):
                found.setdefault((start, kind), []).append((name, occurrence))
    relative = path.relative_to(SOURCE).as_posix()
    return [Site(relative, *start, kind, tuple(mutants)) for (start, kind), mutants in sorted(found.items())]


def left_out(tree: ast.AST) -> Iterator[tuple[Position, Position]]:
    """What is not mutated: annotations, messages, assertions for the type checker, imports for it, its decorators."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign():
                yield span(node.annotation)
            case ast.arg(annotation=ast.expr() as annotation):
                yield span(annotation)
            case ast.FunctionDef(returns=returns, decorator_list=decorators):
                if returns is not None:
                    yield span(returns)
                for decorator in decorators:
                    if ast.unparse(decorator).rpartition(".")[2] in TYPING_DECORATORS:
                        (line, column), last = span(decorator)
                        yield (line, column - 1), last
            case ast.JoinedStr() | ast.Assert():
                yield span(node)
            case ast.Raise(exc=ast.Call() as call):
                yield span(call)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield span(node)


def span(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def mutated(site: Site, mutant: int) -> str:
    """The source of the file with one mutant in it."""
    name, occurrence = site.mutants[mutant]
    code = mutate_code((SOURCE / site.path).read_text(encoding="utf-8"), get_operator(name)(), occurrence)
    assert isinstance(code, str), site.name
    return code


def diff(site: Site, code: str) -> str:
    """The changed lines, without context."""
    before = (SOURCE / site.path).read_text(encoding="utf-8")
    lines = difflib.unified_diff(before.splitlines(), code.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


@cache
def statements(path: str) -> list[tuple[range, range | None]]:
    """Of each statement: the lines of it (of its head, if it has a body), and the lines that stand for it if it is
    executed by an import: the body of its function or class."""
    found: list[tuple[range, range | None]] = []

    def visit(node: ast.AST, inside: range | None, in_function: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                visit(child, inside, in_function)
                continue
            head, body = head_and_body(child)
            scope = isinstance(child, ast.FunctionDef | ast.ClassDef)
            around = inside if in_function or not scope else body
            found.append((head, head if in_function else around))
            visit(
                child, body if scope and not in_function else inside, in_function or isinstance(child, ast.FunctionDef)
            )

    visit(ast.parse((SOURCE / path).read_text(encoding="utf-8")), None, False)
    return found


def head_and_body(statement: ast.stmt) -> tuple[range, range]:
    """The lines up to the first statement inside, and those from it on; all lines where nothing is inside."""
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    last = statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return range(first, last + 1), range(first, last + 1)
    start = getattr(body[0], "lineno", None) or body[0].pattern.lineno
    return range(first, max(first + 1, start)), range(start, last + 1)


def statement_lines(path: str, line: int) -> range | None:
    """The lines whose execution stands for the statement at `line`; None = any line of the module.

    In a function these are its own.  What an import executes would be covered by every test: for the decorators and
    defaults of a function the lines of its body stand instead, for a statement of a class those of the class.
    """
    around = [each for each in statements(path) if line in each[0]]
    return min(around, key=lambda each: len(each[0]))[1] if around else None
