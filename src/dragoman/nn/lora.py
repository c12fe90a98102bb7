"""Low-rank adaptation (Hu et al. 2021): the matrix W of a linear layer becomes W + alpha / rank * B A, and only A
(rank, in) and B (out, rank) are trained.

`peft` was considered and is not used.  It renames the parameters (`base_layer.weight`) and the modules between taps and
checkpoints, depends on `transformers` and `accelerate`, and saves by its own file format; what remains is the one class
below.  A fused matrix (queries, keys and values) has one A, and in B the rows of each part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.fast import Linear, linear
from dragoman.nn.layers import FeedForward
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.ssru import SSRU

_TARGETS: dict[str, tuple[type[nn.Module], ...]] = {
    "attention": (SelfAttention, CrossAttention, LinearSelfAttention, SSRU),
    "feed_forward": (FeedForward,),
}
_A, _B = "lora_a", "lora_b"


class LoRALinear(Linear):
    """A linear layer with an adapter.  Weight and bias, which keep their names, are those of `base`."""

    def __init__(self, base: Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = base.in_features, base.out_features, scale
        self.weight, self.bias = base.weight, base.bias
        bound = base.in_features**-0.5
        a = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(a.to(base.weight))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * linear(linear(x, self.lora_a), self.lora_b)


def add_adapters(model: nn.Module, rank: int, alpha: float, targets: Collection[str], seed: int) -> None:
    """Add adapters to the layers `targets`, "attention" or "feed_forward", and freeze all other parameters.

    The output does not change, because B is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    for module, name, layer in list(_layers(model, targets)):
        setattr(module, name, LoRALinear(layer, rank, alpha / rank, generator))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((_A, _B)))


def adapter_size(model: nn.Module, rank: int, targets: Collection[str]) -> int:
    """Return the number of parameters that `add_adapters` would add."""
    return sum(rank * (layer.in_features + layer.out_features) for _, _, layer in _layers(model, targets))


def _layers(model: nn.Module, targets: Collection[str]) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Yield the linear layers of the targets, with the modules that contain them and their names there."""
    kinds = tuple(kind for target in targets for kind in _TARGETS[target])
    for module in model.modules():
        if isinstance(module, kinds):
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    yield module, name, child


def adapters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return A and B of all adapters among the tensors of a model, by name."""
    return {name: tensor for name, tensor in tensors.items() if name.endswith((_A, _B))}


class MergedWeights(Mapping[str, Tensor]):
    """The tensors of the model without adapters that computes the same, each computed in float64 when it is used.

    tensors: those of the model with adapters, by name.  scale: alpha / rank.
    """

    def __init__(self, tensors: Mapping[str, Tensor], scale: float) -> None:
        self._tensors, self._scale = tensors, scale

    def __getitem__(self, name: str) -> Tensor:
        tensor, stem = self._tensors[name], name.removesuffix("weight")
        if stem == name or stem + _A not in self._tensors:
            return tensor
        a, b = (self._tensors[stem + part].double().cpu() for part in (_A, _B))
        return (tensor.double().cpu() + self._scale * (b @ a)).to(tensor)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if not name.endswith((_A, _B)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def without_adapters(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Complete the weights of a merged model by adapters that add 0, for a model with adapters."""
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters() if name.endswith((_A, _B))}
    return {**weights, **zeros}
