"""Greedy search and sampling: one continuation per row and step.

Letters: B sentences still searched, K targets per sentence, N = B*K rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis, best, complete
from dragoman.decoding.pytorch.stepper import SearchRequest, State, Stepper
from dragoman.decoding.settings import SearchSettings
from dragoman.tokenizers import BOS, EOS


@dataclass(frozen=True)
class SamplingState:
    """rows: (N,) indices among all rows of the request.  tokens, token_log_probs: (N, T).  ended, truncated: (N,)."""

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

    def hypothesis(self, row: int, alpha: float) -> Hypothesis:
        """Return the hypothesis of a row that has ended."""
        tokens = self.tokens[row].tolist()
        end = tokens.index(EOS)
        log_probs = self.token_log_probs[row, : end + 1].tolist()
        return complete(tokens[:end], log_probs, alpha, bool(self.truncated[row]))


@torch.no_grad()  # active only while the generator runs, not between its steps
def sample(stepper: Stepper[State], request: SearchRequest) -> Generator[SamplingState, None, list[list[Hypothesis]]]:
    """Yield the state after each step; return B lists of hypotheses, best score first.

    With `settings.sample`, `nbest` targets are drawn per sentence; the same target may be drawn twice.  The random
    numbers of a sample depend on the seed, the source, the prefix and the sample's index, not on the rest of the batch.
    Otherwise the most probable token is taken at each step: greedy search, equal to beam search of width 1.
    """
    settings = request.settings
    count = settings.nbest if settings.sample else 1
    uniform = _uniforms(request, count).to(request.src.device) if settings.sample else None  # (B * K, longest limit)
    state = stepper.start(request.src, request.src_mask, beams=count, max_len=max(request.limits))
    samples = SamplingState.first(len(request.limits) * count, request.src.device)
    found: list[list[Hypothesis]] = [[] for _ in request.limits]
    inputs = samples.rows.new_full(samples.rows.shape, BOS)
    while samples.rows.numel():
        samples = _advance(samples, stepper.step(inputs, state), request, count, uniform)
        yield samples
        done = samples.ended.view(-1, count).all(1).repeat_interleave(count)
        if bool(done.any()):
            for row in done.nonzero()[:, 0].tolist():
                found[int(samples.rows[row]) // count].append(samples.hypothesis(row, settings.alpha))
            kept = (~done).nonzero()[:, 0]
            samples = samples.select(kept)
            if kept.numel():
                state.select(kept)
        inputs = samples.tokens[:, -1]
    return [best(hypotheses, count) for hypotheses in found]


def _advance(
    samples: SamplingState, log_probs: Tensor, request: SearchRequest, count: int, uniform: Tensor | None
) -> SamplingState:
    """Append a token to each row; log_probs: (N, V), count: rows per sentence, uniform: None for greedy search."""
    position = samples.tokens.size(1)
    sentences = samples.rows // count
    allowed = request.restricted(log_probs, samples.tokens, sentences)
    tokens = allowed.argmax(1) if uniform is None else draw(allowed, uniform[samples.rows, position], request.settings)
    at_limit = torch.tensor(request.limits, device=tokens.device)[sentences] == position + 1
    truncated = samples.truncated | (at_limit & (tokens != EOS) & ~samples.ended)
    tokens = tokens.masked_fill(at_limit | samples.ended, EOS)
    return SamplingState(
        samples.rows,
        torch.cat([samples.tokens, tokens[:, None]], dim=1),
        torch.cat([samples.token_log_probs, log_probs.gather(1, tokens[:, None])], dim=1),
        samples.ended | (tokens == EOS),
        truncated,
    )


def draw(log_probs: Tensor, uniform: Tensor, settings: SearchSettings) -> Tensor:
    """Return tokens (N,) by inverse transform sampling from log_probs (N, V) with uniform (N,) in [0, 1).

    Applies temperature, then top-k (Fan et al. 2018), then top-p (Holtzman et al. 2020): the smallest set of most
    probable tokens with a total probability of at least top_p.
    """
    scaled = log_probs / settings.temperature
    if 0 < settings.top_k < scaled.size(1):
        indices = scaled.topk(settings.top_k, dim=1).indices
        scaled = torch.full_like(scaled, float("-inf")).scatter(1, indices, scaled.gather(1, indices))
    probs = torch.softmax(scaled, dim=1)
    if settings.top_p < 1:
        ordered, indices = probs.sort(dim=1, descending=True)
        before = ordered.cumsum(1) - ordered
        probs = torch.zeros_like(probs).scatter(1, indices, ordered.masked_fill(before >= settings.top_p, 0))
    # Sums run in the order of the vocabulary, because rounding could swap two tokens of nearly equal probability.
    cumulative = probs.double().cumsum(1)  # (N, V)
    reached = cumulative > uniform.double()[:, None] * cumulative[:, -1:]
    return reached.int().argmax(1)


def _uniforms(request: SearchRequest, count: int) -> Tensor:
    """Return (B * count, longest limit) numbers in [0, 1)."""
    numbers = np.zeros((len(request.limits) * count, max(request.limits)))
    mask = torch.ones_like(request.src, dtype=torch.bool) if request.src_mask is None else request.src_mask
    for sentence, limit in enumerate(request.limits):
        source = request.src[sentence][mask[sentence]].tolist()
        for index in range(count):
            row = uniforms(request.settings.seed, source, index, request.prefixes[sentence], limit)
            numbers[sentence * count + index, :limit] = row
    return torch.from_numpy(numbers)


def uniforms(seed: int, source: list[int], index: int, prefix: Sequence[int], count: int) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for sample number `index` of a source and a forced prefix."""
    name = repr((seed, source, index, *prefix))
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big"))).random(count)
