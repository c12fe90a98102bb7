"""Muon for the matrices of the layers, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dragoman.config import MuonConfig
from dragoman.nn.layers import OutputProjection
from dragoman.nn.positions import Positions

__all__ = ["MuonWithAdamW", "is_for_muon"]


def is_for_muon(model: nn.Module) -> dict[nn.Parameter, bool]:
    """Return whether each parameter is a matrix of a layer: not of an embedding, of positions or of the output."""
    excluded: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding | OutputProjection | Positions):
            excluded.update(module.parameters(recurse=False))
    return {p: p.dim() == 2 and p not in excluded for p in model.parameters() if p.requires_grad}


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers of PyTorch with common parameter groups and a common state."""

    def __init__(self, config: MuonConfig, model: nn.Module) -> None:
        chosen = is_for_muon(model)
        matrices = [p for p, for_muon in chosen.items() if for_muon]
        others = [p for p, for_muon in chosen.items() if not for_muon]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in others if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
        self._parts: list[torch.optim.Optimizer] = [adamw]
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=0.0, weight_decay=config.weight_decay, momentum=config.momentum,
                adjust_lr_fn="match_rms_adamw",
            )  # fmt: skip
            self._parts.insert(0, muon)
        super().__init__(list(chosen), {})
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        for part in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for part in self._parts:
            part.step()
