"""Recorded tensors as data for a page: attention maps of every head, gates and states of recurrent and convolutional
layers, each with its formula.

Letters: H heads, Tq, Tk query and key positions, T positions, D d_model.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.interpret.attentions import layer_number, sides, stack_of, weight_taps
from dragoman.models.seq2seq import LanguageModel, Network
from dragoman.nn.record import Recording, tap_names
from dragoman.pages.packing import packed

_MAX_WEIGHTS = 2_000_000
"""Above this number of weights, a page shows the mean of the heads of each layer."""

_MAX_UNITS = 48
"""Units shown of a state."""

_STATE = re.compile(r"(?:.*\.)?(?:ahead|back|cell|conv)\.(?:\w*gate|candidate|cell|hidden)")

FORMULAS = {
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
"""Class of a module, with the quantity if it has several -> formula and reference."""

INPUTS = {
    "ContextLayer": "x = [y; c], c the final state of the encoder",
    "BahdanauLayer": "x = [y; c], c the context of the attention",
    "LuongLayer": "x = [y; a], a the previous output of the layer",
}
"""Class of a decoder layer -> the input x of its cell, where it is more than the previous word y."""


def state_taps(network: Network) -> list[str]:
    """Return the taps of all gates, states and outputs of recurrent cells and convolutions in the network's order."""
    return [name for name in tap_names(network) if _STATE.fullmatch(name)]


def attention_maps(network: Network, recording: Recording) -> list[dict[str, Any]]:
    """Return one map per layer: {"name", "stack", "layer", "heads", "averaged", "rows", "columns", "paper", "shape",
    "weights"}.

    rows, columns: sides of the case.  weights: packed (H, Tq, Tk), or (1, Tq, Tk) if `averaged` over the heads because
    the page would be too large.  shape: of the recorded tensor.
    """
    recorded = {name: recording.joined(name)[0] for name in weight_taps(network)}  # (H, Tq, Tk)
    averaged = sum(weights.numel() for weights in recorded.values()) > _MAX_WEIGHTS
    maps = []
    for name, weights in recorded.items():
        rows, columns = sides(network, name)
        maps.append(
            {
                **_description(network, name, weights),
                "stack": stack_of(network, name),
                "rows": rows,
                "columns": columns,
                "heads": weights.size(0),
                "averaged": averaged and weights.size(0) > 1,
                "weights": packed(weights.mean(0, keepdim=True) if averaged else weights),
            }
        )
    return maps


def _description(network: nn.Module, tap: str, x: Tensor) -> dict[str, Any]:
    module, _, quantity = tap.rpartition(".")
    name = type(network.get_submodule(module)).__name__
    formula = FORMULAS.get(name, FORMULAS.get(f"{name}.{quantity}", ""))
    layer = type(network.get_submodule(module.removesuffix(".cell"))).__name__
    if " x " in formula and layer in INPUTS:
        formula = f"{formula}; {INPUTS[layer]}"
    return {"name": tap, "layer": layer_number(tap), "paper": formula, "shape": [1, *x.shape]}


def state_maps(network: Network, recording: Recording) -> list[dict[str, Any]]:
    """Return one map per gate or state: {"name", "stack", "layer", "part", "quantity", "side", "paper", "shape",
    "high", "units", "mean", "values"}.

    side: the sequence of the positions; "input", the tokens read, for a language model.  values: packed (units, T) of
    at most 48 evenly spaced units; gates from 0 to 1, other quantities x as (x + high) / (2 high).  mean: per position
    over all units, of the absolute values unless it is a gate.
    """
    maps = []
    for name in state_taps(network):
        x = recording.joined(name)[0].float()  # (T, D)
        *path, part, quantity = name.split(".")
        stack = "encoder" if path[0] == "encoder" else "decoder"
        x = x.flip(0) if part == "back" else x  # the backward cell reads the last token first
        gate = quantity.endswith("gate")
        units = sorted(set(torch.linspace(0, x.size(1) - 1, min(_MAX_UNITS, x.size(1))).round().int().tolist()))
        shown = x[:, units].T  # (units, T)
        high = 1.0 if gate else max(float(shown.abs().max()), math.ulp(1.0))
        maps.append(
            {
                **_description(network, name, x),
                "stack": stack,
                "part": part,
                "quantity": quantity,
                "side": "source" if stack == "encoder" else "input" if isinstance(network, LanguageModel) else "output",
                "high": high,
                "units": units,
                "mean": (x if gate else x.abs()).mean(1).tolist(),
                "values": packed(shown if gate else (shown + high) / (2 * high)),
            }
        )
    return maps
