"""The logit lens: the prediction of a model if its output layer is applied after each layer (nostalgebraist 2020).

    softmax(output(final_norm(stream of layer l)))

After the last layer this is the prediction of the model.  Earlier layers are not trained to be read this way.

Letters: S, T positions, D d_model, V vocabulary (or labels).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.models.encoder_only import EncoderOnly, pool
from dragoman.models.seq2seq import Network
from dragoman.models.vision import Vision
from dragoman.nn.record import Recording

__all__ = ["layer_streams", "lens_logits"]


def layer_streams(network: Network) -> list[str]:
    """Return the taps of the layers that lead to the output layer, in order."""
    stack = _stack(network)
    layers = getattr(network.get_submodule(stack), "layers", ())
    return [f"{stack}{'.' if stack else ''}layers.{number}.stream" for number in range(len(layers))]


def lens_logits(network: Network, recording: Recording) -> dict[str, Tensor]:
    """Apply the output layer to recorded streams (1, S or T, D); return tap -> logits (1, T, V)."""
    norm = getattr(network.get_submodule(_stack(network)), "final_norm", nn.Identity())
    logits = {}
    with torch.no_grad():
        for name in layer_streams(network):
            x = recording.joined(name)
            hidden: Tensor = norm(x[:, :1] if isinstance(network, Vision) else x)  # the class token of an image
            pooled = pool(hidden, None, network.pooling) if isinstance(network, EncoderOnly) else hidden
            logits[name] = network.output(pooled)
    return logits


def _stack(network: Network) -> str:
    """Return the path of the module whose layers the output layer reads; "" for the network itself."""
    return next(name for name in ("decoder", "encoder", "") if not name or hasattr(network, name))
