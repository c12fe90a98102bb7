"""BART, mBART, M2M-100 and NLLB in the layout of Hugging Face.

Differences from our Transformer, and where each is resolved:

- Positions have an offset of two rows, which no token uses; the import drops them.  BART and mBART learn them.  The
  sinusoids of M2M-100 have other frequencies than those of Vaswani et al. and are not saved: they are computed and
  stored as a learned table (`Plan.computed`).
- The decoder starts with the end of sentence, of which our BOS is a copy with the logit NEVER, or with the target
  language (mBART-25), which becomes our BOS.
- Languages, and the begin of BART, are tokens around the text: `data.frames`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dragoman.config import parse_config
from dragoman.formats.importing.bart_vocabulary import read_vocabulary as read_vocabulary
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_translators
from dragoman.formats.importing.encoder_decoder import (
    encoder_decoder_table,
    model_document,
    norm_rules,
    search_document,
    size_problems,
)
from dragoman.formats.importing.family import ACTIVATIONS, ImportedVocabulary, Plan, accepted_values
from dragoman.formats.importing.names import AxisOrder, Rule
from dragoman.tokenizers import BOS, EOS, Tokenizer

compare = compare_translators

_OFFSET = 2
"""Rows before that of the first position; the ids of `<s>` and `<pad>` in fairseq."""
_COMMON: dict[str, tuple[Any, ...]] = {
    "activation_function": tuple(ACTIVATIONS), "add_bias_logits": (False,), "pad_token_id": (1,),
    "static_position_embeddings": (False,), "extra_pos_embeddings": (_OFFSET,),
}  # fmt: skip
_POST = {"normalize_before": (False,), "add_final_layer_norm": (False,), "normalize_embedding": (True,)}
_PRE = {"normalize_before": (True,), "add_final_layer_norm": (True,), "normalize_embedding": (True,)}
_ACCEPTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "bart": _COMMON | _POST,
    "mbart": _COMMON | _PRE | {"eos_token_id": (2,)},
    "m2m_100": _COMMON
    | _PRE
    | {"eos_token_id": (2,), "normalize_embedding": (False,), "static_position_embeddings": (True,)},
}
"""Setting -> accepted values; an absent setting has an accepted default."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "scale_embedding": {"m2m_100": True},
    "activation_function": {"m2m_100": "relu"},
}


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    settings = _complete(settings)
    problems = [*accepted_values(settings, _ACCEPTED[settings["model_type"]]), *size_problems(settings, even=False)]
    if not problems and settings["model_type"] == "m2m_100" and settings["d_model"] < 4:
        problems.append(f"d_model = {settings['d_model']}; accepted: at least 4")
    return problems


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = _complete(checkpoint.settings)
    config = parse_config(_document(checkpoint, vocabulary), where=str(checkpoint.folder), stored=True)  # checks limits
    size, positions, d_model = settings["vocab_size"], settings["max_position_embeddings"], config.model.d_model
    table = encoder_decoder_table(settings, _tie(settings))
    table |= {name: rule for stack in ("encoder", "decoder") for name, rule in _around(stack, settings).items()}
    logits = list(vocabulary.target)
    if logits[BOS] == logits[EOS]:
        logits[BOS] = -1
    computed = {}
    if settings["model_type"] == "m2m_100":
        sinusoids = fairseq_sinusoids(positions, d_model)
        computed = {f"{stack}.positions.table": sinusoids.clone() for stack in ("encoder", "decoder")}
    return Plan(
        config=config,
        vocabulary=vocabulary,
        table={name: _without_prefix(rule) for name, rule in table.items()},
        orders={
            "stream": AxisOrder(range(d_model), d_model),
            "source": AxisOrder(vocabulary.source, size),
            "target": AxisOrder(vocabulary.target, size),
            "logits": AxisOrder(logits, size),
            "positions": AxisOrder(range(_OFFSET, positions + _OFFSET), positions + _OFFSET),
        },
        constants={},
        unused=r"(model\.)?(encoder|decoder)\.(version|embed_positions\.(weights|_float_tensor))"
        + ("" if _tie(settings) == "all" else r"|(model\.)?shared\.weight"),
        positions=positions,
        computed=computed,
    )


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the defaults of a family that differ from those of BART."""
    name = settings["model_type"]
    return {key: values[name] for key, values in _DEFAULTS.items() if name in values} | dict(settings)


def _tie(settings: Mapping[str, Any]) -> str:
    return "all" if settings.get("tie_word_embeddings", True) else "none"


def _around(stack: str, settings: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rules of a stack besides its layers."""
    rules, theirs = {}, f"model.{stack}"
    if settings["model_type"] != "m2m_100":
        rules[f"{stack}.positions.table"] = Rule((f"{theirs}.embed_positions.weight",), ("positions", "stream"))
        rules |= norm_rules(f"{stack}.embedding_norm", f"{theirs}.layernorm_embedding")
    if settings["model_type"] != "bart":
        rules |= norm_rules(f"{stack}.final_norm", f"{theirs}.layer_norm")
    return rules


def _without_prefix(rule: Rule) -> Rule:
    """Accept names without "model.", as checkpoints of the model without its output layer have."""
    names = tuple(
        "|".join([*part.split("|"), *(n[6:] for n in part.split("|") if n.startswith("model."))])
        for part in rule.theirs
    )
    return replace(rule, theirs=names)


def fairseq_sinusoids(positions: int, d_model: int) -> Tensor:
    """Return their table (positions, D): sines, then cosines, with the wavelengths of tensor2tensor, in float32."""
    half = d_model // 2
    frequencies = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(_OFFSET, positions + _OFFSET).float()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos(), torch.zeros(positions, d_model % 2)], dim=1)


def _document(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> dict[str, Any]:
    settings, tokenizer = _complete(checkpoint.settings), vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    sides = zip(("source_language", "target_language"), tokenizer.default_languages, strict=True)
    positions = settings["max_position_embeddings"]
    extra = min(50, positions // 4)  # a target has at most max_tokens + max_extra tokens, and its begin and language
    return {
        "data": {
            "kind": "parallel", "train": [], "filter": {"max_tokens": max(2, positions - extra - 2)},
            **{key: code for key, code in sides if code},
        },
        "tokenizer": {
            "kind": "unigram", "vocab_size": tokenizer.source_size, "shared": True, "byte_fallback": False,
        },
        "model": {
            **model_document(settings, _tie(settings)),
            "order": "post" if settings["model_type"] == "bart" else "pre",
            "position": {"kind": "learned", "max_len": positions},
            "normalize_embeddings": settings["model_type"] != "m2m_100",
        },
        "search": {**search_document(checkpoint.generation), "max_extra": extra},
    }  # fmt: skip
