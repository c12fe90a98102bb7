"""How the CPU time of a function grows with its input, and inputs on which a regular expression may take too long."""

from __future__ import annotations

import gc
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

LARGE = 64_000
"""Characters of the larger of the texts that are compared; the other has a 16th of it."""
TOO_STEEP = 1.3 * 16
FLOOR = 0.05
"""CPU seconds for the large input from which no growth is read: 0.8 us per character."""


_TINY = [int(16 * 1.25**step) for step in range(19)]
"""Sizes up to 900 in small steps, in which exponential growth takes not much more than the floor."""


def cpu(run: Callable[[Any], object], text: Any) -> float:
    gc.disable()  # its time depends on other tests
    try:
        begun = time.thread_time()
        run(text)
        return time.thread_time() - begun
    finally:
        gc.enable()


def steepness(
    run: Callable[[Any], object], make: Callable[[int], Any], floor: float = FLOOR, large: int = LARGE
) -> float:
    """Return how many times longer a function takes for `large` characters than for a 16th of them; 0 below the floor.

    Smaller sizes come first.  They show functions that are far from linear, which would not end, and functions that
    stay below the floor even if the rest of their growth is quadratic.  make: returns a text of about so many
    characters.
    """
    for size in (*_TINY, large // 16, large // 4, large):
        text = make(size)
        taken = cpu(run, text)
        factor = large / size
        if taken * factor**2 < floor and size >= 250:
            return 0.0
        if taken > floor and (size == large or taken * factor > 10 * floor):
            limit = TOO_STEEP * (1 if size == large else 2)
            for _ in range(3):  # a disturbed measurement is repeated
                ratio = taken / max(min(cpu(run, make(size // 16)) for _ in range(3)), 1e-6)
                if ratio <= limit or taken > 20 * floor:
                    break
                taken = min(taken, cpu(run, text))
            if ratio > limit or size == large:
                return ratio
    return 0.0


# ------------------------------------------------------------------------------------------- texts made from a pattern

_CANDIDATES = "ab zAZ09_\t\n\r\x0b\u00a0\u3000éßжя中のกا١.,:;-+*/\\|<>()[]{}\"'`~!?#$%&@=^\x00\U0001f600"

_BOUNDED = 16
"""A pattern that matches no more characters is linear: each position costs a bounded time."""


class Hostile:
    """Texts that are likely to make the search for a pattern slow: they repeat what it accepts, and then fail.

    Every repeated part of a pattern is repeated, after all that leads to it; so are the beginnings of the pattern, and
    all pairs of characters that the pattern tells apart.
    """

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.flags = pattern.flags
        self.is_bytes = isinstance(pattern.pattern, bytes)
        source = pattern.pattern.decode("latin-1") if self.is_bytes else pattern.pattern
        flags = pattern.flags & ~(re.UNICODE if self.is_bytes else 0)
        tree = parser.parse(source, flags if not self.is_bytes else flags | re.ASCII)
        self.width = tree.getwidth()[1]
        self.sets: list[re.Pattern[str]] = []
        self.literals = ""
        self._characters(tree)
        self.alphabet = self._alphabet()
        self.beginnings: list[str] = []
        self.pumps: list[tuple[str, str]] = []
        self._visit(tree, "")
        self.beginnings = list(dict.fromkeys(self.beginnings))[:60]
        self.pumps = list(dict.fromkeys(self.pumps))[:80]

    def texts(self) -> Iterator[tuple[str, Callable[[int], Any]]]:
        """Yield functions that make a text of a given size, each with a name."""
        if self.width <= _BOUNDED:
            return
        pairs = ["".join(pair) for pair in itertools.product(self.alphabet, repeat=2)]
        units = [*self.alphabet, *pairs[:150], *self.beginnings, *(unit for _, unit in self.pumps)]
        forms = [("", unit) for unit in units] + self.pumps
        forms += [(start, one) for start in self.beginnings[:30] for one in self.alphabet[:8]]
        forms += [(start, unit) for start in self.beginnings[:6] for unit in self.beginnings[:12]]
        for start, unit in dict.fromkeys(forms):
            if unit:
                yield f"{start!r} + {unit!r} * n", self._maker(start, unit, "\x01")
        for start, unit in self.pumps:
            if unit:
                yield f"{start!r} + {unit!r} * n, without an end", self._maker(start, unit, "")
        for first, second in itertools.permutations(self.alphabet[:8], 2):
            yield f"{first!r} * n + {second!r} * n", self._maker_of_halves(first, second)

    def _maker(self, start: str, unit: str, end: str) -> Callable[[int], Any]:
        return lambda size: self._encoded(start + unit * max(1, (size - len(start)) // len(unit)) + end)

    def _maker_of_halves(self, first: str, second: str) -> Callable[[int], Any]:
        return lambda size: self._encoded(first * (size // 2) + second * (size // 2) + "\x01")

    def _encoded(self, text: str) -> Any:
        return text.encode("latin-1", "replace") if self.is_bytes else text

    def _characters(self, node: Any) -> None:
        for operator, argument in node:
            if operator in (codes.IN, codes.NOT_LITERAL, codes.CATEGORY):
                self.sets.append(_matcher(operator, argument, self.flags))
            for character in _literals(operator, argument):
                self.literals += character
            for inner in _children(operator, argument):
                self._characters(inner)

    def _alphabet(self) -> list[str]:
        """Return one character for each combination of the sets of the pattern, and its first literals."""
        found: dict[object, str] = {}
        for character in dict.fromkeys(self.literals + _CANDIDATES):
            sets = tuple(one.match(character) is not None for one in self.sets)
            is_literal = character in self.literals
            found.setdefault(
                (sets, character if is_literal and len(set(self.literals)) <= 12 else is_literal), character
            )
        return list(found.values())[:16]

    def _visit(self, sequence: Any, before: str) -> str:
        """Collect what the parts of a sequence repeat; return a text that the sequence matches."""
        for operator, argument in sequence:
            inner = before
            if operator in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
                least, most, body = argument
                unit = self._visit(body, before)[len(before) :]
                if most > 3:
                    self.pumps.append((before, unit))
                    self.pumps += [(before, character) for character in self._accepted(body)]
                inner = before + unit * max(least, min(1, most))
                if not least:
                    self.beginnings.append(before)
            elif operator is codes.BRANCH:
                options = [self._visit(option, before) for option in argument[1]]
                self.beginnings += options[:12]
                inner = max(options, key=len)
            elif operator is codes.SUBPATTERN:
                inner = self._visit(argument[-1], before)
            elif operator is codes.ATOMIC_GROUP:
                inner = self._visit(argument, before)
            elif operator in (codes.ASSERT, codes.ASSERT_NOT):
                self._visit(argument[1], before)
            elif operator is codes.GROUPREF:
                inner = before + before[-1:]
            else:
                inner = before + next(iter(self._accepted([(operator, argument)])), "")
            before = inner
            self.beginnings.append(before)
        return before

    def _accepted(self, body: Any) -> list[str]:
        """Return the characters of the alphabet that one item accepts; [] for longer bodies."""
        items = list(body)
        if len(items) == 1 and items[0][0] is codes.SUBPATTERN:
            items = list(items[0][1][-1])
        if len(items) != 1:
            return []
        operator, argument = items[0]
        if operator is codes.LITERAL:
            return [chr(argument)]
        if operator is codes.ANY:
            return [one for one in self.alphabet if one != "\n"][:4]
        if operator in (codes.IN, codes.NOT_LITERAL, codes.CATEGORY):
            accepts = _matcher(operator, argument, self.flags)
            return [one for one in self.alphabet if accepts.match(one)][:6]
        return []


def _children(operator: Any, argument: Any) -> Iterator[Any]:
    if operator in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        yield argument[2]
    elif operator is codes.BRANCH:
        yield from argument[1]
    elif operator is codes.SUBPATTERN:
        yield argument[-1]
    elif operator is codes.ATOMIC_GROUP:
        yield argument
    elif operator in (codes.ASSERT, codes.ASSERT_NOT):
        yield argument[1]


def _literals(operator: Any, argument: Any) -> Iterator[str]:
    if operator in (codes.LITERAL, codes.NOT_LITERAL):
        yield chr(argument)
    elif operator is codes.IN:
        for kind, value in argument:
            if kind is codes.LITERAL:
                yield chr(value)
            elif kind is codes.RANGE:
                yield chr(value[0])


_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _matcher(operator: Any, argument: Any, flags: int) -> re.Pattern[str]:
    """Return a pattern of one character."""
    if operator is codes.NOT_LITERAL:
        argument = [(codes.NEGATE, None), (codes.LITERAL, argument)]
    elif operator is codes.CATEGORY:
        argument = [(codes.CATEGORY, argument)]
    inside = ""
    for kind, value in argument:
        if kind is codes.NEGATE:
            inside += "^"
        elif kind is codes.LITERAL:
            inside += re.escape(chr(value))
        elif kind is codes.RANGE:
            inside += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            inside += _CATEGORIES[value]
    return re.compile(f"[{inside}]", flags & (re.IGNORECASE | re.ASCII))


def applied(pattern: re.Pattern[Any], methods: Iterable[str]) -> list[Callable[[Any], object]]:
    """Return functions that apply a pattern to a text as the methods do; those that search are one."""
    anchored: Sequence[str] = [name for name in methods if name in ("match", "fullmatch")]
    found: list[Callable[[Any], object]] = [getattr(pattern, name) for name in anchored]
    if len(anchored) < len(list(methods)):
        found.append(lambda text: sum(1 for _ in pattern.finditer(text)))
    return found
