"""What stands around attention: norms, the feed-forward network, residual connections, embeddings, the two layers.

Letters: N rows, T positions, D d_model, F d_ff, V vocabulary, S source length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.dropout import Dropout
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Positions
from dragoman.nn.state import CrossKeyValues, SelfState
from dragoman.nn.taps import ReadOnlyTap, Tap, any_active, any_intervened

__all__ = [
    "ACTIVATIONS",
    "BatchNorm",
    "DecoderLayer",
    "Embedding",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "OutputProjection",
    "RMSNorm",
    "SubLayer",
]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


class Embedding(nn.Module):
    """Token ids (N, T) -> vectors (N, T, D), scaled by sqrt(d_model) (Vaswani et al. 2017, section 3.4)."""

    def __init__(self, vocab: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, d_model))
        self.scale = math.sqrt(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale


class OutputProjection(nn.Linear):
    """Hidden states (..., D) -> logits (..., V), without bias (section 3.4)."""

    def __init__(self, d_model: int, vocab: int) -> None:
        super().__init__(d_model, vocab, bias=False)
        self.logits = Tap("row", "position", "word")
        self.probs = ReadOnlyTap("row", "position", "word")

    @property
    def watched(self) -> bool:
        """Whether somebody looks at logits or probabilities, which a loss by chunks never holds as a whole."""
        return any_active(self.logits, self.probs)

    @property
    def is_intervened(self) -> bool:
        return any_intervened(self.logits, self.probs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logits(super().forward(x))
        if self.probs.active:
            self.probs(logits.softmax(-1))
        return logits


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the features of a position (Ba et al. 2016)."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)
        self.mean = Tap("row", "position")
        self.std = Tap("row", "position")
        self.normed = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        by_hand = self._by_hand(x) if any_active(self.mean, self.std) else None
        normed: Tensor = self.normed(super().forward(x) if by_hand is None else by_hand)
        return normed

    def _by_hand(self, x: Tensor) -> Tensor | None:
        """The formula, for its taps to see; its outcome only where they decide."""
        mean = self.mean(x.mean(-1))[..., None]
        std = self.std(((x - mean).square().mean(-1) + self.eps).sqrt())[..., None]
        return (x - mean) / std * self.weight + self.bias if any_intervened(self.mean, self.std) else None


class _RMSNormalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(torch.linalg.vecdot(x, x) / x.size(-1) + eps).unsqueeze(-1)  # (..., 1)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, inverse, weight = ctx.saved_tensors
        g = grads[0]
        of_weight = (g * normed).flatten(0, -2).sum(0)
        of_normed = g * weight
        along = torch.linalg.vecdot(of_normed, normed).unsqueeze(-1) / normed.size(-1)
        return torch.addcmul(of_normed, normed, along, value=-1).mul_(inverse), of_weight, None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps
        self.std = Tap("row", "position")
        self.normed = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        if self.std.active:
            std = self.std((x.square().mean(-1) + self.eps).sqrt())
            if self.std.is_intervened:
                by_hand: Tensor = self.normed(x / std[..., None] * self.weight)
                return by_hand
        normed: Tensor = self.normed(self._normalise(x))
        return normed

    def _normalise(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":  # torch's own is a chain of small operations there, half as fast
            out: Tensor = _RMSNormalise.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
            return out
        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, a feature at a time over the batch (Ioffe and Szegedy 2015).

    Training takes the mean and variance of all positions of all sentences, padding and later words included, for nobody
    tells a norm which are which; evaluation takes their running means, so that a position depends on itself only.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.eps = eps
        self.momentum = momentum
        self.normed = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T, D); a batch of one single position has no variance and takes the running statistics."""
        flat = x.flatten(0, -2)
        fresh = self.training and flat.size(0) > 1
        statistics = self.running_mean, self.running_var
        if fresh and not bool(torch.isfinite(flat).all()):  # the trainer skips such a step, and nothing may stay of it
            statistics = self.running_mean.clone(), self.running_var.clone()
        out = F.batch_norm(flat, *statistics, self.weight, self.bias, fresh, self.momentum, self.eps)
        normed: Tensor = self.normed(out.view_as(x))
        return normed


class FeedForward(nn.Module):
    """W2 f(W1 x), the same at every position (section 3.3); gated: W2 (f(W1 x) * W3 x) (Shazeer 2020).

    Gated, sigmoid is GLU (Dauphin et al. 2017), relu ReGLU, gelu GEGLU and silu SwiGLU.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str, gated: bool = False, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gated = gated
        self.inner = nn.Linear(d_model, 2 * d_ff if gated else d_ff, bias=bias)  # gated: W1 above W3
        self.dropout = Dropout(dropout)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        self.before = Tap("row", "position", "feature")
        self.hidden = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.before(self.inner(x))  # (N, T, F), gated (N, T, 2F)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = self.activation(hidden) * gate
        else:
            hidden = self.activation(hidden)
        out: Tensor = self.outer(self.dropout(self.hidden(hidden)))
        return out


class SubLayer(nn.Module):
    """A function with the residual connection, norm and dropout around it.

    order "post": norm(x + dropout(f(x))) (Vaswani et al. 2017); "pre": x + dropout(f(norm(x))) (Xiong et al. 2020).
    """

    def __init__(self, norm: nn.Module, dropout: float, order: str) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.order = order
        self.update = Tap("row", "position", "feature")
        self.residual = Tap("row", "position", "feature")

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "post":
            normed: Tensor = self.norm(self.residual(self.dropout(self.update(function(x)), x)))
            return normed
        out: Tensor = self.residual(self.dropout(self.update(function(self.norm(x))), x))
        return out


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in its sub-layer; causal, it is the layer of a decoder-only model too."""

    def __init__(
        self, self_attn: SelfAttention | LinearSelfAttention, ffn: FeedForward, sublayer: Callable[[], SubLayer]
    ) -> None:
        super().__init__()
        self.self_attn, self.around_self_attn = self_attn, sublayer()
        self.ffn, self.around_ffn = ffn, sublayer()
        self.stream = Tap("row", "position", "feature")

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        pos: Tensor,
        bias: Tensor | None,
        causal: bool = False,
        cache: SelfState | None = None,
    ) -> Tensor:
        """x (N, S, D) at positions pos (S,) -> (N, S, D)."""
        x = self.around_self_attn(x, lambda y: self.self_attn(y, positions, pos, bias, causal, cache))
        out: Tensor = self.stream(self.around_ffn(x, self.ffn))
        return out


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and feed-forward, each in its sub-layer."""

    def __init__(
        self,
        self_attn: SelfAttention | LinearSelfAttention,
        cross_attn: CrossAttention,
        ffn: FeedForward,
        sublayer: Callable[[], SubLayer],
    ) -> None:
        super().__init__()
        self.self_attn, self.around_self_attn = self_attn, sublayer()
        self.cross_attn, self.around_cross_attn = cross_attn, sublayer()
        self.ffn, self.around_ffn = ffn, sublayer()
        self.stream = Tap("row", "position", "feature")

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        pos: Tensor,
        bias: Tensor | None,
        causal: bool,
        cache: SelfState | None,
        memory: CrossKeyValues,
        memory_bias: Tensor | None,
    ) -> Tensor:
        """x (N, T, D) at positions pos (T,) -> (N, T, D)."""
        x = self.around_self_attn(x, lambda y: self.self_attn(y, positions, pos, bias, causal, cache))
        x = self.around_cross_attn(x, lambda y: self.cross_attn(y, memory, memory_bias))
        out: Tensor = self.stream(self.around_ffn(x, self.ffn))
        return out
