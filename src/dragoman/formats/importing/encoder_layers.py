"""Rules and settings that BERT, ViT and their relatives share; the names of their layers are those of BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.formats.importing.names import Rule

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def encoder_sizes(settings: Mapping[str, Any], others: Sequence[str] = ()) -> list[str]:
    """Return the problems of sizes, which must be integers of at least 1.  others: further sizes."""
    problems = [
        f"{key} = {settings.get(key)!r}; accepted: an integer, at least 1"
        for key in (*_SIZES, *others)
        if type(settings.get(key)) is not int or settings[key] < 1
    ]
    if not problems and settings["hidden_size"] % settings["num_attention_heads"]:
        problems.append(f"hidden_size = {settings['hidden_size']}; accepted: a multiple of num_attention_heads")
    return problems


def linear(ours: str, theirs: str, flat: bool = False) -> dict[str, Rule]:
    return {
        f"{ours}.weight": Rule((f"{theirs}.weight",), ("", ""), flat=flat),
        f"{ours}.bias": Rule((f"{theirs}.bias",), ("",)),
    }


def norm(ours: str, theirs: str) -> dict[str, Rule]:
    """Return the rules of a layer norm, whose parts are called gamma and beta in old checkpoints."""
    parts = {"weight": "gamma", "bias": "beta"}
    return {f"{ours}.{part}": Rule((f"{theirs}.{part}|{theirs}.{old}",), ("",)) for part, old in parts.items()}


def self_attention(ours: str, theirs: Sequence[str], out: str, biases: bool = True) -> dict[str, Rule]:
    """theirs: names of the projections to queries, keys and values.  biases: whether these have biases."""
    return {
        f"{ours}.qkv.weight": Rule(tuple(f"{name}.weight" for name in theirs), ("", "")),
        f"{ours}.qkv.bias": Rule(tuple(f"{name}.bias" for name in theirs), ("qkv",), optional=not biases),
        **linear(f"{ours}.out", out),
    }


def feed_forward(ours: str, inner: str, outer: str) -> dict[str, Rule]:
    return {**linear(f"{ours}.inner", inner), **linear(f"{ours}.outer", outer)}
