"""Settings of a search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from dragoman.errors import UsageError, check_problems, nearest

_RANGES: dict[str, tuple[float, float, str]] = {
    "beam": (1, 4096, "1 (greedy) to 4,096"),
    "beam_threshold": (0, 1000, "0 (off) to 1,000"),
    "recombine": (0, 10_000, "0 (off) to 10,000"),
    "alpha": (0, 10, "0 (no length penalty) to 10"),
    "nbest": (1, 4096, "1 to 4,096"),
    "max_extra": (0, 10_000, "0 to 10,000"),
    "min_length": (0, 10_000, "0 to 10,000"),
    "no_repeat_ngram": (0, 10_000, "0 (off) or 2 to 10,000; 1 forbids every repeated token"),
    "temperature": (
        1e-6,
        1000,
        "1e-6 to 1000; for the most probable token at each step, use greedy search (sample = False, beam = 1)",
    ),
    "top_k": (0, 1_048_576, "0 (all tokens) to 1,048,576"),
    "top_p": (5e-324, 1, "more than 0 and at most 1 (1 = all tokens)"),
    "seed": (0, 2**63 - 1, f"0 to {2**63 - 1:,}"),
}
"""Larger values would exhaust memory or have no effect; random number generators take 64 bits."""
_TYPES: dict[str, tuple[type, str]] = {
    "int": (Integral, "an integer"), "float": (Real, "a number"), "bool": (bool, "True or False"),
}  # fmt: skip
_NO_BEAM = {"beam": 1, "shrink_beam": False, "beam_threshold": 0, "recombine": 0}
"""Values of settings without effect on sampling that may be given together with it."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of beam search, or of sampling with `sample=True`; defaults as in Vaswani et al. 2017, 6.1.

    beam: hypotheses kept per step, 1 = greedy search.  shrink_beam: each complete hypothesis makes the beam of its
    sentence narrower by one, as in Marian.  beam_threshold: hypotheses whose log-probability is more than this below
    that of the best one of the step leave the beam, 0 = off; once the n-best list is full, also those whose score would
    not enter it if they ended with the next token.  recombine: of unfinished hypotheses of a step with this many equal
    last tokens, only the best one stays in the beam, 0 = off.  alpha: exponent of the length penalty.  nbest:
    hypotheses returned per sentence; with `sample`, samples drawn.  max_extra: a target has at most source length +
    max_extra tokens, both with the end of sentence.  min_length: minimum number of target tokens before the end of
    sentence.  no_repeat_ngram: n-grams of this size do not occur twice, 0 = off.  temperature, top_k (0 = off), top_p
    (1 = off), seed: for sampling only.  Raises UsageError that lists all problems.
    """

    beam: int = 4
    alpha: float = 0.6
    nbest: int = 1
    max_extra: int = 50
    min_length: int = 0
    no_repeat_ngram: int = 0
    shrink_beam: bool = False
    beam_threshold: float = 0.0
    recombine: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_problems("invalid search settings:", self._problems())

    def _type_problems(self) -> list[str]:
        problems = []
        for field in dataclasses.fields(self):
            value, (accepted, described) = getattr(self, field.name), _TYPES[str(field.type)]
            # bool is a subclass of int
            if not isinstance(value, accepted) or isinstance(value, bool) != (accepted is bool):
                problems.append(f"{field.name} = {value!r}: must be {described}")
        return problems

    def _problems(self) -> list[str]:
        if problems := self._type_problems():
            return problems
        for name, (low, high, accepted) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high or (name == "no_repeat_ngram" and value == 1):
                problems.append(f"{name} = {value}: must be {accepted}")
        if not self.sample and self.nbest > self.beam >= 1:
            problems.append(f"nbest = {self.nbest}: must be at most beam = {self.beam}; increase beam or reduce nbest")
        return problems

    @property
    def narrows_beam(self) -> bool:
        """Whether the beam may keep fewer than K hypotheses of a step."""
        return self.shrink_beam or self.beam_threshold > 0 or self.recombine > 0

    def limit(self, source: int, prefix: int = 0) -> int:
        """Return the maximum target length, with its end, for a source and a forced prefix of these lengths."""
        # A forced prefix longer than the source replaces the source length, so that tokens may follow it.
        return max(max(source, prefix) + self.max_extra, prefix + 1, self.min_length + 1)

    @classmethod
    def of(cls, settings: Any, **overrides: Any) -> SearchSettings:
        """Read the settings from the attributes of an object, such as a `[search]` section, and override some of them.

        Raises UsageError for an unknown setting in `overrides`, and for settings of a beam together with sampling.
        """
        if not overrides and isinstance(settings, cls):
            return settings
        names = _names()
        unknown = [name for name in overrides if name not in names]
        if unknown:
            listed = ", ".join(f"{name!r}{nearest(name, names)}" for name in unknown)
            raise UsageError(f"unknown search setting: {listed}; accepted: {', '.join(names)}")
        given = {name: getattr(settings, name) for name in names if hasattr(settings, name)} | overrides
        try:
            found = _known_settings(tuple(given), *given.values())
        except TypeError:  # a value that cannot be hashed, which is not valid either
            found = cls(**given)
        unused = [f"{name} = {overrides[name]}" for name, off in _NO_BEAM.items() if overrides.get(name, off) != off]
        if found.sample and unused:
            raise UsageError(
                f"{', '.join(unused)}: {'has' if len(unused) == 1 else 'have'} no effect with sample = True; use beam "
                "search or sampling, not both"
            )
        return found


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(SearchSettings))


@lru_cache(maxsize=256, typed=True)
def _known_settings(names: tuple[str, ...], *values: Any) -> SearchSettings:
    """Return settings; those of a server repeat, and checking them takes longer than finding them."""
    return SearchSettings(**dict(zip(names, values, strict=True)))
