"""The state that a resumed run needs besides the model: `training.safetensors` and `training.json` of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from dragoman.errors import ModelFolderError
from dragoman.io.reading import read_json
from dragoman.io.weights import load_file
from dragoman.models.model_folder import load_tensors, unique_tensors, verify
from dragoman.training.optim import Progress
from dragoman.training.optimizers import Optimizer

__all__ = ["read_training", "training_files"]


def training_files(
    model: nn.Module,
    optimizer: Optimizer,
    progress: Progress,
    data_hash: str,
    ema: Mapping[str, Tensor] | None,
) -> dict[str, bytes]:
    """Return the optimizer's moments, the progress and, with a moving average, the raw weights as files."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
    if ema is not None:
        tensors |= {f"raw/{name}": value.cpu().contiguous() for name, value in unique_tensors(model).items()}
    document = {"progress": asdict(progress), "data": data_hash}
    return {
        "training.safetensors": safetensors.torch.save(tensors),
        "training.json": json.dumps(document, indent=1).encode(),
    }


def read_training(
    folder: Path, model: nn.Module, optimizer: Optimizer, ema: dict[str, Tensor] | None
) -> tuple[Progress, str]:
    """Load weights, moments and moving average from a checkpoint; return the progress and the hash of the data.

    Raises ModelFolderError if the checkpoint is damaged or was saved without the moving average.
    """
    verify(folder)
    progress, data_hash = _read_progress(folder / "training.json")
    saved = load_file(folder / "training.safetensors")
    weights = load_file(folder / "model.safetensors")
    if ema is not None:
        for name, value in weights.items():
            ema[name] = value.to(ema[name].device)
        weights = {name: saved[f"raw/{name}"] for name in weights if f"raw/{name}" in saved}
    load_tensors(model, weights, folder)
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        kind, _, name = key.partition("/")
        if kind != "raw":
            moments.setdefault(name, {})[kind] = value
    for name, parameter in model.named_parameters():
        if name in moments:
            optimizer.state[parameter] = {kind: value.to(parameter.device) for kind, value in moments[name].items()}
    return progress, data_hash


def _read_progress(file: Path) -> tuple[Progress, str]:
    again = "Copy the folder again, or use an earlier checkpoint."
    document = read_json(file, ModelFolderError, again)
    found, data_hash = document.get("progress"), document.get("data")
    names = {field.name for field in fields(Progress)}
    if not isinstance(found, dict) or found.keys() - names or not isinstance(data_hash, str):
        raise ModelFolderError(f"{file}: not the training state of a checkpoint. {again}")
    wrong = [name for name, value in found.items() if not _fits(name, value)]
    if wrong:
        raise ModelFolderError(f"{file}: invalid {', '.join(wrong)}; accepted: numbers below 2**63. {again}")
    return Progress(**found), data_hash


def _fits(name: str, value: object) -> bool:
    """Return whether `value` is valid for the attribute `name` of a `Progress`."""
    if name == "best" and value is None:
        return True
    accepted = (int, float) if name in ("seconds", "best", "validated", "loss_scale") else (int,)
    return type(value) in accepted and (name == "best" or 0 <= value < 1 << 63)  # type: ignore[operator]
