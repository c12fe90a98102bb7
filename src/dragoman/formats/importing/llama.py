"""Llama (Touvron et al. 2023), in the layout of Hugging Face.

Differences from our language model, and where each is resolved:

- Rotary positions: `transformers` pairs feature k of a head with k + Dk/2, ours are neighbours.  The rows of the
  matrices of queries and keys are reordered along the axis "qkv".
- No padding token: `language_models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.config import parse_config
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_language_models as compare
from dragoman.formats.importing.family import ACTIVATIONS, ImportedVocabulary, Plan, accepted_values
from dragoman.formats.importing.language_models import (
    OUTPUT_BIAS,
    document,
    number_problems,
    read_vocabulary,
    vocabulary_orders,
)
from dragoman.formats.importing.names import Order, Rule, expanded

__all__ = ["compare", "plan", "read_vocabulary", "unsupported"]

_SIZES = {
    "hidden_size": 2, "intermediate_size": 1, "num_attention_heads": 1, "num_hidden_layers": 1,
    "num_key_value_heads": 1, "max_position_embeddings": 2, "vocab_size": 4, "bos_token_id": 0, "eos_token_id": 0,
    "head_dim": 2,
}  # fmt: skip
_BASE = 10_000.0


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, {"hidden_act": tuple(ACTIVATIONS)})
    problems += number_problems(settings, _SIZES, optional="num_key_value_heads head_dim")
    rope = _rope(settings)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        problems.append(f"rope_type = {kind!r} (rope_scaling, rope_parameters); accepted: 'default'")
    base = _base(settings)
    if type(base) not in (int, float) or not 1 < base <= 1e9:
        problems.append(f"rope_theta = {base!r}; accepted: a number above 1, at most 1e9")
    if rope.get("partial_rotary_factor", settings.get("partial_rotary_factor", 1.0)) != 1:
        problems.append("partial_rotary_factor; accepted: 1.0")
    biases = [bool(settings.get(key, False)) for key in ("attention_bias", "mlp_bias")]
    if biases[0] != biases[1]:
        problems.append(f"attention_bias = {biases[0]}, mlp_bias = {biases[1]}; accepted: the same for both")
    return problems or _size_problems(settings)


def _size_problems(settings: Mapping[str, Any]) -> list[str]:
    width, heads, groups = settings["hidden_size"], settings["num_attention_heads"], _groups(settings)
    if width % heads or (width // heads) % 2:
        return [f"hidden_size = {width}; accepted: an even multiple of num_attention_heads = {heads}"]
    problems = []
    if settings.get("head_dim") not in (None, width // heads):
        problems.append(
            f"head_dim = {settings['head_dim']}; accepted: hidden_size / num_attention_heads = {width // heads}"
        )
    if heads % groups:
        problems.append(f"num_key_value_heads = {groups}; accepted: a divisor of num_attention_heads = {heads}")
    return problems


def _groups(settings: Mapping[str, Any]) -> int:
    return int(settings.get("num_key_value_heads") or settings["num_attention_heads"])


def _rope(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions, which have two names, or none."""
    found = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    return found if isinstance(found, dict) else {"rope_type": found}


def _base(settings: Mapping[str, Any]) -> Any:
    return _rope(settings).get("rope_theta", settings.get("rope_theta", _BASE))


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    positions, heads = settings["max_position_embeddings"], settings["num_attention_heads"]
    bias = bool(settings.get("attention_bias", False))
    model = {
        "d_model": settings["hidden_size"], "d_ff": settings["intermediate_size"], "n_heads": heads,
        "n_kv_heads": None if _groups(settings) == heads else _groups(settings),
        "n_layers": settings["num_hidden_layers"], "norm": {"kind": "rms", "eps": settings.get("rms_norm_eps", 1e-6)},
        "position": {"kind": "rotary", "base": float(_base(settings))}, "gated": True, "bias": bias,
        "activation": ACTIVATIONS[settings.get("hidden_act", "silu")],
        "tie": "all" if settings.get("tie_word_embeddings", False) else "none", "dropout": 0.0,
        "attention_dropout": settings.get("attention_dropout") or 0.0,
    }  # fmt: skip
    config = parse_config(document(vocabulary, positions, model), where=str(checkpoint.folder), stored=True)
    rows = _qkv_rows(heads, _groups(settings), settings["hidden_size"] // heads)
    return Plan(
        config=config,
        vocabulary=vocabulary,
        table=_table(settings["num_hidden_layers"], tied=model["tie"] == "all", bias=bias),
        orders={**vocabulary_orders(vocabulary), "qkv": Order(rows, len(rows))},
        constants={},
        unused=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        positions=config.data.max_tokens,
    )


def _qkv_rows(heads: int, groups: int, size: int) -> list[int]:
    """Return the order of the rows of queries, keys and values: ours 2k and 2k + 1 are theirs k and k + size/2."""
    rows = np.arange((heads + 2 * groups) * size).reshape(-1, size)
    pairs = np.arange(size).reshape(2, -1).T.flatten()
    rows[: heads + groups] = rows[: heads + groups, pairs]
    order: list[int] = rows.flatten().tolist()
    return order


_MATRICES = {
    "layers.{}.self_attn.qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv"),
    "layers.{}.self_attn.out": (("self_attn.o_proj",), ""),
    "layers.{}.ffn.inner": (("mlp.gate_proj", "mlp.up_proj"), ""),
    "layers.{}.ffn.outer": (("mlp.down_proj",), ""),
}
_NORMS = {"around_self_attn": "input_layernorm", "around_ffn": "post_attention_layernorm"}


def _layer(bias: bool) -> dict[str, Rule]:
    rules = {
        f"layers.{{}}.{ours}.norm.weight": Rule((f"model.layers.{{}}.{theirs}.weight",), ("",))
        for ours, theirs in _NORMS.items()
    }
    for ours, (parts, axis) in _MATRICES.items():
        names = [f"model.layers.{{}}.{part}" for part in parts]
        rules[f"{ours}.weight"] = Rule(tuple(f"{name}.weight" for name in names), (axis, ""))
        if bias:
            rules[f"{ours}.bias"] = Rule(tuple(f"{name}.bias" for name in names), (axis,))
    return rules


def _table(layers: int, tied: bool, bias: bool) -> dict[str, Rule]:
    embedding, output = "model.embed_tokens.weight", "lm_head.weight"
    return {
        "embedding.weight": Rule((f"{embedding}|{output}" if tied else embedding,), ("token", "")),
        **expanded(_layer(bias), layers),
        "final_norm.weight": Rule(("model.norm.weight",), ("",)),
        **({} if tied else {"output.weight": Rule((output,), ("token", ""))}),
        **OUTPUT_BIAS,
    }
