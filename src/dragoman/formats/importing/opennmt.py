"""The Transformer of OpenNMT-py 3, and what it shares with that of eole.

Differences from our Transformer, and where each is resolved:

- Sources have no end of sentence: `data.frames`.
- Vocabularies are part of the checkpoint; special tokens are found by their names.
- Biases of attention and feed-forward networks are optional; missing ones are 0.
- The order is always pre-norm, embeddings are always scaled, and sinusoids are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dragoman.formats.importing.comparison import toolkit_comparison
from dragoman.formats.importing.encoder_decoder import MAX_TOKENS, text_sections, tie_of
from dragoman.formats.importing.family import (
    OFF,
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
    integer_problems,
    multiple_problems,
    part,
    unequal_problems,
)
from dragoman.formats.importing.listed_vocabulary import TokenList, toolkit_vocabulary
from dragoman.formats.importing.name_tables import STACKS, Naming, Rule, TransformerNames, layer_parts
from dragoman.formats.importing.numpy_reference import NumpyTransformer, Sizes, interleaved_sinusoids
from dragoman.formats.importing.toolkit_files import EoleCheckpoint, OpenNMTCheckpoint
from dragoman.tokenizers import BOS, EOS

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}
_EPS = 1e-6
"""Of checkpoints without `norm_eps`."""
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",), "model_type": ("text",), "encoder_type": ("transformer",),
    "decoder_type": ("transformer",), "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding": (True,), "position_encoding_type": ("SinusoidalInterleaved", None),
    "pos_ffn_activation_fn": tuple(_ACTIVATIONS), "layer_norm": ("standard",), "generator_function": ("softmax",),
    "lora_layers": ([],), "quant_layers": ([],),
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
SHARED = ("share_embeddings", "share_decoder_embeddings")
_SIDES = ("src", "tgt")
_SPECIAL = {"pad_token": "<blank>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_TRANSFORMS = (
    "sentencepiece", "filtertoolong", "clean", "switchout", "tokendrop", "tokenmask", "bart", "filterfeats",
)  # fmt: skip
"""Sentencepiece, and transforms that only training uses."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED)
    problems += [f"{key} is missing; accepted: {_ACCEPTED[key][0]!r}" for key in _REQUIRED if key not in settings]
    problems += unequal_problems([{key: settings.get(key) for key in ("enc_hid_size", "dec_hid_size")}])
    keys = ("enc_layers", "dec_layers", "heads", "transformer_ff")
    problems += size_problems(settings, keys, settings.get("enc_hid_size"))
    return problems + text_problems(settings)


def size_problems(settings: Mapping[str, Any], keys: Sequence[str], width: object) -> list[str]:
    """Return what is wrong with sizes.  width: of the embeddings; settings: with "heads" and "norm_eps"."""
    problems = integer_problems(settings, dict.fromkeys(keys, 1))
    eps = settings.get("norm_eps", 1e-6)
    if type(eps) is not float or not 0 < eps < 1:
        problems.append(f"norm_eps = {eps!r}; accepted: a number between 0 and 1")
    sizes = {"hidden_size": width, "heads": settings.get("heads")}
    problems += integer_problems(sizes, {"hidden_size": 1})
    return problems or multiple_problems(sizes, "hidden_size", "heads", even=True)


def text_problems(settings: Mapping[str, Any]) -> list[str]:
    """Return a problem for transforms that change the text in another way than sentencepiece does."""
    transforms, problems = settings.get("transforms"), []
    others = [name for name in transforms if name not in _TRANSFORMS] if isinstance(transforms, list) else []
    if others:
        accepted = ", ".join(map(repr, _TRANSFORMS))
        problems.append(f"transforms = {', '.join(map(repr, others))}; accepted: {accepted}")
    if any(settings.get(f"{side}_subword_vocab") and settings.get(f"{side}_vocab_threshold") for side in _SIDES):
        problems.append("subword_vocab with vocab_threshold; accepted: all pieces of sentencepiece")
    return problems


def read_vocabulary(checkpoint: OpenNMTCheckpoint | EoleCheckpoint) -> ImportedVocabulary:
    settings = part(checkpoint.settings, "model") if isinstance(checkpoint, EoleCheckpoint) else checkpoint.settings
    tied = "share_embeddings = True, but the vocabularies of source and target differ"
    return toolkit_vocabulary(checkpoint, token_lists(checkpoint), tied if settings.get("share_embeddings") else "")


def token_lists(checkpoint: OpenNMTCheckpoint | EoleCheckpoint) -> list[TokenList]:
    """Return the lists "src" and "tgt" of the vocabulary.  Raises ProblemList."""
    vocabulary = checkpoint.vocabulary
    special = vocabulary.get("specials")
    names = _SPECIAL | ({key: special[key] for key in _SPECIAL if key in special} if isinstance(special, dict) else {})
    start = vocabulary.get("decoder_start_token", names["bos_token"])
    lists, problems = [], []
    for side in _SIDES:
        tokens = vocabulary.get(side)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            problems.append(f"vocabulary, {side}: not a list of tokens; accepted: OpenNMT-py 3 and eole")
            continue
        if len(set(tokens)) < len(tokens):
            problems.append(f"vocabulary, {side}: the same token twice")
        own = names if side == "src" else names | {"bos_token": start}
        ids = pad, unk, bos, eos = tuple(tokens.index(name) if name in tokens else -1 for name in own.values())
        needed = ("unk_token",) if side == "src" else ("unk_token", "bos_token", "eos_token")
        missing = [f"{key} {own[key]!r}" for key, token in zip(own, ids, strict=True) if key in needed and token < 0]
        if missing:
            problems.append(f"vocabulary, {side}: no {', '.join(missing)}; accepted: lists with special tokens")
        if bos == eos != -1:
            problems.append(f"decoder_start_token = {start!r}; accepted: another token than the end of sentence")
        lists.append(TokenList(tokens, (pad, unk, bos, eos), f"the vocabulary {side}", ends=False))
    if problems:
        raise ProblemList(problems)
    return lists


def plan(checkpoint: OpenNMTCheckpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    model = {
        "d_model": settings["enc_hid_size"], "d_ff": settings["transformer_ff"], "n_heads": settings["heads"],
        "encoder_layers": settings["enc_layers"], "decoder_layers": settings["dec_layers"],
        "tie": tie_of(*(settings.get(key) for key in SHARED)),
        "norm": {"kind": "layer", "eps": settings.get("norm_eps", _EPS)},
        "activation": _ACTIVATIONS[settings.get("pos_ffn_activation_fn", "relu")],
    }  # fmt: skip
    unused = r"(encoder|decoder)\.embeddings\.make_embedding\.pe\.pe"
    search = {"beam": 5, "alpha": 1.0}
    return plan_of(checkpoint, vocabulary, model, settings.get("dropout"), search, _names(), unused)


def plan_of(
    checkpoint: OpenNMTCheckpoint | EoleCheckpoint, vocabulary: ImportedVocabulary, model: dict[str, Any],
    dropout: object, search: Mapping[str, Any], names: TransformerNames, unused: str,
) -> Plan:  # fmt: skip
    """model, search: keys of these sections.  dropout: a list with one rate per phase of training."""
    model |= {"architecture": "transformer", "order": "pre", "output_bias": True}
    model["dropout"] = dropout[0] if isinstance(dropout, list) and dropout else 0.1
    content = text_sections(vocabulary) | {"model": model, "search": search}
    table = names.rules((model["encoder_layers"], model["decoder_layers"]), model["tie"])
    return Plan(
        config=checkpoint.config(content), vocabulary=vocabulary,
        table=table | {"output.bias": Rule(("generator.bias",), ("target",), optional=True)},
        orders=vocabulary.orders(*(len(listed.tokens) for listed in token_lists(checkpoint))), positions=MAX_TOKENS,
        unused=unused,
    )  # fmt: skip


def opennmt_names(
    embeddings: Mapping[str, str], layers: Mapping[str, str], parts: Mapping[str, dict[str, str]]
) -> TransformerNames:
    """Return the names of a model.

    embeddings: as in `TransformerNames.others`.  layers: the beginning of all names of a layer in each stack.  parts:
    of a layer besides attention.
    """
    attentions = {"self_attn": "self_attn.", "cross_attn": "context_attn."}
    matrices = ("linear_query", "linear_keys", "linear_values", "final_linear")
    stacks = {stack: layer_parts(stack, layers[stack], attentions | parts[stack], matrices) for stack in STACKS}
    norms = {f"{stack}.final_norm": f"{stack}.layer_norm" for stack in STACKS}
    return TransformerNames(stacks, {**embeddings, **norms}, Naming(optional_bias=True))


def _names() -> TransformerNames:
    tables = [f"{stack}.embeddings.make_embedding.emb_luts.0.weight" for stack in STACKS]
    embeddings = {"encoder.embedding": tables[0], "decoder.embedding": tables[1], "output": "generator.weight"}
    ffn = {
        "ffn.inner": "feed_forward.w_1", "ffn.outer": "feed_forward.w_2", "around_ffn.norm": "feed_forward.layer_norm",
    }  # fmt: skip
    parts = {
        "encoder": ffn | {"around_self_attn.norm": "layer_norm"},
        "decoder": ffn | {"around_self_attn.norm": "layer_norm_1", "around_cross_attn.norm": "layer_norm_2"},
    }
    layers = {"encoder": "encoder.transformer.{}.", "decoder": "decoder.transformer_layers.{}."}
    return opennmt_names(embeddings, layers, parts)


def definition(checkpoint: OpenNMTCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> NumpyTransformer:
    settings = {"norm_eps": _EPS} | checkpoint.settings
    sizes = definition_sizes(
        settings, (settings["enc_layers"], settings["dec_layers"]), settings["enc_hid_size"],
        _ACTIVATIONS[settings.get("pos_ffn_activation_fn", "relu")], token_lists(checkpoint)[1],
    )  # fmt: skip
    tensors = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
    return NumpyTransformer(_names(), sizes, tensors, dtype)


def definition_sizes(
    settings: Mapping[str, Any], layers: tuple[int, int], width: int, activation: str, target: TokenList
) -> Sizes:
    """settings: with "heads" and "norm_eps"."""
    return Sizes(
        heads=settings["heads"], layers=layers, is_pre=True, activation=activation, eps=settings["norm_eps"],
        scale=width**0.5, begin=target.special[BOS], end=target.special[EOS], output_bias="generator.bias",
        positions=lambda stack, first, count: interleaved_sinusoids(first, count, width),
    )  # fmt: skip


compare = toolkit_comparison("OpenNMT-py", definition, token_lists)
