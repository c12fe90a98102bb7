"""The Transformer of eole.

Differences from our Transformer, and where each is resolved:

- Settings of the model hold for both stacks, unless a stack has its own.
- Sources have no end of sentence: `data.frames`.
- Biases of attention and feed-forward networks are optional; missing ones are 0.
- The order is always pre-norm, embeddings are always scaled, and sinusoids are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import parse_config
from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Comparison, ImportedVocabulary, Plan, accepted_values
from dragoman.formats.importing.names import Rule, expanded
from dragoman.formats.importing.toolkits import opennmt_parts as parts
from dragoman.formats.importing.toolkits.checkpoint import EoleCheckpoint
from dragoman.formats.importing.toolkits.layers import MAX_TOKENS, document, norm, search_document
from dragoman.formats.importing.toolkits.numpy_transformer import Names, ToolkitDefinition
from dragoman.formats.importing.toolkits.opennmt_parts import OFF, STACKS, token_lists

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_tanh", "silu": "silu"}
_DEFAULTS: dict[str, Any] = {"heads": 8, "transformer_ff": 2048, "norm_eps": 1e-5, "mlp_activation_fn": "relu"}
"""Of eole 0.2 and later, for settings that are not stored."""
_SINUSOIDS = ("SinusoidalInterleaved",)
_MODEL: dict[str, tuple[Any, ...]] = {
    "architecture": ("transformer",), "generator_function": ("softmax",),
    **dict.fromkeys(("add_estimator", "huggingface_model", "left_pad"), OFF),
}  # fmt: skip
"""Setting of the model -> accepted values; an absent setting has an accepted default."""
_STACK: dict[str, tuple[Any, ...]] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,),
    "layer_norm": ("standard", "standardFP32"),
    "LM_type": ("causal",),
    "mlp_activation_fn": tuple(_ACTIVATIONS),
    "position_encoding_type": _SINUSOIDS,
    **dict.fromkeys(
        (
            "aan_useffn", "add_key_bias", "attn_scaling", "ffn_layernorm", "head_dim", "heads_kv", "key_norm",
            "layer_types", "num_experts", "num_mtp_heads", "parallel_residual", "q_gating", "qk_norm_post_rope",
            "query_norm", "relative_positions_buckets", "shared_layer_norm", "sliding_window", "value_norm",
        ),
        OFF,
    ),
}  # fmt: skip
"""Setting of a stack -> accepted values."""
_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",), "position_encoding_type": _SINUSOIDS,
    **dict.fromkeys(("embedding_layer_norm", "normalize"), OFF),
}  # fmt: skip
_TRAINING: dict[str, tuple[Any, ...]] = {
    "freeze_encoder": OFF, "freeze_decoder": OFF, "lora_embedding": OFF, "lora_layers": ([],), "quant_layers": ([],),
}  # fmt: skip
_SOURCE, _TARGET, _OUTPUT = "src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight"


def _part(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = settings.get(key)
    return found if isinstance(found, Mapping) else {}


def _stack(settings: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """Return the settings of a stack; those of the model have precedence, as in eole."""
    model = _part(settings, "model")
    shared = {key: model[key] for key in (*_STACK, *_DEFAULTS, "hidden_size", "layers") if model.get(key, -1) != -1}
    return _DEFAULTS | dict(_part(model, stack)) | shared


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    model = _part(settings, "model")
    problems = [f"model.{problem}" for problem in accepted_values(model, _MODEL)]
    if "architecture" not in model:
        problems.append("model.architecture is missing; accepted: 'transformer'")
    problems += [f"model.embeddings.{each}" for each in accepted_values(_part(model, "embeddings"), _EMBEDDINGS)]
    problems += [f"training.{problem}" for problem in accepted_values(_part(settings, "training"), _TRAINING)]
    stacks = [_stack(settings, stack) for stack in STACKS]
    for stack, own in zip(STACKS, stacks, strict=True):
        problems += [f"model.{stack}.{problem}" for problem in accepted_values(own, _STACK)]
        sizes = parts.size_problems(own, ("layers", "heads", "transformer_ff"), own.get("hidden_size"))
        problems += [f"model.{stack}.{problem}" for problem in sizes]
    for key in ("hidden_size", "heads", "transformer_ff", "mlp_activation_fn", "norm_eps"):
        sides = [own.get(key) for own in stacks]
        if sides[0] != sides[1]:
            problems.append(f"model.encoder.{key} = {sides[0]!r}, model.decoder.{key} = {sides[1]!r}; accepted: equal")
    text = {"transforms": settings.get("transforms")} | dict(
        _part(_part(settings, "transforms_configs"), "sentencepiece")
    )
    return problems + parts.text_problems(text)


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    assert isinstance(checkpoint, EoleCheckpoint)
    lists = token_lists(checkpoint.vocabulary)
    return parts.imported_vocabulary(
        checkpoint, lists, bool(_part(checkpoint.settings, "model").get("share_embeddings"))
    )


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    assert isinstance(checkpoint, EoleCheckpoint)
    settings, model = checkpoint.settings, _part(checkpoint.settings, "model")
    encoder, decoder = (_stack(settings, stack) for stack in STACKS)
    width, inner = encoder["hidden_size"], encoder["transformer_ff"]
    dropout = _part(settings, "training").get("dropout")
    content = document(vocabulary, (None, None)) | {
        "model": {
            "architecture": "transformer", "d_model": width, "d_ff": inner, "n_heads": encoder["heads"],
            "encoder_layers": encoder["layers"], "decoder_layers": decoder["layers"], "order": "pre",
            "tie": parts.tie_of(model), "output_bias": True, "norm": {"kind": "layer", "eps": encoder["norm_eps"]},
            "activation": _ACTIVATIONS[encoder["mlp_activation_fn"]],
            "dropout": dropout[0] if isinstance(dropout, list) and dropout else 0.1,
        },
        "search": search_document(_part(settings, "inference"), "beam_size", "alpha"),
    }  # fmt: skip
    return Plan(
        config=parse_config(content, where=str(checkpoint.folder), stored=True),
        vocabulary=vocabulary,
        table=_table(parts.tie_of(model), (encoder["layers"], decoder["layers"])),
        orders=parts.orders(vocabulary, token_lists(checkpoint.vocabulary), width, inner),
        constants={},
        unused=r"(src|tgt)_emb\.pe\.pe|decoder\.transformer_layers\.\d+\.layer_scalar",
        positions=MAX_TOKENS,
    )


def _table(tie: str, layers: tuple[int, int]) -> dict[str, Rule]:
    rules = parts.embedding_rules(tie, _SOURCE, _TARGET, _OUTPUT)
    for stack, count in zip(STACKS, layers, strict=True):
        rules |= expanded(_layer(stack), count) | norm(f"{stack}.final_norm", f"{stack}.layer_norm")
    rules["output.bias"] = Rule(("generator.bias",), ("target",), optional=True)
    return rules


def _layer(stack: str) -> dict[str, Rule]:
    ours, theirs = f"{stack}.layers.{{}}", f"{stack}.transformer_layers.{{}}"
    rules = {
        **parts.attention(f"{ours}.self_attn", f"{theirs}.self_attn"),
        **norm(f"{ours}.around_self_attn.norm", f"{theirs}.input_layernorm"),
        **parts.linear(f"{ours}.ffn.inner", "inner", f"{theirs}.mlp.gate_up_proj"),
        **parts.linear(f"{ours}.ffn.outer", "width", f"{theirs}.mlp.down_proj"),
        **norm(f"{ours}.around_ffn.norm", f"{theirs}.post_attention_layernorm"),
    }
    if stack == "decoder":
        rules |= parts.attention(f"{ours}.cross_attn", f"{theirs}.context_attn")
        rules |= norm(f"{ours}.around_cross_attn.norm", f"{theirs}.precontext_layernorm")
    return rules


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    assert isinstance(checkpoint, EoleCheckpoint)
    lists = token_lists(checkpoint.vocabulary)
    return parts.compare_lists(checkpoint, definition(checkpoint), "eole", lists, (folder, plan, check))


def _parts(stack: str) -> dict[str, str]:
    layer = f"{stack}.transformer_layers.{{}}"
    kinds = {"self": "self_attn", "cross": "context_attn"}
    matrices = {"q": "linear_query", "k": "linear_keys", "v": "linear_values", "o": "final_linear"}
    found = {f"{kind} {x}": f"{layer}.{name}.{m}" for kind, name in kinds.items() for x, m in matrices.items()}
    found |= {"in": f"{layer}.mlp.gate_up_proj", "out": f"{layer}.mlp.down_proj"}
    norms = {"self norm": "input", "cross norm": "precontext", "norm": "post_attention"}
    return found | {part: f"{layer}.{name}_layernorm" for part, name in norms.items()}


def definition(checkpoint: EoleCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> ToolkitDefinition:
    """Return the model of a checkpoint in NumPy."""
    encoder, decoder = (_stack(checkpoint.settings, stack) for stack in STACKS)
    tensors = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
    names = ("src_emb.embeddings", "tgt_emb.embeddings", "generator")
    for name, tied in zip(names[1:], names[:-1], strict=True):  # a tied matrix is stored once
        if f"{name}.weight" not in tensors:
            tensors[f"{name}.weight"] = tensors[f"{tied}.weight"]
    others = dict(zip(("source", "target", "output"), names, strict=True))
    others |= {f"{stack} norm": f"{stack}.layer_norm" for stack in STACKS}
    own = parts.sizes(
        encoder, (encoder["layers"], decoder["layers"]), encoder["hidden_size"],
        _ACTIVATIONS[encoder["mlp_activation_fn"]], token_lists(checkpoint.vocabulary)[1],
    )  # fmt: skip
    return ToolkitDefinition(Names({stack: _parts(stack) for stack in STACKS}, others), own, tensors, dtype)
