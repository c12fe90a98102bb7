"""Vision Transformers for image classification, in the layout of Hugging Face.

Differences from our `vision`, and where each is resolved:

- Their patch embedding is a convolution; its kernel (D, channels, rows, columns) is our matrix, flattened, because
  `models.vision.patches` has the same order.
- Labels start at 0, ours at 1: the output for "no label" is added, with the logit NEVER.
- `preprocessor_config.json`: mean and standard deviation become `data.pixels`.  Images are not resized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.config import ImageData, VisionConfig
from dragoman.data.readers.images import as_images
from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import reference_model
from dragoman.formats.importing.encoders import NAMING, compare_labels, encoder_sizes, label_names, layer_parts
from dragoman.formats.importing.family import (
    ACTIVATIONS,
    NEVER,
    Comparison,
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
    collecting,
    multiple_problems,
)
from dragoman.formats.importing.name_tables import AxisOrder, Rule, expanded, part_rules
from dragoman.formats.parity import CheckText
from dragoman.models.model_folder import load_network
from dragoman.models.vision import patches
from dragoman.tokenizers import LabelVocabulary

_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "architectures": (["ViTForImageClassification"],), "hidden_act": tuple(ACTIVATIONS), "qkv_bias": (True, False),
}  # fmt: skip
_SIZES = ("image_size", "patch_size", "num_channels")
_PREPROCESSOR = "preprocessor_config.json"
_IMAGES = 32
"""Random images compared; one of 224 x 224 pixels takes about as long as a text of 200 tokens."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED) + encoder_sizes(settings, _SIZES)
    return problems or multiple_problems(settings, "image_size", "patch_size")


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Read the names of the labels, and check the preparation of images."""
    problems: list[str] = []
    labels: list[str] = []
    settings = checkpoint.settings
    with collecting(problems):
        labels = label_names(settings)
    with collecting(problems):
        problems += _preparation_problems(checkpoint.json(_PREPROCESSOR), settings.get("num_channels"))
    if problems:
        raise ProblemList(problems)
    sizes = settings.get("patch_size"), settings.get("num_channels")
    patch, channels = (size if type(size) is int and size > 0 else 1 for size in sizes)  # others are not supported
    return ImportedVocabulary(LabelVocabulary(labels, patch_numbers=channels * patch**2), [], [-1, *range(len(labels))])


def _preparation_problems(preparation: Mapping[str, Any], channels: object) -> Iterator[str]:
    if preparation.get("do_rescale", True) is not True:
        yield f"{_PREPROCESSOR}: do_rescale = {preparation['do_rescale']!r}; accepted: True"
    factor = preparation.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or abs(factor * 255 - 1) > 1e-6:
        yield f"{_PREPROCESSOR}: rescale_factor = {factor!r}; accepted: 1/255"
    if preparation.get("do_normalize", True) is False:
        return
    for key in ("image_mean", "image_std"):
        values = preparation.get(key)
        numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
        if not numbers or (type(channels) is int and len(values or []) != channels):
            yield f"{_PREPROCESSOR}: {key} = {str(values)[:60]}; accepted: a list with a number per channel"


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings, labels = checkpoint.settings, vocabulary.target
    return Plan(
        config=checkpoint.config(_document(checkpoint)), vocabulary=vocabulary, table=_table(settings),
        orders={"labels": AxisOrder(labels, len(labels) - 1)},
        positions=1 + (settings["image_size"] // settings["patch_size"]) ** 2,
    )  # fmt: skip


def _document(checkpoint: Checkpoint) -> dict[str, Any]:
    settings, preparation = checkpoint.settings, checkpoint.json(_PREPROCESSOR)
    pixels = {"mean": [0.0], "std": [1.0]}
    if preparation.get("do_normalize", True) is not False:
        pixels = {"mean": preparation["image_mean"], "std": preparation["image_std"]}
    dropouts = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    count = 1 + (settings["image_size"] // settings["patch_size"]) ** 2
    return {
        "data": {"kind": "images", "pixels": pixels},
        "train": {"metric": "accuracy"},
        "model": {
            "architecture": "vision", "d_model": settings["hidden_size"], "d_ff": settings["intermediate_size"],
            "n_heads": settings["num_attention_heads"], "n_layers": settings["num_hidden_layers"], "order": "pre",
            "norm": {"kind": "layer", "eps": settings.get("layer_norm_eps", 1e-12)},
            "activation": ACTIVATIONS[settings.get("hidden_act", "gelu")], "output_bias": True,
            "position": {"kind": "learned", "max_len": count}, "image_size": settings["image_size"],
            "patch": settings["patch_size"], "channels": settings["num_channels"],
            **{ours: settings.get(theirs, 0.0) for ours, theirs in dropouts.items()},
        },
    }  # fmt: skip


def _table(settings: Mapping[str, Any]) -> dict[str, Rule]:
    parts = layer_parts("vit.encoder.layer.{}", "attention.attention", ("layernorm_before", "layernorm_after"))
    layer, bias = part_rules("layers.{}.", parts, NAMING), "layers.{}.self_attn.qkv.bias"
    layer[bias] = replace(layer[bias], optional=not settings.get("qkv_bias", True))
    around = {"embedding": ("vit.embeddings.patch_embeddings.projection",), "final_norm": ("vit.layernorm",)}
    table = part_rules("", around, NAMING) | expanded(layer, settings["num_hidden_layers"])
    return table | {
        "embedding.weight": replace(table["embedding.weight"], flat=True),
        "class_token": Rule(("vit.embeddings.cls_token",), ("",)),
        "positions.table": Rule(("vit.embeddings.position_embeddings",), ("", "")),
        "output.weight": Rule(("classifier.weight",), ("labels", "")),
        "output.bias": Rule(("classifier.bias",), ("labels",), added=NEVER),
    }


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare the probabilities of the classes of random images."""
    if check is not None:
        raise UsageError(f"--check {check}: a model of images is compared on random images; omit --check")
    network, _, config = load_network(folder)
    assert isinstance(config.model, VisionConfig) and isinstance(config.data, ImageData)
    patch, size, channels = config.model.patch, config.model.image_size, config.model.channels
    model, peer = reference_model(checkpoint.folder, "AutoModelForImageClassification")
    noise = np.random.default_rng(1).integers(0, 256, (_IMAGES, size, size, channels), dtype=np.uint8)
    images = torch.from_numpy(as_images(noise, "images", config.data.pixels))

    def ours(image: Tensor) -> Tensor:
        logits: Tensor = network(patches(image[None], patch), None, torch.zeros(1, 0, dtype=torch.long))
        return logits[0, :, 1:]

    def theirs(image: Tensor) -> Tensor:
        logits: Tensor = model(pixel_values=image.permute(2, 0, 1)[None]).logits
        return logits

    return Comparison(compare_labels(ours, theirs, images, peer, "random images"), None)
