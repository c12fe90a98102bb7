"""The logit lens: what a model would say if it stopped after each of its layers (nostalgebraist 2020).

    softmax(output(final_norm(stream of layer l)))

With the last layer that is the model's own prediction.  Earlier layers were never trained to be read so; that it works
at all says that layers write into one stream, a little each.

Letters: S, T positions, D d_model, V vocabulary (or labels).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dragoman.models.encoder_only import EncoderOnly, pool
from dragoman.models.seq2seq import Network
from dragoman.models.vision import Vision

__all__ = ["logits_after", "streams"]


def streams(network: Network) -> list[str]:
    """The names of the streams that end in the output layer, first layer first: the decoder's, or of the one stack."""
    stack = _stack(network)
    layers = getattr(network.get_submodule(stack), "layers", ())
    return [f"{stack}{'.' if stack else ''}layers.{number}.stream" for number in range(len(layers))]


def logits_after(network: Network, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Recorded streams (1, S or T, D) by name -> what the output layer makes of each, (1, T, V), without gradients."""
    norm = getattr(network.get_submodule(_stack(network)), "final_norm", nn.Identity())
    with torch.no_grad():
        return {name: network.output(_hidden(network, norm, recorded[name])) for name in streams(network)}


def _stack(network: Network) -> str:
    """The path of the module with the layers that the output layer reads; "" where that is the network itself."""
    return next(name for name in ("decoder", "encoder", "") if not name or hasattr(network, name))


def _hidden(network: Network, norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(network, Vision):
        x = x[:, :1]  # the class token's
    normed: Tensor = norm(x)
    return pool(normed, None, network.pooling) if isinstance(network, EncoderOnly) else normed
