"""The weights of a model folder as NumPy arrays, checked against the configuration; PyTorch is not needed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dragoman.config import Config, DecoderOnlyConfig, LayerNormConfig, LearnedPosition, T5Position, TransformerConfig
from dragoman.io.weights import dtype_name, load_arrays, read_header
from dragoman.models.model_folder import check_tensors
from dragoman.models.size import check_capacity
from dragoman.tokenizers import Vocabulary

Shapes = dict[str, tuple[int, ...]]


def read_weights(folder: Path, config: Config, vocabulary: Vocabulary) -> dict[str, NDArray[Any]]:
    """Return the weights of a model that the native engine supports, by name, after `check_weights`."""
    check_weights(folder, config, vocabulary)
    return load_arrays(folder / "model.safetensors")


def check_weights(folder: Path, config: Config, vocabulary: Vocabulary) -> None:
    """Raise ModelFolderError if the header of the weights does not fit a configuration that the native engine supports.

    Raises UsageError if the memory does not suffice for the weights.
    """
    model = config.model
    assert isinstance(model, TransformerConfig | DecoderOnlyConfig)
    sizes = vocabulary.source_size, vocabulary.target_size
    expected = weight_shapes(model, *sizes, shared=vocabulary.shared)
    check_capacity(model, sum(map(math.prod, expected.values())))
    header = read_header(folder / "model.safetensors")
    found = {name: tuple(entry["shape"]) for name, entry in header.items()}
    kinds = {name: dtype_name(entry["dtype"]) for name, entry in header.items()}
    others = {name: kind for name, kind in kinds.items() if "float" not in kind}
    check_tensors(expected, found, others, folder, vocabulary)


def float8_reasons(folder: Path) -> list[str]:
    """Return why the native engine does not read the weights of a model: NumPy has no float8."""
    entries = read_header(folder / "model.safetensors").items()
    found = sorted({entry["dtype"] for _, entry in entries if entry["dtype"].startswith("F8")})
    return [f"its weights are stored as {', '.join(found)}; supported: F32, F16, BF16, F64"] if found else []


def weight_shapes(
    config: TransformerConfig | DecoderOnlyConfig, source_size: int, target_size: int, *, shared: bool
) -> Shapes:
    """Return name and shape of each parameter, as `models.build` builds them for kinds that the engine supports."""
    d_model = config.d_model
    bias: Shapes = {"output.bias": (target_size,)} if config.output_bias else {}
    if not isinstance(config, TransformerConfig):
        shapes: Shapes = {"embedding.weight": (target_size, d_model), **_stack_shapes(config, "", config.n_layers)}
        return shapes | bias if config.tie == "all" else shapes | {"output.weight": (target_size, d_model)} | bias
    shapes = {"encoder.embedding.weight": (source_size, d_model)}
    shapes |= _stack_shapes(config, "encoder.", config.encoder_layers)
    if not (config.tie in ("all", "embeddings") and shared):
        shapes["decoder.embedding.weight"] = (target_size, d_model)
    shapes |= _stack_shapes(config, "decoder.", config.decoder_layers)
    return shapes | ({"output.weight": (target_size, d_model)} if config.tie in ("embeddings", "none") else {}) | bias


def _stack_shapes(config: TransformerConfig | DecoderOnlyConfig, stack: str, layers: int) -> Shapes:
    position, shapes = config.position, Shapes()
    if isinstance(position, LearnedPosition):
        shapes[f"{stack}positions.table"] = (position.max_len, config.d_model)
    if isinstance(position, T5Position):
        shapes[f"{stack}positions.table"] = (position.buckets, config.n_heads)
    if config.normalize_embeddings:
        shapes |= _norm_shapes(config, f"{stack}embedding_norm")
    for index in range(layers):
        shapes |= _layer_shapes(config, f"{stack}layers.{index}", crosses=stack == "decoder.")
    return shapes | (_norm_shapes(config, f"{stack}final_norm") if config.order == "pre" else {})


def _layer_shapes(config: TransformerConfig | DecoderOnlyConfig, layer: str, crosses: bool) -> Shapes:
    d_model, kv_heads = config.d_model, config.n_kv_heads or config.n_heads
    queries, keys_and_values = config.n_heads * config.key_size, kv_heads * (config.key_size + config.d_head)
    heads = config.n_heads * config.d_head
    has_ssru = crosses and isinstance(config, TransformerConfig) and config.decoder_self == "ssru"
    matrices = {
        "ffn.inner": ((1 + config.gated) * config.d_ff, d_model),
        "ffn.outer": (d_model, config.d_ff),
    }
    if not has_ssru:
        matrices |= {"self_attn.qkv": (queries + keys_and_values, d_model), "self_attn.out": (d_model, heads)}
    if crosses:
        matrices |= {
            "cross_attn.q": (queries, d_model),
            "cross_attn.kv": (keys_and_values, d_model),
            "cross_attn.out": (d_model, heads),
        }
    shapes = Shapes()
    for name, shape in matrices.items():
        shapes[f"{layer}.{name}.weight"] = shape
        if config.bias:
            shapes[f"{layer}.{name}.bias"] = shape[:1]
    if has_ssru:  # the gate always has a bias
        shapes |= {f"{layer}.ssru.{part}.weight": (d_model, d_model) for part in ("project", "gate")}
        shapes[f"{layer}.ssru.gate.bias"] = (d_model,)
    first = "ssru" if has_ssru else "self_attn"
    for part in (first, "cross_attn", "ffn") if crosses else (first, "ffn"):
        shapes |= _norm_shapes(config, f"{layer}.around_{part}.norm")
    return shapes


def _norm_shapes(config: TransformerConfig | DecoderOnlyConfig, name: str) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (config.d_model,)}
    return shapes | ({f"{name}.bias": (config.d_model,)} if isinstance(config.norm, LayerNormConfig) else {})
