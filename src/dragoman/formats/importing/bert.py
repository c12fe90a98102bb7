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

from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.encoders import (
    NAMING,
    compare_encoders,
    encoder_sizes,
    label_names,
    layer_parts,
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
    collecting,
)
from dragoman.formats.importing.name_tables import AxisOrder, Rule, expanded, part_rules
from dragoman.formats.importing.tokenizer_json import wordpiece_vocabulary
from dragoman.formats.parity import CheckText
from dragoman.tokenizers import LabelVocabulary

_KINDS = {
    "BertForMaskedLM": "masked", "BertForPreTraining": "masked", "BertForSequenceClassification": "labelled",
    "BertForTokenClassification": "tagged",
}  # fmt: skip
"""Class of `transformers` -> our kind of data."""
_LOADERS = {
    "masked": "AutoModelForMaskedLM", "labelled": "AutoModelForSequenceClassification",
    "tagged": "AutoModelForTokenClassification",
}  # fmt: skip
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "architectures": tuple([name] for name in _KINDS), "hidden_act": tuple(ACTIVATIONS),
    "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,),
    "tie_word_embeddings": (True, False),
}  # fmt: skip
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
    with collecting(problems):
        words = wordpiece_vocabulary(checkpoint, settings.get("vocab_size"))
    if _kind(settings) != "masked":
        with collecting(problems):
            labels = label_names(settings)
    if problems or words is None:
        raise ProblemList(problems)
    if not labels:
        return words
    vocabulary = LabelVocabulary(labels, words_of(words.tokenizer))
    return ImportedVocabulary(vocabulary, words.source, [-1, *range(len(labels))])


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings, kind = checkpoint.settings, _kind(checkpoint.settings)
    config = checkpoint.config(_document(settings, vocabulary))
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
        },
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
    kind, embeddings, predictions = _kind(settings), "bert.embeddings", "cls.predictions"
    parts = layer_parts("bert.encoder.layer.{}", "attention.self", ("attention.output.LayerNorm", "output.LayerNorm"))
    around = {"encoder.embedding_norm": (f"{embeddings}.LayerNorm",)}
    if kind == "labelled":
        around["head.inner"] = ("bert.pooler.dense",)
    if kind == "masked":
        around |= {"head.inner": (f"{predictions}.transform.dense",)}
        around |= {"head.norm": (f"{predictions}.transform.LayerNorm",)}
    words, segments = f"{embeddings}.word_embeddings.weight", f"{embeddings}.token_type_embeddings.weight"
    matrix, bias = f"{predictions}.decoder.weight", f"{predictions}.decoder.bias"
    if kind != "masked":
        matrix, bias = "classifier.weight", "classifier.bias"
    is_tied = kind == "masked" and settings.get("tie_word_embeddings", True)
    if is_tied:
        words, bias = f"{words}|{matrix}", f"{predictions}.bias|{bias}"
    return {
        **part_rules("", around, NAMING),
        **expanded(part_rules("encoder.layers.{}.", parts, NAMING), settings["num_hidden_layers"]),
        "encoder.embedding.weight": Rule((words,), ("words", "")),
        "encoder.positions.table": Rule((f"{embeddings}.position_embeddings.weight",), ("", ""), row=segments),
        **({} if is_tied else {"output.weight": Rule((matrix,), ("labels", ""))}),
        "output.bias": Rule((bias,), ("labels",), added=0.0 if kind == "masked" else NEVER),
    }


def compare(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare the probabilities of all labels, or of all tokens at each position, and the ids of the tokenizer."""
    return compare_encoders(checkpoint, folder, plan, check, _LOADERS[plan.config.data.kind])
