"""The PyTorch backend, for any model on any device, and ensembles of backends.

Letters: B sentences, S source length, T target length, V vocabulary, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.decoding.backend import DecodingBackend, batches_within
from dragoman.decoding.pytorch.search import padded
from dragoman.decoding.pytorch.stepper import EnsembleStepper, ModelStepper
from dragoman.decoding.search_types import Hypothesis, Ids, SearchCall
from dragoman.device import resolve_device
from dragoman.errors import UsageError
from dragoman.models.seq2seq import LanguageModel, Model, evaluating
from dragoman.nn.record import record, tap_names
from dragoman.tokenizers import BOS

_LOGITS_AT_ONCE = 1 << 24
_CROSS_ATTENTION = "cross_attn.weights"


class TorchBackend(DecodingBackend):
    """A PyTorch model.  reason: why no faster backend is used, for the description."""

    def __init__(self, model: Model, device: str | torch.device = "cpu", reason: str = "") -> None:
        self.device = resolve_device(device)
        self.model = model.to(self.device)
        self.has_encoder = not isinstance(model, LanguageModel)
        self.reason = reason

    @property
    def description(self) -> str:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        shortlist = f", {self.shortlist.description}" if self.shortlist else ""
        return f"PyTorch backend, {dtype}, {self.device}{shortlist}" + (f" ({self.reason})" if self.reason else "")

    def to_torch(self) -> TorchBackend:
        return self

    def stepper(self) -> ModelStepper:
        return ModelStepper(self.model.eval())

    def _search(self, call: SearchCall, batch_tokens: int | None) -> list[list[Hypothesis]]:
        with evaluating(self.model):
            return super()._search(call, batch_tokens)

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        if not any(name.endswith(_CROSS_ATTENTION) for name in tap_names(self.model)):
            raise UsageError(
                f"the architecture {self.model.architecture} has no attention between target and source; alignment "
                "needs a model with cross-attention"
            )
        found: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32) for _ in pairs]
        for batch in batches_within([len(src) + len(tgt) for src, tgt in pairs], batch_tokens):
            with evaluating(self.model), torch.no_grad(), record(self.model, f"*{_CROSS_ATTENTION}") as captured:
                self._log_probs([pairs[i] for i in batch])
            # A recurrent decoder makes one call per position.
            layers = [torch.cat(calls, dim=2).mean(1) for calls in captured.values()]  # (B, T, S) each
            weights = torch.stack(layers).mean(0).float().cpu().numpy()
            for index, row in zip(batch, weights, strict=True):
                src, tgt = pairs[index]
                found[index] = row[: len(tgt), : len(src)]
        return found

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        if not self.has_encoder and any(prompt for prompt, _ in pairs):
            rows = self.score([([], [*prompt, *tgt]) for prompt, tgt in pairs], batch_tokens)
            return [row[len(prompt) :] for row, (prompt, _) in zip(rows, pairs, strict=True)]
        scores: list[list[float]] = [[] for _ in pairs]
        with evaluating(self.model), torch.no_grad():
            for batch in batches_within([len(src) + len(tgt) for src, tgt in pairs], batch_tokens):
                for index, row in zip(batch, self._log_probs([pairs[i] for i in batch]), strict=True):
                    scores[index] = row[: len(pairs[index][1])]
        return scores

    def _log_probs(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[list[float]]:
        src, mask = padded([src for src, _ in pairs], self.device)
        tgt, _ = padded([tgt for _, tgt in pairs], self.device)  # (B, T)
        tgt_in = torch.cat([torch.full_like(tgt[:, :1], BOS), tgt[:, :-1]], dim=1)
        state = self.model.start(self.model.encode(src, mask), beams=1, max_len=0)
        hidden = self.model.decode_hidden(tgt_in, state)  # (B, T, D)
        # Logits of a few positions at a time, because those of a very long pair would not fit into memory.
        vocab = self.model.output(hidden[:1, :1]).size(-1)
        step = max(1, _LOGITS_AT_ONCE // (tgt.size(0) * vocab))
        chosen = [
            torch.log_softmax(self.model.output(chunk).float(), dim=-1).gather(2, tokens[..., None])[..., 0]
            for chunk, tokens in zip(torch.split(hidden, step, dim=1), torch.split(tgt, step, dim=1), strict=True)
        ]
        rows: list[list[float]] = torch.cat(chosen, dim=1).tolist()
        return rows


class EnsembleBackend(DecodingBackend):
    """Backends on one device, native or PyTorch; the probability of a token is the mean over them."""

    def __init__(self, members: Sequence[DecodingBackend]) -> None:
        self.members = members
        self.device, self.has_encoder = members[0].device, members[0].has_encoder
        if any(member.load_scorer for member in members):
            self.load_scorer = lambda: EnsembleBackend([member.scorer for member in members])

    @property
    def description(self) -> str:
        distinct = dict.fromkeys(member.description for member in self.members)
        return f"ensemble of {len(self.members)} models: {'; '.join(distinct)}"

    @property
    def max_length(self) -> float:
        return min(member.max_length for member in self.members)

    def stepper(self) -> EnsembleStepper:
        return EnsembleStepper([member.stepper() for member in self.members])

    def to_torch(self) -> EnsembleBackend:
        return EnsembleBackend([member.to_torch() for member in self.members])

    def fallback(self) -> EnsembleBackend:
        # A member without a length limit has no fallback.
        return EnsembleBackend([m if math.isinf(m.max_length) else m.fallback() for m in self.members])

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        weights = [member.align(pairs, batch_tokens) for member in self.members]
        return [np.mean(pair, axis=0) for pair in zip(*weights, strict=True)]

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        log_probs = [member.score(pairs, batch_tokens) for member in self.members]
        by_pair = zip(*log_probs, strict=True)
        return [(np.logaddexp.reduce(rows, axis=0) - math.log(len(rows))).tolist() for rows in by_pair]
