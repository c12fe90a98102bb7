"""Attention for recurrent decoders: Bahdanau et al. 2015 (additive) and Luong et al. 2015 (dot, general).

    weights = softmax(score(s, h_1 .. h_S) + bias),   context c = sum of weights_j h_j

s is a hidden state of the decoder, h_j the encoder's state at source word j.  A decoder layer with attention feeds
what it saw back into itself, so that it must go step by step; what does not depend on its state is made before.

Letters: B sentences, K beams, N = B*K rows, S source length, T target positions, D d_model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.recurrent import Cell, HiddenState, RecurrentDecoderLayer, State
from dragoman.nn.state import CrossKeyValues, LayerState
from dragoman.nn.taps import Tap

__all__ = [
    "AdditiveAttention",
    "AttendingState",
    "BahdanauLayer",
    "DotAttention",
    "GeneralAttention",
    "LuongLayer",
    "RecurrentAttention",
]


class RecurrentAttention(nn.Module, ABC):
    """Weights over the source from one hidden state; the kinds differ in their score.

    A state attends before the next one exists, so the taps see a position a call: scores and weights (B, 1, K, S), as
    of a Transformer with one head, context (N, 1, D).
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores = Tap("row", "head", "query", "key")
        self.weights = Tap("row", "head", "query", "key")
        self.context = Tap("row", "position", "feature")

    @abstractmethod
    def keys(self, memory: Tensor) -> Tensor:
        """memory (B, S, D) -> what a hidden state is compared with (B, S, D)."""

    @abstractmethod
    def score(self, s: Tensor, keys: Tensor) -> Tensor:
        """s (B, 1, K, D), keys (B, 1, S, D) -> scores (B, 1, K, S)."""

    def project(self, memory: Tensor) -> CrossKeyValues:
        """memory (B, S, D) -> keys and values (B, 1, S, D), made once a sentence; the values are the memory itself."""
        return CrossKeyValues(self.keys(memory)[:, None], memory[:, None])

    def weigh(self, s: Tensor, memory: CrossKeyValues, bias: Tensor | None) -> Tensor:
        """Hidden states s (N, D) -> weights (B, 1, K, S); the beams of a sentence are its queries, nothing is tiled.

        bias: (B, 1, 1, S), 0 for words and -inf for padding, or None.
        """
        b = memory.keys.size(0)
        scores = self.scores(self.score(s.view(b, 1, -1, s.size(-1)), memory.keys))
        weights: Tensor = self.weights((scores if bias is None else scores + bias).softmax(dim=-1))
        return weights

    def mix(self, weights: Tensor, memory: CrossKeyValues) -> Tensor:
        """weights (B, 1, K, S) -> contexts (N, D)."""
        context = (weights @ memory.values).flatten(0, 2)
        if self.context.active:
            context = self.context(context[:, None])[:, 0]
        return context


class AdditiveAttention(RecurrentAttention):
    """score = v . tanh(W s + U h + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Linear(d_model, d_model, bias=False)
        self.u = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.u(memory)
        return projected

    def score(self, s: Tensor, keys: Tensor) -> Tensor:
        summed = self.w(s)[:, :, :, None] + keys[:, :, None]  # (B, 1, K, S, D)
        scores: Tensor = self.v(torch.tanh(summed)).squeeze(-1)
        return scores


class DotAttention(RecurrentAttention):
    """score = s . h (Luong et al. 2015, equation 8)."""

    def keys(self, memory: Tensor) -> Tensor:
        return memory

    def score(self, s: Tensor, keys: Tensor) -> Tensor:
        return s @ keys.transpose(-1, -2)


class GeneralAttention(DotAttention):
    """score = s . W h (Luong et al. 2015, equation 8)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Linear(d_model, d_model, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        projected: Tensor = self.w(memory)
        return projected


@dataclass
class AttendingState(HiddenState):
    """The record of a layer with attention: its state's parts (N, D), and the source (B, 1, S, D)."""

    memory: CrossKeyValues

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        super().select(rows, sentences, length)
        self.memory.select(rows, sentences, length)

    def nbytes(self) -> int:
        return super().nbytes() + self.memory.nbytes()


class _AttendingLayer(RecurrentDecoderLayer):
    """What both kinds share; `cell` has two inputs side by side, the word (D) and what is fed back (D)."""

    def __init__(self, cell: Cell, cross_attn: RecurrentAttention, out: nn.Linear) -> None:
        super().__init__(cell)
        self.cross_attn = cross_attn
        self.out = out

    def start(self, memory: Tensor, first: State) -> AttendingState:
        return AttendingState(first, self.cross_attn.project(memory))

    def forward(self, x: Tensor, record: LayerState, bias: Tensor | None) -> Tensor:
        assert isinstance(record, AttendingState)
        out, record.parts = self._steps(x, record, bias)
        stream: Tensor = self.stream(out)
        return stream

    @abstractmethod
    def _steps(self, x: Tensor, record: AttendingState, bias: Tensor | None) -> tuple[Tensor, State]:
        """All T positions from the record's state: outputs (N, T, D) and the last state."""

    def _input(self, x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """The words' part of the cell's input, (N, G*D) a position, and the matrix (G*D, D) of what is fed back."""
        w, _, b, _ = self.cell.weights
        of_word, of_fed = w.split([x.size(-1), w.size(1) - x.size(-1)], dim=1)
        return F.linear(x, of_word, b).unbind(1), of_fed


class BahdanauLayer(_AttendingLayer):
    """The context comes from the state before and goes into the step (Bahdanau et al. 2015, appendix A.2):

        c_t = context of s_{t-1}
        s_t = f([y_{t-1}; c_t], s_{t-1})
        out = tanh(W_o [s_t; c_t; y_{t-1}] + b)

    `out` is the paper's deep output (A.2.2) with tanh for maxout and s_t where the appendix writes s_{t-1}.
    """

    def __init__(self, cell: Cell, cross_attn: RecurrentAttention, d_model: int) -> None:
        super().__init__(cell, cross_attn, nn.Linear(3 * d_model, d_model))

    def _steps(self, x: Tensor, record: AttendingState, bias: Tensor | None) -> tuple[Tensor, State]:
        inputs, of_context = self._input(x)
        parts, hidden, contexts = record.parts, [], []
        for wx in inputs:
            weights = self.cross_attn.weigh(parts[0], record.memory, bias)
            context = self.cross_attn.mix(weights, record.memory)  # (N, D)
            parts = self.cell.step(wx + F.linear(context, of_context), parts)
            hidden.append(parts[0])
            contexts.append(context)
        deep = self.out(torch.cat([torch.stack(hidden, 1), torch.stack(contexts, 1), x], dim=-1))
        return torch.tanh(deep), parts


class LuongLayer(_AttendingLayer):
    """The context comes from the state after the step and is fed into the next one (Luong et al. 2015, 3 and 3.3):

        s_t = f([y_{t-1}; a_{t-1}], s_{t-1})
        c_t = context of s_t
        a_t = tanh(W_c [c_t; s_t])          the output, the paper's attentional vector; a_0 = 0

    The record's parts are those of the cell and, last, a.
    """

    def __init__(self, cell: Cell, cross_attn: RecurrentAttention, d_model: int) -> None:
        super().__init__(cell, cross_attn, nn.Linear(2 * d_model, d_model, bias=False))

    def start(self, memory: Tensor, first: State) -> AttendingState:
        return super().start(memory, (*first, torch.zeros_like(first[0])))

    def _steps(self, x: Tensor, record: AttendingState, bias: Tensor | None) -> tuple[Tensor, State]:
        inputs, of_fed = self._input(x)
        *state, fed = record.parts
        parts, outputs = tuple(state), []
        for wx in inputs:
            parts = self.cell.step(wx + F.linear(fed, of_fed), parts)
            weights = self.cross_attn.weigh(parts[0], record.memory, bias)
            context = self.cross_attn.mix(weights, record.memory)  # (N, D)
            fed = torch.tanh(self.out(torch.cat([context, parts[0]], dim=-1)))
            outputs.append(fed)
        return torch.stack(outputs, 1), (*parts, fed)
