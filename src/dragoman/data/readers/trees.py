"""Constituency trees: Penn brackets, linearized trees (Vinyals et al. 2015), and labelled-bracket F1.

(ROOT (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))      Penn brackets
(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S                              linearized; XX stands for a word
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dragoman.errors import DataError, clip
from dragoman.io.lines import read_lines

WORD = "XX"
"""Token for every word of a linearized tree."""

_ROOTS = frozenset({"", "ROOT", "TOP", "S1"})
_PUNCTUATION = frozenset({",", ":", "``", "''", "."})
_MAX_DEPTH = 200
"""The functions below are recursive; trees of treebanks have a depth below 60."""
_TOKEN = re.compile(r"[()]|[^() \t]+")
_BRACKET = re.compile(r"[()][^()]+")


@dataclass(frozen=True)
class Tree:
    """A constituent and its children.  A part of speech has one child, the word; a tree over no words has none."""

    label: str
    children: tuple[Tree | str, ...]

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Yield part of speech and word, from left to right."""
        for child in self.children:
            if isinstance(child, str):
                yield self.label, child
            else:
                yield from child.leaves()

    def words(self) -> list[str]:
        return [word for _, word in self.leaves()]

    def __str__(self) -> str:
        """Return the tree in Penn brackets on one line."""
        return f"({self.label} {' '.join(map(str, self.children))})"


def read_trees(path: Path) -> Iterator[Tree]:
    """Yield the trees of a file, which may span several lines each.

    Grammatical functions (`NP-SBJ`, `NP=1`) and traces (`-NONE-`) are removed.  Raises DataError naming the line with
    invalid brackets.
    """
    open_: list[list[Tree | str]] = []
    begin = 0
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number:,}"
        for token in _TOKEN.findall(line):
            if token == "(":
                begin = begin if open_ else number
                open_.append([])
                if len(open_) > _MAX_DEPTH:
                    raise DataError(f"{where}: more than {_MAX_DEPTH} brackets are open; add the closing ones")
            elif not open_:
                raise DataError(
                    f'{where}: "{clip(token)}" outside of any tree: "{clip(line)}"; accepted: trees in brackets'
                )
            elif token != ")":
                open_[-1].append(token)
            else:
                node = _node(open_.pop(), where)
                if open_:
                    open_[-1].append(node)
                elif (tree := _plain(node)) is not None:
                    yield tree
    if open_:
        raise DataError(f"{path}: the tree that begins in line {begin:,} is not closed; add {len(open_)} brackets")


def _node(parts: list[Tree | str], where: str) -> Tree:
    """Return the tree of the parts between two brackets."""
    label = parts.pop(0) if parts and isinstance(parts[0], str) else ""
    assert isinstance(label, str)
    words = sum(isinstance(part, str) for part in parts)
    if not parts or words > 1 or (words and len(parts) > 1):
        inside = f"{len(parts)} children, {words} of them words" if parts else "no children"
        raise DataError(f'{where}: the bracket "{label}" has {inside}; accepted: one word, or brackets')
    return Tree(label, tuple(parts))


def _plain(tree: Tree) -> Tree | None:
    """Return the tree without traces and grammatical functions, or None if nothing is left."""
    if tree.label == "-NONE-":
        return None
    children = [child if isinstance(child, str) else _plain(child) for child in tree.children]
    kept = tuple(child for child in children if child is not None)
    label = tree.label if tree.label.startswith("-") else re.split("[-=]", tree.label)[0]
    return Tree(label, kept) if kept else None


def penn_word(word: str) -> str:
    """Return a word with round brackets escaped as in treebanks."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearize(tree: Tree) -> str:
    """Return the tree as labelled brackets with `XX` for each word, without the root."""
    return " ".join(_tokens(tree))


def _tokens(tree: Tree) -> Iterator[str]:
    if tree.children and isinstance(tree.children[0], str):
        yield WORD
        return
    bare = tree.label in _ROOTS
    if not bare:
        yield f"({tree.label}"
    for child in tree.children:
        assert isinstance(child, Tree)
        yield from _tokens(child)
    if not bare:
        yield f"){tree.label}"


def delinearize(text: str, words: Sequence[str], tags: Sequence[str] | None = None) -> tuple[Tree, bool]:
    """Return the tree over `words` for a linearized tree, and whether that was well-formed.

    Repairs: open brackets are closed, unmatched closing brackets and empty brackets ignored, missing words appended,
    additional `XX` ignored.  tags: parts of speech, which linearized trees lack.
    """
    leaves = [Tree(tag, (word,)) for tag, word in zip_longest(tags or (), words, fillvalue=WORD)]
    assert len(leaves) == len(words), f"{len(words)} words and more tags"
    stack: list[tuple[str, list[Tree | str]]] = [("ROOT", [])]
    index, well_formed = 0, True

    def close() -> bool:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        return bool(children)

    for token in text.split():
        if token == WORD and index < len(leaves):
            stack[-1][1].append(leaves[index])
            index += 1
        elif not _BRACKET.fullmatch(token):
            well_formed = False
        elif token[0] == "(":
            stack.append((token[1:], []))
        elif (label := token[1:]) in [open_label for open_label, _ in stack[1:]]:
            well_formed &= stack[-1][0] == label
            while stack[-1][0] != label:  # also closes the brackets inside
                well_formed &= close()
            well_formed &= close()
        else:
            well_formed = False
    well_formed &= len(stack) == 1 and index == len(leaves)
    while len(stack) > 1:
        close()
    return Tree("ROOT", (*stack[0][1], *leaves[index:])), well_formed


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Return the labelled brackets (label, start, end) that evalb counts (Black et al. 1991; COLLINS.prm).

    Punctuation is skipped; the root, parts of speech and constituents without words do not count; PRT equals ADVP.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    _count(tree, 0, found)
    return found


def _count(tree: Tree, first: int, found: Counter[tuple[str, int, int]]) -> int:
    """Count the brackets of a tree that starts at word `first`; return its end."""
    if tree.children and isinstance(tree.children[0], str):
        return first + (tree.label not in _PUNCTUATION)
    last = first
    for child in tree.children:
        assert isinstance(child, Tree)
        last = _count(child, last, found)
    if last > first and tree.label not in _ROOTS:
        found["ADVP" if tree.label == "PRT" else tree.label, first, last] += 1
    return last


def bracket_f1(gold: Iterable[Tree], found: Iterable[Tree]) -> dict[str, Any]:
    """Return labelled precision, recall and F1 over all brackets of a text, in percent."""
    correct = in_gold = in_found = 0
    for expected, tree in zip(gold, found, strict=True):
        gold_brackets, found_brackets = brackets(expected), brackets(tree)
        correct += (found_brackets & gold_brackets).total()
        in_found += found_brackets.total()
        in_gold += gold_brackets.total()
    return {
        "precision": 100 * correct / max(1, in_found),
        "recall": 100 * correct / max(1, in_gold),
        "f1": 200 * correct / max(1, in_found + in_gold),
    }
