"""A Transformer that can be calculated by hand, and "I am" -> "我 是" through one step of its training.

Two layers on each side, d_model 4, a vocabulary of 8, float64.  Its matrices, in `tiny_preset.toml`, are multiples of a
half, chosen so that no softmax saturates.  Each can be replaced:

    walkthrough = tiny_walkthrough({"encoder.layers.0.self_attn.q": [[1, 0, 1, 0], [0, 1, 0, 1], ...]})

Matrices are (in, out), so that a row vector x gives x W, as in the paper.  `matrices_toml` writes all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.config import TransformerConfig
from dragoman.errors import check_problems, nearest
from dragoman.interpret.walkthrough import Labels, walkthrough
from dragoman.interpret.walkthrough.steps import read_data
from dragoman.interpret.walkthrough.training_step import TrainingPair
from dragoman.models.build import build_model
from dragoman.models.transformer import Transformer
from dragoman.tokenizers import BOS

TINY_WORDS = ("<pad>", "<unk>", "<s>", "</s>", "I", "am", "我", "是")
TINY_PAIR = TrainingPair(torch.tensor([[4, 5]]), None, torch.tensor([[BOS, 6]]), torch.tensor([[6, 7]]))
TINY_LABELS = Labels(("I", "am"), ("<s>", "我"), ("我", "是"), lambda token: TINY_WORDS[token])
TINY_MATRICES: dict[str, list[Any]] = read_data("tiny_preset.toml")
"""Every parameter of the preset by name: matrices (in, out), biases and norms (out,)."""
WORKED_MATRICES: dict[str, list[Any]] = read_data("worked_preset.toml")
"""Replacements with which the model has the numbers of the worked training step (see `gallery.py`) from end to end."""

_SIZES: dict[str, Any] = {"d_model": 4, "encoder_layers": 2, "decoder_layers": 2}
_FFN = (".inner", ".inner_bias", ".outer")


def tiny_config(heads: int = 1, width: int = 6) -> TransformerConfig:
    """Return the sizes of the tiny model; width: of its feed-forward networks."""
    return TransformerConfig(**_SIZES, d_ff=width, n_heads=heads, dropout=0.0, tie="none")


def tiny_matrices(matrices: Mapping[str, Any] | None = None, *, heads: int = 1) -> dict[str, Tensor]:
    """Return every parameter of the preset by name, float64, with the given matrices replaced.

    The model has one width for all feed-forward networks: narrower ones get hidden units with weights of 0, which have
    neither outputs nor gradients.  Raises UsageError as `tiny_model`.
    """
    values = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in TINY_MATRICES.items()}
    values |= _checked(matrices or {}, values, heads)
    width = max(matrix.size(-1) for name, matrix in values.items() if name.endswith("ffn.inner"))
    for name, matrix in values.items():
        if ".ffn." in name and name.endswith(_FFN):
            rows = name.endswith("outer")
            more = width - matrix.size(0 if rows else -1)
            values[name] = pad(matrix, (0, 0, 0, more) if rows else (0, more))
    return values


def tiny_model(matrices: Mapping[str, Any] | None = None, *, heads: int = 1) -> Transformer:
    """Build the preset in float64, with the given matrices replaced.

    matrices: name -> nested lists, names and shapes as in `TINY_MATRICES`, except that a feed-forward network may have
    any width.  heads: 1, 2 or 4.  Raises UsageError with the complete list of invalid names, shapes and numbers.
    """
    values = tiny_matrices(matrices, heads=heads)
    config = tiny_config(heads, values["encoder.layers.0.ffn.inner"].size(1))
    model = build_model(config, len(TINY_WORDS), len(TINY_WORDS), shared=False).double().eval()
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
    width = model.get_parameter("encoder.layers.0.ffn.inner.weight").size(0)
    return walkthrough(
        model, *TINY_PAIR, TINY_LABELS, learning_rate=learning_rate, parameter=element, max_features=max(8, width)
    )


def matrices_toml(matrices: Mapping[str, Any] | None = None) -> str:
    """Return every parameter as TOML, one per line, with the given ones replaced; raises UsageError as `tiny_model`."""
    tiny_matrices(matrices)
    lines = [f"{json.dumps(name)} = {json.dumps(x)}" for name, x in {**TINY_MATRICES, **(matrices or {})}.items()]
    comment = "# Matrices are (in, out), so that a row vector x gives x W; biases and norms are (out,)."
    return "\n".join([comment, *lines])


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
                own = f"{module}.{part}" if kind == "weight" else f"{module}.{part}_bias"
                views[own] = rows.T if rows.dim() == 2 else rows
    return views


def _checked(matrices: Mapping[str, Any], preset: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return the given matrices as tensors; raise UsageError with all problems."""
    problems: list[str] = []
    if heads not in (1, 2, 4):
        problems.append(f"heads = {heads}; accepted: 1, 2 and 4, which divide d_model = {_SIZES['d_model']}")
    tensors: dict[str, Tensor] = {}
    for name, numbers in matrices.items():
        if name not in preset:
            problems.append(
                f"unknown matrix {name!r}{nearest(name, preset)}; `dragoman walkthrough --print` lists all names"
            )
            continue
        try:
            tensors[name] = torch.as_tensor(numbers, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"{name}: {error}; accepted: lists of numbers of shape {tuple(preset[name].shape)}")
    for name, matrix in tensors.items():
        path, accepted, why = name.rpartition(".")[0], tuple(preset[name].shape), ""
        if ".ffn." in name and name.endswith(_FFN):  # its width is that of its first given matrix
            first, *others = [path + part for part in _FFN if path + part in tensors]
            ours = preset[f"{path}.inner"].size(1)
            side = tensors[first].shape[:1] if first.endswith(".outer") else tensors[first].shape[-1:]
            width = side.numel() or ours
            accepted = tuple(width if size == ours else size for size in accepted)
            if name != first:
                why = f", because {first} has the width {width}"
            elif width != ours and len(others) < 2:
                missing = " and ".join(path + part for part in _FFN if path + part not in tensors)
                problems.append(f"{name} has the width {width}, not {ours}; also give {missing} with this width")
        if tuple(matrix.shape) != accepted:
            problems.append(f"{name} has shape {tuple(matrix.shape)}; accepted: {accepted}{why}")
    for name, matrix in tensors.items():
        if invalid := [x for x in matrix.flatten().tolist() if not math.isfinite(x)]:
            problems.append(f"{name} contains {invalid[0]}; accepted: finite numbers")
    check_problems("invalid arguments of the tiny model:", problems)
    return tensors
