"""Whether another program says what a model says: the same words, and as probable (promise P9).

Three questions, each to our plain search in float32 and to the other program:

- How probable is each word of a given text (teacher forcing)?
- What does greedy search find?
- Which K targets of exactly n words does beam search of width K find, the end ruled out before the softmax?  So every
  program prunes by one rule; what ends a search, and how lengths are weighed, is its own and no matter of the model.

Floating-point sums depend on their order, so two words that are all but equally probable may change places.  Such a
difference is a tie: it is counted, and is none.

Letters: B cases, K beams, S source length, T target length.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dragoman.config import Config, ParallelData, TextData
from dragoman.config.data import resolve_path
from dragoman.data.batching import batches_within, collate_source
from dragoman.data.tokenizer import BOS, EOS, PAD, Tokenizer
from dragoman.decoding.pytorch.beam import BeamStep, beam_search
from dragoman.decoding.pytorch.generate import drain
from dragoman.decoding.pytorch.sampling import sample
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import read_lines
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Model
from dragoman.nn.state import DecodeState

__all__ = ["CLOSE", "Case", "Counts", "Parity", "ParityCases", "Peer", "WordStepper", "compare", "parity_cases"]

CLOSE = 1e-3
"""Natural-log probabilities nearer than this are equal."""
_LINES = 200
_PROMPT, _CONTINUATION = 8, 32
_BATCH_TOKENS = 2000


@dataclass(frozen=True)
class Case:
    """source: ids with the end of sentence, none for a language model.  prefix: ids that the target begins with."""

    source: list[int]
    prefix: list[int]


@dataclass(frozen=True)
class ParityCases:
    """What both are asked about, in words, and how many target tokens a search may write behind the prefix."""

    cases: list[Case]
    text: str
    limit: int


@dataclass(frozen=True)
class Counts:
    """Cases by outcome."""

    same: int
    ties: int
    different: int

    def __str__(self) -> str:
        return f"{self.same} the same, {self.ties} ties, {self.different} different"


@dataclass(frozen=True)
class Parity:
    """The report.  largest, mean: how far apart the natural-log probabilities of a word are; width: of the beam."""

    peer: str
    text: str
    cases: int
    largest: float
    mean: float
    greedy: Counts
    beam: Counts
    width: int

    @property
    def met(self) -> bool:
        return self.largest < CLOSE and self.greedy.different == self.beam.different == 0

    def lines(self) -> list[str]:
        """A fact a line."""
        return [
            f"{self.peer}: {self.cases} {self.text}",
            f"log-probability of a word: off by {self.largest:.1e} at most, {self.mean:.1e} on average",
            f"greedy search: {self.greedy}",
            f"beam search, all {self.width} of a given length: {self.beam}",
        ]


class Peer(Protocol):
    """The other program, asked with our ids."""

    name: str

    def score(self, case: Case, ids: Sequence[int]) -> list[float]:
        """The log-probability of each of `ids`, which begin with the prefix and end with the end of sentence."""

    def greedy(self, cases: Sequence[Case], limit: int) -> list[list[int]]:
        """At most `limit` tokens a case, without prefix and end of sentence."""

    def beam(self, cases: Sequence[Case], width: int, length: int) -> list[list[list[int]]]:
        """The `width` best targets of exactly `length` tokens a case, without prefix."""


# ------------------------------------------------------------------------------------------------------------ material


def parity_cases(model: Model, tokenizer: Tokenizer, config: Config, check: Path | None) -> ParityCases:
    """Up to 200 lines of `check`, or of the model's own text, or rows of random words.

    Lines longer than the model takes are left out.  Raises DataError where `check` has none that can be used.
    """
    lines, text = (read_lines(check), f"lines of {check.name}") if check else _own_lines(config)
    language_model = isinstance(model, DecoderOnly)
    encode = tokenizer.encode_target if language_model else tokenizer.encode_source
    longest = config.data.max_tokens
    rows = list(itertools.islice((ids for line in lines if 1 < len(ids := encode(line)) <= longest), _LINES))
    if check and not rows:
        raise DataError(f"{check}: no line of 1 to {longest - 1} tokens to compare on; name another file")
    if not rows:
        text = "rows of random words"
        rows = _random_rows(tokenizer.target_size if language_model else tokenizer.source_size, longest)
    if language_model:
        prompt = min(_PROMPT, (longest - 1) // 2)
        room = max(1, min(_CONTINUATION, longest - prompt - 1))
        return ParityCases([Case([], ids[:-1][:prompt]) for ids in rows], f"beginnings of {text}", room)
    return ParityCases([Case(ids, []) for ids in rows], text, max(map(len, rows)) + config.search.max_extra - 1)


def _own_lines(config: Config) -> tuple[Iterator[str], str]:
    """The source side of the text that the model was validated on or learned from, where it is at hand."""
    names: list[str | None] = []
    if isinstance(config.data, ParallelData):
        names = [corpus.source for corpus in (config.data.valid, *config.data.train) if corpus is not None]
    elif isinstance(config.data, TextData):
        names = [config.data.valid, *config.data.train]
    for name in names:
        try:
            path = resolve_path(name or "", config.data.root)
        except UsageError:  # a variable that was set where the model was trained
            continue
        if name and path.is_file():
            return read_lines(path), f"lines of {path.name}"
    return iter(()), ""


def _random_rows(vocab: int, longest: int) -> list[list[int]]:
    draw = random.Random(1)
    words = range(EOS + 1, vocab)
    return [[*draw.choices(words, k=draw.randint(1, min(24, longest - 1))), EOS] for _ in range(_LINES)]


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(model: Model, peer: Peer, material: ParityCases, width: int) -> Parity:
    """Put the three questions to both; width: of the beam."""
    with torch.no_grad():
        return _Comparison(model.eval(), peer, material).report(width)


def _all_words(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1)


def _words_only(logits: Tensor) -> Tensor:
    """Natural-log probabilities (..., V) among words: no padding, no begin, and an end that costs nothing."""
    log_probs = logits.float().index_fill(-1, torch.tensor([PAD, BOS, EOS]), float("-inf")).log_softmax(-1)
    log_probs[..., EOS] = 0
    return log_probs


class WordStepper(ModelStepper):
    """A model that speaks in words only; a search ends where its limit is."""

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        return _words_only(self.model.decode(tokens[:, None], state)[:, -1])


class _Comparison:
    """One model and one peer on the same cases."""

    def __init__(self, model: Model, peer: Peer, material: ParityCases) -> None:
        self.model, self.peer, self.material = model, peer, material
        self.stepper = ModelStepper(model)

    def report(self, width: int) -> Parity:
        cases, ours = self.material.cases, self._greedy()
        off: list[float] = []
        for case, ids in zip(cases, ours, strict=True):
            there = self.peer.score(case, [*case.prefix, *ids, EOS])
            off += [abs(a - b) for a, b in zip(self._score(case, [*ids, EOS]), there, strict=True)]
        mean = sum(off) / len(off)
        outcomes = self._greedy_counts(ours), self._beam_counts(ours, width)
        return Parity(self.peer.name, self.material.text, len(cases), max(off), mean, *outcomes, width)

    def _task(self, cases: Sequence[Case], settings: SearchSettings, limit: int) -> SearchRequest:
        """limit: target tokens at most, without prefix and end of sentence."""
        if cases[0].source:
            src, mask = collate_source([case.source for case in cases])
        else:
            src, mask = torch.zeros(len(cases), 0, dtype=torch.long), None
        prefixes = [case.prefix for case in cases] if any(case.prefix for case in cases) else None
        task = SearchRequest.build(src.to(self.model.device), mask, settings, prefixes)
        return replace(task, limits=[len(case.prefix) + limit + 1 for case in cases])

    def _score(self, case: Case, ids: Sequence[int], scale: Callable[[Tensor], Tensor] = _all_words) -> list[float]:
        """Natural-log probabilities of the prefix and of `ids` behind it."""
        words = torch.tensor([[BOS, *case.prefix, *ids]])  # (1, T + 1)
        log_probs = scale(self.model(torch.tensor([case.source], dtype=torch.long), None, words[:, :-1]))  # (1, T, V)
        row: list[float] = log_probs.gather(2, words[:, 1:, None])[0, :, 0].tolist()
        return row

    # ---------------------------------------------------------------------------------------------------------- greedy

    def _greedy(self) -> list[list[int]]:
        cases, limit = self.material.cases, self.material.limit
        found: list[list[int]] = [[] for _ in cases]
        settings = SearchSettings(beam=1, alpha=0)
        for places in batches_within([len(case.source) + limit for case in cases], _BATCH_TOKENS):
            some = [cases[place] for place in places]
            hypotheses = drain(sample(self.stepper, self._task(some, settings, limit)))
            for place, case, (best,) in zip(places, some, hypotheses, strict=True):
                found[place] = best.tokens[len(case.prefix) :]
        return found

    def _greedy_counts(self, ours: list[list[int]]) -> Counts:
        cases = self.material.cases
        outcomes = [
            "same" if here == there else self._apart(case, here, there)
            for case, here, there in zip(cases, ours, self.peer.greedy(cases, self.material.limit), strict=True)
        ]
        return _counted(outcomes)

    def _apart(self, case: Case, here: list[int], there: list[int]) -> str:
        """A tie if the first two words that differ are as good as equally probable."""
        one, other = [*here, EOS], [*there, EOS]
        same = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        place = len(case.prefix) + same
        gap = self._score(case, one[: same + 1])[place] - self._score(case, other[: same + 1])[place]
        return "tie" if abs(gap) < CLOSE else "different"

    # ------------------------------------------------------------------------------------------------------------ beam

    def _beam_counts(self, ours: list[list[int]], width: int) -> Counts:
        """Targets as long as greedy search makes them, so that cases of one length go together."""
        groups: dict[tuple[int, int], list[Case]] = {}
        for case, ids in zip(self.material.cases, ours, strict=True):
            groups.setdefault((len(case.prefix), max(1, len(ids))), []).append(case)
        return _counted([outcome for (_, n), some in groups.items() for outcome in self._beams(some, width, n)])

    def _beams(self, cases: Sequence[Case], width: int, length: int) -> Iterator[str]:
        start = len(cases[0].prefix)
        settings = SearchSettings(beam=width, nbest=width, alpha=0, min_length=start + length)
        steps = list(beam_search(WordStepper(self.model), self._task(cases, settings, length)))
        found: list[set[tuple[int, ...]]] = [set() for _ in cases]
        for step in steps:
            for sentence, _, hypothesis in step.finished:
                found[sentence].add(tuple(hypothesis.tokens[start:]))
        theirs = self.peer.beam(cases, width, length)
        for row, case in enumerate(cases):
            ours = found[row]
            targets = {tuple(ids) for ids in theirs[row]}
            if len(targets) != len(ours) or any(len(ids) != length for ids in targets):
                yield "different"
            elif targets == ours:
                yield "same"
            else:
                ties = [self._nearly_kept(case, ids, row, steps) for ids in targets - ours]
                yield "tie" if all(ties) else "different"

    def _nearly_kept(self, case: Case, ids: Sequence[int], row: int, steps: Sequence[BeamStep]) -> bool:
        """Whether a target was as good as the last of our beam where we lost it; row: that of the case in the steps."""
        sums = itertools.accumulate(self._score(case, ids, _words_only))
        whole = torch.tensor([*case.prefix, *ids])
        for length, (total, step) in enumerate(zip(sums, steps, strict=False), start=1):
            if not bool((step.beams.tokens[row] == whole[:length]).all(1).any()):  # (K, length)
                return abs(total - float(step.beams.log_probs[row].min())) < CLOSE
        return False


def _counted(outcomes: Sequence[str]) -> Counts:
    return Counts(outcomes.count("same"), outcomes.count("tie"), outcomes.count("different"))
