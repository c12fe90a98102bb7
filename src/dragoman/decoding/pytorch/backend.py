"""The plain path: batches of sentences through the model as PyTorch has it.

Letters: B sentences, T target length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.data.batching import batches_within, collate_source
from dragoman.data.tokenizer import BOS
from dragoman.decoding.backend import DecodingBackend, Ids
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.pytorch.generate import generate
from dragoman.decoding.pytorch.stepper import ModelStepper, State, Stepper, with_shortlist
from dragoman.decoding.pytorch.stream import TokenStream, search_live
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.nn.modes import evaluating

__all__ = ["TorchBackend", "search_batches"]

_LOGITS_AT_ONCE = 1 << 24


class TorchBackend(DecodingBackend):
    """Any model, on any device.  why: the reason that nothing faster is used, if there is one."""

    def __init__(self, model: Model, device: str | torch.device = "cpu", why: str = "") -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.why = why

    @property
    def description(self) -> str:
        kind = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        listed = f", {self.shortlist.description}" if self.shortlist else ""
        return f"plain path, {kind}, {self.device}{listed}" + (f" ({self.why})" if self.why else "")

    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        stepper = ModelStepper(self.model)
        with evaluating(self.model):
            return search_batches(stepper, sources, prefixes, settings, batch_tokens, self.device, self.shortlist)

    def live(self, source: Ids, prefix: Ids, settings: SearchSettings) -> TokenStream:
        src = torch.tensor([list(source)], dtype=torch.long, device=self.device)
        stepper = with_shortlist(self.shortlist, ModelStepper(self.model.eval()), [source], [prefix])
        return search_live(stepper, src, settings, prefix or None)

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        taps = [tap for name, tap in self.model.named_modules() if name.endswith("cross_attn.weights")]
        if not taps:
            raise UsageError(
                f"{type(self.model).__name__}: no attention between target and source that could align them"
            )
        found: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32) for _ in pairs]
        for batch in batches_within([len(src) + len(tgt) for src, tgt in pairs], batch_tokens):
            some = [pairs[place] for place in batch]
            with evaluating(self.model), torch.no_grad(), _heard(taps) as said:
                self._log_probs(some)
            whole = torch.stack([torch.cat(calls, dim=2).mean(1) for calls in said.values()]).mean(0)  # (B, T, S)
            for place, weights in zip(batch, whole.float().cpu().numpy(), strict=True):
                src, tgt = pairs[place]
                found[place] = weights[: len(tgt), : len(src)]
        return found

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in pairs]
        with evaluating(self.model), torch.no_grad():
            for batch in batches_within([len(src) + len(tgt) for src, tgt in pairs], batch_tokens):
                for place, row in zip(batch, self._log_probs([pairs[i] for i in batch]), strict=True):
                    scores[place] = row[: len(pairs[place][1])]
        return scores

    def _log_probs(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[list[float]]:
        src, mask = _padded([src for src, _ in pairs], self.device)
        tgt, _ = _padded([tgt for _, tgt in pairs], self.device)  # (B, T)
        tgt_in = torch.cat([torch.full_like(tgt[:, :1], BOS), tgt[:, :-1]], dim=1)
        state = self.model.start(self.model.encode(src, mask), beams=1, max_len=0)
        hidden = self.model.decode_hidden(tgt_in, state)  # (B, T, D)
        # A part of the positions at a time: all logits of one very long pair would not fit into memory.
        vocab = self.model.output(hidden[:1, :1]).size(-1)
        step = max(1, _LOGITS_AT_ONCE // (tgt.size(0) * vocab))
        chosen = [
            torch.log_softmax(self.model.output(some).float(), dim=-1).gather(2, words[..., None])[..., 0]
            for some, words in zip(torch.split(hidden, step, dim=1), torch.split(tgt, step, dim=1), strict=True)
        ]
        rows: list[list[float]] = torch.cat(chosen, dim=1).tolist()
        return rows


def search_batches(
    stepper: Stepper[State],
    sources: Sequence[Ids],
    prefixes: Sequence[Ids],
    settings: SearchSettings,
    batch_tokens: int,
    device: torch.device | str,
    shortlist: Shortlist | None = None,
) -> list[list[Hypothesis]]:
    """`DecodingBackend.search` by the search of this package, batches of similar length at a time."""
    width = settings.nbest if settings.sample else settings.beam
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches_within([max(1, len(source)) * width for source in sources], batch_tokens):
        some, begins = [sources[place] for place in batch], [prefixes[place] for place in batch]
        src, mask = _padded(some, device)
        listed = with_shortlist(shortlist, stepper, some, begins)
        each = generate(listed, src, mask, settings, begins if any(begins) else None)
        for place, hypotheses in zip(batch, each, strict=True):
            found[place] = hypotheses
    return found


def _padded(rows: Sequence[Ids], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    ids, mask = collate_source(rows)
    return ids.to(device), None if mask is None else mask.to(device)


@contextmanager
def _heard(taps: Sequence[nn.Module]) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """What passes each tap, a tensor a call."""
    said: dict[nn.Module, list[Tensor]] = {tap: [] for tap in taps}
    hooks = [tap.register_forward_hook(lambda tap, _, out: said[tap].append(out)) for tap in taps]
    try:
        yield said
    finally:
        for hook in hooks:
            hook.remove()
