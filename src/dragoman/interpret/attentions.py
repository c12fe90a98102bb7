"""Attentions and sub-layers of a network by name, and the forward pass that records their taps.

Letters: N rows, S source length, Tq/Tk query/key positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.data.batching import Batch
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model, Network, evaluating
from dragoman.nn.record import Recording, record, tap_names
from dragoman.tokenizers import PAD

_WEIGHTS = ".weights"
_SUBLAYER = re.compile(r"(.*layers\.\d+\.)(?:around_(\w+)\.update|(conv)\.hidden|(cross_attn)\.context)")


def weight_taps(network: nn.Module) -> list[str]:
    """Return the taps of all attention weights (`decoder.layers.0.cross_attn.weights`) in the order of the network."""
    return [name for name in tap_names(network) if name.endswith(f"_attn{_WEIGHTS}")]


def attentions(network: nn.Module) -> dict[str, int]:
    """Return the number of heads of each attention by name.  Raises UsageError if there is no attention."""
    names = [tap.removesuffix(_WEIGHTS) for tap in weight_taps(network)]
    if not names:
        raise UsageError("this model has no attention (no tap *_attn.weights); choose a model with attention")
    return {name: int(getattr(network.get_submodule(name), "n_heads", 1)) for name in names}


def sublayers(network: nn.Module) -> dict[str, str]:
    """Return the sub-layers that can be ablated (`encoder.layers.1.ffn`): name -> tap of their output."""
    matches = [match for tap in tap_names(network) if (match := _SUBLAYER.fullmatch(tap))]
    return {match[1] + match[match.lastindex or 0]: match[0] for match in matches}


def layer_number(name: str) -> int:
    """Return the number of the layer in the name of a module or tap, from 0; 0 if it has none."""
    match = re.search(r"layers\.(\d+)\.", name)
    return int(match[1]) if match else 0


def sides(network: Network, name: str) -> tuple[str, str]:
    """Return the sequences of the queries and keys of an attention or its tap: "source", "input" or "output".

    A query of a decoder is named after the token it predicts ("output"), its keys after the tokens read ("input").
    """
    if "cross_attn" in name:
        return "output", "source"
    if name.startswith("encoder.") or not isinstance(network, Model):
        return "source", "source"
    return "output", "input"


def stack_of(network: Network, name: str) -> str:
    """Return "encoder", "decoder" or "cross", to which an attention or its tap belongs."""
    rows, columns = sides(network, name)
    return {"output": "cross", "source": "encoder"}[rows] if columns == "source" else "decoder"


def query_mask(network: Network, name: str, batch: Batch, queries: int) -> Tensor:
    """Return (N, Tq): False at queries that are padding."""
    if sides(network, name)[0] == "output":
        return batch.tgt_out != PAD
    return key_mask(batch, queries)


def key_mask(batch: Batch, length: int) -> Tensor:
    """Return (N, S): False at source positions that are padding."""
    if batch.src_mask is not None:
        return batch.src_mask
    return torch.ones(batch.src.size(0), length, dtype=torch.bool, device=batch.src.device)


def _no_logits(hidden: Tensor, output: nn.Module) -> None:
    """Compute nothing from the hidden states; for recordings that need no logits."""


def record_pass(
    network: Network, batch: Batch, taps: Iterable[str], head: Callable[[Tensor, nn.Module], Any] | None = _no_logits
) -> tuple[Any, Recording]:
    """Run a batch with its targets in evaluation mode; return the result of `head` (None: logits) and a recording."""
    batch = batch.to(network.device)
    with evaluating(network), torch.no_grad(), record(network, *taps) as recording:
        return network(batch.src, batch.src_mask, batch.tgt_in, head), recording
