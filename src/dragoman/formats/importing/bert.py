"""BERT for masked text, for labels of texts and for labels of words, in the layout of Hugging Face.

Differences from our `encoder_only`, and where each is resolved:

- A text is the first of two segments: the first row of their table of segments is added to the position table.
- [CLS] and [SEP] become our BOS and EOS, which `pooling = "first"` and tagged sentences have at these positions.
- Masked text: the transform before the output is `model.head = "transform"`, and the pooler of a text "tanh".
- Labels start at 0, ours at 1: the output for "no label" is added, with the logit NEVER.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.config import parse_config
from dragoman.errors import DragomanError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.encoders import (
    compare_encoders,
    encoder_sizes,
    feed_forward,
    label_names,
    linear,
    norm,
    self_attention,
    words_of,
)
from dragoman.formats.importing.family import (
    ACTIVATIONS,
    NEVER,
    Comparison,
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
)
from dragoman.formats.importing.names import AxisOrder, Rule, expanded
from dragoman.formats.importing.tokenizer_json import wordpiece_vocabulary
from dragoman.formats.parity import CheckText
from dragoman.tokenizers import LabelVocabulary

_KINDS = {
    "BertForMaskedLM": "masked",
    "BertForPreTraining": "masked",
    "BertForSequenceClassification": "labelled",
    "BertForTokenClassification": "tagged",
}
"""Class of `transformers` -> our kind of data."""
_LOADERS = {
    "masked": "AutoModelForMaskedLM", "labelled": "AutoModelForSequenceClassification",
    "tagged": "AutoModelForTokenClassification",
}  # fmt: skip
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "architectures": tuple([name] for name in _KINDS),
    "hidden_act": tuple(ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True, False),
}
_SIZES = ("vocab_size", "max_position_embeddings", "type_vocab_size")
_UNUSED = {
    "masked": r"bert\.pooler\.dense\..*|cls\.seq_relationship\..*",
    "labelled": r"cls\..*",
    "tagged": r"bert\.pooler\.dense\..*|cls\..*",
}
"""Tensors of other outputs, which a checkpoint may contain, by kind of data."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = [] if "architectures" in settings else [f"architectures is missing; accepted: {', '.join(_KINDS)}"]
    return problems + accepted_values(settings, _ACCEPTED) + encoder_sizes(settings, _SIZES)


def _kind(settings: Mapping[str, Any]) -> str:
    names = settings.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return _KINDS.get(name, "masked") if isinstance(name, str) else "masked"  # others are not supported


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Read the tokenizer, and the names of the labels of a model that predicts labels."""
    problems: list[str] = []
    labels: list[str] = []
    words = None
    settings = checkpoint.settings
    try:
        words = wordpiece_vocabulary(checkpoint, settings.get("vocab_size"))
    except ProblemList as error:
        problems += error.problems
    except DragomanError as error:
        problems.append(str(error))
    if _kind(settings) != "masked":
        try:
            labels = label_names(settings)
        except ProblemList as error:
            problems += error.problems
    if problems or words is None:
        raise ProblemList(problems)
    if not labels:
        return words
    return ImportedVocabulary(
        LabelVocabulary(labels, words_of(words.tokenizer)), words.source, [-1, *range(len(labels))]
    )


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings, kind = checkpoint.settings, _kind(checkpoint.settings)
    config = parse_config(_document(settings, vocabulary), where=str(checkpoint.folder), stored=True)  # checks limits
    labels, unused = vocabulary.target, _UNUSED[kind] + r"|bert\.embeddings\.position_ids"
    if kind == "masked" and not settings.get("tie_word_embeddings", True):
        unused += r"|cls\.predictions\.bias"  # only that of the decoder is used
    return Plan(
        config=config,
        vocabulary=vocabulary,
        table=_table(settings),
        orders={
            "words": AxisOrder(vocabulary.source, settings["vocab_size"]),
            "labels": AxisOrder(labels, max(labels) + 1),
            "qkv": AxisOrder(range(3 * settings["hidden_size"]), 3 * settings["hidden_size"]),
        },
        constants={},
        unused=unused,
        positions=settings["max_position_embeddings"],
    )


def _document(settings: Mapping[str, Any], vocabulary: ImportedVocabulary) -> dict[str, Any]:
    kind, positions = _kind(settings), settings["max_position_embeddings"]
    dropouts = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    return {
        "data": {"kind": kind, "train": [], "max_tokens": positions},
        "tokenizer": {"vocab_size": vocabulary.tokenizer.source_size, "byte_fallback": False},
        "train": {"metric": "accuracy"},
        "model": {
            "architecture": "encoder_only", "d_model": settings["hidden_size"], "d_ff": settings["intermediate_size"],
            "n_heads": settings["num_attention_heads"], "n_layers": settings["num_hidden_layers"],
            "norm": {"kind": "layer", "eps": settings.get("layer_norm_eps", 1e-12)}, "normalize_embeddings": True,
            "activation": ACTIVATIONS[settings.get("hidden_act", "gelu")], "scale_embeddings": False,
            "position": {"kind": "learned", "max_len": positions}, "output_bias": True,
            "head": {"masked": "transform", "labelled": "tanh", "tagged": "linear"}[kind],
            "pooling": "first" if kind == "labelled" else "none",
            "tie": "all" if kind == "masked" and settings.get("tie_word_embeddings", True) else "none",
            **{ours: settings.get(theirs, 0.1) for ours, theirs in dropouts.items()},
        },
    }  # fmt: skip


def _table(settings: Mapping[str, Any]) -> dict[str, Rule]:
    ours, theirs, embeddings = "encoder.layers.{}", "bert.encoder.layer.{}", "bert.embeddings"
    attention = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    layer = {
        **self_attention(f"{ours}.self_attn", attention, f"{theirs}.attention.output.dense"),
        **norm(f"{ours}.around_self_attn.norm", f"{theirs}.attention.output.LayerNorm"),
        **feed_forward(f"{ours}.ffn", f"{theirs}.intermediate.dense", f"{theirs}.output.dense"),
        **norm(f"{ours}.around_ffn.norm", f"{theirs}.output.LayerNorm"),
    }
    segments = f"{embeddings}.token_type_embeddings.weight"
    return {
        "encoder.embedding.weight": Rule((f"{embeddings}.word_embeddings.weight",), ("words", "")),
        "encoder.positions.table": Rule((f"{embeddings}.position_embeddings.weight",), ("", ""), row=segments),
        **norm("encoder.embedding_norm", f"{embeddings}.LayerNorm"),
        **expanded(layer, settings["num_hidden_layers"]),
        **_output(settings),
    }


def _output(settings: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rules of the head and the output layer, and of the embeddings if it shares them."""
    kind, words, predictions = _kind(settings), "bert.embeddings.word_embeddings.weight", "cls.predictions"
    if kind != "masked":
        return {
            **(linear("head.inner", "bert.pooler.dense") if kind == "labelled" else {}),
            "output.weight": Rule(("classifier.weight",), ("labels", "")),
            "output.bias": Rule(("classifier.bias",), ("labels",), added=NEVER),
        }
    head = {
        **linear("head.inner", f"{predictions}.transform.dense"),
        **norm("head.norm", f"{predictions}.transform.LayerNorm"),
    }
    matrix, bias = f"{predictions}.decoder.weight", f"{predictions}.decoder.bias"
    if settings.get("tie_word_embeddings", True):
        shared = Rule((f"{words}|{matrix}",), ("words", ""))
        return head | {
            "encoder.embedding.weight": shared,
            "output.bias": Rule((f"{predictions}.bias|{bias}",), ("labels",)),
        }
    return head | {"output.weight": Rule((matrix,), ("labels", "")), "output.bias": Rule((bias,), ("labels",))}


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare the probabilities of all labels, or of all tokens at each position, and the ids of the tokenizer."""
    return compare_encoders(checkpoint, folder, plan, check, _LOADERS[plan.config.data.kind])
