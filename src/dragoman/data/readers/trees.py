"""Constituency trees: Penn brackets, trees as rows of words (Vinyals et al. 2015), and labelled-bracket F1.

(ROOT (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))      Penn brackets
(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S                              linearized: XX for each word
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dragoman.errors import DataError
from dragoman.io.lines import clip, read_lines

__all__ = ["WORD", "Tree", "bracket_f1", "brackets", "delinearize", "linearize", "penn_word", "read_trees"]

WORD = "XX"
"""Stands for every word of a linearized tree."""

_ROOTS = frozenset({"", "ROOT", "TOP", "S1"})
_PUNCTUATION = frozenset({",", ":", "``", "''", "."})
_DEEPEST = 200
"""Most brackets open at once; trees of treebanks have fewer than 60, and the functions below are recursive."""
_TOKEN = re.compile(r"[()]|[^() \t]+")
_BRACKET = re.compile(r"[()][^()]+")


@dataclass(frozen=True)
class Tree:
    """A constituent and its parts; a part of speech has one child, the word; a tree over no words has none."""

    label: str
    children: tuple[Tree | str, ...]

    def leaves(self) -> Iterator[tuple[str, str]]:
        """Part of speech and word, from left to right."""
        for child in self.children:
            if isinstance(child, str):
                yield self.label, child
            else:
                yield from child.leaves()

    def words(self) -> list[str]:
        return [word for _, word in self.leaves()]

    def __str__(self) -> str:
        """Penn brackets on one line."""
        return f"({self.label} {' '.join(map(str, self.children))})"


# ----------------------------------------------------------------------------------------------------- Penn brackets


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, over any number of lines each.

    Grammatical functions (`NP-SBJ`, `NP=1`) are taken off the labels, and traces (`-NONE-`) out of the trees.  Raises
    DataError naming the line where brackets are wrong.
    """
    open_: list[list[Tree | str]] = []
    begin = 0
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number:,}"
        for token in _TOKEN.findall(line):
            if token == "(":
                begin = begin if open_ else number
                open_.append([])
                if len(open_) > _DEEPEST:
                    raise DataError(f"{where}: more than {_DEEPEST} brackets are open; are closing ones missing?")
            elif not open_:
                raise DataError(f'{where}: "{clip(token)}" outside of any tree: "{clip(line)}"; a tree is in brackets')
            elif token != ")":
                open_[-1].append(token)
            else:
                node = _node(open_.pop(), where)
                if open_:
                    open_[-1].append(node)
                elif (tree := _plain(node)) is not None:
                    yield tree
    if open_:
        raise DataError(f"{path}: the tree that begins in line {begin:,} is not closed: {len(open_)} brackets missing")


def _node(parts: list[Tree | str], where: str) -> Tree:
    """What stood between two brackets."""
    label = parts.pop(0) if parts and isinstance(parts[0], str) else ""
    assert isinstance(label, str)
    words = sum(isinstance(part, str) for part in parts)
    if not parts or words > 1 or (words and len(parts) > 1):
        inside = f"{len(parts)} parts, {words} of them words" if parts else "nothing"
        raise DataError(f'{where}: the bracket "{label}" holds {inside}; accepted: one word, or brackets')
    return Tree(label, tuple(parts))


def _plain(tree: Tree) -> Tree | None:
    """Without traces and grammatical functions; None where nothing is left."""
    if tree.label == "-NONE-":
        return None
    children = [child if isinstance(child, str) else _plain(child) for child in tree.children]
    kept = tuple(child for child in children if child is not None)
    label = tree.label if tree.label.startswith("-") else re.split("[-=]", tree.label)[0]
    return Tree(label, kept) if kept else None


def penn_word(word: str) -> str:
    """The word as treebanks write it, where round brackets would be read as brackets of the tree."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


# -------------------------------------------------------------------------------------------------------- linearized


def linearize(tree: Tree) -> str:
    """The tree as a row of brackets with their labels, `XX` for each word; the root is left out."""
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


class _Builder:
    """Puts a tree together from its tokens, and notes whether it had to mend any."""

    def __init__(self) -> None:
        self.open: list[tuple[str, list[Tree | str]]] = [("ROOT", [])]
        self.whole = True

    def add(self, part: Tree) -> None:
        self.open[-1][1].append(part)

    def close(self) -> None:
        label, parts = self.open.pop()
        if parts:
            self.add(Tree(label, tuple(parts)))
        else:  # a bracket around nothing
            self.whole = False

    def end(self, label: str) -> None:
        """A closing bracket: it closes what is open inside of it too, and is left out where it closes nothing."""
        labels = [name for name, _ in self.open[1:]]
        if label not in labels:
            self.whole = False
            return
        self.whole = self.whole and labels[-1] == label
        while labels.pop() != label:
            self.close()
        self.close()


def delinearize(text: str, words: Sequence[str], tags: Sequence[str] | None = None) -> tuple[Tree, bool]:
    """The tree over `words` that a linearized tree says, and whether it was well-formed.

    What is not is mended: brackets left open are closed, closing ones without an opening one left out, words that are
    missing put at the end, ones too many left out.  tags: parts of speech, which the row does not tell.
    """
    leaves = [Tree(tag, (word,)) for tag, word in zip_longest(tags or (), words, fillvalue=WORD)]
    assert len(leaves) == len(words), f"{len(words)} words and more tags"
    builder, place = _Builder(), 0
    for token in text.split():
        if token == WORD and place < len(leaves):
            builder.add(leaves[place])
            place += 1
        elif not _BRACKET.fullmatch(token):
            builder.whole = False
        elif token[0] == "(":
            builder.open.append((token[1:], []))
        else:
            builder.end(token[1:])
    builder.whole = builder.whole and len(builder.open) == 1 and place == len(leaves)
    while len(builder.open) > 1:
        builder.close()
    for leaf in leaves[place:]:
        builder.add(leaf)
    return Tree("ROOT", tuple(builder.open[0][1])), builder.whole


# ------------------------------------------------------------------------------------------------------------ scores


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Labelled brackets (label, first word, behind the last) as evalb counts them (Black et al. 1991; COLLINS.prm).

    Punctuation counts as no word; the root, parts of speech and what holds no word are no brackets; PRT is ADVP.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    _count(tree, 0, found)
    return found


def _count(tree: Tree, first: int, found: Counter[tuple[str, int, int]]) -> int:
    """Enter the brackets of a tree whose first word has the number `first`; return the number behind its last."""
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
    """Labelled precision, recall and F1 over all brackets of a text, in percent."""
    right = in_gold = in_found = 0
    for expected, tree in zip(gold, found, strict=True):
        ours, theirs = brackets(tree), brackets(expected)
        right += (ours & theirs).total()
        in_found += ours.total()
        in_gold += theirs.total()
    return {
        "precision": 100 * right / max(1, in_found),
        "recall": 100 * right / max(1, in_gold),
        "f1": 200 * right / max(1, in_found + in_gold),
    }
