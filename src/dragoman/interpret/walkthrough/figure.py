"""The whole model in one figure: its layers as columns, its attention and its gradients as ribbons between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dragoman.interpret.attentions import layer_number, stack_of, weight_taps
from dragoman.interpret.walkthrough.quantities import Labels
from dragoman.interpret.walkthrough.training_step import RecordedStep, TrainingPair
from dragoman.models.seq2seq import Network
from dragoman.models.vision import Vision
from dragoman.nn.record import record, tap_names
from dragoman.nn.recurrent import Cell
from dragoman.pages.page import packed
from dragoman.tokenizers import PAD

_COLUMN = re.compile(r"(?:(encoder|decoder)\.)?(?:embedded|positioned|layers\.(\d+)\.stream)")


@dataclass
class RecordedPass:
    """What the figure needs of a forward pass alone: values by tap without the row axis, losses by target position."""

    network: Network
    pair: TrainingPair
    values: dict[str, Tensor]
    losses: dict[int, float]
    gradients: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    @torch.no_grad()
    def of(cls, network: Network, pair: TrainingPair) -> RecordedPass:
        """Run the network, which must be in evaluation mode."""
        names = [name for name in tap_names(network) if _COLUMN.fullmatch(name)]
        with record(network, *names, *weight_taps(network)) as seen:
            logits = network(pair.src, pair.src_mask, pair.tgt_in)[0]
        losses = torch.nn.functional.cross_entropy(logits, pair.targets[0], reduction="none").tolist()
        values = {name: seen.joined(name)[0] for name in seen} | {"output.logits": logits}
        return cls(network, pair, values, dict(enumerate(losses)))


Recorded = RecordedStep | RecordedPass


def figure_data(recorded: Recorded, labels: Labels) -> dict[str, Any]:
    """Return the data of the figure as JSON: {"labels", "columns", "attention", "outputs"}.

    labels: tokens of the "source", the "input" of the decoder, and the "output".  columns: {"stack": "encoder" or
    "decoder", "layer": 0 for the embeddings, "name": the tap, "gradient": its norm per position, "recurrent"}.
    attention: {"stack": "encoder", "decoder" or "cross", "layer", "name", "weights": mean of the heads, "gradient"},
    both packed (1, Tq, Tk), the gradient as a share of "largest": the norm of the gradient that a query sends to the
    value of a key, √Σ_h (A_h · |∂L/∂Z_h|)².  outputs: {"position", "loss", "probability"} of the targets, and "rows",
    the positions of the last column from which each is computed.
    """
    source = list(labels.source)
    return {
        "labels": {
            "source": ["[class]", *source] if isinstance(recorded.network, Vision) else source,
            "input": list(labels.target_in),
            "output": list(labels.targets),
        },
        "columns": _columns(recorded),
        "attention": _attention(recorded),
        "outputs": _outputs(recorded),
    }


def _columns(recorded: Recorded) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    single = "decoder" if recorded.pair.src.numel() == 0 else "encoder"
    for name in recorded.values:
        if (match := _COLUMN.fullmatch(name)) is None:
            continue
        stack, layer = match[1] or single, 0 if match[2] is None else int(match[2]) + 1
        gradient = recorded.gradients.get(name)
        norms = None if gradient is None else gradient.double().norm(dim=-1).tolist()
        module = recorded.network.get_submodule(name.rpartition(".")[0]) if layer else None
        found[stack, layer] = {
            "stack": stack,
            "layer": layer,
            "name": name,
            "gradient": norms,
            "recurrent": any(isinstance(part, Cell) for part in module.modules()) if module is not None else False,
        }
    return sorted(found.values(), key=lambda column: (column["stack"] == "decoder", column["layer"]))


def _attention(recorded: Recorded) -> list[dict[str, Any]]:
    maps = []
    for name in weight_taps(recorded.network):
        weights = recorded.values[name].double()
        flow = _flow(recorded, name, weights)
        largest = 0.0 if flow is None else float(flow.max())
        maps.append(
            {
                "stack": stack_of(recorded.network, name),
                "layer": layer_number(name) + 1,
                "name": name,
                "weights": packed(_heads(weights).mean(0, keepdim=True)),
                "gradient": None if flow is None or not largest else packed(flow[None] / largest),
                "largest": largest,
            }
        )
    return maps


def _heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x[None]


def _flow(recorded: Recorded, name: str, weights: Tensor) -> Tensor | None:
    """Return the norm of the gradient that each query sends to the value of each key, (Tq, Tk)."""
    path = name.removesuffix("weights")
    results = (recorded.gradients.get(f"{path}{result}") for result in ("heads", "context"))
    gradient = next((x for x in results if x is not None), None)
    if gradient is None:
        return None
    norms = _heads(gradient.double()).norm(dim=-1, keepdim=True)  # (H, Tq, 1)
    flow: Tensor = (_heads(weights) * norms).square().sum(0).sqrt()
    return flow


def _outputs(recorded: Recorded) -> list[dict[str, Any]]:
    logits = recorded.values.get("output.logits")
    found = []
    for position, target in enumerate(recorded.pair.targets[0].tolist()):
        if target == PAD:
            continue
        probability = None if logits is None else float(torch.softmax(logits[position].double(), -1)[target])
        rows = _pooled(recorded) or [position]
        found.append(
            {"position": position, "loss": recorded.losses[position], "probability": probability, "rows": rows}
        )
    return found


def _pooled(recorded: Recorded) -> list[int] | None:
    """Return the positions that the output of a whole text or image reads; None if each position has its own."""
    pooling = "first" if isinstance(recorded.network, Vision) else getattr(recorded.network, "pooling", "none")
    source = recorded.pair.src.size(1)
    return {"first": [0], "last": [source - 1], "mean": list(range(source))}.get(pooling)
