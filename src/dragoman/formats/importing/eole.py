"""The Transformer of eole.

Differences from our Transformer, and where each is resolved:

- Settings of the model hold for both stacks, unless a stack has its own.
- Sources have no end of sentence: `data.frames`.
- Biases of attention and feed-forward networks are optional; missing ones are 0.
- The order is always pre-norm, embeddings are always scaled, and sinusoids are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.formats.importing.comparison import toolkit_comparison
from dragoman.formats.importing.encoder_decoder import search_section, tie_of
from dragoman.formats.importing.family import OFF, ImportedVocabulary, Plan, accepted_values, part, unequal_problems
from dragoman.formats.importing.name_tables import STACKS, TransformerNames
from dragoman.formats.importing.numpy_reference import NumpyTransformer
from dragoman.formats.importing.opennmt import (
    SHARED,
    definition_sizes,
    opennmt_names,
    plan_of,
    size_problems,
    text_problems,
    token_lists,
)
from dragoman.formats.importing.opennmt import read_vocabulary as read_vocabulary
from dragoman.formats.importing.toolkit_files import EoleCheckpoint

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
    "encoder_type": ("transformer",), "decoder_type": ("transformer",), "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,), "layer_norm": ("standard", "standardFP32"), "LM_type": ("causal",),
    "mlp_activation_fn": tuple(_ACTIVATIONS), "position_encoding_type": _SINUSOIDS,
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


def _stack(settings: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """Return the settings of a stack; those of the model have precedence, as in eole."""
    model = part(settings, "model")
    shared = {key: model[key] for key in (*_STACK, *_DEFAULTS, "hidden_size", "layers") if model.get(key, -1) != -1}
    return _DEFAULTS | dict(part(model, stack)) | shared


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    model = part(settings, "model")
    problems = [f"model.{problem}" for problem in accepted_values(model, _MODEL)]
    if "architecture" not in model:
        problems.append("model.architecture is missing; accepted: 'transformer'")
    problems += [f"model.embeddings.{each}" for each in accepted_values(part(model, "embeddings"), _EMBEDDINGS)]
    problems += [f"training.{problem}" for problem in accepted_values(part(settings, "training"), _TRAINING)]
    stacks = [_stack(settings, stack) for stack in STACKS]
    for stack, own in zip(STACKS, stacks, strict=True):
        problems += [f"model.{stack}.{problem}" for problem in accepted_values(own, _STACK)]
        sizes = size_problems(own, ("layers", "heads", "transformer_ff"), own.get("hidden_size"))
        problems += [f"model.{stack}.{problem}" for problem in sizes]
    problems += unequal_problems(
        {f"model.{stack}.{key}": own.get(key) for stack, own in zip(STACKS, stacks, strict=True)}
        for key in ("hidden_size", "heads", "transformer_ff", "mlp_activation_fn", "norm_eps")
    )
    sentencepiece = part(part(settings, "transforms_configs"), "sentencepiece")
    text = {"transforms": settings.get("transforms"), **sentencepiece}
    return problems + text_problems(text)


def plan(checkpoint: EoleCheckpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings, model = checkpoint.settings, part(checkpoint.settings, "model")
    encoder, decoder = (_stack(settings, stack) for stack in STACKS)
    section = {
        "d_model": encoder["hidden_size"], "d_ff": encoder["transformer_ff"], "n_heads": encoder["heads"],
        "encoder_layers": encoder["layers"], "decoder_layers": decoder["layers"],
        "tie": tie_of(*(model.get(key) for key in SHARED)), "norm": {"kind": "layer", "eps": encoder["norm_eps"]},
        "activation": _ACTIVATIONS[encoder["mlp_activation_fn"]],
    }  # fmt: skip
    search = search_section(part(settings, "inference"), "beam_size", "alpha")
    unused = r"(src|tgt)_emb\.pe\.pe|decoder\.transformer_layers\.\d+\.layer_scalar"
    return plan_of(checkpoint, vocabulary, section, part(settings, "training").get("dropout"), search, _names(), unused)


def _names() -> TransformerNames:
    embeddings = {
        "encoder.embedding": "src_emb.embeddings.weight", "decoder.embedding": "tgt_emb.embeddings.weight",
        "output": "generator.weight",
    }  # fmt: skip
    parts = {
        "around_self_attn.norm": "input_layernorm", "around_cross_attn.norm": "precontext_layernorm",
        "ffn.inner": "mlp.gate_up_proj", "ffn.outer": "mlp.down_proj", "around_ffn.norm": "post_attention_layernorm",
    }  # fmt: skip
    layers = {stack: f"{stack}.transformer_layers.{{}}." for stack in STACKS}
    return opennmt_names(embeddings, layers, dict.fromkeys(STACKS, parts))


def definition(checkpoint: EoleCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> NumpyTransformer:
    encoder, decoder = (_stack(checkpoint.settings, stack) for stack in STACKS)
    tensors = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
    names = ("src_emb.embeddings.weight", "tgt_emb.embeddings.weight", "generator.weight")
    for name, tied in zip(names[1:], names[:-1], strict=True):  # a tied matrix is stored once
        tensors.setdefault(name, tensors[tied])
    sizes = definition_sizes(
        encoder, (encoder["layers"], decoder["layers"]), encoder["hidden_size"],
        _ACTIVATIONS[encoder["mlp_activation_fn"]], token_lists(checkpoint)[1],
    )  # fmt: skip
    return NumpyTransformer(_names(), sizes, tensors, dtype)


compare = toolkit_comparison("eole", definition, token_lists)
