"""Beam search with an exact stop rule.

Each step takes the K best continuations of a sentence.  Those that end leave the beam for the pool; the others go on.
With K = 1 that is greedy search, with K large enough it is the search of everything.

Letters: B sentences still searched, K beams, N = B*K rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dragoman.data.tokenizer import BOS, EOS
from dragoman.decoding.hypothesis import Hypothesis, best, complete, length_penalty
from dragoman.decoding.pytorch.stepper import SearchState, State, Stepper
from dragoman.decoding.request import SearchRequest

__all__ = ["BeamStep", "Watch", "beam_search"]


@dataclass(frozen=True)
class Beams:
    """The hypotheses that are not complete.

    sentences: (B,) their places in the task.  log_probs: (B, K) sums, -inf = an empty place.  tokens and
    token_log_probs: (B, K, T).
    """

    sentences: Tensor
    log_probs: Tensor
    tokens: Tensor
    token_log_probs: Tensor

    @classmethod
    def first(cls, count: int, width: int, device: torch.device) -> Beams:
        """T = 0: one hypothesis a sentence, the empty one."""
        log_probs = torch.full((count, width), float("-inf"), device=device)
        log_probs[:, 0] = 0
        tokens = torch.zeros(count, width, 0, dtype=torch.long, device=device)
        return cls(torch.arange(count, device=device), log_probs, tokens, torch.zeros(tokens.shape, device=device))

    def inputs(self) -> Tensor:
        """(N,) what the model reads next."""
        flat = self.tokens.flatten(0, 1)
        return flat[:, -1] if flat.size(1) else flat.new_full((flat.size(0),), BOS)


@dataclass(frozen=True)
class BeamStep:
    """The K best continuations: the grown hypotheses, where they come from, which were cut off by the limit."""

    grown: Beams
    origins: Tensor  # (B, K) in 0 .. K - 1
    truncated: Tensor  # (B, K)


Watch = Callable[[BeamStep, list[bool]], None]
"""Told of every step: what it grew, and of each of its B sentences whether the search goes on."""


@dataclass
class Pool:
    """The complete hypotheses of every sentence of the task."""

    task: SearchRequest
    found: list[list[Hypothesis]] = field(init=False)

    def __post_init__(self) -> None:
        self.found = [[] for _ in self.task.limits]

    def collect(self, step: BeamStep) -> Beams:
        """Take over what ended; what is left has empty places there."""
        grown = step.grown
        ended = (grown.tokens[..., -1] == EOS) & (grown.log_probs > float("-inf"))  # (B, K)
        for row, beam in ended.nonzero().tolist():
            tokens = grown.tokens[row, beam, :-1].tolist()
            token_log_probs = grown.token_log_probs[row, beam].tolist()
            truncated = bool(step.truncated[row, beam])
            hypothesis = complete(tokens, token_log_probs, self.task.settings.alpha, truncated)
            self.found[int(grown.sentences[row])].append(hypothesis)
        left = grown.log_probs.masked_fill(ended, float("-inf"))
        return Beams(grown.sentences, left, grown.tokens, grown.token_log_probs)

    def can_improve(self, beams: Beams) -> list[bool]:
        """B answers: can a hypothesis that goes on still be one of the n best?

        A log-probability only falls and, for alpha >= 0, is divided by at most the penalty of the longest target.
        """
        settings = self.task.settings
        answers = []
        alive = zip(beams.sentences.tolist(), beams.log_probs.amax(1).tolist(), strict=True)
        for sentence, log_prob in alive:
            bound = log_prob / length_penalty(self.task.limits[sentence], settings.alpha)
            scores = sorted((h.score for h in self.found[sentence]), reverse=True)
            to_beat = scores[settings.nbest - 1] if len(scores) >= settings.nbest else float("-inf")
            answers.append(bound > to_beat)
        return answers


def grow(beams: Beams, log_probs: Tensor, task: SearchRequest) -> BeamStep:
    """The K best continuations by log_probs (N, V), which are overwritten."""
    count, width, _ = beams.tokens.shape
    rows = beams.sentences.repeat_interleave(width)
    nexts = task.restricted(log_probs, beams.tokens.flatten(0, 1), rows)  # (N, V)
    cut = end_at_limit(nexts, beams, task).view(count, width)
    vocab = nexts.size(1)
    sums = nexts.view(count, width, vocab) + beams.log_probs[..., None]
    log_prob, places = sums.flatten(1).topk(width, dim=1)
    origins, words = places // vocab, places % vocab  # (B, K)

    def follow(history: Tensor, last: Tensor) -> Tensor:
        return torch.cat([history.gather(1, origins[..., None].expand_as(history)), last[..., None]], dim=2)

    tokens = follow(beams.tokens, words)
    token_log_probs = follow(beams.token_log_probs, nexts.view(count, -1).gather(1, places))
    return BeamStep(Beams(beams.sentences, log_prob, tokens, token_log_probs), origins, cut.gather(1, origins))


def end_at_limit(nexts: Tensor, beams: Beams, task: SearchRequest) -> Tensor:
    """Leave only the end in nexts (N, V) at a sentence's limit; (N,) True = where another word was better than it."""
    _, width, length = beams.tokens.shape
    limits = torch.tensor(task.limits, device=nexts.device)[beams.sentences]
    at_limit = (limits == length + 1).repeat_interleave(width)  # (N,)
    if bool(at_limit.any()):
        end = nexts[:, EOS].clone()
        cut = at_limit & (nexts.argmax(1) != EOS)
        nexts[at_limit] = float("-inf")
        nexts[:, EOS] = end
        return cut
    return at_limit


def keep(beams: Beams, state: SearchState, origins: Tensor, answers: list[bool]) -> Beams:
    """Drop the sentences that are done, here and in the state, and put the state's rows in the new order."""
    kept = torch.tensor(answers, device=origins.device).nonzero()[:, 0]
    width = origins.size(1)
    rows = (kept[:, None] * width + origins[kept]).flatten()
    if rows.numel() and not torch.equal(rows, torch.arange(origins.numel(), device=rows.device)):
        state.select(rows)
    return Beams(*(part[kept] for part in (beams.sentences, beams.log_probs, beams.tokens, beams.token_log_probs)))


def beam_search(stepper: Stepper[State], task: SearchRequest, watch: Watch | None = None) -> list[list[Hypothesis]]:
    """B lists of the `nbest` best by score, best first (Vaswani et al. 2017, 6.1).

    Per sentence it ends when no hypothesis that goes on can be among them any more: exactly what a search up to the
    limit gives.  `watch` sees each step and must leave it as it is.
    """
    width = task.settings.beam
    state = stepper.start(task.src, task.src_mask, beams=width, max_len=max(task.limits))
    beams = Beams.first(len(task.limits), width, task.device)
    pool = Pool(task)
    while beams.sentences.numel():
        step = grow(beams, stepper.step(beams.inputs(), state), task)
        left = pool.collect(step)
        answers = pool.can_improve(left)
        if watch is not None:
            watch(step, answers)
        beams = keep(left, state, step.origins, answers)
    return [best(found, task.settings.nbest) for found in pool.found]
