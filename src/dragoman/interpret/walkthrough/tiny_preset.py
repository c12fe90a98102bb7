"""A Transformer that can be calculated by hand, and "I am" -> "我 是" through one step of its training.

Two layers on each side, d_model 4, a vocabulary of 8, float64.  Its matrices, in `tiny_preset.toml`, are multiples of a
half, chosen so that no softmax saturates.  Each can be replaced:

    walkthrough = tiny_walkthrough({"encoder.layers.0.self_attn.q": [[1, 0, 1, 0], [0, 1, 0, 1], ...]})

Matrices are (in, out), so that a row vector x gives x W, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dragoman.config import TransformerConfig
from dragoman.data.tokenizer import BOS
from dragoman.errors import UsageError, nearest
from dragoman.interpret.walkthrough import Labels, walkthrough
from dragoman.interpret.walkthrough.entries import read_data
from dragoman.interpret.walkthrough.training_step import TrainingPair
from dragoman.models.build import build_model
from dragoman.models.transformer import Transformer

__all__ = [
    "TINY_LABELS", "TINY_MATRICES", "TINY_PAIR", "TINY_WORDS", "WORKED_MATRICES", "tiny_config", "tiny_model",
    "tiny_walkthrough",
]  # fmt: skip

TINY_WORDS = ("<pad>", "<unk>", "<s>", "</s>", "I", "am", "我", "是")
TINY_PAIR = TrainingPair(torch.tensor([[4, 5]]), None, torch.tensor([[BOS, 6]]), torch.tensor([[6, 7]]))
TINY_LABELS = Labels(("I", "am"), ("<s>", "我"), ("我", "是"), lambda token: TINY_WORDS[token])
TINY_MATRICES: dict[str, list[Any]] = read_data("tiny_preset.toml")
"""Every parameter of the preset by name: matrices (in, out), biases and norms (out,)."""
WORKED_MATRICES: dict[str, list[Any]] = read_data("worked_preset.toml")
"""Replacements with which the model has the numbers of the worked training step (see `gallery.py`) from end to end."""

_SIZES: dict[str, Any] = {"d_model": 4, "d_ff": 6, "encoder_layers": 2, "decoder_layers": 2}


def tiny_config(heads: int = 1) -> TransformerConfig:
    """Return the sizes of the tiny model."""
    return TransformerConfig(**_SIZES, n_heads=heads, dropout=0.0, tie="none")


def tiny_model(matrices: Mapping[str, Any] | None = None, *, heads: int = 1) -> Transformer:
    """Build the preset in float64, with the given matrices replaced.

    matrices: name -> nested lists, names and shapes as in `TINY_MATRICES`.  heads: 1, 2 or 4.  Raises UsageError with
    the complete list of invalid names, shapes and numbers.
    """
    values = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in TINY_MATRICES.items()}
    values |= _checked(matrices or {}, {name: tuple(matrix.shape) for name, matrix in values.items()}, heads)
    model = build_model(tiny_config(heads), len(TINY_WORDS), len(TINY_WORDS), shared=False).double().eval()
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for name, view in _views(model).items():
            view.copy_(values[name])
    return model


def tiny_walkthrough(
    matrices: Mapping[str, Any] | None = None, *, heads: int = 1, learning_rate: float = 0.01
) -> dict[str, Any]:
    """Return the `walkthrough` of `TINY_PAIR` through the preset; the update shown is that of W_V[0, 0]."""
    element = ("decoder.layers.0.cross_attn.kv.weight", _SIZES["d_model"], 0)  # below the rows of W_K
    model = tiny_model(matrices, heads=heads)
    return walkthrough(model, *TINY_PAIR, TINY_LABELS, learning_rate=learning_rate, parameter=element)


def _views(model: Transformer) -> dict[str, Tensor]:
    """Return name of the matrix -> view of the parameter, matrices as (in, out)."""
    views: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        path, _, kind = name.rpartition(".")
        module, _, layer = path.rpartition(".")
        if layer == "norm":
            views[f"{module.replace('around_', '')}.{'gamma' if kind == 'weight' else 'beta'}"] = parameter
        elif layer in ("embedding", "output"):
            views[path] = parameter if layer == "embedding" else parameter.T
        else:
            parts = {"qkv": "qkv", "kv": "kv", "out": "o"}.get(layer) or [layer]
            for part, rows in zip(parts, parameter.chunk(len(parts)), strict=True):
                views[f"{module}.{part}" if kind == "weight" else f"{module}.{part}_bias"] = (
                    rows.T if rows.dim() == 2 else rows
                )
    return views


def _checked(matrices: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], heads: int) -> dict[str, Tensor]:
    problems, found = [], {}
    if heads not in (1, 2, 4):
        problems.append(f"heads = {heads}; accepted: 1, 2 and 4, which divide d_model = {_SIZES['d_model']}")
    for name, numbers in matrices.items():
        if name not in shapes:
            problems.append(f"unknown matrix {name!r}{nearest(name, shapes)}; TINY_MATRICES lists all names")
            continue
        try:
            found[name] = matrix = torch.as_tensor(numbers, dtype=torch.float64)
            if tuple(matrix.shape) != shapes[name]:
                problems.append(f"{name} has shape {tuple(matrix.shape)}; accepted: {shapes[name]}")
            elif invalid := [x for x in matrix.flatten().tolist() if not math.isfinite(x)]:
                problems.append(f"{name} contains {invalid[0]}; accepted: finite numbers")
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"{name}: {error}; accepted: lists of numbers of shape {shapes[name]}")
    if problems:
        raise UsageError("\n".join(["invalid arguments of the tiny model:", *(f"  - {p}" for p in problems)]))
    return found
