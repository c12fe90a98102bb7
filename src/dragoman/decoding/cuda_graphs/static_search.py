"""The search with every step the same work on the same memory, so that a GPU can record one and repeat it.

`beam.py` and `sample.py` drop what is done, and look at each token to know how to go on; a GPU would have to wait for
each look.  Here nothing is dropped and nobody looks: what is done is crossed out, complete hypotheses are kept on the
device, and only every few steps somebody asks whether anything is left.  In float32 the hypotheses are the same, up to
rounding; half a word rounds otherwise where shapes are other.

Letters: B sentences, K beams, N = B*K rows, S source length, L room for target tokens, n hypotheses that are wanted of
a sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.tokenizer import BOS, EOS, PAD
from dragoman.decoding.hypothesis import Hypothesis, complete, length_penalty
from dragoman.decoding.pytorch.sampling import draw
from dragoman.decoding.request import not_numbers
from dragoman.decoding.settings import SearchSettings
from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.state import DecodeState, LayerState, SelfKeyValues, StaticKeyValues, StaticState

__all__ = ["Sizes", "StaticShapeSearch"]

_LOOK = 8
"""Steps between two looks whether anything is left."""
_NEVER = float("-inf")


@dataclass(frozen=True)
class Sizes:
    """sentences: B.  source: S.  room: L.  prefixes: whether any target has a forced beginning."""

    sentences: int
    source: int
    room: int
    prefixes: bool


class StaticShapeSearch:
    """Greedy and beam search, or one sample a sentence, of up to B sentences at a time; may be used again and again.

    settings: with `sample`, one sample is drawn for each sentence, whatever `nbest` is.  repeat: is given the step once
    and returns what is called for each; by default the step itself (on a GPU: its recording).
    """

    def __init__(
        self,
        model: Model,
        settings: SearchSettings,
        sizes: Sizes,
        repeat: Callable[[Callable[[], None]], Callable[[], None]] = lambda step: step,
    ) -> None:
        self.model, self.settings, self.sizes, self.device = model, settings, sizes, model.device
        self.beams = 1 if settings.sample else settings.beam
        self.wanted = 1 if settings.sample else settings.nbest
        self.place = self._new(torch.long, 1)
        self.state = self._state()
        count, beams, room = sizes.sentences, self.beams, sizes.room
        self.limits = self._new(torch.long, count)
        self.prefixes = self._new(torch.long, count, room)  # PAD = nothing is forced
        self.uniforms = self._new(torch.double, count, room)
        self.last = self._new(torch.long, count * beams)
        self.sums = self._new(torch.float, count, beams)  # -inf = an empty place
        self.tokens = self._new(torch.long, count, beams, room)
        self.log_probs = self._new(torch.float, count, beams, room)
        self.pool_scores = self._new(torch.double, count, self.wanted)  # best first, -inf = none
        self.pool_tokens = self._new(torch.long, count, self.wanted, room)
        self.pool_log_probs = self._new(torch.float, count, self.wanted, room)
        self.pool_cut = self._new(torch.bool, count, self.wanted)
        self.left, self.broken = self._new(torch.bool), self._new(torch.bool)
        penalties = [length_penalty(length, settings.alpha) for length in range(room + 1)]
        self.penalties = torch.tensor(penalties, dtype=torch.double, device=self.device)
        self.words = torch.arange(self._vocabulary(), device=self.device)
        self._repeated = repeat(self.step)
        # What a recording reads must live as long as it does: tables of positions are replaced when they grow.
        self._read = [*model.parameters(), *model.buffers()]

    @torch.no_grad()
    def search(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        uniforms: NDArray[np.float64] | None = None,
    ) -> list[list[Hypothesis]]:
        """The n best of each of at most B sentences, best first; they must fit into S and L.

        uniforms: (sentences, L) numbers in [0, 1), for samples.  Raises DragomanError where the model's output is not a
        number; a list is empty where nothing has a probability.
        """
        limits = [self.settings.limit(len(src), len(begin)) for src, begin in zip(sources, prefixes, strict=True)]
        self._begin(sources, limits, prefixes, uniforms)
        for step in range(1, max(limits) + 1):
            self._repeated()
            if step % _LOOK == 0 and not bool(self.left):
                break
        if bool(self.broken):
            raise not_numbers("some target position")
        return self._found(len(sources))

    # --------------------------------------------------------------------------------------------------------- a step

    @torch.no_grad()
    def step(self) -> None:
        """One token more for every row.  Work on the device only: no shape and no choice depends on a number there."""
        logits = self.model.decode(self.last[:, None], self.state)[:, -1]
        log_probs = torch.log_softmax(logits.float(), dim=-1)  # (N, V)
        counts = (self.sums > _NEVER).flatten()  # not what is done, nor empty places
        self.broken.logical_or_((log_probs[:, 0].isnan() & counts).any())
        nexts = log_probs.masked_fill(~self._allowed(log_probs), _NEVER)
        at_limit = (self.limits == self.place + 1)[:, None]  # (B, 1)
        sums, origins, words, cut = (self._draw if self.settings.sample else self._best)(nexts, at_limit)
        new = nexts.view(*self.sums.shape, -1)[torch.arange(len(sums), device=self.device)[:, None], origins, words]
        tokens = self._follow(self.tokens, origins, words)
        token_log_probs = self._follow(self.log_probs, origins, new)
        ended = (words == EOS) & (sums > _NEVER)  # (B, K)
        self._collect(ended, tokens, token_log_probs, cut)
        sums = sums.masked_fill(ended, _NEVER)
        # What can still be among the n best: a sum only falls, and is divided by at most the last penalty.
        bound = sums.amax(1).double() / self.penalties[self.limits]
        self.sums.copy_(sums.masked_fill((bound <= self.pool_scores[:, -1])[:, None], _NEVER))
        if self.beams > 1:
            first = torch.arange(0, self.last.numel(), self.beams, device=self.device)[:, None]
            self.state.select((first + origins).flatten())
        self.tokens.copy_(tokens)
        self.log_probs.copy_(token_log_probs)
        self.last.copy_(words.flatten())
        self.left.copy_((self.sums > _NEVER).any())
        self.place.add_(1)

    def _best(self, nexts: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the K best continuations: sums, origins in 0 .. K - 1, words, and which were cut off; (B, K) each."""
        rows = self._a_row_each(at_limit)
        cut = (rows[:, 0] & (nexts.argmax(1) != EOS)).view_as(self.sums)
        nexts = nexts.masked_fill(rows & (self.words != EOS), _NEVER)
        if self.beams == 1:  # by itself, as `greedy` takes it: added to a long sum, two words may become equal
            words = nexts.argmax(1)[:, None]
            return self.sums + nexts.gather(1, words), torch.zeros_like(words), words, cut
        sums = nexts.view(*self.sums.shape, -1) + self.sums[..., None]
        best, places = sums.flatten(1).topk(self.beams, dim=1)
        origins, words = places // self.words.numel(), places % self.words.numel()
        return best, origins, words, cut.gather(1, origins)

    def _a_row_each(self, column: Tensor) -> Tensor:
        """(B, 1) -> (N, 1)."""
        return column.repeat_interleave(self.beams, 0, output_size=self.last.numel())

    def _draw(self, nexts: Tensor, at_limit: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        uniform = self.uniforms.index_select(1, self.place)[:, 0]
        words = draw(nexts, uniform, self.settings)[:, None]  # (B, 1)
        cut = at_limit & (words != EOS)
        words = words.masked_fill(at_limit, EOS)
        return self.sums + nexts.gather(1, words), torch.zeros_like(words), words, cut

    def _follow(self, history: Tensor, origins: Tensor, last: Tensor) -> Tensor:
        """history (B, K, L) in the order of origins, with `last` at this place."""
        own = history.gather(1, origins[..., None].expand_as(history))
        return own.index_copy_(2, self.place, last[..., None])

    def _collect(self, ended: Tensor, tokens: Tensor, log_probs: Tensor, cut: Tensor) -> None:
        """Take over what ended (B, K) into the pool, of which the n best stay."""
        scores = log_probs.double().sum(-1) / self.penalties[self.place + 1]
        scores = torch.cat([self.pool_scores, scores.masked_fill(~ended, _NEVER)], dim=1)  # (B, n + K)
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.wanted]
        self.pool_scores.copy_(scores.gather(1, order))
        self.pool_cut.copy_(torch.cat([self.pool_cut, cut], dim=1).gather(1, order))
        for pool, new in ((self.pool_tokens, tokens), (self.pool_log_probs, log_probs)):
            pool.copy_(torch.cat([pool, new], dim=1).gather(1, order[..., None].expand_as(pool)))

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """(N, V): the rules of `processors`, with nothing asked of the device."""
        allowed = torch.ones_like(log_probs, dtype=torch.bool)
        allowed[:, PAD] = False
        allowed[:, BOS] = False
        if self.settings.min_length:
            allowed[:, EOS] = self.place >= self.settings.min_length
        if 0 < self.settings.no_repeat_ngram <= self.sizes.room:
            # PAD, which is crossed out already, takes what is not repeated.
            allowed.scatter_(1, self._repeated_words(self.settings.no_repeat_ngram), False)
        if self.sizes.prefixes:
            forced = self._a_row_each(self.prefixes.index_select(1, self.place))
            allowed = torch.where(forced == PAD, allowed, self.words == forced)
        allowed[:, EOS] |= ~allowed.any(dim=1)
        return allowed

    def _repeated_words(self, size: int) -> Tensor:
        """(N, L - n + 1): for each n-gram so far that begins as the last n - 1 tokens do, its last word; else PAD."""
        tokens = self.tokens.flatten(0, 1)
        ngrams = tokens.unfold(1, size, 1)  # (N, L - n + 1, n)
        context = (self.place + torch.arange(1 - size, 0, device=self.device)).clamp(min=0)
        same = (ngrams[..., : size - 1] == tokens.index_select(1, context)[:, None]).all(-1)
        known = torch.arange(size, self.sizes.room + 1, device=self.device) <= self.place
        return ngrams[..., -1].masked_fill(~(same & known), PAD)

    # ------------------------------------------------------------------------------------------- before, and afterwards

    def _new(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _vocabulary(self) -> int:
        with torch.no_grad():
            return self.model.decode(self.last[:1, None], self._started(1, 1)).size(-1)

    def _started(self, count: int, beams: int, room: int = 0) -> DecodeState:
        """The model's own state for sources of nothing but ends."""
        src = torch.full((count, self.sizes.source), EOS, device=self.device)
        with torch.no_grad():
            return self.model.start(self.model.encode(src, src == EOS if self.sizes.source else None), beams, room)

    def _state(self) -> StaticState:
        state = self._started(self.sizes.sentences, self.beams, self.sizes.room)
        caches, layers = [], list[LayerState]()
        for layer in state.layers:
            own = getattr(layer, "self_attn", layer)  # beside the memory's keys and values, or alone
            assert isinstance(own, SelfKeyValues)
            caches.append(StaticKeyValues(own, self.place))
            if own is layer:
                layers.append(caches[-1])
            else:
                layer.self_attn = caches[-1]  # type: ignore[attr-defined]
                layers.append(layer)
        return StaticState(layers, self.beams, state.memory_bias, caches=caches)

    def _begin(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        uniforms: NDArray[np.float64] | None,
    ) -> None:
        count, rest = len(sources), self.sizes.sentences - len(sources)
        self._remember([*sources, *[[EOS][: self.sizes.source]] * rest])
        self.limits.copy_(torch.tensor([*limits, *[1] * rest]))
        self.prefixes.copy_(self._padded([*prefixes, *[[]] * rest], self.sizes.room))
        if uniforms is not None:
            self.uniforms[:count].copy_(torch.from_numpy(uniforms))
        for memory in (self.place, self.tokens, self.log_probs, self.left, self.broken):
            memory.zero_()
        for cache in self.state.caches:
            cache.keys.zero_()
            cache.values.zero_()
        self.last.fill_(BOS)
        self.sums.fill_(_NEVER)
        self.sums[:count, 0] = 0
        self.pool_scores.fill_(_NEVER)

    def _padded(self, rows: Sequence[Sequence[int]], width: int) -> Tensor:
        whole = [[*row, *[PAD] * (width - len(row))] for row in rows]
        return torch.tensor(whole, dtype=torch.long).view(len(rows), width)

    def _remember(self, sources: Sequence[Sequence[int]]) -> None:
        """Read the B sources; what the decoder will look at goes where the step finds it."""
        src, lengths = self._padded(sources, self.sizes.source), torch.tensor([len(row) for row in sources])
        mask = torch.arange(self.sizes.source) < lengths[:, None]  # (B, S)
        memory: Memory = self.model.encode(src.to(self.device), mask.to(self.device) if self.sizes.source else None)
        fresh = self.model.start(memory, self.beams, 0)
        for layer, new in zip(self.state.layers, fresh.layers, strict=False):  # none without an encoder
            layer.cross_attn.keys.copy_(new.cross_attn.keys)  # type: ignore[attr-defined]
            layer.cross_attn.values.copy_(new.cross_attn.values)  # type: ignore[attr-defined]
        if self.state.memory_bias is not None and fresh.memory_bias is not None:
            self.state.memory_bias.copy_(fresh.memory_bias)

    def _found(self, count: int) -> list[list[Hypothesis]]:
        pools = (self.pool_scores, self.pool_tokens, self.pool_log_probs, self.pool_cut)
        scores, tokens, log_probs, cut = (pool[:count].tolist() for pool in pools)
        found: list[list[Hypothesis]] = [[] for _ in range(count)]
        for sentence, own in enumerate(found):
            for rank, score in enumerate(scores[sentence]):
                if score > _NEVER:
                    end = tokens[sentence][rank].index(EOS)
                    own.append(
                        complete(
                            tokens[sentence][rank][:end],
                            log_probs[sentence][rank][: end + 1],
                            self.settings.alpha,
                            cut[sentence][rank],
                        )
                    )
        return found
