"""Recurrent networks: vanilla (tanh or ReLU), GRU and LSTM, in one or two directions.

    h_t = f(W x_t, h_{t-1})

Two ways to the same numbers, tested against each other: `step` writes one position out and `unroll` repeats it;
`forward` runs a whole sequence in torch's kernel.  Both read the same parameters.

Letters: N rows, B sentences, S, T positions, D width of the hidden state, G gates (RNN 1, GRU 3, LSTM 4).
`*` is elementwise, W and U are matrices, b and d their biases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.state import LayerState
from dragoman.nn.taps import Tap, any_active, any_intervened

__all__ = [
    "GRU",
    "LSTM",
    "Cell",
    "HiddenState",
    "PlainDecoderLayer",
    "RecurrentDecoderLayer",
    "RecurrentEncoderLayer",
    "State",
    "VanillaRNN",
    "backwards",
]

State = tuple[Tensor, ...]
"""(N, D) each: the hidden state, and behind it the LSTM's cell state."""


class Cell(nn.Module, ABC):
    """One layer in one direction.

    `fused`, torch's own module of one layer, holds the parameters: W (G*D, d_in) for the input, U (G*D, D) for the
    hidden state, and a bias (G*D,) for each, the gates' rows one below the other.
    """

    parts = 1
    """Tensors in a state."""

    def __init__(self, fused: nn.RNNBase, *quantities: str) -> None:
        """quantities: names of the taps that a step passes, a position a call."""
        super().__init__()
        self.fused = fused
        self.d_model = fused.hidden_size
        self.taps = {name: Tap("row", "position", "feature") for name in quantities}
        for name, tap in self.taps.items():
            self.add_module(name, tap)
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """W Glorot uniform, U orthogonal (Saxe et al. 2014), gate by gate; biases 0."""
        w, u, b, d = (weight.data for weight in self.weights)
        for gate in w.split(self.d_model):
            nn.init.xavier_uniform_(gate, generator=generator)
        for gate in u.split(self.d_model):
            nn.init.orthogonal_(gate, generator=generator)
        nn.init.zeros_(b)
        nn.init.zeros_(d)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W, U, b, d."""
        w, u, b, d = self.fused.all_weights[0]
        return w, u, b, d

    def project(self, x: Tensor) -> Tensor:
        """x (..., d_in) -> W x + b (..., G*D): what a step needs of its input, for all positions at once."""
        w, _, b, _ = self.weights
        return F.linear(x, w, b)

    def tap(self, name: str, x: Tensor) -> Tensor:
        """x (N, D), one position, past the tap of that name, which sees (N, 1, D)."""
        tap = self.taps[name]
        if not tap.active:
            return x
        seen: Tensor = tap(x[:, None])
        return seen[:, 0]

    @abstractmethod
    def step(self, wx: Tensor, state: State) -> State:
        """wx = W x_t + b (N, G*D) and the state before -> the state after, (N, D) each."""

    def unroll(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """As `forward`, one step after the other."""
        outputs = []
        for wx in self.project(x).unbind(1):
            state = self.step(wx, state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """x (N, T, d_in) -> hidden states (N, T, D) and the last state; without a state it begins from zeros."""
        if state is None:
            state = (x.new_zeros(x.size(0), self.d_model),) * self.parts
        taps = self.taps.values()
        if x.size(1) == 1 or any_intervened(*taps):  # the kernels pack their weights anew at each call
            return self.unroll(x, state)
        if any_active(*taps):
            self.unroll(x, state)  # only to be seen
        return self._run(x, tuple(part[None].contiguous() for part in state))

    @abstractmethod
    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The whole sequence in torch's kernel; the state's parts are (1, N, D), as it wants them."""


class VanillaRNN(Cell):
    """h' = f(W x + b + U h + d), f = tanh or ReLU (Elman 1990)."""

    def __init__(self, d_in: int, d_model: int, activation: str) -> None:
        super().__init__(nn.RNN(d_in, d_model, nonlinearity=activation, batch_first=True), "hidden")
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[activation]
        self.kernel = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}[activation]

    def step(self, wx: Tensor, state: State) -> State:
        _, u, _, d = self.weights
        (h,) = state
        return (self.tap("hidden", self.activation(wx + F.linear(h, u, d))),)

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        out, h = self.kernel(x, state[0], self.weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return out, (h[0],)


class GRU(Cell):
    """Gated recurrent units (Cho et al. 2014), rows r, z, n:

        r = sigmoid(W_r x + U_r h)          how much of the past the candidate sees
        z = sigmoid(W_z x + U_z h)          how much of the past stays
        n = tanh(W_n x + r * (U_n h))       the candidate
        h' = (1 - z) * n + z * h

    Each product has its bias.  As in every fused kernel, r stands outside U_n; the paper's is U_n (r * h).
    """

    def __init__(self, d_in: int, d_model: int) -> None:
        super().__init__(nn.GRU(d_in, d_model, batch_first=True), "reset_gate", "update_gate", "candidate", "hidden")

    def step(self, wx: Tensor, state: State) -> State:
        _, u, _, d = self.weights
        (h,) = state
        r_x, z_x, n_x = wx.chunk(3, dim=-1)
        r_h, z_h, n_h = F.linear(h, u, d).chunk(3, dim=-1)
        r, z = self.tap("reset_gate", torch.sigmoid(r_x + r_h)), self.tap("update_gate", torch.sigmoid(z_x + z_h))
        n = self.tap("candidate", torch.tanh(n_x + r * n_h))
        return (self.tap("hidden", n + z * (h - n)),)

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        out, h = torch.gru(x, state[0], self.weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return out, (h[0],)


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000), rows i, f, g, o:

        i = sigmoid(W_i x + U_i h)      what enters the cell
        f = sigmoid(W_f x + U_f h)      what stays in it
        g = tanh(W_g x + U_g h)         the candidate
        o = sigmoid(W_o x + U_o h)      what is shown of it
        c' = f * c + i * g
        h' = o * tanh(c')

    Each product has its bias.
    """

    parts = 2

    def __init__(self, d_in: int, d_model: int) -> None:
        gates = ("input_gate", "forget_gate", "candidate", "output_gate")
        super().__init__(nn.LSTM(d_in, d_model, batch_first=True), *gates, "cell", "hidden")

    def reset(self, generator: torch.Generator | None = None) -> None:
        """As every cell, and the forget gate begins open: its bias is 1 (Jozefowicz et al. 2015)."""
        super().reset(generator)
        _, _, b, _ = self.weights
        nn.init.ones_(b.data[self.d_model : 2 * self.d_model])

    def step(self, wx: Tensor, state: State) -> State:
        _, u, _, d = self.weights
        h, c = state
        i, f, g, o = (wx + F.linear(h, u, d)).chunk(4, dim=-1)
        i, f = self.tap("input_gate", torch.sigmoid(i)), self.tap("forget_gate", torch.sigmoid(f))
        g, o = self.tap("candidate", torch.tanh(g)), self.tap("output_gate", torch.sigmoid(o))
        c = self.tap("cell", f * c + i * g)
        return self.tap("hidden", o * torch.tanh(c)), c

    def _run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if x.is_cpu and torch.is_autocast_enabled("cpu") and _lacks_bfloat16_kernel():
            # Autocast hands bfloat16 to a kernel that this processor does not have; float32 always works.
            with torch.autocast("cpu", enabled=False):
                return self._kernel(x.float(), tuple(part.float() for part in state))
        return self._kernel(x, state)

    def _kernel(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        out, h, c = torch.lstm(x, state, self.weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return out, (h[0], c[0])


@cache
def _lacks_bfloat16_kernel() -> bool:
    """Whether oneDNN is used for an LSTM and has no bfloat16 kernel for this processor."""
    return torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def backwards(mask: Tensor | None, like: Tensor) -> Tensor:
    """Row numbers (B*S,) of x (B, S, D), flattened, with every sentence back to front and its padding left in place.

    mask: (B, S) True = a word, words first, or None.  Taken twice it is the order one began with.
    """
    b, s = like.shape[:2]
    place = torch.arange(s, device=like.device)
    last = place[-1:] if mask is None else mask.sum(1, keepdim=True) - 1  # (B, 1)
    turned = torch.where(place <= last, last - place, place)  # (B or 1, S)
    return (turned + s * torch.arange(b, device=like.device)[:, None]).flatten()


class RecurrentEncoderLayer(nn.Module):
    """One or two directions: `ahead` reads from the first word, `back` from the last (Schuster and Paliwal 1997)."""

    def __init__(self, ahead: Cell, back: Cell | None = None) -> None:
        super().__init__()
        self.ahead = ahead
        self.back = back
        self.stream = Tap("row", "position", "feature")

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        """x (B, S, d_in), order = `backwards(mask, x)` -> (B, S, D), what `ahead` says before what `back` says.

        Each sentence is turned by itself, so that `back` starts at its last word and never meets padding before one.
        """
        out: Tensor = self.ahead(x)[0]
        if self.back is not None:
            back: Tensor = self.back(x.flatten(0, 1).index_select(0, order).view_as(x))[0]
            out = torch.cat([out, back.flatten(0, 1).index_select(0, order).view_as(back)], dim=-1)
        stream: Tensor = self.stream(out)
        return stream


@dataclass
class HiddenState:
    """A decoder layer's record: the parts of its state, (N, D) each."""

    parts: State

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.parts = tuple(part[rows] for part in self.parts)

    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class RecurrentDecoderLayer(nn.Module, ABC):
    """One layer of a decoder, with or without attention."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.stream = Tap("row", "position", "feature")

    @abstractmethod
    def start(self, memory: Tensor, first: State) -> LayerState:
        """memory (B, S, D), the encoder's states; first: the state (N, D) to begin from -> the layer's record."""

    @abstractmethod
    def forward(self, x: Tensor, record: LayerState, bias: Tensor | None) -> Tensor:
        """x (N, T, D), the next T positions -> (N, T, D); moves the record on.

        bias: (B, 1, 1, S), 0 for words and -inf for padding, or None.
        """


class PlainDecoderLayer(RecurrentDecoderLayer):
    """A layer that knows nothing of the source but the state it begins from."""

    def start(self, memory: Tensor, first: State) -> HiddenState:
        return HiddenState(first)

    def forward(self, x: Tensor, record: LayerState, bias: Tensor | None) -> Tensor:
        assert isinstance(record, HiddenState)
        out, record.parts = self.cell(x, record.parts)
        stream: Tensor = self.stream(out)
        return stream
