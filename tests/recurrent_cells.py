"""Recurrent cells and PyTorch's modules of the same kind, in float64, and how they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.nn.recurrent import GRU, LSTM, Cell, InitialState, VanillaRNN

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
CELLS = ["tanh", "relu", "gru", "lstm"]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def fresh_cell(kind: str, d_in: int, d_model: int, initial_state: InitialState = "zeros") -> Cell:
    if kind in ("gru", "lstm"):
        return {"gru": GRU, "lstm": LSTM}[kind](d_in, d_model, initial_state)
    return VanillaRNN(d_in, d_model, kind, initial_state)


def new_cell(kind: str, d_in: int, d_model: int, initial_state: InitialState = "zeros") -> Cell:
    """A float64 cell with non-zero biases."""
    cell = fresh_cell(kind, d_in, d_model, initial_state)
    for parameter in cell.double().parameters():
        nn.init.normal_(parameter, std=0.5)
    return cell


def torch_module(kind: str, d_in: int, d_model: int, **options: Any) -> nn.RNNBase:
    options |= {"batch_first": True, "dtype": torch.float64}
    if kind in ("gru", "lstm"):
        return {"gru": nn.GRU, "lstm": nn.LSTM}[kind](d_in, d_model, **options)
    return nn.RNN(d_in, d_model, nonlinearity=kind, **options)


def gradients(out: Tensor, *wanted: Tensor) -> list[Tensor]:
    torch.manual_seed(5)
    return list(torch.autograd.grad(out, wanted, torch.randn(out.shape, dtype=out.dtype)))


def assert_all_close(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
