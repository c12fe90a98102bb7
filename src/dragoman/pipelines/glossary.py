"""Glossaries: target terms for source terms, which a translation must contain or prefers."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dragoman.decoding.search_types import Phrases
from dragoman.errors import UsageError, check_problems
from dragoman.io.reading import read_bytes
from dragoman.tokenizers import UNK, Tokenizer

_MAX_BYTES = 64 << 20
_LONGEST = 500
"""Characters of a term."""
_NO_SPACES = {"HIRAGANA", "KATAKANA", "CJK", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
"""Scripts whose words are not separated by spaces, or take suffixes without one."""


@dataclass(frozen=True)
class Term:
    """A glossary entry that occurs in a source.  applied: whether the translation contains `target`."""

    source: str
    target: str
    applied: bool


@dataclass(frozen=True)
class Glossary:
    """Target terms by source terms; a term that is mapped to itself is not translated.

    Terms are found as whole words, the longest first.  A term in small letters is found in any case; others are
    compared exactly.

    strict: translations contain every target term, as it stands (lexically constrained beam search).  Otherwise
    `bonus` is added to the log-probability of each of its tokens, so that the model may decline it.  Raises UsageError
    with all invalid entries.
    """

    entries: Mapping[str, str]
    strict: bool = False
    bonus: float = 7.0
    _folded: dict[tuple[str, ...], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.entries, Mapping):
            raise UsageError(f"glossary = {self.entries!r:.60}; accepted: a mapping of source terms to target terms")
        problems = []
        for number, pair in enumerate(self.entries.items(), start=1):
            for name, text in zip(("source", "target"), pair, strict=True):
                if problem := _problem(text):
                    problems.append(f"entry {number}: {name} term {text!r:.60} {problem}")
        check_problems("invalid glossary:", problems)
        object.__setattr__(self, "_folded", {_folded(source): source for source in self.entries if _any_case(source)})

    @classmethod
    def of(cls, glossary: Glossary | Mapping[str, str] | None) -> Glossary | None:
        """Return a glossary, or None for one without entries."""
        if glossary is None or isinstance(glossary, Glossary):
            return glossary if glossary and glossary.entries else None
        return cls(glossary) if glossary else None

    @classmethod
    def read(cls, path: str | Path, strict: bool = False) -> Glossary:
        """Read a file with a source term, a tab and a target term per line; a single term is not translated.

        Raises DragomanError if the file cannot be read, UsageError for invalid lines and for a repeated source term.
        """
        text = read_bytes(Path(path), UsageError, "Specify a text file", _MAX_BYTES).decode("utf-8-sig", "replace")
        entries: dict[str, str] = {}
        problems = []
        for number, line in enumerate(text.split("\n"), start=1):
            fields = [column.strip() for column in line.rstrip("\r").split("\t")]
            if fields == [""]:
                continue
            source, target = (fields[0], fields[-1]) if len(fields) <= 2 else ("", "")
            if problem := _problem(source) or _problem(target):
                problems.append(
                    f"line {number}: {line[:60]!r}: {problem if len(fields) <= 2 else 'has more than one tab'}"
                )
            elif entries.setdefault(source, target) != target:
                problems.append(f"line {number}: {source!r} stands before as {entries[source]!r}")
        check_problems(f"{path}: invalid glossary; accepted: source term, tab, target term per line:", problems)
        return cls(entries, strict)

    @property
    def sha256(self) -> str:
        """The SHA-256 of everything that affects translations."""
        content = json.dumps([sorted(self.entries.items()), self.strict, self.bonus], ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        terms = sorted(self.entries, key=len, reverse=True)
        return re.compile("|".join(_whole_word(term, _any_case(term)) for term in terms)) if terms else None

    def entries_in(self, text: str) -> list[tuple[str, str]]:
        """Return the source and target term of each occurrence in a text, from left to right."""
        if self._pattern is None:
            return []
        found = (match.group() for match in self._pattern.finditer(text))
        sources = (term if term in self.entries else self._folded[_folded(term)] for term in found)
        return [(source, self.entries[source]) for source in sources]

    def phrases(self, terms: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Phrases | None:
        """Return the phrases for a search.  Terms with characters that the tokenizer does not know are left out."""
        ids = [self._ids(target, tokenizer) for _, target in terms]
        known = tuple(row for row in ids if row and UNK not in row)
        return Phrases(known, None if self.strict else self.bonus, _inside(tokenizer)) if known else None

    @staticmethod
    def _ids(term: str, tokenizer: Tokenizer) -> tuple[int, ...]:
        start = len(tokenizer.encode_target("")) - 1  # the language in multilingual models
        ids = tokenizer.encode_target(term)[start:-1]
        if not _is_spaced(term[0]) and len(ids) > 1 and not tokenizer.decode_target(ids[:1]).strip():
            ids = ids[1:]  # the mark of a word's beginning, which does not occur within a text without spaces
        return tuple(ids)


_INSIDE: WeakKeyDictionary[Tokenizer, bytes] = WeakKeyDictionary()


def _inside(tokenizer: Tokenizer) -> bytes:
    """Return one byte per target token: 1 if it continues a word, such as "ing"."""
    found = _INSIDE.get(tokenizer)
    if found is None:
        pieces = map(tokenizer.target_piece, range(tokenizer.target_size))
        found = _INSIDE[tokenizer] = bytes(bool(piece) and _is_spaced(piece[0]) for piece in pieces)
    return found


def applied(terms: Sequence[tuple[str, str]], text: str) -> list[Term]:
    """Return the terms, with whether a translation contains them; one that is wanted twice must occur twice."""
    left: dict[str, int] = {}
    result = []
    for source, target in terms:
        if target not in left:
            left[target] = len(re.findall(_whole_word(target), text))
        result.append(Term(source, target, left[target] > 0))
        left[target] -= 1
    return result


def _whole_word(term: str, any_case: bool = False) -> str:
    """Return a regular expression that finds a term, not within a word."""
    before = r"(?<!\w)" if _is_spaced(term[0]) else ""
    after = r"(?!\w)" if _is_spaced(term[-1]) else ""
    body = re.escape(term)
    return f"{before}(?i:{body}){after}" if any_case else before + body + after


def _problem(text: Any) -> str:
    if not isinstance(text, str):
        return "is not a text"
    if not text.strip():
        return "is blank"
    if text != text.strip() or "\n" in text or "\r" in text:
        return "has spaces around it or a line end"
    return f"has more than {_LONGEST} characters" if len(text) > _LONGEST else ""


def _any_case(term: str) -> bool:
    return term == term.lower()


def _folded(term: str) -> tuple[str, ...]:
    """Return the characters of a term; characters that `re` takes for equal in any case are equal.

    Text as a whole does not fold like this: the dotted capital I becomes two characters, and "ß" becomes "ss".
    """
    return tuple(character.upper().casefold() for character in term.replace("İ", "i"))


def _is_spaced(character: str) -> bool:
    """Return whether a character belongs to a word that is separated from others by spaces."""
    return character.isalnum() and unicodedata.name(character, "").split(" ")[0] not in _NO_SPACES
