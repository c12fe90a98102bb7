"""Dynamic loss scaling for float16 (Micikevicius et al. 2018).

Gradients below about 6e-8 are 0 in float16, so the loss is multiplied by a scale before the backward pass, and the
gradients are divided by it.  The scale is halved if a gradient overflows, and doubled after 2,000 steps without an
overflow, as by `torch.amp.GradScaler`; here it never leaves the device, and its state is part of `Progress`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.models.seq2seq import Network
from dragoman.nn.recurrent import LSTM

INITIAL, LARGEST = 2.0**16, 2.0**24
INTERVAL = 2000


class LossScale:
    """A power of two from 1 to 2**24.

    scale: the factor of the loss.  steps: those since it was changed.  before: the scale of the last step.  They are
    replaced in each update, never changed in place, so that a reference keeps its value.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = self.before = torch.tensor(INITIAL, device=device)
        self.steps = torch.tensor(0.0, device=device)

    def load(self, scale: float, steps: int) -> None:
        """Continue from the state of a checkpoint; a scale of 0 stands for a run that has not begun."""
        if scale:
            self.scale, self.steps = torch.full_like(self.scale, scale), torch.full_like(self.steps, steps)

    def unscale(self, gradients: list[Tensor]) -> None:
        """Divide the gradients by the scale, in place; exact, because it is a power of two."""
        local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]  # of weights split over processes
        if local:
            torch._foreach_mul_(local, 1 / self.scale)

    def update(self, finite: Tensor) -> None:
        """Choose the scale of the next step.  finite: whether all gradients are finite, a boolean."""
        steps = torch.where(finite, self.steps + 1, 0.0)
        grows = steps >= INTERVAL
        factor = torch.where(finite, torch.where(grows, 2.0, 1.0), 0.5)
        self.before = self.scale
        self.scale = (self.scale * factor).clamp(1.0, LARGEST)
        self.steps = torch.where(grows, 0.0, steps)


def check_float16(model: Network) -> None:
    """Raise UsageError if the model has an LSTM and the processor no float16 implementation of it."""
    if model.device.type != "cpu" or not any(isinstance(module, LSTM) for module in model.modules()):
        return
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
    except RuntimeError:
        raise UsageError(
            'train.precision = "fp16": this processor cannot compute an LSTM in float16; accepted on it: "float32" or '
            '"bf16", or train with fp16 on a GPU'
        ) from None
