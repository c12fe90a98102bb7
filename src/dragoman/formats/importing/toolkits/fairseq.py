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

from dragoman.config import parse_config
from dragoman.errors import UsageError
from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.bart import fairseq_sinusoids
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import NEVER, Comparison, ImportedVocabulary, Plan, ProblemList, accepted_values
from dragoman.formats.importing.listed_vocabulary import (
    ListedReference,
    TokenList,
    listed_vocabulary,
    sentencepiece_models,
)
from dragoman.formats.importing.names import AxisOrder, Rule, expanded
from dragoman.formats.importing.numpy_reference import SearchedReference
from dragoman.formats.importing.toolkits.checkpoint import FairseqCheckpoint
from dragoman.formats.importing.toolkits.comparison import compare_with_definition
from dragoman.formats.importing.toolkits.layers import attention, document, linear, norm
from dragoman.formats.importing.toolkits.numpy_transformer import Names, Sizes, ToolkitDefinition, halved_sinusoids
from dragoman.tokenizers import BOS, EOS

_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "silu",
}  # fmt: skip
_OFF: tuple[Any, ...] = (False, None, 0, 0.0, "")
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
        _OFF,
    ),
}  # fmt: skip
"""Setting -> accepted values; an absent setting has an accepted default."""
_ARCHITECTURES = r"transformer(_(iwslt|wmt|vaswani|tiny|t2t)\w*)?"
_SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
_STACKS = ("encoder", "decoder")
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
    if not isinstance(name, str) or not re.fullmatch(_ARCHITECTURES, name):
        problems.append(f"arch = {name!r}; accepted: 'transformer', and its sizes such as 'transformer_iwslt_de_en'")
    sizes = [f"{stack}_{key}" for stack in _STACKS for key in _SIZES]
    for key in (*sizes, "max_source_positions", "max_target_positions"):
        if type(settings.get(key)) is not int or settings[key] < 1:
            problems.append(f"{key} = {settings.get(key)!r}; accepted: an integer, at least 1")
    for key in ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos"):
        sides = [settings.get(f"{stack}_{key}", False) for stack in _STACKS]
        if sides[0] != sides[1]:
            problems.append(f"encoder_{key} = {sides[0]!r}, decoder_{key} = {sides[1]!r}; accepted: the same for both")
    width: Any = settings.get("encoder_embed_dim")
    for key in ("decoder_input_dim", "decoder_output_dim"):
        if settings.get(key, width) not in (width, None):
            problems.append(f"{key} = {settings[key]!r}; accepted: that of the decoder, {width}")
    if not problems and (width % settings["encoder_attention_heads"] or width < 4):
        problems.append(f"encoder_embed_dim = {width}; accepted: at least 4, and a multiple of the number of heads")
    return problems


# ---------------------------------------------------------------------------------------------------------- vocabulary


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    assert isinstance(checkpoint, FairseqCheckpoint)
    source, target = token_lists(checkpoint)
    same = source.tokens == target.tokens
    if checkpoint.settings.get("share_all_embeddings") and not same:
        raise ProblemList([f"share_all_embeddings = True, but {source.name} and {target.name} differ"])
    return listed_vocabulary(checkpoint, source, None if same else target)


def token_lists(checkpoint: FairseqCheckpoint) -> list[TokenList]:
    """Return the dictionaries of source and target.  Raises ProblemList."""
    found, problems = [], []
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
        found.append(TokenList(tokens, _SPECIAL, path.name))
    if problems:
        raise ProblemList(list(dict.fromkeys(problems)))
    return found


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


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    assert isinstance(checkpoint, FairseqCheckpoint)
    settings, tie = checkpoint.settings, _tie(checkpoint.settings)
    _check_versions(checkpoint)
    limits = [settings[f"max_{side}_positions"] for side in ("source", "target")]
    positions, width = min(limits), settings["encoder_embed_dim"]
    content = document(vocabulary, (settings.get("source_lang"), settings.get("target_lang"))) | {
        "model": _model_document(settings, tie, positions),
        "search": {"beam": 5, "alpha": 1.0, "max_extra": min(50, positions // 4)},
    }
    most = min(content["data"]["filter"]["max_tokens"], positions - min(50, positions // 4) - 2)
    content["data"]["filter"] = {"max_tokens": max(2, most)}
    logits = list(vocabulary.target)
    logits[BOS] = -1
    sizes = max(vocabulary.source) + 1, max(vocabulary.target) + 1
    computed = {}
    if not settings.get("encoder_learned_pos"):
        table = fairseq_sinusoids(positions, width)
        computed = {f"{stack}.positions.table": table.clone() for stack in _STACKS}
    return Plan(
        config=parse_config(content, where=str(checkpoint.folder), stored=True),
        vocabulary=vocabulary,
        table=_table(checkpoint, tie),
        orders={
            "source": AxisOrder(vocabulary.source, sizes[0]),
            "target": AxisOrder(vocabulary.target, sizes[1]),
            "logits": AxisOrder(logits, sizes[1]),
            **{
                f"{stack} positions": AxisOrder(range(_OFFSET, positions + _OFFSET), limit + _OFFSET)
                for stack, limit in zip(_STACKS, limits, strict=True)
            },
        },
        constants={},
        unused=r"(encoder|decoder)\.(version|embed_positions\._float_tensor)",
        positions=positions,
        computed=computed,
    )


def _check_versions(checkpoint: FairseqCheckpoint) -> None:
    """Raise UsageError for a stack that fairseq runs without its last norm, because its layout is an old one."""
    if not checkpoint.settings.get("encoder_normalize_before"):
        return
    versions = {name: checkpoint.tensors.get(name) for name in (f"{stack}.version" for stack in _STACKS)}
    found = {name: 1.0 if each is None else float(each.flatten()[0]) for name, each in versions.items()}
    if old := [f"{name} = {number:g}" for name, number in found.items() if number < _VERSION]:
        raise UsageError(
            f"{', '.join(old)}: pre-norm without a norm after the last layer; accepted: {_VERSION}, which current "
            "versions of fairseq write"
        )


def _model_document(settings: Mapping[str, Any], tie: str, positions: int) -> dict[str, Any]:
    return {
        "architecture": "transformer", "d_model": settings["encoder_embed_dim"],
        "d_ff": settings["encoder_ffn_embed_dim"], "n_heads": settings["encoder_attention_heads"],
        "encoder_layers": settings["encoder_layers"], "decoder_layers": settings["decoder_layers"], "tie": tie,
        "order": "pre" if settings.get("encoder_normalize_before") else "post", "output_bias": True,
        "activation": _ACTIVATIONS[settings.get("activation_fn", "relu")], "norm": {"kind": "layer", "eps": _EPS},
        "scale_embeddings": not settings.get("no_scale_embedding", False),
        "normalize_embeddings": bool(settings.get("layernorm_embedding", False)),
        "position": {"kind": "learned", "max_len": positions},
        **{key: settings[key] for key in ("dropout", "attention_dropout", "activation_dropout") if key in settings},
    }  # fmt: skip


def _tie(settings: Mapping[str, Any]) -> str:
    if settings.get("share_all_embeddings"):
        return "all"
    return "target" if settings.get("share_decoder_input_output_embed") else "none"


_SOURCE, _TARGET = (f"{stack}.embed_tokens.weight" for stack in _STACKS)
_OUTPUT = "decoder.output_projection.weight|decoder.embed_out"
_EMBEDDINGS = {
    "all": {"encoder.embedding.weight": Rule((f"{_SOURCE}|{_TARGET}|{_OUTPUT}",), ("source", ""))},
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


def _table(checkpoint: FairseqCheckpoint, tie: str) -> dict[str, Rule]:
    settings, rules = checkpoint.settings, dict(_EMBEDDINGS[tie])
    for stack in _STACKS:
        rules |= expanded(_layer(stack), settings[f"{stack}_layers"])
        if settings.get("encoder_normalize_before"):
            rules |= norm(f"{stack}.final_norm", f"{stack}.layer_norm")
        if settings.get("layernorm_embedding"):
            rules |= norm(f"{stack}.embedding_norm", f"{stack}.layernorm_embedding")
        if settings.get("encoder_learned_pos"):
            name = f"{stack}.embed_positions.weight"
            rules[f"{stack}.positions.table"] = Rule((name,), (f"{stack} positions", ""))
    rules["output.bias"] = Rule(("decoder.output_projection.bias",), ("logits",), added=NEVER, optional=True)
    return rules


def _layer(stack: str) -> dict[str, Rule]:
    ours = theirs = f"{stack}.layers.{{}}"
    rules = {
        **_attention(f"{ours}.self_attn", f"{theirs}.self_attn"),
        **norm(f"{ours}.around_self_attn.norm", f"{theirs}.self_attn_layer_norm"),
        **linear(f"{ours}.ffn.inner", f"{theirs}.fc1"),
        **linear(f"{ours}.ffn.outer", f"{theirs}.fc2"),
        **norm(f"{ours}.around_ffn.norm", f"{theirs}.final_layer_norm"),
    }
    if stack == "decoder":
        rules |= _attention(f"{ours}.cross_attn", f"{theirs}.encoder_attn")
        rules |= norm(f"{ours}.around_cross_attn.norm", f"{theirs}.encoder_attn_layer_norm")
    return rules


def _attention(ours: str, theirs: str) -> dict[str, Rule]:
    return attention(ours, *(f"{theirs}.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")))


# ---------------------------------------------------------------------------------------------------------- comparison


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    assert isinstance(checkpoint, FairseqCheckpoint)
    lists = token_lists(checkpoint)
    models = [checkpoint.bytes(path.name) for path in sentencepiece_models(checkpoint.folder)]
    name = "fairseq's definition in NumPy, float32"
    runtime = SearchedReference(definition(checkpoint), name, plan.vocabulary, _SPECIAL[EOS])
    return compare_with_definition(runtime, ListedReference(models, lists, plan.vocabulary), folder, plan, check)


def _parts(stack: str) -> dict[str, str]:
    layer = f"{stack}.layers.{{}}"
    kinds = {"self": "self_attn", "cross": "encoder_attn"}
    matrices = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    parts = {f"{kind} {x}": f"{layer}.{name}.{m}" for kind, name in kinds.items() for x, m in matrices.items()}
    parts |= {f"{kind} norm": f"{layer}.{name}_layer_norm" for kind, name in kinds.items()}
    return parts | {"in": f"{layer}.fc1", "out": f"{layer}.fc2", "norm": f"{layer}.final_layer_norm"}


def definition(checkpoint: FairseqCheckpoint, dtype: type[np.floating[Any]] = np.float32) -> ToolkitDefinition:
    """Return the model of a checkpoint in NumPy."""
    settings = checkpoint.settings
    tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    if "decoder.embed_out" in tensors:
        tensors["decoder.output_projection.weight"] = tensors["decoder.embed_out"]
    width, is_learned = settings["encoder_embed_dim"], settings.get("encoder_learned_pos")

    def positions(stack: str, count: int) -> Any:
        if is_learned:
            return tensors[f"{stack}.embed_positions.weight"][_OFFSET : _OFFSET + count]
        return halved_sinusoids(_OFFSET, count, width)

    sizes = Sizes(
        heads=settings["encoder_attention_heads"], layers=(settings["encoder_layers"], settings["decoder_layers"]),
        is_pre=bool(settings.get("encoder_normalize_before")), eps=_EPS,
        activation=_ACTIVATIONS[settings.get("activation_fn", "relu")],
        scale=1.0 if settings.get("no_scale_embedding") else width**0.5, begin=_SPECIAL[BOS], end=_SPECIAL[EOS],
        positions=positions,
    )  # fmt: skip
    others = {"source": "encoder.embed_tokens", "target": "decoder.embed_tokens"} | {
        "output": "decoder.output_projection",
        **{f"{stack} norm": f"{stack}.layer_norm" for stack in _STACKS},
        **{f"{stack} embedding norm": f"{stack}.layernorm_embedding" for stack in _STACKS},
    }
    return ToolkitDefinition(Names({stack: _parts(stack) for stack in _STACKS}, others), sizes, tensors, dtype)
