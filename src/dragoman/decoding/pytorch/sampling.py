"""One token at a time: greedy search and sampling.

Letters: B sentences still searched, K targets drawn for each, N = B*K rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.tokenizer import BOS, EOS
from dragoman.decoding.hypothesis import Hypothesis, best, complete
from dragoman.decoding.pytorch.stepper import State, Stepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings

__all__ = ["Choose", "SamplingState", "advance", "draw", "greedy", "hypothesis_of", "sample", "uniforms", "uniforms_of"]

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""`choose(log_probs (N, V), rows (N,) of the task, position)` -> the next tokens (N,)."""


@dataclass(frozen=True)
class SamplingState:
    """rows: (N,) places among the task's rows.  tokens, token_log_probs: (N, T).  ended, truncated: (N,)."""

    rows: Tensor
    tokens: Tensor
    token_log_probs: Tensor
    ended: Tensor
    truncated: Tensor

    @classmethod
    def first(cls, count: int, device: torch.device) -> SamplingState:
        tokens = torch.zeros(count, 0, dtype=torch.long, device=device)
        no = torch.zeros(count, dtype=torch.bool, device=device)
        return cls(torch.arange(count, device=device), tokens, torch.zeros(count, 0, device=device), no, no)

    def select(self, rows: Tensor) -> SamplingState:
        parts = (self.rows, self.tokens, self.token_log_probs, self.ended, self.truncated)
        return SamplingState(*(part[rows] for part in parts))


def greedy(stepper: Stepper[State], task: SearchRequest) -> list[list[Hypothesis]]:
    """B lists of one: the most probable token each time, beam search of width 1."""
    return _walk(stepper, task, 1, lambda log_probs, rows, position: log_probs.argmax(1))


def sample(stepper: Stepper[State], task: SearchRequest) -> list[list[Hypothesis]]:
    """B lists of `nbest` samples, best score first; the same target may be drawn twice.

    The numbers behind a sample come from the seed, the source, the prefix and the sample's place, so they do not
    depend on what else is in the batch.
    """
    count = task.settings.nbest
    uniforms = uniforms_of(task, count).to(task.device)  # (B * K, longest limit)

    def choose(log_probs: Tensor, rows: Tensor, position: int) -> Tensor:
        return draw(log_probs, uniforms[rows, position], task.settings)

    return _walk(stepper, task, count, choose)


def draw(log_probs: Tensor, uniform: Tensor, settings: SearchSettings) -> Tensor:
    """Tokens (N,) by inverse distribution function from log_probs (N, V) and uniform (N,) in [0, 1).

    Temperature first, then top-k (Fan et al. 2018), then top-p (Holtzman et al. 2020): the fewest most probable tokens
    that hold a share of at least top_p.
    """
    scaled = log_probs / settings.temperature
    if 0 < settings.top_k < scaled.size(1):
        places = scaled.topk(settings.top_k, dim=1).indices
        scaled = torch.full_like(scaled, float("-inf")).scatter(1, places, scaled.gather(1, places))
    probs = torch.softmax(scaled, dim=1)
    if settings.top_p < 1:
        ordered, places = probs.sort(dim=1, descending=True)
        before = ordered.cumsum(1) - ordered
        probs = torch.zeros_like(probs).scatter(1, places, ordered.masked_fill(before >= settings.top_p, 0))
    # In the order of the vocabulary, not of the probability: two tokens all but equal then cannot change places.
    upto = probs.double().cumsum(1)  # (N, V)
    reached = upto > uniform.double()[:, None] * upto[:, -1:]
    return reached.int().argmax(1)


def uniforms_of(task: SearchRequest, count: int) -> Tensor:
    """(B * count, longest limit) numbers in [0, 1), the same for a sentence whatever is searched beside it."""
    numbers = np.zeros((len(task.limits) * count, max(task.limits)))
    mask = torch.ones_like(task.src, dtype=torch.bool) if task.src_mask is None else task.src_mask
    for sentence, limit in enumerate(task.limits):
        source = task.src[sentence][mask[sentence]].tolist()
        for index in range(count):
            row = uniforms(task.settings.seed, source, index, task.prefixes[sentence], limit)
            numbers[sentence * count + index, :limit] = row
    return torch.from_numpy(numbers)


def uniforms(seed: int, source: list[int], index: int, prefix: Sequence[int], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for the sample `index` of a source with that beginning."""
    name = repr((seed, source, index, *prefix))
    own = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")
    return np.random.Generator(np.random.PCG64(own)).random(count)


def advance(walks: SamplingState, log_probs: Tensor, task: SearchRequest, count: int, choose: Choose) -> SamplingState:
    """Every walk one token on; `count` of them a sentence."""
    position = walks.tokens.size(1)
    sentences = walks.rows // count
    words = choose(task.restricted(log_probs, walks.tokens, sentences), walks.rows, position)
    at_limit = torch.tensor(task.limits, device=words.device)[sentences] == position + 1
    truncated = walks.truncated | (at_limit & (words != EOS) & ~walks.ended)
    words = words.masked_fill(at_limit | walks.ended, EOS)
    new = log_probs.gather(1, words[:, None])
    return SamplingState(
        walks.rows,
        torch.cat([walks.tokens, words[:, None]], dim=1),
        torch.cat([walks.token_log_probs, new], dim=1),
        walks.ended | (words == EOS),
        truncated,
    )


def _walk(stepper: Stepper[State], task: SearchRequest, count: int, choose: Choose) -> list[list[Hypothesis]]:
    state = stepper.start(task.src, task.src_mask, beams=count, max_len=max(task.limits))
    walks = SamplingState.first(len(task.limits) * count, task.device)
    found: list[list[Hypothesis]] = [[] for _ in task.limits]
    inputs = walks.rows.new_full(walks.rows.shape, BOS)
    while walks.rows.numel():
        walks = advance(walks, stepper.step(inputs, state), task, count, choose)
        done = walks.ended.view(-1, count).all(1).repeat_interleave(count)
        if bool(done.any()):
            for row in done.nonzero()[:, 0].tolist():
                found[int(walks.rows[row]) // count].append(hypothesis_of(walks, row, task.settings.alpha))
            kept = (~done).nonzero()[:, 0]
            walks = walks.select(kept)
            if kept.numel():
                state.select(kept)
        inputs = walks.tokens[:, -1]
    return [best(own, count) for own in found]


def hypothesis_of(walks: SamplingState, row: int, alpha: float) -> Hypothesis:
    """What a walk that has ended comes to."""
    tokens = walks.tokens[row].tolist()
    end = tokens.index(EOS)
    return complete(tokens[:end], walks.token_log_probs[row, : end + 1].tolist(), alpha, bool(walks.truncated[row]))
