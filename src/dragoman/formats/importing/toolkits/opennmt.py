"""The Transformer of OpenNMT-py 3.

Differences from our Transformer, and where each is resolved:

- Sources have no end of sentence: `data.frames`.
- Vocabularies are part of the checkpoint; special tokens are found by their names.
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
from dragoman.formats.importing.toolkits.checkpoint import OpenNMTCheckpoint
from dragoman.formats.importing.toolkits.layers import MAX_TOKENS, document, norm
from dragoman.formats.importing.toolkits.numpy_transformer import Names, ToolkitDefinition
from dragoman.formats.importing.toolkits.opennmt_parts import OFF, STACKS, token_lists

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}
_EPS = 1e-6
"""Of checkpoints without `norm_eps`."""
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding": (True,),
    "position_encoding_type": ("SinusoidalInterleaved", None),
    "pos_ffn_activation_fn": tuple(_ACTIVATIONS),
    "layer_norm": ("standard",),
    "generator_function": ("softmax",),
    "lora_layers": ([],),
    "quant_layers": ([],),
    **dict.fromkeys(
        (
            "aan_useffn", "copy_attn", "lora_embedding", "max_relative_positions", "multiquery", "n_src_feats",
            "num_experts", "num_kv", "parallel_residual", "relative_positions_buckets", "shared_layer_norm",
            "sliding_window", "src_prefix", "src_suffix", "tgt_prefix", "tgt_suffix",
        ),
        OFF,
    ),
}  # fmt: skip
"""Setting -> accepted values; an absent setting has an accepted default."""
_REQUIRED = ("encoder_type", "decoder_type", "position_encoding")
_SOURCE, _TARGET = (f"{stack}.embeddings.make_embedding.emb_luts.0.weight" for stack in STACKS)
_OUTPUT = "generator.weight"


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED)
    problems += [f"{key} is missing; accepted: {_ACCEPTED[key][0]!r}" for key in _REQUIRED if key not in settings]
    widths = [settings.get(f"{stack}_hid_size") for stack in ("enc", "dec")]
    if widths[0] != widths[1]:
        problems.append(f"enc_hid_size = {widths[0]!r}, dec_hid_size = {widths[1]!r}; accepted: equal")
    problems += parts.size_problems(settings, ("enc_layers", "dec_layers", "heads", "transformer_ff"), widths[0])
    return problems + parts.text_problems(settings)


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    assert isinstance(checkpoint, OpenNMTCheckpoint)
    lists = token_lists(checkpoint.vocabulary)
    return parts.imported_vocabulary(checkpoint, lists, bool(checkpoint.settings.get("share_embeddings")))


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    assert isinstance(checkpoint, OpenNMTCheckpoint)
    settings = checkpoint.settings
    width, inner, dropout = settings["enc_hid_size"], settings["transformer_ff"], settings.get("dropout")
    content = document(vocabulary, (None, None)) | {
        "model": {
            "architecture": "transformer", "d_model": width, "d_ff": inner, "n_heads": settings["heads"],
            "encoder_layers": settings["enc_layers"], "decoder_layers": settings["dec_layers"], "order": "pre",
            "tie": parts.tie_of(settings), "output_bias": True,
            "norm": {"kind": "layer", "eps": settings.get("norm_eps", _EPS)},
            "activation": _ACTIVATIONS[settings.get("pos_ffn_activation_fn", "relu")],
            "dropout": dropout[0] if isinstance(dropout, list) and dropout else 0.1,
        },
        "search": {"beam": 5, "alpha": 1.0},
    }  # fmt: skip
    return Plan(
        config=parse_config(content, where=str(checkpoint.folder), stored=True),
        vocabulary=vocabulary,
        table=_table(settings),
        orders=parts.orders(vocabulary, token_lists(checkpoint.vocabulary), width, inner),
        constants={},
        unused=r"(encoder|decoder)\.embeddings\.make_embedding\.pe\.pe",
        positions=MAX_TOKENS,
    )


def _table(settings: Mapping[str, Any]) -> dict[str, Rule]:
    rules = parts.embedding_rules(parts.tie_of(settings), _SOURCE, _TARGET, _OUTPUT)
    for stack in STACKS:
        rules |= expanded(_layer(stack), settings[f"{stack[:3]}_layers"])
        rules |= norm(f"{stack}.final_norm", f"{stack}.layer_norm")
    rules["output.bias"] = Rule(("generator.bias",), ("target",), optional=True)
    return rules


def _prefix(stack: str) -> str:
    return "encoder.transformer.{}" if stack == "encoder" else "decoder.transformer_layers.{}"


def _layer(stack: str) -> dict[str, Rule]:
    ours, theirs = f"{stack}.layers.{{}}", _prefix(stack)
    first = "layer_norm" if stack == "encoder" else "layer_norm_1"
    rules = {
        **parts.attention(f"{ours}.self_attn", f"{theirs}.self_attn"),
        **norm(f"{ours}.around_self_attn.norm", f"{theirs}.{first}"),
        **parts.linear(f"{ours}.ffn.inner", "inner", f"{theirs}.feed_forward.w_1"),
        **parts.linear(f"{ours}.ffn.outer", "width", f"{theirs}.feed_forward.w_2"),
        **norm(f"{ours}.around_ffn.norm", f"{theirs}.feed_forward.layer_norm"),
    }
    if stack == "decoder":
        rules |= parts.attention(f"{ours}.cross_attn", f"{theirs}.context_attn")
        rules |= norm(f"{ours}.around_cross_attn.norm", f"{theirs}.layer_norm_2")
    return rules


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    assert isinstance(checkpoint, OpenNMTCheckpoint)
    lists = token_lists(checkpoint.vocabulary)
    return parts.compare_lists(checkpoint, definition(checkpoint), "OpenNMT-py", lists, (folder, plan, check))


def _parts(stack: str) -> dict[str, str]:
    layer = _prefix(stack)
    kinds = {"self": "self_attn", "cross": "context_attn"}
    matrices = {"q": "linear_query", "k": "linear_keys", "v": "linear_values", "o": "final_linear"}
    found = {f"{kind} {x}": f"{layer}.{name}.{m}" for kind, name in kinds.items() for x, m in matrices.items()}
    found |= {"in": f"{layer}.feed_forward.w_1", "out": f"{layer}.feed_forward.w_2"}
    found |= {"norm": f"{layer}.feed_forward.layer_norm", "cross norm": f"{layer}.layer_norm_2"}
    return found | {"self norm": f"{layer}.layer_norm" if stack == "encoder" else f"{layer}.layer_norm_1"}


def definition(checkpoint: OpenNMTCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> ToolkitDefinition:
    """Return the model of a checkpoint in NumPy."""
    settings = {"norm_eps": _EPS} | checkpoint.settings
    others = {
        "source": _SOURCE.removesuffix(".weight"), "target": _TARGET.removesuffix(".weight"), "output": "generator",
        **{f"{stack} norm": f"{stack}.layer_norm" for stack in STACKS},
    }  # fmt: skip
    own = parts.sizes(
        settings, (settings["enc_layers"], settings["dec_layers"]), settings["enc_hid_size"],
        _ACTIVATIONS[settings.get("pos_ffn_activation_fn", "relu")], token_lists(checkpoint.vocabulary)[1],
    )  # fmt: skip
    tensors = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
    return ToolkitDefinition(Names({stack: _parts(stack) for stack in STACKS}, others), own, tensors, dtype)
