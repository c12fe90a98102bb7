"""The Transformer of fairseq.

Differences from our Transformer, and where each is resolved:

- Names of layers are those of BART in `transformers`; settings are options of the command line, beside the weights.
- Positions have an offset of two rows.  Sinusoids have the sines first and are not stored: they become a learned table.
- The decoder starts with the end of sentence, of which our BOS is a copy with the logit NEVER.
- Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then the tokens of the dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.formats.importing.bart import fairseq_sinusoids
from dragoman.formats.importing.comparison import toolkit_comparison
from dragoman.formats.importing.encoder_decoder import MAX_TOKENS, stack_parts, text_sections
from dragoman.formats.importing.family import (
    NEVER,
    OFF,
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
    integer_problems,
    multiple_problems,
    unequal_problems,
)
from dragoman.formats.importing.listed_vocabulary import TokenList, toolkit_vocabulary
from dragoman.formats.importing.name_tables import STACKS, AxisOrder, Rule, TransformerNames
from dragoman.formats.importing.numpy_reference import NumpyTransformer, Sizes, halved_sinusoids
from dragoman.formats.importing.toolkit_files import FairseqCheckpoint
from dragoman.tokenizers import BOS, EOS

_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "silu",
}  # fmt: skip
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "activation_fn": tuple(_ACTIVATIONS),
    "bpe": (None, "sentencepiece"),
    "tokenizer": (None, "space"),
    **dict.fromkeys(
        (
            "adaptive_input", "adaptive_softmax_cutoff", "base_layers", "char_inputs", "cross_self_attention",
            "no_cross_attention", "no_decoder_final_norm", "no_token_positional_embeddings", "quant_noise_pq",
            "decoder_xformers_att_config", "encoder_xformers_att_config", "left_pad_target",
        ),
        OFF,
    ),
}  # fmt: skip
"""Setting -> accepted values; an absent setting has an accepted default."""
_SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
_EPS = 1e-5
_VERSION = 3
"""Layout of a stack, stored as a tensor; before it, pre-norm had no norm after the last layer."""
_OFFSET = 2
"""Rows before that of the first position."""
_FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
_SPECIAL = (1, 3, 2, 2)
"""Ids of PAD, UNK, BOS, which is EOS, and EOS."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED)
    name = settings.get("arch") or settings.get("_name")
    if not isinstance(name, str) or not re.fullmatch(r"transformer(_(iwslt|wmt|vaswani|tiny|t2t)\w*)?", name):
        problems.append(f"arch = {name!r}; accepted: 'transformer', and its sizes such as 'transformer_iwslt_de_en'")
    sizes = [f"{stack}_{key}" for stack in STACKS for key in _SIZES]
    least = dict.fromkeys((*sizes, "max_source_positions", "max_target_positions"), 1)
    problems += integer_problems(settings, least | {"encoder_embed_dim": 4})
    problems += unequal_problems(
        {f"{stack}_{key}": settings.get(f"{stack}_{key}", False) for stack in STACKS}
        for key in ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
    )
    width: Any = settings.get("encoder_embed_dim")
    for key in ("decoder_input_dim", "decoder_output_dim"):
        if settings.get(key, width) not in (width, None):
            problems.append(f"{key} = {settings[key]!r}; accepted: that of the decoder, {width}")
    return problems or multiple_problems(settings, "encoder_embed_dim", "encoder_attention_heads")


def read_vocabulary(checkpoint: FairseqCheckpoint) -> ImportedVocabulary:
    lists = token_lists(checkpoint)
    tied = f"share_all_embeddings = True, but {lists[0].name} and {lists[1].name} differ"
    return toolkit_vocabulary(checkpoint, lists, tied if checkpoint.settings.get("share_all_embeddings") else "")


def token_lists(checkpoint: FairseqCheckpoint) -> list[TokenList]:
    """Return the dictionaries of source and target.  Raises ProblemList."""
    lists, problems = [], []
    for path in _dictionaries(checkpoint):
        try:
            text = checkpoint.text(path.name)
        except UsageError as error:
            problems.append(str(error))
            continue
        tokens = list(_FIRST)
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            token, space, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
            if not space or not count.isdecimal():
                problems.append(f"{path.name}, line {number}: {line[:40]!r}; accepted: a token and its count")
                break
            tokens.append(token)
        if len(set(tokens)) < len(tokens):
            problems.append(f"{path.name}: the same token twice, or a special token")
        lists.append(TokenList(tokens, _SPECIAL, path.name))
    if problems:
        raise ProblemList(list(dict.fromkeys(problems)))
    return lists


def _dictionaries(checkpoint: FairseqCheckpoint) -> tuple[Path, Path]:
    folder, settings = checkpoint.folder, checkpoint.settings
    codes = [settings.get(f"{side}_lang") for side in ("source", "target")]
    if all(isinstance(code, str) and re.fullmatch(r"[\w.-]+", code) for code in codes):
        return folder / f"dict.{codes[0]}.txt", folder / f"dict.{codes[1]}.txt"
    files = sorted(folder.glob("dict*.txt"))
    if len(files) == 1:
        return files[0], files[0]
    raise ProblemList(
        [f"source_lang, target_lang = {codes}: the dictionaries are not known; accepted: two codes, dict.CODE.txt"]
    )


def plan(checkpoint: FairseqCheckpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    _check_versions(checkpoint)
    limits = [settings[f"max_{side}_positions"] for side in ("source", "target")]
    positions = min(limits)
    extra = min(50, positions // 4)  # a target has at most max_tokens + max_extra tokens, and its begin and end
    languages = settings.get("source_lang"), settings.get("target_lang")
    model: dict[str, Any] = {
        "architecture": "transformer", "d_model": settings["encoder_embed_dim"],
        "d_ff": settings["encoder_ffn_embed_dim"], "n_heads": settings["encoder_attention_heads"],
        "encoder_layers": settings["encoder_layers"], "decoder_layers": settings["decoder_layers"],
        "tie": _tie(settings), "order": "pre" if settings.get("encoder_normalize_before") else "post",
        "output_bias": True, "activation": _ACTIVATIONS[settings.get("activation_fn", "relu")],
        "norm": {"kind": "layer", "eps": _EPS}, "scale_embeddings": not settings.get("no_scale_embedding", False),
        "normalize_embeddings": bool(settings.get("layernorm_embedding", False)),
        "position": {"kind": "learned", "max_len": positions},
        **{key: settings[key] for key in ("dropout", "attention_dropout", "activation_dropout") if key in settings},
    }  # fmt: skip
    content = text_sections(vocabulary, max(2, min(MAX_TOKENS, positions - extra - 2)), languages) | {
        "model": model,
        "search": {"beam": 5, "alpha": 1.0, "max_extra": extra},
    }
    counts = settings["encoder_layers"], settings["decoder_layers"]
    table, orders = _names(settings).rules(counts, _tie(settings)), vocabulary.orders()
    computed: dict[str, Tensor] = {}
    table["output.bias"] = Rule(("decoder.output_projection.bias",), ("logits",), added=NEVER, optional=True)
    for stack, limit in zip(STACKS, limits, strict=True):
        if settings.get("encoder_learned_pos"):
            axis = f"{stack} positions"
            table[f"{stack}.positions.table"] = Rule((f"{stack}.embed_positions.weight",), (axis, ""))
            orders[axis] = AxisOrder(range(_OFFSET, positions + _OFFSET), limit + _OFFSET)
        else:
            computed[f"{stack}.positions.table"] = fairseq_sinusoids(positions, settings["encoder_embed_dim"])
    return Plan(
        config=checkpoint.config(content), vocabulary=vocabulary, table=table, orders=orders, positions=positions,
        unused=r"(encoder|decoder)\.(version|embed_positions\._float_tensor)", computed=computed,
    )  # fmt: skip


def _check_versions(checkpoint: FairseqCheckpoint) -> None:
    """Raise UsageError for a stack that fairseq runs without its last norm, because its layout is an old one."""
    if not checkpoint.settings.get("encoder_normalize_before"):
        return
    versions = {name: checkpoint.tensors.get(name) for name in (f"{stack}.version" for stack in STACKS)}
    numbers = {name: 1.0 if each is None else float(each.flatten()[0]) for name, each in versions.items()}
    if old := [f"{name} = {number:g}" for name, number in numbers.items() if number < _VERSION]:
        raise UsageError(
            f"{', '.join(old)}: pre-norm without a norm after the last layer; accepted: {_VERSION}, which current "
            "versions of fairseq write"
        )


def _tie(settings: Mapping[str, Any]) -> str:
    if settings.get("share_all_embeddings"):
        return "all"
    return "target" if settings.get("share_decoder_input_output_embed") else "none"


def _names(settings: Mapping[str, Any]) -> TransformerNames:
    others = {
        "encoder.embedding": "encoder.embed_tokens.weight", "decoder.embedding": "decoder.embed_tokens.weight",
        "output": "decoder.output_projection.weight|decoder.embed_out",
    }  # fmt: skip
    for stack in STACKS:
        if settings.get("encoder_normalize_before"):
            others[f"{stack}.final_norm"] = f"{stack}.layer_norm"
        if settings.get("layernorm_embedding"):
            others[f"{stack}.embedding_norm"] = f"{stack}.layernorm_embedding"
    return TransformerNames(stack_parts(), others)


def definition(checkpoint: FairseqCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> NumpyTransformer:
    settings = checkpoint.settings
    tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    width, is_learned = settings["encoder_embed_dim"], settings.get("encoder_learned_pos")

    def positions(stack: str, first: int, count: int) -> Any:
        first += _OFFSET
        if is_learned:
            return tensors[f"{stack}.embed_positions.weight"][first : first + count]
        return halved_sinusoids(first, count, width)

    sizes = Sizes(
        heads=settings["encoder_attention_heads"], layers=(settings["encoder_layers"], settings["decoder_layers"]),
        is_pre=bool(settings.get("encoder_normalize_before")), eps=_EPS,
        activation=_ACTIVATIONS[settings.get("activation_fn", "relu")],
        scale=1.0 if settings.get("no_scale_embedding") else width**0.5, begin=_SPECIAL[BOS], end=_SPECIAL[EOS],
        positions=positions, output_bias="decoder.output_projection.bias",
    )  # fmt: skip
    return NumpyTransformer(_names(settings), sizes, tensors, dtype)


compare = toolkit_comparison("fairseq", definition, token_lists)
