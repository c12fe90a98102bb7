"""The layers of the Transformer: embedding, norms, feed-forward network, residual connection, and what they compose.

Shapes: N rows, T positions, S source length, D d_model, F d_ff, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.cuda import rows
from dragoman.nn.dropout import Dropout
from dragoman.nn.fused import add_and_norm, can_fuse, relu_network
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.native.kernels import drop
from dragoman.nn.positions import Positions
from dragoman.nn.products import Linear
from dragoman.nn.state import CrossKeyValues, SelfState
from dragoman.nn.taps import ReadOnlyTap, Tap, any_active, any_intervened

__all__ = [
    "ACTIVATIONS",
    "BatchNorm",
    "DecoderLayer",
    "DenseHead",
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
    "tanh": torch.tanh,
}

_SMALLEST = 1e-4
"""Weight of a `LayerNorm` below which its result does not determine its input."""


class Embedding(nn.Module):
    """Token ids (N, T) -> vectors (N, T, D), multiplied by sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    scaled: whether they are multiplied.
    """

    def __init__(self, vocab: int, d_model: int, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, d_model))
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight) * self.scale


class OutputProjection(Linear):
    """Hidden states (..., D) -> logits (..., V), by default without a bias (section 3.4)."""

    def __init__(self, d_model: int, vocab: int, bias: bool = False) -> None:
        super().__init__(d_model, vocab, bias=bias)
        self.logits = Tap("row", "position", "word")
        self.probs = ReadOnlyTap("row", "position", "word")

    @property
    def is_recorded(self) -> bool:
        """Whether logits or probabilities are observed; a loss in chunks never holds them all."""
        return any_active(self.logits, self.probs)

    @property
    def is_intervened(self) -> bool:
        return any_intervened(self.logits, self.probs)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(super().forward(x))
        if self.probs.active:
            self.probs(logits.softmax(-1))
        return logits


class _LayerNormFromResult(torch.autograd.Function):
    """Layer normalization that stores its result, which the next layer stores anyway, in place of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, _, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(out, weight, bias, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        out, weight, bias, rstd = ctx.saved_tensors
        normed = (out - bias).div_(weight)  # of mean 0 and standard deviation 1
        grad_normed, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            grads[0], normed, weight.shape, torch.zeros_like(rstd), torch.ones_like(rstd), weight, bias, [True] * 3
        )
        return grad_normed.mul_(rstd), grad_weight, grad_bias, None


class LayerNorm(nn.LayerNorm):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the features of a position (Ba et al. 2016)."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__(d_model, eps=eps)
        self.mean = Tap("row", "position")
        self.std = Tap("row", "position")
        self.normed = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        explicit = self._explicit(x) if any_active(self.mean, self.std) else None
        if explicit is None and rows.can_add_and_norm(x, None):
            explicit = rows.add_and_norm(x, None, 0.0, _parts(self))
        if explicit is None:
            explicit = self._from_result(x) if self.is_invertible(x) else super().forward(x)
        return self.normed(explicit)

    def _from_result(self, x: Tensor) -> Tensor:
        return _LayerNormFromResult.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-any-return, no-untyped-call]

    def is_invertible(self, x: Tensor) -> bool:
        """Whether a gradient is needed, and (out - bias) / weight is accurate: no bias is large beside its weight."""
        if x.device.type != "cpu" or x.dtype != self.weight.dtype or not (torch.is_grad_enabled() and x.requires_grad):
            return False
        size = self.weight.detach().abs()
        return bool(((self.bias.detach().abs() <= 2 * size) & (size > _SMALLEST)).all())

    def _explicit(self, x: Tensor) -> Tensor | None:
        """Write out the formula for the taps; return its result only if they are intervened."""
        mean = self.mean(x.mean(-1))[..., None]
        std = self.std(((x - mean).square().mean(-1) + self.eps).sqrt())[..., None]
        return (x - mean) / std * self.weight + self.bias if any_intervened(self.mean, self.std) else None


class _RMSNormalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.rsqrt(torch.linalg.vecdot(x, x) / x.size(-1) + eps).unsqueeze(-1)  # (..., 1)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, inverse, weight = ctx.saved_tensors
        grad_weight = (grads[0] * normed).flatten(0, -2).sum(0)
        grad_normed = grads[0] * weight
        along = torch.linalg.vecdot(grad_normed, normed).unsqueeze(-1) / normed.size(-1)
        return torch.addcmul(grad_normed, normed, along, value=-1).mul_(inverse), grad_weight, None


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
                return self.normed(x / std[..., None] * self.weight)
        if rows.can_add_and_norm(x, None):
            return self.normed(rows.add_and_norm(x, None, 0.0, _parts(self)))
        if x.device.type == "cpu":  # F.rms_norm is a chain of small operations there, at half the speed
            return self.normed(_RMSNormalize.apply(x, self.weight, self.eps))  # type: ignore[no-untyped-call]
        return self.normed(F.rms_norm(x, (x.size(-1),), self.weight, self.eps))


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, per feature over the batch (Ioffe and Szegedy 2015).

    Training uses the statistics of all positions of the batch, padding and later target positions included, because a
    norm receives no mask.  Evaluation uses running statistics, so that a position depends on itself only.
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
        """Normalize x (N, T, D); a batch of one position has no variance and uses the running statistics."""
        flat = x.flatten(0, -2)
        training = self.training and flat.size(0) > 1
        statistics = self.running_mean, self.running_var
        if training and not bool(torch.isfinite(flat).all()):  # the trainer skips this step; leave no trace of it
            statistics = self.running_mean.clone(), self.running_var.clone()
        out = F.batch_norm(flat, *statistics, self.weight, self.bias, training, self.momentum, self.eps)
        return self.normed(out.view_as(x))


def _parts(norm: nn.Module) -> rows.Norm | None:
    """Return what the GPU's kernel needs of a norm, None for other kinds."""
    if type(norm) is LayerNorm:
        return rows.Norm(norm.weight, norm.bias, norm.eps, centred=True)
    return rows.Norm(norm.weight, None, norm.eps, centred=False) if type(norm) is RMSNorm else None


class FeedForward(nn.Module):
    """Position-wise feed-forward network: f(x W1) W2 (section 3.3), or gated, (f(x W1) * x W3) W2 (Shazeer 2020).

    Gated with sigmoid it is GLU (Dauphin et al. 2017), with relu ReGLU, with gelu GEGLU, with silu SwiGLU.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str, gated: bool = False, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gated = gated
        self.inner = Linear(d_model, 2 * d_ff if gated else d_ff, bias=bias)  # gated: W1, then W3
        self.dropout = Dropout(dropout)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.before = Tap("row", "position", "feature")
        self.hidden = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        if self._is_fused(x):
            if any_active(self.before, self.hidden):
                with torch.no_grad():
                    self.hidden(self.activation(self.before(self.inner(x))))
            return relu_network(x, self.inner, self.outer)
        hidden = self.before(self.inner(x))  # (N, T, F), gated (N, T, 2F)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = self.activation(hidden) * gate  # (N, T, F)
        else:
            hidden = self.activation(hidden)
        out: Tensor = self.outer(self.dropout(self.hidden(hidden)))  # (N, T, D)
        return out

    def _is_fused(self, x: Tensor) -> bool:
        """Whether one kernel computes the network, because the others do not depend on its intermediate results."""
        is_plain = type(self.inner) is type(self.outer) is Linear and self.activation is F.relu and not self.gated
        needed = self.dropout.is_active or any_intervened(self.before, self.hidden)
        return is_plain and not needed and x.numel() > 0 and can_fuse(x, self.inner.weight, self.outer.weight)


class DenseHead(nn.Module):
    """norm(f(x W)), between the layers and the output layer of an encoder (Devlin et al. 2019).

    With tanh and without a norm it is the pooler of BERT; with norm the transform of its masked language model.
    """

    def __init__(self, d_model: int, activation: str, norm: nn.Module) -> None:
        """norm: `nn.Identity` without a norm."""
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.inner = Linear(d_model, d_model)
        self.norm = norm
        self.hidden = Tap("row", "position", "feature")

    def forward(self, x: Tensor) -> Tensor:
        """Transform states x (..., D)."""
        out: Tensor = self.norm(self.hidden(self.activation(self.inner(x))))
        return out


class SubLayer(nn.Module):
    """Residual connection, norm and dropout around a function f.

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
            update = self.update(function(x))
            if (parts := self._gpu_norm(update)) is not None:
                p = self.dropout.p if self.dropout.is_active else 0.0
                fused: Tensor = self.norm.normed(rows.add_and_norm(update, x, p, parts))  # type: ignore[operator]
                return fused
            if self._is_fused(update, x):
                return self._fused(update, x)
            normed: Tensor = self.norm(self.residual(self.dropout(update, x)))
            return normed
        return self.residual(self.dropout(self.update(function(self.norm(x))), x))

    def _is_fused(self, update: Tensor, x: Tensor) -> bool:
        """Whether one kernel computes dropout, sum and norm."""
        norm = self.norm
        if type(norm) is not LayerNorm or any_intervened(self.residual, norm.mean, norm.std) or not update.numel():
            return False
        return can_fuse(update, x, norm.weight, norm.bias) and norm.is_invertible(update)

    def _gpu_norm(self, update: Tensor) -> rows.Norm | None:
        """Return the norm if a kernel of the GPU computes it with dropout and sum."""
        if not rows.can_add_and_norm(update, None):
            return None
        parts, norm = _parts(self.norm), self.norm
        taps = [getattr(norm, name) for name in ("mean", "std") if hasattr(norm, name)]
        return None if any_active(self.residual, *taps) else parts

    def _fused(self, update: Tensor, x: Tensor) -> Tensor:
        norm = self.norm
        assert isinstance(norm, LayerNorm)
        drawn = self.dropout.draw(update.shape)
        if any_active(self.residual, norm.mean, norm.std):
            with torch.no_grad():
                norm._explicit(self.residual(x + update if drawn is None else drop(*drawn, update, x)))
        return norm.normed(add_and_norm(update, x, norm.weight, norm.bias, norm.eps, drawn))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each in a `SubLayer`; causal, the layer of a decoder-only model."""

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
        """Transform x (N, S, D) at positions pos (S,); the arguments are those of `SelfAttention`."""
        x = self.around_self_attn(x, lambda y: self.self_attn(y, positions, pos, bias, causal, cache))
        return self.stream(self.around_ffn(x, self.ffn))


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and feed-forward network, each in a `SubLayer`."""

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

    def new_cache(self, rows: int, max_len: int, like: Tensor) -> SelfState:
        """Return an empty cache of the self-attention (`SelfAttention.new_cache`)."""
        return self.self_attn.new_cache(rows, max_len, like)

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
        """Transform x (N, T, D) at positions pos (T,); memory_bias (B, 1, 1, S) or None."""
        x = self.around_self_attn(x, lambda y: self.self_attn(y, positions, pos, bias, causal, cache))
        x = self.around_cross_attn(x, lambda y: self.cross_attn(y, memory, memory_bias))
        return self.stream(self.around_ffn(x, self.ffn))
