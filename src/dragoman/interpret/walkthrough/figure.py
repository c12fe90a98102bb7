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
    source, logits = list(labels.source), recorded.values.get("output.logits")
    vision = isinstance(recorded.network, Vision)
    pooling = "first" if vision else getattr(recorded.network, "pooling", "none")
    length = recorded.pair.src.size(1)
    # The positions that the output of a whole text or image reads; otherwise each position has its own.
    pooled = {"first": [0], "last": [length - 1], "mean": list(range(length))}.get(pooling)
    outputs = []
    for position, target in enumerate(recorded.pair.targets[0].tolist()):
        if target != PAD:
            probability = None if logits is None else float(torch.softmax(logits[position].double(), -1)[target])
            rows, loss = pooled or [position], recorded.losses[position]
            outputs.append({"position": position, "loss": loss, "probability": probability, "rows": rows})
    return {
        "labels": {"source": ["[class]", *source] if vision else source,
                   "input": list(labels.target_in), "output": list(labels.targets)},
        "columns": _columns(recorded), "attention": _attention(recorded), "outputs": outputs,
    }  # fmt: skip


def _columns(recorded: Recorded) -> list[dict[str, Any]]:
    columns: dict[tuple[str, int], dict[str, Any]] = {}
    single = "decoder" if recorded.pair.src.numel() == 0 else "encoder"
    for name in recorded.values:
        if (match := _COLUMN.fullmatch(name)) is None:
            continue
        stack, layer = match[1] or single, 0 if match[2] is None else int(match[2]) + 1
        gradient = recorded.gradients.get(name)
        norms = None if gradient is None else gradient.double().norm(dim=-1).tolist()
        module = recorded.network.get_submodule(name.rpartition(".")[0]) if layer else None
        columns[stack, layer] = {
            "stack": stack, "layer": layer, "name": name, "gradient": norms,
            "recurrent": any(isinstance(part, Cell) for part in module.modules()) if module is not None else False,
        }  # fmt: skip
    return sorted(columns.values(), key=lambda column: (column["stack"] == "decoder", column["layer"]))


def _attention(recorded: Recorded) -> list[dict[str, Any]]:
    maps = []
    for name in weight_taps(recorded.network):
        weights = recorded.values[name].double()
        # The norm of the gradient that each query sends to the value of each key, (Tq, Tk).
        results = (recorded.gradients.get(name.removesuffix("weights") + result) for result in ("heads", "context"))
        gradient, flow = next((x for x in results if x is not None), None), None
        if gradient is not None:
            norms = _heads(gradient.double()).norm(dim=-1, keepdim=True)  # (H, Tq, 1)
            flow = (_heads(weights) * norms).square().sum(0).sqrt()
        largest = 0.0 if flow is None else float(flow.max())
        maps.append({
            "stack": stack_of(recorded.network, name), "layer": layer_number(name) + 1, "name": name,
            "weights": packed(_heads(weights).mean(0, keepdim=True)),
            "gradient": None if flow is None or not largest else packed(flow[None] / largest), "largest": largest,
        })  # fmt: skip
    return maps


def _heads(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x[None]
