"""What a translator returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from dragoman.decoding.phrases import Phrases
from dragoman.decoding.settings import SearchSettings
from dragoman.pipelines.glossary import Term

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Alternative:
    """An entry of the n-best list; score and log_prob are defined as for `Translation`."""

    text: str
    score: float
    log_prob: float


@dataclass(frozen=True)
class Sentence:
    """One of several sentences of a line, with the text and the score of its translation."""

    source: str
    text: str
    score: float


@dataclass(frozen=True)
class Translation:
    """One translated line.

    log_prob: sum of natural log-probabilities, ends of sentence included, in the precision of the search (int8 by
    default on a CPU; `Translator.score` uses float32).  score: log_prob / length penalty; the sum over the parts of a
    line that was split.  tokens: subwords of the target, with one end of sentence per part; token_log_probs: one per
    token.  nbest: alternatives, best first, starting with this translation.  flags: reasons to check the line, in the
    order of `FLAGS` (see docs/flags.md).  sentences: sentences of a line that was split into several.  terms:
    glossary entries that occur in the line.
    """

    source: str
    text: str
    score: float
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]
    flags: tuple[str, ...]
    nbest: list[Alternative]
    sentences: list[Sentence] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)

    to_json = asdict


@dataclass(frozen=True)
class SearchCall:
    """The arguments of `DecodingBackend.search`."""

    sources: list[list[int]]
    prefixes: list[list[int]]
    settings: SearchSettings
    phrases: list[Phrases | None] | None = None


@dataclass(frozen=True)
class PartialTranslation:
    """An unfinished translation: the best text so far, and the beginning of it that will not change."""

    text: str
    stable: str


@dataclass(frozen=True)
class TargetScore:
    """The score of a given target: log_prob is the sum of token_log_probs, one per token, end of sentence included."""

    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]


@dataclass(frozen=True)
class Alignment:
    """Subwords of both sides, ends of sentence included; weights (T, S): attention of target tokens to the source."""

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]
