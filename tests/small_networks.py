"""Small networks for tests: variants of the Transformer, recurrent cells, and their comparison in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Network
from dragoman.nn.recurrent import GRU, LSTM, Cell, InitialState, VanillaRNN
from dragoman.tokenizers import BOS, EOS
from dragoman.training.loss import TokenLoss

M = TypeVar("M", bound=nn.Module)
D, H = 12, 2
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
CELLS = ["tanh", "relu", "gru", "lstm"]
SIZES: dict[str, Any] = {"d_model": D, "d_ff": 20, "n_heads": H, "n_layers": 3, "dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "gpt-2": {"order": "pre", "activation": "gelu_tanh", "position": {"kind": "learned", "max_len": 9}},
    "llama": {
        "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu",
        "gated": True, "bias": False, "n_kv_heads": 1, "tie": "none",
    },
    "linear": {"attention": {"kind": "linear"}, "order": "pre"},
    "alibi": {"position": {"kind": "alibi"}},
    "shaw": {"position": {"kind": "shaw", "clip": 3}},
    "recurrent": {"position": {"kind": "recurrent"}, "order": "pre"},
}  # fmt: skip


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def random_targets(rows: int, length: int, vocab: int) -> Tensor:
    """Random ids (rows, length) after BOS."""
    ids = torch.randint(EOS + 1, vocab, (rows, length))
    ids[:, 0] = BOS
    return ids


def drawn(module: M, std: float) -> M:
    """In float64, with parameters from N(0, std^2): ones in norms and zeros in biases could hide an error."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=std)
    return module


def shaken(network: nn.Module) -> Any:
    """In float64 and without the ones and zeros of a fresh one."""
    for parameter in network.double().parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.4)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return network.eval()


def learn(network: Network, batches: Callable[[], tuple[Tensor, Tensor | None, Tensor]], steps: int) -> None:
    """`steps` updates by Adam on (src, src_mask, targets)."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, betas=(0.9, 0.98))
    network.train()
    for _ in range(steps):
        src, mask, targets = batches()
        loss = network(src, mask, torch.zeros_like(targets), TokenLoss(targets, 0.0))
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
    network.eval()


def causal_linear_recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return linear attention by S_i = S_(i-1) + k_i^T v_i, out_i = q_i S_i (Katharopoulos et al. 2020)."""
    state = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None, :])  # (N, H, Dh, Dh)
    outputs = []
    for i in range(q.size(2)):
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append(q[:, :, i, None, :] @ state)  # (N, H, 1, Dh)
    return torch.cat(outputs, dim=2)


def fresh_cell(kind: str, d_in: int, d_model: int, initial_state: InitialState = "zeros") -> Cell:
    if kind in ("gru", "lstm"):
        return {"gru": GRU, "lstm": LSTM}[kind](d_in, d_model, initial_state)
    return VanillaRNN(d_in, d_model, kind, initial_state)


def new_cell(kind: str, d_in: int, d_model: int, initial_state: InitialState = "zeros") -> Cell:
    """A float64 cell with non-zero biases."""
    cell = fresh_cell(kind, d_in, d_model, initial_state)
    return drawn(cell, 0.5)


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


def count(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, called: list[str] | None = None) -> list[str]:
    """A list, `called` if given, that gets the name with each call of `home.name`."""
    names: list[str] = [] if called is None else called
    original = getattr(home, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        names.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(home, name, counted)
    return names
