"""BLEU and chrF of a decoded test set with confidence intervals, in total and by source length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.data.corpus import CorpusSpec, read_pairs
from dragoman.errors import DataError

_MOST_BUCKETS = 8
_FEWEST_SENTENCES = 20


@dataclass(frozen=True)
class Interval:
    """A score in percent; `half` is half the width of its 95 % bootstrap confidence interval."""

    score: float
    half: float


@dataclass(frozen=True)
class LengthScore:
    """BLEU of the `sentences` with source length `low` to `high` (None: no upper limit)."""

    low: int
    high: int | None
    sentences: int
    bleu: Interval

    @property
    def title(self) -> str:
        """The range of lengths: 1–5, 26+."""
        if self.high is None:
            return f"{self.low}+"
        return str(self.low) if self.high == self.low else f"{self.low}–{self.high}"


@dataclass(frozen=True)
class DecodedScores:
    """BLEU and chrF2 of the translations of one model, with the signatures of sacreBLEU."""

    bleu: Interval
    chrf: Interval
    bleu_signature: str
    chrf_signature: str
    by_length: tuple[LengthScore, ...]


@dataclass(frozen=True)
class EvalSet:
    """A test set.  unit: of the source lengths, "words", or "characters" for text without spaces."""

    sources: tuple[str, ...]
    references: tuple[str, ...]
    unit: str
    lengths: tuple[int, ...]
    bounds: tuple[int, ...]


def read_eval_set(source: Path, reference: Path) -> EvalSet:
    """Read a test set from two line-aligned files.  Raises DataError if they are misaligned or empty."""
    pairs = list(read_pairs(CorpusSpec(source, reference)))
    if not pairs:
        raise DataError(f"{source}: empty; accepted: at least 1 line")
    sources = tuple(pair.source for pair in pairs)
    words = [len(text.split()) for text in sources]
    characters = [len(text.strip()) for text in sources]
    unspaced = sum(characters) > 12 * sum(words)
    lengths = tuple(characters if unspaced else words)
    unit = "characters" if unspaced else "words"
    return EvalSet(sources, tuple(pair.target for pair in pairs), unit, lengths, length_bounds(lengths))


def length_bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the upper bounds of all buckets but the last: round numbers in equal steps, without small buckets."""
    usual = sorted(lengths)[(len(lengths) - 1) * 49 // 50]
    step = next(s * 10**p for p in range(9) for s in (1, 2, 5) if usual <= _MOST_BUCKETS * s * 10**p)
    fewest = min(_FEWEST_SENTENCES, math.ceil(len(lengths) / 20))
    bounds: list[int] = []
    for bound in range(step, usual + 1, step):
        since = bounds[-1] if bounds else -1
        inside = sum(since < length <= bound for length in lengths)
        beyond = sum(length > bound for length in lengths)
        if inside >= fewest and beyond >= fewest:
            bounds.append(bound)
    return tuple(bounds)


def score_translations(texts: Sequence[str], test: EvalSet, samples: int, tokenize: str = "13a") -> DecodedScores:
    """Return BLEU and chrF2 of the translations of `test.sources`, with intervals from `samples` bootstrap resamples.

    tokenize: name of a tokenizer of sacreBLEU.
    """
    metric = BLEU(tokenize=tokenize, force=True)
    bleu, bleu_signature = _interval(metric, texts, test.references, samples)
    chrf, chrf_signature = _interval(CHRF(), texts, test.references, samples)
    by_length = []
    edges = (-1, *test.bounds, None)
    for before, bound in itertools.pairwise(edges):
        assert before is not None
        inside = [i for i, n in enumerate(test.lengths) if before < n and (bound is None or n <= bound)]
        bleu_inside, _ = _interval(metric, [texts[i] for i in inside], [test.references[i] for i in inside], samples)
        by_length.append(LengthScore(max(1, before + 1), bound, len(inside), bleu_inside))
    return DecodedScores(bleu, chrf, bleu_signature, chrf_signature, tuple(by_length))


def _interval(
    metric: BLEU | CHRF, texts: Sequence[str], references: Sequence[str], samples: int
) -> tuple[Interval, str]:
    result: Any = metric.corpus_score(list(texts), [list(references)], n_bootstrap=samples)
    return Interval(float(result.score), float(result._ci)), str(metric.get_signature())
