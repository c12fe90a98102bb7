"""The layers of the Transformer in other shapes, small enough for tests: their variants, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Network
from dragoman.training.loss import TokenLoss

D, H = 12, 2
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
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
