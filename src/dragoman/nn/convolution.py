"""Convolutions with gated linear units, and the attention between them (Gehring et al. 2017).

    GLU:        v([A B]) = A * sigmoid(B),   [A B] = W x window + b
    attention:  c_i = m sqrt(1/m) sum_j a_ij (z_j + e_j),   a_i = softmax_j(d_i . z_j),   d_i = W h_i + b + g_i

z are the outputs of the last encoder layer, e and g the embeddings of source and target, m the words of the sentence.
A sum of two things of equal variance is multiplied by sqrt(0.5), and nothing is normalised besides: with the paper's
initial weights the variance stays what it is from the embeddings to the output.

Letters: B sentences, K beams, N = B*K rows, T target positions, S source length, D d_model, k kernel width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.dropout import Dropout
from dragoman.nn.state import CrossKeyValues
from dragoman.nn.taps import Tap

__all__ = [
    "ConvolutionalDecoderLayer",
    "ConvolutionalEncoderLayer",
    "GatedConvolution",
    "LastInputs",
    "MultiStepAttention",
]

_HALF = math.sqrt(0.5)


class LastInputs:
    """What a causal convolution remembers: its last k - 1 inputs (N, k - 1, D), zeros before the first."""

    def __init__(self, rows: int, kernel: int, like: Tensor) -> None:
        self.inputs = like.new_zeros(rows, kernel - 1, like.size(-1))

    def append(self, x: Tensor) -> Tensor:
        """x (N, T, D), the next inputs -> (N, k - 1 + T, D), them behind what is remembered."""
        x = torch.cat([self.inputs, x], dim=1)
        self.inputs = x[:, x.size(1) - self.inputs.size(1) :]
        return x

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.inputs = self.inputs[rows]

    def nbytes(self) -> int:
        return self.inputs.nbytes


class GatedConvolution(nn.Module):
    """k neighbouring vectors -> one, through a gated linear unit (section 3.2)."""

    def __init__(self, d_model: int, kernel: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(2 * d_model, kernel * d_model))  # A above B; windows: oldest first
        self.bias = nn.Parameter(torch.empty(2 * d_model))
        self.dropout = Dropout(dropout)
        self.gate = Tap("row", "position", "feature")
        self.hidden = Tap("row", "position", "feature")
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """N(0, 4 (1 - dropout) / inputs) and biases 0: the variance passes the gate unchanged (section 3.5)."""
        variance = 4 * (1 - self.dropout.p) / self.weight.size(1)
        nn.init.normal_(self.weight, std=math.sqrt(variance), generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, T + k - 1, D), T positions and what surrounds them -> (N, T, D)."""
        x = self.dropout(x)
        t = x.size(1) - self.kernel + 1
        windows = torch.cat([x[:, i : i + t] for i in range(self.kernel)], dim=-1)  # (N, T, k * D)
        both = F.linear(windows, self.weight, self.bias)
        by_hand = None
        if self.gate.active:
            a, b = both.chunk(2, dim=-1)
            by_hand = a * self.gate(b.sigmoid())
        out: Tensor = self.hidden(by_hand if by_hand is not None and self.gate.is_intervened else F.glu(both, dim=-1))
        return out


class MultiStepAttention(nn.Module):
    """The look of one decoder layer at the source (equations 1 and 2): one head, no scaling of the scores."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q = nn.Linear(d_model, d_model)
        self.queries = Tap("row", "query", "feature")
        self.scores = Tap("row", "head", "query", "key")
        self.weights = Tap("row", "head", "query", "key")
        self.context = Tap("row", "query", "feature")

    def forward(self, x: Tensor, embedded: Tensor, source: CrossKeyValues, bias: Tensor | None) -> Tensor:
        """States x and target embeddings (N, T, D) -> (N, T, D); source (B, S, D) each; bias (B, 1, S) or None.

        The beams of a sentence are folded into its query positions, as everywhere.
        """
        n, t, d = x.shape
        b, s, _ = source.keys.shape
        q = self.queries((self.q(x) + embedded).reshape(b, n // b * t, d))  # (B, K*T, D)
        scores = self.scores((q @ source.keys.transpose(1, 2)).view(n, 1, t, s)).reshape(b, n // b * t, s)
        if bias is not None:
            scores = scores + bias
        weights: Tensor = self.weights(scores.softmax(dim=-1).view(n, 1, t, s))
        context: Tensor = self.context(weights.reshape(b, n // b * t, s) @ source.values)  # (B, K*T, D)
        return context.view(n, t, d)


class ConvolutionalEncoderLayer(nn.Module):
    """A convolution over both sides and its residual connection."""

    def __init__(self, conv: GatedConvolution) -> None:
        super().__init__()
        self.conv = conv
        self.stream = Tap("row", "position", "feature")

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, S, D), mask (B, S) True = a word -> (B, S, D).  Padding enters as zeros, like what is outside."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        side = self.conv.kernel // 2
        out: Tensor = self.stream((self.conv(F.pad(x, (0, 0, side, side))) + x) * _HALF)
        return out


class ConvolutionalDecoderLayer(nn.Module):
    """A convolution over the past and a look at the source, each with its residual connection."""

    def __init__(self, conv: GatedConvolution, cross_attn: MultiStepAttention) -> None:
        super().__init__()
        self.conv = conv
        self.cross_attn = cross_attn
        self.stream = Tap("row", "position", "feature")

    def forward(
        self, x: Tensor, embedded: Tensor, last: LastInputs, source: CrossKeyValues, bias: Tensor | None
    ) -> Tensor:
        """x (N, T, D), target embeddings (N, T, D) -> (N, T, D); moves `last` on by T."""
        x = (self.conv(last.append(x)) + x) * _HALF
        out: Tensor = self.stream((self.cross_attn(x, embedded, source, bias) + x) * _HALF)
        return out
