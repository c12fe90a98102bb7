"""The search on a GPU: a step is recorded once for each size of batch, and repeated without the processor's help.

Letters: B sentences, K beams, S source length, L room for target tokens.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from dragoman.decoding.backend import Ids
from dragoman.decoding.cuda_graphs.static_search import Sizes, StaticShapeSearch
from dragoman.decoding.hypothesis import Hypothesis, best
from dragoman.decoding.processors import ForcedPrefix
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.pytorch.sampling import uniforms
from dragoman.decoding.settings import SearchSettings
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Model, Network
from dragoman.models.transformer import Transformer
from dragoman.nn.attention import SelfAttention
from dragoman.nn.modes import evaluating
from dragoman.nn.positions import Learned, RecurrentOverEmbeddings, RecurrentPositions

__all__ = ["CudaGraphBackend", "cuda_graph_unsupported_reasons", "recorded"]

_STEP = 16
"""Source lengths and room grow by so much, so that few recordings serve all batches."""
_KEPT = 8
"""Recordings that are kept, each with its memory."""
_WARM = 3
"""Steps before a recording: libraries choose their kernels and take their memory in the first."""
_RECORDING = threading.Lock()
_ASIDE: dict[torch.device, torch.cuda.Stream] = {}


def cuda_graph_unsupported_reasons(model: Network) -> list[str]:
    """Why the steps of this model are not all of the same shape; empty where they are."""
    if not isinstance(model, Transformer | DecoderOnly):
        return [f"its architecture is {type(model).__name__}"]
    stack = model if isinstance(model, DecoderOnly) else model.decoder
    reasons = []
    if isinstance(stack.positions, RecurrentOverEmbeddings | RecurrentPositions):
        reasons.append(f"its positions are {type(stack.positions).__name__}")
    if any(not isinstance(layer.self_attn, SelfAttention) for layer in stack.layers):
        reasons.append("its attention is linear")
    return reasons


def recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A CUDA graph of `step`, to be called instead of it."""
    with _RECORDING, torch.cuda.device(device):
        # One stream a device for all recordings: libraries keep memory for each that they have seen.
        aside = _ASIDE.get(device) or _ASIDE.setdefault(device, torch.cuda.Stream())
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            step()
    return graph.replay


class CudaGraphBackend(TorchBackend):
    """A model whose steps have fixed shapes: on a GPU they are recorded, elsewhere just done.

    What is longer than learned positions reach, what has a shortlist, and everything but the search is left to the
    PyTorch backend.
    """

    def __init__(self, model: Model, device: str | torch.device) -> None:
        super().__init__(model, device)
        self._searches: OrderedDict[tuple[SearchSettings, Sizes], StaticShapeSearch] = (
            OrderedDict()
        )  # those not at work
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        kind = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        if self.shortlist is not None:
            return super().description
        return f"{'CUDA graphs' if self.model.device.type == 'cuda' else 'fixed shapes'}, {kind}, {self.device}"

    @property
    def plain(self) -> TorchBackend:
        """The same model without recordings, for whoever means to look into it or to change it."""
        plain = TorchBackend(self.model, self.device)
        plain.shortlist = self.shortlist
        return plain

    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        if self.shortlist is not None:
            return super().search(sources, prefixes, settings, batch_tokens)
        ForcedPrefix(prefixes)  # says what cannot be one
        limits = [settings.limit(len(src), len(begin)) for src, begin in zip(sources, prefixes, strict=True)]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        near = [i for i, limit in enumerate(limits) if limit <= self._reach]
        far = [i for i, limit in enumerate(limits) if limit > self._reach]
        if far:
            some = [sources[i] for i in far], [prefixes[i] for i in far]
            for place, own in zip(far, super().search(*some, settings, batch_tokens), strict=True):
                found[place] = own
        # A sample is a sentence of its own.
        each = [(i, index) for i in near for index in range(settings.nbest if settings.sample else 1)]
        for batch in _batches(each, sources, 1 if settings.sample else settings.beam, batch_tokens):
            for (place, _), own in zip(batch, self._batch(batch, sources, prefixes, settings), strict=True):
                found[place] += own
        return [best(own, settings.nbest) for own in found]

    @property
    def _reach(self) -> float:
        model = self.model
        assert isinstance(model, Transformer | DecoderOnly)
        stacks = [model] if isinstance(model, DecoderOnly) else [model.encoder, model.decoder]
        tables = [stack.positions.table.size(0) for stack in stacks if isinstance(stack.positions, Learned)]
        reach = min(tables, default=math.inf)
        return reach if reach >= _WARM else 0  # a recording begins with so many steps

    def _batch(
        self,
        batch: Sequence[tuple[int, int]],
        sources: Sequence[Ids],
        prefixes: Sequence[Ids],
        settings: SearchSettings,
    ) -> list[list[Hypothesis]]:
        src, begins = [sources[i] for i, _ in batch], [prefixes[i] for i, _ in batch]
        limits = [settings.limit(len(s), len(begin)) for s, begin in zip(src, begins, strict=True)]
        longest = int(min(_up(max(map(len, src))), self._reach))
        room = int(min(_up(max(*limits, settings.limit(longest))), self._reach))
        sizes = Sizes(1 << (len(batch) - 1).bit_length(), longest, room, any(begins))
        numbers = None
        if settings.sample:
            numbers = np.zeros((len(batch), room))
            for row, (_, index), own, begin, limit in zip(numbers, batch, src, begins, limits, strict=True):
                row[:limit] = uniforms(settings.seed, list(map(int, own)), index, begin, limit)
            settings = replace(settings, seed=0, nbest=1)  # which make no difference to a step
        # Whoever calls may record gradients, infer or cast: a search that is kept must not depend on it.
        modes = torch.inference_mode(False), torch.autocast(self.model.device.type, enabled=False)
        with evaluating(self.model), modes[0], modes[1], torch.no_grad():
            search = self._taken(settings, sizes) or StaticShapeSearch(self.model, settings, sizes, self._repeat)
            found = search.search(src, begins, numbers)
        with self._lock:
            self._searches[settings, sizes] = search  # the latest is the last to go
            while len(self._searches) > _KEPT:
                self._searches.popitem(last=False)
        return found

    def _taken(self, settings: SearchSettings, sizes: Sizes) -> StaticShapeSearch | None:
        """One that nobody else uses meanwhile."""
        with self._lock:
            return self._searches.pop((settings, sizes), None)

    def _repeat(self, step: Callable[[], None]) -> Callable[[], None]:
        return recorded(step, self.model.device) if self.model.device.type == "cuda" else step


def _up(length: int) -> int:
    return -(-length // _STEP) * _STEP


def _batches(
    each: Sequence[tuple[int, int]], sources: Sequence[Ids], beams: int, batch_tokens: int
) -> Iterator[list[tuple[int, int]]]:
    """Sentences of similar length, in numbers that are powers of two where enough are left."""
    rest = sorted(each, key=lambda one: -len(sources[one[0]]))
    while rest:
        most = max(1, batch_tokens // (max(1, _up(len(sources[rest[0][0]]))) * beams))
        count = 1 << (most.bit_length() - 1)
        yield rest[:count]
        rest = rest[count:]
