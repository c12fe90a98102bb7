"""What a search is asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from dragoman.errors import UsageError, nearest

__all__ = ["SearchSettings"]

_WIDEST, _LONGEST, _STEEPEST = 4096, 10_000, 10.0
"""The most beams or samples, tokens beyond the source or at least, and alpha: what is more would use up the machine, or
make every score 0."""
_HOTTEST, _TOKENS, _LARGEST_SEED = 1000.0, 1_048_576, 2**63 - 1
"""At temperature 1,000 all tokens are equally probable; no vocabulary has more tokens; generators take 64 bits."""


@dataclass(frozen=True)
class SearchSettings:
    """The search: beam search, or sampling with `sample=True`; the defaults are those of Vaswani et al. 2017, 6.1.

    beam: hypotheses kept a step, 1 = greedy.  alpha: exponent of the length penalty.  nbest: hypotheses returned a
    sentence (with sample: samples drawn).  max_extra: at most source length + max_extra target tokens, both with the
    end of sentence.  min_length: at least so many target tokens before the end of sentence.  no_repeat_ngram: no n-gram
    of so many tokens twice, 0 = off.  temperature, top_k (0 = off), top_p (1 = off), seed: sampling only.  Raises
    UsageError with every problem at once.
    """

    beam: int = 4
    alpha: float = 0.6
    nbest: int = 1
    max_extra: int = 50
    min_length: int = 0
    no_repeat_ngram: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise UsageError("\n".join(["these search settings cannot be used:", *(f"  - {p}" for p in problems)]))

    def _no_numbers(self) -> list[str]:
        problems = []
        for field in dataclasses.fields(self):
            value, whole = getattr(self, field.name), field.type == "int"
            good = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)  # True is 1 to Python
            if field.type != "bool" and not good:
                problems.append(f"{field.name} = {value!r}: must be a {'whole ' if whole else ''}number")
        return problems

    def _problems(self) -> list[str]:
        if problems := self._no_numbers():
            return problems
        wanted = [
            ("beam", 1 <= self.beam <= _WIDEST, f"1 (greedy) to {_WIDEST:,}"),
            ("alpha", 0 <= self.alpha <= _STEEPEST, f"0 (no length penalty) to {_STEEPEST:g}"),
            ("nbest", 1 <= self.nbest <= _WIDEST, f"1 to {_WIDEST:,}"),
            ("max_extra", 0 <= self.max_extra <= _LONGEST, f"0 to {_LONGEST:,}"),
            ("min_length", 0 <= self.min_length <= _LONGEST, f"0 to {_LONGEST:,}"),
            (
                "no_repeat_ngram",
                0 <= self.no_repeat_ngram <= _LONGEST and self.no_repeat_ngram != 1,
                f"0 (off) or 2 to {_LONGEST:,}; 1 would allow no token twice, not even a comma",
            ),
            (
                "temperature",
                1e-6 <= self.temperature <= _HOTTEST,
                f"1e-6 (for the most probable token each step: beam=1) to {_HOTTEST:g}",
            ),
            ("top_k", 0 <= self.top_k <= _TOKENS, f"0 (all tokens) to {_TOKENS:,}"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1 (1 = all tokens)"),
            ("seed", 0 <= self.seed <= _LARGEST_SEED, f"0 to {_LARGEST_SEED:,}"),
        ]
        problems = [f"{name} = {getattr(self, name)}: must be {rule}" for name, good, rule in wanted if not good]
        if not self.sample and self.nbest > self.beam >= 1:
            problems.append(f"nbest = {self.nbest}: must be at most beam = {self.beam}; raise beam, or ask for less")
        return problems

    def limit(self, source: int, prefix: int = 0) -> int:
        """The longest target in tokens, its end included, of `source` tokens and a forced prefix of `prefix` tokens."""
        # A forced prefix longer than the source counts as the source's length, so that words may follow.
        return max(max(source, prefix) + self.max_extra, prefix + 1, self.min_length + 1)

    @classmethod
    def of(cls, settings: Any, **overrides: Any) -> SearchSettings:
        """The settings of an object with the same attribute names (a `[search]` section), some of them overridden.

        Raises UsageError for a name that is no setting.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in overrides if name not in names]
        if unknown:
            listed = ", ".join(f"{name!r}{nearest(name, names)}" for name in unknown)
            raise UsageError(f"no such search setting: {listed}; settings are {', '.join(names)}")
        given = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        return cls(**given | overrides)
