"""What was recorded, as a page shows it: the attention of every head, the gates and states of recurrent and
convolutional layers, and where a paper defines them.

Letters: H heads, Tq, Tk query and key positions, T positions, D d_model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.models.seq2seq import Model, Network
from dragoman.nn.record import Recording, tap_names
from dragoman.pages.packing import packed

__all__ = ["PAPERS", "attention_maps", "attention_names", "state_names", "states"]

_BYTES = 2_000_000
"""Of maps in a page; where all heads are more, each layer shows the mean of its heads."""

_UNITS = 48
"""Of a state that are shown: more rows than that are read by nobody."""

_STATES = (
    "reset_gate", "update_gate", "input_gate", "forget_gate", "candidate", "output_gate", "cell", "hidden", "gate",
)  # fmt: skip
_PARTS = ("ahead", "back", "cell", "conv")
"""The modules whose quantities those are."""

PAPERS = {
    "SelfAttention": "softmax(Q Kᵀ / √d_k) — Vaswani et al. 2017, 3.2.1, equation 1",
    "CrossAttention": "softmax(Q Kᵀ / √d_k), Q of the decoder, K of the encoder — Vaswani et al. 2017, 3.2.3",
    "LinearSelfAttention": "φ(q_i)·φ(k_j) / Σ_j φ(q_i)·φ(k_j) — Katharopoulos et al. 2020, equations 4 to 7",
    "AdditiveAttention": "softmax_j(v · tanh(W s + U h_j)) — Bahdanau et al. 2015, A.1.2",
    "DotAttention": "softmax_j(s · h_j) — Luong et al. 2015, equations 7 and 8",
    "GeneralAttention": "softmax_j(s · W h_j) — Luong et al. 2015, equations 7 and 8",
    "MultiStepAttention": "softmax_j(d_i · z_j) — Gehring et al. 2017, equation 1",
    "VanillaRNN.hidden": "h′ = f(W x + U h) — Elman 1990",
    "GRU.reset_gate": "r = σ(W_r x + U_r h) — Cho et al. 2014, equation 5",
    "GRU.update_gate": "z = σ(W_z x + U_z h) — Cho et al. 2014, equation 6",
    "GRU.candidate": "n = tanh(W_n x + r ∘ U_n h) — Cho et al. 2014, equation 8",
    "GRU.hidden": "h′ = (1 − z) ∘ n + z ∘ h — Cho et al. 2014, equation 7",
    "LSTM.input_gate": "i = σ(W_i x + U_i h) — Hochreiter and Schmidhuber 1997",
    "LSTM.forget_gate": "f = σ(W_f x + U_f h) — Gers et al. 2000",
    "LSTM.candidate": "g = tanh(W_g x + U_g h) — Hochreiter and Schmidhuber 1997",
    "LSTM.output_gate": "o = σ(W_o x + U_o h) — Hochreiter and Schmidhuber 1997",
    "LSTM.cell": "c′ = f ∘ c + i ∘ g — Gers et al. 2000",
    "LSTM.hidden": "h′ = o ∘ tanh(c′) — Hochreiter and Schmidhuber 1997",
    "GatedConvolution.gate": "σ(B), [A B] = W x + b — Gehring et al. 2017, 3.2",
    "GatedConvolution.hidden": "A ∘ σ(B) — Gehring et al. 2017, 3.2",
}
"""Class of the module, and the quantity where it has several -> the formula and its place."""


def attention_names(network: Network) -> list[str]:
    """The taps of all attention weights, in the network's order."""
    return [name for name in tap_names(network) if name.endswith("_attn.weights")]


def state_names(network: Network) -> list[str]:
    """The taps of all gates, states and outputs of recurrent cells and convolutions, in the network's order."""
    named = [(name, name.split(".")) for name in tap_names(network)]
    return [name for name, parts in named if len(parts) > 1 and parts[-1] in _STATES and parts[-2] in _PARTS]


def attention_maps(network: Network, seen: Recording) -> list[dict[str, Any]]:
    """One map a layer: {"name", "stack", "layer", "heads", "averaged", "rows", "columns", "paper", "shape", "weights"}.

    rows, columns: sides of the case.  weights: packed (H, Tq, Tk); where all heads of all layers would be too much for
    a page, `averaged` is true and they are the mean of the heads, (1, Tq, Tk).  shape: of the recorded tensor.
    """
    recorded = {name: seen.joined(name)[0] for name in attention_names(network)}  # (H, Tq, Tk)
    averaged = sum(weights.numel() for weights in recorded.values()) > _BYTES
    return [
        {
            "name": name,
            **_place(network, name),
            "heads": weights.size(0),
            "averaged": averaged and weights.size(0) > 1,
            "paper": PAPERS.get(type(network.get_submodule(name.rpartition(".")[0])).__name__, ""),
            "shape": [1, *weights.shape],
            "weights": packed(weights.mean(0, keepdim=True) if averaged else weights),
        }
        for name, weights in recorded.items()
    ]


def _place(network: Network, name: str) -> dict[str, Any]:
    """In which stack and layer an attention is, and what its rows and columns stand for."""
    if ".cross_attn." in name:
        stack, rows, columns = "cross", "output", "source"
    elif name.startswith("encoder.") or not isinstance(network, Model):
        stack, rows, columns = "encoder", "source", "source"
    else:
        stack, rows, columns = "decoder", "output", "input"
    return {"stack": stack, "layer": _layer(name), "rows": rows, "columns": columns}


def _layer(name: str) -> int:
    found = re.search(r"layers\.(\d+)\.", name)
    return int(found[1]) if found else 0


def states(network: Network, seen: Recording) -> list[dict[str, Any]]:
    """One picture a gate or state: {"name", "stack", "layer", "part", "quantity", "side", "paper", "shape", "high"}.

    "values": packed (units, T), at most 48 units of D, spread evenly; a gate's values are from 0 to 1, those of
    everything else from -high to high, packed as (value + high) / (2 high).  "mean": of each position over all units,
    of gates as they are and of the others without their sign.
    """
    pictures = []
    for name in state_names(network):
        recorded = seen.joined(name)[0]  # (T, D)
        parts = name.split(".")
        if parts[-2] == "back":
            recorded = recorded.flip(0)  # it reads from the last word
        pictures.append(
            {
                "name": name,
                "stack": parts[0],
                "layer": _layer(name),
                "part": parts[-2],
                "quantity": parts[-1],
                "side": "source" if parts[0] == "encoder" else "output",
                "paper": PAPERS.get(f"{type(network.get_submodule('.'.join(parts[:-1]))).__name__}.{parts[-1]}", ""),
                "shape": [1, *recorded.shape],
                **_picture(recorded, parts[-1].endswith("gate")),
            }
        )
    return pictures


def _picture(x: Tensor, gate: bool) -> dict[str, Any]:
    """x (T, D) -> what of it is drawn."""
    units = _spread(x.size(1))
    shown = x[:, units].T.float()  # (units, T)
    high = 1.0 if gate else max(float(shown.abs().max()), math.ulp(1.0))
    mean = x.float().mean(1) if gate else x.float().abs().mean(1)
    return {
        "high": high,
        "units": list(units),
        "mean": mean.tolist(),
        "values": packed(shown if gate else (shown + high) / (2 * high)),
    }


def _spread(width: int) -> Sequence[int]:
    if width <= _UNITS:
        return list(range(width))
    return sorted(set(torch.linspace(0, width - 1, _UNITS).round().int().tolist()))
