"""The name table of a CTranslate2 model.  Stacks and layers have the same names as the classes of its specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dragoman.formats.importing.family import NEVER
from dragoman.formats.importing.names import Rule, expanded

STACKS = ("encoder", "decoder")
MATRICES = _SOURCE, _TARGET, _OUTPUT = (
    "encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight",
)  # fmt: skip
"""Embeddings of source and target, output layer."""
TABLES = tuple(f"{stack}/position_encodings/encodings" for stack in STACKS)
_BIAS = "decoder/projection/bias"


@dataclass(frozen=True)
class Shape:
    """What the names and shapes of the variables say.  layers: of encoder and decoder."""

    layers: tuple[int, int]
    d_model: int
    d_ff: int
    gated: bool
    bias: bool
    norm: str
    is_pre: bool
    normalizes_embeddings: bool


def read_shape(tensors: Mapping[str, Tensor]) -> Shape:
    """Return the shape of a model; what is missing counts as 1, and is reported with the tensors."""

    def size(name: str, axis: int) -> int:
        tensor = tensors.get(name)
        return tensor.size(axis) if tensor is not None and tensor.dim() > axis else 1

    def layers(stack: str) -> int:
        numbers = [int(match[1]) for name in tensors if (match := re.match(rf"{stack}/layer_(\d{{1,4}})/", name))]
        return max(numbers, default=0) + 1

    return Shape(
        layers=(layers("encoder"), layers("decoder")),
        d_model=size(_SOURCE, 1),
        d_ff=size("encoder/layer_0/ffn/linear_0/weight", 0),
        gated="encoder/layer_0/ffn/linear_0_noact/weight" in tensors,
        bias=any(re.fullmatch(r".*/layer_\d+/.*/linear_.*/bias", name) for name in tensors),
        norm="layer" if "encoder/layer_0/ffn/layer_norm/beta" in tensors else "rms",
        is_pre="encoder/layer_norm/gamma" in tensors,
        normalizes_embeddings="encoder/layernorm_embedding/gamma" in tensors,
    )


_EMBEDDINGS = {
    "all": {"encoder.embedding.weight": Rule(("|".join(MATRICES),), ("source", ""))},
    "embeddings": {
        "encoder.embedding.weight": Rule((f"{_SOURCE}|{_TARGET}",), ("source", "")),
        "output.weight": Rule((_OUTPUT,), ("target", "")),
    },
    "target": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "")),
        "decoder.embedding.weight": Rule((f"{_TARGET}|{_OUTPUT}",), ("target", "")),
    },
    "none": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "")),
        "decoder.embedding.weight": Rule((_TARGET,), ("target", "")),
        "output.weight": Rule((_OUTPUT,), ("target", "")),
    },
}
_RELATIVE = {
    "shaw": {"keys": "relative_position_keys", "values": "relative_position_values"},
    "t5": {"table": "relative_attention_bias"},
}
"""Kind of positions -> our name of a table -> its name in each layer."""


def table(shape: Shape, tie: str, position: str, output_bias: bool) -> dict[str, Rule]:
    """Return the rules.  position: kind of our positions."""
    rules = dict(_EMBEDDINGS[tie])
    for stack, layers in zip(STACKS, shape.layers, strict=True):
        rules |= expanded(_layer(stack, shape), layers)
        if position == "learned":
            name = f"{stack}/position_encodings/encodings"
            rules[f"{stack}.positions.table"] = Rule((name,), (f"{stack} positions", ""))
        for ours, theirs in _RELATIVE.get(position, {}).items():
            copies = "|".join(f"{stack}/layer_{i}/self_attention/{theirs}" for i in range(layers))
            rules[f"{stack}.positions.{ours}"] = Rule((copies,), ("", ""))
        if shape.is_pre:
            rules |= _norm(f"{stack}.final_norm", f"{stack}/layer_norm", shape)
        if shape.normalizes_embeddings:
            rules |= _norm(f"{stack}.embedding_norm", f"{stack}/layernorm_embedding", shape)
    if output_bias:
        rules["output.bias"] = Rule((_BIAS,), ("logits",), added=NEVER, optional=True)
    return rules


def _layer(stack: str, shape: Shape) -> dict[str, Rule]:
    """Return the rules of a layer; `{}` is its number."""
    ours, theirs = f"{stack}.layers.{{}}", f"{stack}/layer_{{}}"
    inner = [f"{theirs}/ffn/linear_0", *([f"{theirs}/ffn/linear_0_noact"] if shape.gated else [])]
    linears = {
        f"{ours}.self_attn.qkv": [f"{theirs}/self_attention/linear_0"],
        f"{ours}.self_attn.out": [f"{theirs}/self_attention/linear_1"],
        f"{ours}.ffn.inner": inner,
        f"{ours}.ffn.outer": [f"{theirs}/ffn/linear_1"],
    }
    norms = {"self_attn": "self_attention", "ffn": "ffn"}
    if stack == "decoder":
        for name, number in {"q": 0, "kv": 1, "out": 2}.items():
            linears[f"{ours}.cross_attn.{name}"] = [f"{theirs}/attention/linear_{number}"]
        norms["cross_attn"] = "attention"
    rules = {}
    for name, parts in linears.items():
        rules[f"{name}.weight"] = Rule(tuple(f"{part}/weight" for part in parts), ("", ""))
        if shape.bias:
            rules[f"{name}.bias"] = Rule(tuple(f"{part}/bias" for part in parts), ("",))
    for name, part in norms.items():
        rules |= _norm(f"{ours}.around_{name}.norm", f"{theirs}/{part}/layer_norm", shape)
    return rules


def _norm(ours: str, theirs: str, shape: Shape) -> dict[str, Rule]:
    parts = {"weight": "gamma"} | ({"bias": "beta"} if shape.norm == "layer" else {})
    return {f"{ours}.{name}": Rule((f"{theirs}/{part}",), ("",)) for name, part in parts.items()}
