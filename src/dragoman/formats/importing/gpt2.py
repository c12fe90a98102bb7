"""GPT-2 (Radford et al. 2019), in the layout of Hugging Face.

Differences from our language model, and where each is resolved:

- Matrices are (in, out): `Rule.transposed`.  Queries, keys and values are one matrix, as ours.
- One special token is begin and end: `language_models`.
- Names may lack the prefix `transformer.`, and files may hold the causal masks as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_language_models
from dragoman.formats.importing.family import ACTIVATIONS, ImportedVocabulary, Plan, accepted_values, multiple_problems
from dragoman.formats.importing.language_models import OUTPUT_BIAS, document, number_problems, vocabulary_orders
from dragoman.formats.importing.language_models import read_vocabulary as read_vocabulary
from dragoman.formats.importing.name_tables import Naming, Rule, expanded, part_rules

compare = compare_language_models

_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "activation_function": tuple(ACTIVATIONS), "add_cross_attention": (False,),
    "scale_attn_by_inverse_layer_idx": (False,), "scale_attn_weights": (True,),
}  # fmt: skip
_SIZES = {
    "n_embd": 1, "n_head": 1, "n_inner": 1, "n_layer": 1, "n_positions": 2, "vocab_size": 4, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = [*accepted_values(settings, _ACCEPTED), *number_problems(settings, _SIZES, ("n_inner",))]
    return problems or multiple_problems(settings, "n_embd", "n_head")


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    positions = settings["n_positions"]
    dropout = {"dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"}
    model = {
        "d_model": settings["n_embd"], "d_ff": settings.get("n_inner") or 4 * settings["n_embd"],
        "n_heads": settings["n_head"], "n_layers": settings["n_layer"],
        "norm": {"kind": "layer", "eps": settings.get("layer_norm_epsilon", 1e-5)},
        "position": {"kind": "learned", "max_len": positions},
        "activation": ACTIVATIONS[settings.get("activation_function", "gelu_new")],
        "tie": "all" if settings.get("tie_word_embeddings", True) else "none",
        **{ours: settings.get(theirs, 0.1) for ours, theirs in dropout.items()},
    }  # fmt: skip
    config = checkpoint.config(document(vocabulary, positions, model))
    return Plan(
        config=config, vocabulary=vocabulary, table=name_table(settings["n_layer"], tied=model["tie"] == "all"),
        orders=vocabulary_orders(vocabulary), unused=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
        positions=positions,
    )  # fmt: skip


_NAMING = Naming(
    weight="transformer.{0}.weight|{0}.weight".format, bias="transformer.{0}.bias|{0}.bias".format,
    gain="transformer.{0}.weight|{0}.weight".format, shift="transformer.{0}.bias|{0}.bias".format, transposed=True,
)  # fmt: skip
_LAYER = {
    "around_self_attn.norm": ("h.{}.ln_1",), "self_attn.qkv": ("h.{}.attn.c_attn",),
    "self_attn.out": ("h.{}.attn.c_proj",), "around_ffn.norm": ("h.{}.ln_2",), "ffn.inner": ("h.{}.mlp.c_fc",),
    "ffn.outer": ("h.{}.mlp.c_proj",),
}  # fmt: skip


def name_table(layers: int, tied: bool) -> dict[str, Rule]:
    """Return the rules of a model.  tied: whether the output layer is the embedding."""
    embedding, output = _NAMING.weight("wte"), "lm_head.weight"
    return {
        "embedding.weight": Rule((f"{embedding}|{output}" if tied else embedding,), ("token", "")),
        "positions.table": Rule((_NAMING.weight("wpe"),), ("", "")),
        **expanded(part_rules("layers.{}.", _LAYER, _NAMING), layers),
        **part_rules("", {"final_norm": ("ln_f",)}, _NAMING),
        **({} if tied else {"output.weight": Rule((output,), ("token", ""))}),
        **OUTPUT_BIAS,
    }
