"""A search whose steps all do the same work on the same memory, so that a GPU can capture one step and replay it.

`pytorch.search` drops finished sentences and reads tokens from the device at every step, which makes the CPU wait for
the GPU.  Here shapes never change: finished hypotheses are masked and kept on the device, and the CPU checks only every
few steps whether a hypothesis is active.  In float32 the hypotheses equal those of the other searches up to rounding;
bfloat16 rounds differently for other shapes.

Letters: B sentences, K beams, N = B*K rows, S source length, L target capacity, n hypotheses returned per sentence,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.pytorch.search import draw, pruned_log_probs
from dragoman.decoding.pytorch.stepper import nan_error
from dragoman.decoding.search_types import Hypothesis, Ids, SearchSettings, complete, length_penalty
from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.state import DecodeState, LayerState, SelfKeyValues, StaticKeyValues, StaticState
from dragoman.tokenizers import BOS, EOS, PAD

_CHECK_EVERY = 8
"""Steps between two checks whether a hypothesis is active."""
_NEVER = float("-inf")


@dataclass(frozen=True)
class Sizes:
    """sentences: B.  source: S.  capacity: L.  prefixes: whether any target has a forced prefix."""

    sentences: int
    source: int
    capacity: int
    prefixes: bool


class StaticShapeSearch:
    """Reusable greedy search, beam search, or sampling of one target per sentence, for up to B sentences at a time.

    settings: with `sample`, `nbest` is ignored.  capture: receives the step function once and returns the function that
    runs each step; on a GPU it replays a CUDA graph.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        settings: SearchSettings,
        sizes: Sizes,
        capture: Callable[[Callable[[], object]], Callable[[], object]] = lambda step: step,
    ) -> None:
        self.model, self.settings, self.sizes, self.device = model, settings, sizes, model.device
        self.beams = 1 if settings.sample else settings.beam
        self.nbest = 1 if settings.sample else settings.nbest
        self.position = self._new(torch.long, 1)
        state = self._initial_state(self.sizes.sentences, self.beams, self.sizes.capacity)
        caches, layers = [], list[LayerState]()
        for layer in state.layers:
            # A layer with cross-attention also holds the memory's keys and values.
            own = getattr(layer, "self_attn", layer)
            assert isinstance(own, SelfKeyValues)
            caches.append(StaticKeyValues(own, self.position))
            if own is layer:
                layers.append(caches[-1])
            else:
                layer.self_attn = caches[-1]  # type: ignore[attr-defined]
                layers.append(layer)
        self.state = StaticState(layers, self.beams, state.memory_bias, caches=caches)
        count, beams, capacity = sizes.sentences, self.beams, sizes.capacity
        self.limits = self._new(torch.long, count)
        self.prefixes = self._new(torch.long, count, capacity)  # PAD = not forced
        self.uniforms = self._new(torch.double, count, capacity)
        self.inputs = self._new(torch.long, count * beams)
        self.sums = self._new(torch.float, count, beams)  # -inf = an empty slot
        self.complete = self._new(torch.long, count)  # complete hypotheses, also those that left the pool
        self.tokens = self._new(torch.long, count, beams, capacity)
        self.log_probs = self._new(torch.float, count, beams, capacity)
        self.pool_scores = self._new(torch.double, count, self.nbest)  # best first, -inf = none
        self.pool_tokens = self._new(torch.long, count, self.nbest, capacity)
        self.pool_log_probs = self._new(torch.float, count, self.nbest, capacity)
        self.pool_truncated = self._new(torch.bool, count, self.nbest)
        self.unfinished, self.has_nan = self._new(torch.bool), self._new(torch.bool)
        vocab = model.decode(self.inputs[:1, None], self._initial_state(1, 1)).size(-1)
        penalties = [length_penalty(length, settings.alpha) for length in range(capacity + 1)]
        self.penalties = torch.tensor(penalties, dtype=torch.double, device=self.device)
        self.vocabulary = torch.arange(vocab, device=self.device)
        self._run_step = capture(self.step)
        # Tensors that a captured graph reads must live as long as it does; position tables are replaced when they grow.
        self._captured = [*model.parameters(), *model.buffers()]

    @torch.no_grad()
    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], uniforms: NDArray[np.float64] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each of at most B sentences that fit into S and L, best first.

        uniforms: (sentences, L) numbers in [0, 1) for sampling.  Raises DragomanError if the model's output is NaN.  A
        list is empty if no target has a probability above 0.
        """
        limits = [self.settings.limit(len(src), len(prefix)) for src, prefix in zip(sources, prefixes, strict=True)]
        count, rest = len(sources), self.sizes.sentences - len(sources)
        self._encode([*sources, *[[EOS][: self.sizes.source]] * rest])
        self.limits.copy_(torch.tensor([*limits, *[1] * rest]))
        self.prefixes.copy_(self._padded([*prefixes, *[[]] * rest], self.sizes.capacity))
        if uniforms is not None:
            self.uniforms[:count].copy_(torch.from_numpy(uniforms))
        for memory in (self.position, self.complete, self.tokens, self.log_probs, self.unfinished, self.has_nan):
            memory.zero_()
        for cache in self.state.caches:
            cache.keys.zero_()
            cache.values.zero_()
        self.inputs.fill_(BOS)
        self.sums.fill_(_NEVER)
        self.sums[:count, 0] = 0
        self.pool_scores.fill_(_NEVER)
        for step in range(1, max(limits) + 1):
            self._run_step()
            if step % _CHECK_EVERY == 0 and not bool(self.unfinished):
                break
        if bool(self.has_nan):
            raise nan_error("a target position")
        return self._hypotheses(len(sources))

    @torch.no_grad()
    def step(self) -> None:
        """Append a token to every row, on the device only: neither shapes nor branches depend on tensor values."""
        logits = self.model.decode(self.inputs[:, None], self.state)[:, -1]
        log_probs = torch.log_softmax(logits.float(), dim=-1)  # (N, V)
        used = (self.sums > _NEVER).flatten()  # neither finished nor empty
        self.has_nan.logical_or_((log_probs[:, 0].isnan() & used).any())
        allowed = log_probs.masked_fill(~self._allowed(log_probs), _NEVER)
        at_limit = (self.limits == self.position + 1)[:, None]  # (B, 1)
        sums, origins, chosen, truncated = (self._draw if self.settings.sample else self._best)(allowed, at_limit)
        new = allowed.view(*self.sums.shape, -1)[torch.arange(len(sums), device=self.device)[:, None], origins, chosen]
        tokens = self._extend(self.tokens, origins, chosen)
        if self.beams > 1:
            # The last tokens (B, K, n), which `recombine` compares; of a shorter target, the first one repeated.
            last = torch.arange(1 - max(1, min(self.settings.recombine, self.sizes.capacity)), 1, device=self.device)
            tails = tokens.index_select(2, (self.position + last).clamp(min=0))
            sums = pruned_log_probs(sums, self.complete, tails, self.settings)
        token_log_probs = self._extend(self.log_probs, origins, new)
        ended = (chosen == EOS) & (sums > _NEVER)  # (B, K)
        self._collect(ended, tokens, token_log_probs, truncated)
        self.complete.add_(ended.sum(1))
        self.sums.copy_(self._without_beaten(sums.masked_fill(ended, _NEVER)))
        if self.beams > 1:
            first = torch.arange(0, self.inputs.numel(), self.beams, device=self.device)[:, None]
            self.state.select((first + origins).flatten())
        self.tokens.copy_(tokens)
        self.log_probs.copy_(token_log_probs)
        self.inputs.copy_(chosen.flatten())
        self.unfinished.copy_((self.sums > _NEVER).any())
        self.position.add_(1)

    def _best(self, log_probs: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return sums, origins (0 to K - 1), tokens and truncation flags of the K best continuations, each (B, K)."""
        rows = self._per_row(at_limit)
        truncated = (rows[:, 0] & (log_probs.argmax(1) != EOS)).view_as(self.sums)
        log_probs = log_probs.masked_fill(rows & (self.vocabulary != EOS), _NEVER)
        if self.beams == 1:
            # As in greedy search, argmax without the sum: added to a large sum, two tokens may round to the same value.
            tokens = log_probs.argmax(1)[:, None]
            return self.sums + log_probs.gather(1, tokens), torch.zeros_like(tokens), tokens, truncated
        sums = log_probs.view(*self.sums.shape, -1) + self.sums[..., None]
        best, indices = sums.flatten(1).topk(self.beams, dim=1)
        origins, tokens = indices // self.vocabulary.numel(), indices % self.vocabulary.numel()
        return best, origins, tokens, truncated.gather(1, origins)

    def _without_beaten(self, sums: Tensor) -> Tensor:
        """Return sums (B, K) with the slots emptied that `pytorch.search.CompleteHypotheses.without_beaten` empties."""
        if self.settings.pruning.early_end:
            bounds = sums.double() / self.penalties[(self.position + 2).clamp(max=self.sizes.capacity)]
        else:
            bounds = sums.amax(1, keepdim=True).double() / self.penalties[self.limits][:, None]
        return sums.masked_fill(bounds <= self.pool_scores[:, -1:], _NEVER)

    def _per_row(self, column: Tensor) -> Tensor:
        """(B, 1) -> (N, 1)."""
        return column.repeat_interleave(self.beams, 0, output_size=self.inputs.numel())

    def _draw(self, log_probs: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        uniform = self.uniforms.index_select(1, self.position)[:, 0]
        tokens = draw(log_probs, uniform, self.settings)[:, None]  # (B, 1)
        truncated = at_limit & (tokens != EOS)
        tokens = tokens.masked_fill(at_limit, EOS)
        return self.sums + log_probs.gather(1, tokens), torch.zeros_like(tokens), tokens, truncated

    def _extend(self, history: Tensor, origins: Tensor, last: Tensor) -> Tensor:
        """Reorder history (B, K, L) by origins and write `last` at the current position."""
        reordered = history.gather(1, origins[..., None].expand_as(history))
        return reordered.index_copy_(2, self.position, last[..., None])

    def _collect(self, ended: Tensor, tokens: Tensor, log_probs: Tensor, truncated: Tensor) -> None:
        """Merge the hypotheses that ended (B, K) into the pool, which keeps the n best."""
        scores = log_probs.double().sum(-1) / self.penalties[self.position + 1]
        scores = torch.cat([self.pool_scores, scores.masked_fill(~ended, _NEVER)], dim=1)  # (B, n + K)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.nbest]
        self.pool_scores.copy_(scores.gather(1, order))
        self.pool_truncated.copy_(torch.cat([self.pool_truncated, truncated], dim=1).gather(1, order))
        for pool, new in ((self.pool_tokens, tokens), (self.pool_log_probs, log_probs)):
            pool.copy_(torch.cat([pool, new], dim=1).gather(1, order[..., None].expand_as(pool)))

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """Return (N, V), True = allowed: the rules of `SearchRequest.allowed` without reading from the device."""
        allowed = torch.ones_like(log_probs, dtype=torch.bool)
        allowed[:, PAD] = False
        allowed[:, BOS] = False
        if self.settings.min_length:
            allowed[:, EOS] = self.position >= self.settings.min_length
        if 0 < self.settings.no_repeat_ngram <= self.sizes.capacity:
            allowed.scatter_(1, self._repeated_tokens(self.settings.no_repeat_ngram), False)
        if self.sizes.prefixes:
            forced = self._per_row(self.prefixes.index_select(1, self.position))
            allowed = torch.where(forced == PAD, allowed, self.vocabulary == forced)
        allowed[:, EOS] |= ~allowed.any(dim=1)
        return allowed

    def _repeated_tokens(self, size: int) -> Tensor:
        """Return (N, L - n + 1): the last token of each earlier n-gram that starts with the last n - 1 tokens.

        PAD, which is never allowed, stands for all other n-grams.
        """
        tokens = self.tokens.flatten(0, 1)
        ngrams = tokens.unfold(1, size, 1)  # (N, L - n + 1, n)
        context = (self.position + torch.arange(1 - size, 0, device=self.device)).clamp(min=0)
        same = (ngrams[..., : size - 1] == tokens.index_select(1, context)[:, None]).all(-1)
        written = torch.arange(size, self.sizes.capacity + 1, device=self.device) <= self.position
        return ngrams[..., -1].masked_fill(~(same & written), PAD)

    def _new(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _initial_state(self, count: int, beams: int, capacity: int = 0) -> DecodeState:
        """Return the model's own state for sources that consist of EOS only."""
        src = torch.full((count, self.sizes.source), EOS, device=self.device)
        return self.model.start(self.model.encode(src, src == EOS if self.sizes.source else None), beams, capacity)

    def _padded(self, rows: Sequence[Ids], width: int) -> Tensor:
        full = [[*row, *[PAD] * (width - len(row))] for row in rows]
        return torch.tensor(full, dtype=torch.long).view(len(rows), width)

    def _encode(self, sources: Sequence[Ids]) -> None:
        """Encode B sources and copy their keys and values into the state."""
        src, lengths = self._padded(sources, self.sizes.source), torch.tensor([len(row) for row in sources])
        mask = torch.arange(self.sizes.source) < lengths[:, None]  # (B, S)
        memory: Memory = self.model.encode(src.to(self.device), mask.to(self.device) if self.sizes.source else None)
        fresh = self.model.start(memory, self.beams, 0)
        for layer, new in zip(self.state.layers, fresh.layers, strict=False):  # no cross-attention without an encoder
            layer.cross_attn.keys.copy_(new.cross_attn.keys)  # type: ignore[attr-defined]
            layer.cross_attn.values.copy_(new.cross_attn.values)  # type: ignore[attr-defined]
        if self.state.memory_bias is not None and fresh.memory_bias is not None:
            self.state.memory_bias.copy_(fresh.memory_bias)

    def _hypotheses(self, count: int) -> list[list[Hypothesis]]:
        pools = (self.pool_scores, self.pool_tokens, self.pool_log_probs, self.pool_truncated)
        found: list[list[Hypothesis]] = []
        for rows in zip(*(pool[:count].tolist() for pool in pools), strict=True):
            found.append([])
            for score, tokens, log_probs, truncated in zip(*rows, strict=True):
                if score > _NEVER:
                    end = tokens.index(EOS)
                    found[-1].append(complete(tokens[:end], log_probs[: end + 1], self.settings.alpha, truncated))
        return found
