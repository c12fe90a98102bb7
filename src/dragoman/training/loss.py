"""Label-smoothed cross-entropy (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).

With smoothing e the target distribution is (1 - e) on the right word plus e / V on all V words.  `cross_entropy` is
the formula on logits; `chunked_cross_entropy` is the same without ever holding all logits: it goes through the rows
in chunks, output product included, and makes the gradients on the way.

Letters: M words (rows that count), D d_model, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data.tokenizer import PAD
from dragoman.nn.layers import OutputProjection

__all__ = ["Loss", "TokenLoss", "chunked_cross_entropy", "cross_entropy"]

_CPU_ROWS = 256
_GPU_ROWS = 8192


@dataclass(frozen=True)
class Loss:
    """Sums over the words of a batch in nats: `smoothed` is minimised, `nll` is the negative log-likelihood."""

    smoothed: Tensor
    nll: Tensor
    tokens: int


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """logits (M, V), targets (M,) -> sums over the rows: smoothed loss and negative log-likelihood."""
    log_probs = logits.float().log_softmax(-1) if logits.dtype != torch.float64 else logits.log_softmax(-1)
    nll = -log_probs.gather(-1, targets[:, None]).sum()
    return (1 - smoothing) * nll - smoothing * log_probs.mean(-1).sum(), nll


class _Chunks:
    """One pass over the rows: the loss, and the gradients of what `wanted` names (hidden, weight).

    Every product runs in one explicit dtype: that of an active autocast, else that of `hidden`.  Autocast itself is
    switched off meanwhile, because it leaves `mm(out=)` and `addmm_` in float32.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, rows: int, wanted: tuple[bool, bool]
    ) -> None:
        dtype, device = _product_dtype(hidden), hidden.device.type
        self.wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        self.smoothing = smoothing
        self.smoothed, self.nll = hidden.new_zeros((), dtype=self.wide), hidden.new_zeros((), dtype=self.wide)
        self.of_hidden = torch.empty_like(hidden) if wanted[0] else None
        self.of_weight = torch.zeros_like(weight) if wanted[1] else None
        with torch.autocast(device, enabled=False):
            matrix = weight.to(dtype)
            for begin in range(0, hidden.size(0), rows):
                part = slice(begin, begin + rows)
                self._chunk(hidden[part].to(dtype), matrix, targets[part, None], part)

    def _chunk(self, h: Tensor, matrix: Tensor, t: Tensor, part: slice) -> None:
        """h: (rows, D), matrix: (V, D), t: (rows, 1)."""
        smoothing, vocab = self.smoothing, matrix.size(0)
        log_probs = torch.log_softmax((h @ matrix.T).to(self.wide), -1)  # (rows, V)
        right = -log_probs.gather(-1, t).sum()
        self.nll += right
        self.smoothed += (1 - smoothing) * right - smoothing / vocab * log_probs.sum()
        if self.of_hidden is None and self.of_weight is None:
            return
        of_logits = log_probs.exp_()  # becomes p - target distribution
        if smoothing:
            of_logits -= smoothing / vocab
        of_logits.scatter_add_(-1, t, torch.full_like(t, smoothing - 1, dtype=self.wide))
        of_logits = of_logits.to(h.dtype)
        if self.of_hidden is not None and self.of_hidden.dtype == h.dtype:
            torch.mm(of_logits, matrix, out=self.of_hidden[part])
        elif self.of_hidden is not None:
            self.of_hidden[part] = of_logits @ matrix
        if self.of_weight is not None and self.of_weight.dtype == h.dtype:
            self.of_weight.addmm_(of_logits.T, h)
        elif self.of_weight is not None:
            self.of_weight += of_logits.T @ h


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of the matrix products: as autocast chooses it, which leaves float64 alone."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, rows: int) -> Any:
        chunks = _Chunks(hidden, weight, targets, smoothing, rows, wanted=ctx.needs_input_grad[:2])
        ctx.save_for_backward(chunks.of_hidden, chunks.of_weight)
        ctx.mark_non_differentiable(chunks.nll)
        return chunks.smoothed, chunks.nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        if of_hidden is not None:
            of_hidden = of_hidden * grads[0].to(of_hidden.dtype)
        if of_weight is not None:
            of_weight = of_weight * grads[0]
        return of_hidden, of_weight, None, None, None


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, rows: int = 0
) -> tuple[Tensor, Tensor]:
    """As `cross_entropy(hidden @ weight.T, targets, smoothing)`; hidden (M, D), weight (V, D), targets (M,).

    Gradients are computed in the same pass, and only where gradients are enabled.
    """
    if rows == 0:
        rows = _CPU_ROWS if hidden.device.type == "cpu" else _GPU_ROWS
    if not torch.is_grad_enabled():  # `ctx.needs_input_grad` does not know of `no_grad`
        chunks = _Chunks(hidden, weight, targets, smoothing, rows, wanted=(False, False))
        return chunks.smoothed, chunks.nll
    out: tuple[Tensor, Tensor] = _Chunked.apply(hidden, weight, targets, smoothing, rows)  # type: ignore[no-untyped-call]
    return out


class TokenLoss:
    """A `models.seq2seq.Head`: the loss of a batch from the decoder's last hidden states, padding left out."""

    def __init__(self, targets: Tensor, smoothing: float) -> None:
        """targets: (B, T), `PAD` where nothing counts."""
        self.targets = targets
        self.smoothing = smoothing

    def __call__(self, hidden: Tensor, output: nn.Module) -> Loss:
        by_chunks = isinstance(output, nn.Linear) and output.bias is None
        if isinstance(output, OutputProjection) and output.is_recorded:
            logits = output(hidden)  # (B, T, V), for whoever looks; only an intervention leaves the chunks
            if output.is_intervened:
                hidden, by_chunks = logits, False
        elif not by_chunks:
            hidden = output(hidden)
        rows, targets = hidden.flatten(0, 1), self.targets.flatten()  # (B*T, D or V), (B*T,)
        counts = targets != PAD
        tokens = int(counts.sum())
        if tokens < targets.numel():
            places = counts.nonzero().squeeze(1)
            rows, targets = rows.index_select(0, places), targets.index_select(0, places)
        if by_chunks:
            assert isinstance(output, nn.Linear)
            smoothed, nll = chunked_cross_entropy(rows, output.weight, targets, self.smoothing)
        else:
            smoothed, nll = cross_entropy(rows, targets, self.smoothing)
        return Loss(smoothed, nll.detach(), tokens)
