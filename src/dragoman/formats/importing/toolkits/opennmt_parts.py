"""What models of OpenNMT-py and of eole share: vocabularies, ties, and attention whose biases a model may lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Comparison, ImportedVocabulary, Plan, ProblemList
from dragoman.formats.importing.listed_vocabulary import (
    ListedReference,
    TokenList,
    listed_vocabulary,
    sentencepiece_models,
)
from dragoman.formats.importing.names import AxisOrder, Rule
from dragoman.formats.importing.numpy_reference import SearchedReference
from dragoman.formats.importing.toolkits.comparison import compare_with_definition
from dragoman.formats.importing.toolkits.numpy_transformer import Sizes, ToolkitDefinition, interleaved_sinusoids
from dragoman.tokenizers import EOS

OFF: tuple[Any, ...] = (False, None, 0, 0.0, "")
"""Values of a setting that is off."""
STACKS, _SIDES = ("encoder", "decoder"), ("src", "tgt")
_SPECIAL = {"pad_token": "<blank>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_TRANSFORMS = (
    "sentencepiece", "filtertoolong", "clean", "switchout", "tokendrop", "tokenmask", "bart", "filterfeats",
)  # fmt: skip
"""Sentencepiece, and transforms that only training uses."""


# ------------------------------------------------------------------------------------------------------------ settings


def size_problems(settings: Mapping[str, Any], keys: Sequence[str], width: object) -> list[str]:
    """Return what is wrong with sizes.  width: of the embeddings; settings: with "heads" and "norm_eps"."""
    problems = [
        f"{key} = {settings.get(key)!r}; accepted: an integer, at least 1"
        for key in keys
        if type(settings.get(key)) is not int or settings[key] < 1
    ]
    eps = settings.get("norm_eps", 1e-6)
    if type(eps) is not float or not 0 < eps < 1:
        problems.append(f"norm_eps = {eps!r}; accepted: a number between 0 and 1")
    if not problems and (type(width) is not int or width % settings["heads"] or width % 2):
        problems.append(f"hidden_size = {width!r}; accepted: even, and a multiple of heads = {settings['heads']}")
    return problems


def text_problems(settings: Mapping[str, Any]) -> list[str]:
    """Return a problem for transforms that change the text in another way than sentencepiece does."""
    found = settings.get("transforms")
    others = [name for name in found if name not in _TRANSFORMS] if isinstance(found, list) else []
    problems = [f"transforms = {', '.join(map(repr, others))}; accepted: {', '.join(map(repr, _TRANSFORMS))}"]
    if any(settings.get(f"{side}_subword_vocab") and settings.get(f"{side}_vocab_threshold") for side in _SIDES):
        return [*problems[: len(others)], "subword_vocab with vocab_threshold; accepted: all pieces of sentencepiece"]
    return problems[: len(others)]


def tie_of(settings: Mapping[str, Any]) -> str:
    if settings.get("share_embeddings"):
        return "all" if settings.get("share_decoder_embeddings") else "embeddings"
    return "target" if settings.get("share_decoder_embeddings") else "none"


# ---------------------------------------------------------------------------------------------------------- vocabulary


def token_lists(vocabulary: Mapping[str, Any]) -> list[TokenList]:
    """Return the lists "src" and "tgt" of a vocabulary.  Raises ProblemList."""
    special = vocabulary.get("specials")
    names = _SPECIAL | ({key: special[key] for key in _SPECIAL if key in special} if isinstance(special, dict) else {})
    start = vocabulary.get("decoder_start_token", names["bos_token"])
    found, problems = [], []
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
        found.append(TokenList(tokens, (pad, unk, bos, eos), f"the vocabulary {side}"))
    if problems:
        raise ProblemList(problems)
    return found


def imported_vocabulary(checkpoint: Checkpoint, lists: Sequence[TokenList], is_shared: bool) -> ImportedVocabulary:
    """Return the vocabulary of two lists.  is_shared: whether both sides have one embedding.  Raises ProblemList."""
    source, target = lists
    same = source.tokens == target.tokens and source.special == target.special
    if is_shared and not same:
        raise ProblemList(["share_embeddings = True, but the vocabularies of source and target differ"])
    return listed_vocabulary(checkpoint, source, None if same else target, source_ends=False)


def orders(vocabulary: ImportedVocabulary, lists: Sequence[TokenList], width: int, inner: int) -> dict[str, AxisOrder]:
    sides = zip(("source", "target"), (vocabulary.source, vocabulary.target), lists, strict=True)
    axes = {"width": width, "inner": inner, "kv": 2 * width, "qkv": 3 * width}
    return {name: AxisOrder(ids, len(listed.tokens)) for name, ids, listed in sides} | {
        name: AxisOrder(range(size), size) for name, size in axes.items()
    }


# ---------------------------------------------------------------------------------------------------------- name table


def embedding_rules(tie: str, source: str, target: str, output: str) -> dict[str, Rule]:
    """Return the rules of embeddings and output layer.  source, target, output: names of the matrices."""
    encoder, decoder, logits = (f"{name}.weight" for name in ("encoder.embedding", "decoder.embedding", "output"))
    return {
        "all": {encoder: Rule((f"{source}|{target}|{output}",), ("source", ""))},
        "embeddings": {
            encoder: Rule((f"{source}|{target}",), ("source", "")),
            logits: Rule((output,), ("target", "")),
        },
        "target": {
            encoder: Rule((source,), ("source", "")),
            decoder: Rule((f"{target}|{output}",), ("target", "")),
        },
        "none": {
            encoder: Rule((source,), ("source", "")),
            decoder: Rule((target,), ("target", "")),
            logits: Rule((output,), ("target", "")),
        },
    }[tie]


def linear(ours: str, axis: str, *theirs: str) -> dict[str, Rule]:
    """Return the rules of a matrix, and of its bias, which is 0 if a checkpoint lacks it.  axis: of `orders`."""
    return {
        f"{ours}.weight": Rule(tuple(f"{name}.weight" for name in theirs), ("", "")),
        f"{ours}.bias": Rule(tuple(f"{name}.bias" for name in theirs), (axis,), optional=True),
    }


def attention(ours: str, theirs: str) -> dict[str, Rule]:
    queries, keys, values = (f"{theirs}.linear_{part}" for part in ("query", "keys", "values"))
    if ours.endswith("cross_attn"):
        inputs = linear(f"{ours}.q", "width", queries) | linear(f"{ours}.kv", "kv", keys, values)
    else:
        inputs = linear(f"{ours}.qkv", "qkv", queries, keys, values)
    return inputs | linear(f"{ours}.out", "width", f"{theirs}.final_linear")


# ---------------------------------------------------------------------------------------------------------- comparison


def sizes(
    settings: Mapping[str, Any], layers: tuple[int, int], width: int, activation: str, target: TokenList
) -> Sizes:
    """settings: with "heads" and "norm_eps"."""
    return Sizes(
        heads=settings["heads"], layers=layers, is_pre=True, activation=activation, eps=settings["norm_eps"],
        scale=width**0.5, begin=target.special[2], end=target.special[EOS],
        positions=lambda stack, count: interleaved_sinusoids(count, width),
    )  # fmt: skip


def compare_lists(
    checkpoint: Checkpoint,
    model: ToolkitDefinition,
    toolkit: str,
    lists: Sequence[TokenList],
    compared: tuple[Path, Plan, CheckText | None],
) -> Comparison:
    """Compare a model folder with its definition.  compared: the arguments of `Family.compare`."""
    folder, plan, check = compared
    assert all(np.dtype(array.dtype) == np.float32 for array in model.p.values())
    models = [checkpoint.bytes(path.name) for path in sentencepiece_models(checkpoint.folder)]
    name = f"{toolkit}'s definition in NumPy, float32"
    runtime = SearchedReference(model, name, plan.vocabulary, lists[1].special[EOS])
    reference = ListedReference(models, lists, plan.vocabulary, source_ends=False)
    return compare_with_definition(runtime, reference, folder, plan, check)
