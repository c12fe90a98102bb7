"""MarianMT, the translation models of OPUS-MT, in the layout of Hugging Face.

Differences from our Transformer, and where each is resolved:

- Their position table has sines in the first half of the features and cosines in the second; ours alternates.  Nothing
  else depends on the order of the features of the residual stream: matrices that read or write it, norms, and biases
  are reordered along the axis "stream", so that no setting is needed.
- The decoder starts with the padding token.  Its row becomes our BOS; our PAD is added, with zeros, since it is never
  read, and with the logit NEVER.
- `final_logits_bias`, a buffer that is a parameter in Marian: `model.output_bias`.
- One list of pieces for two sentencepiece models: `data.pieces`.

Names of tensors: `encoder_decoder_table` in encoder_decoder.py; their conversion: `converted` in name_tables.py;
the check: `compare_translators` in comparison.py.  Models in the files of Marian itself: marian_files.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_translators
from dragoman.formats.importing.encoder_decoder import (
    encoder_decoder_table,
    model_document,
    pieces_by_id,
    renamed,
    search_section,
    size_problems,
    text_sections,
)
from dragoman.formats.importing.family import (
    ACTIVATIONS,
    ImportedVocabulary,
    Plan,
    ProblemList,
    accepted_values,
    collecting,
    reading_vocabulary,
)
from dragoman.formats.importing.name_tables import AxisOrder, Rule
from dragoman.nn.position_tables import sinusoid_table
from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer
from dragoman.tokenizers.listed_pieces import PieceLists

compare = compare_translators

PADDING = "dragoman_padding_id"
"""Setting of exported models: the id of our padding token, which is a row of its own; other checkpoints lack one."""

_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "activation_function": tuple(ACTIVATIONS),
    "add_bias_logits": (False,),
    "add_final_layer_norm": (False,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "static_position_embeddings": (True,),
    "extra_pos_embeddings": (0, 2),  # of a learned table; without effect on sinusoids
}
"""Setting -> accepted values; an absent setting has an accepted default."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = [*accepted_values(settings, _ACCEPTED), *size_problems(settings, even=True)]
    padding = settings.get(PADDING, 0)
    if type(padding) is not int or padding < 0:
        problems.append(f"{PADDING} = {padding!r}; accepted: an integer, at least 0")
    start, pad = settings.get("decoder_start_token_id"), settings.get("pad_token_id")
    if not problems and start != pad:
        problems.append(f"decoder_start_token_id = {start}; accepted: pad_token_id = {pad}")
    return problems


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Read both sentencepiece models and the list, or two lists, of pieces; the special tokens get our ids."""
    problems: list[str] = []
    settings = checkpoint.settings

    sizes = {"vocab.json": settings.get("vocab_size")}
    if checkpoint.optional_json("tokenizer_config.json").get("separate_vocabs"):
        size = settings.get("decoder_vocab_size")
        sizes["target_vocab.json"] = settings.get("vocab_size") if size is None else size
    models, lists = [], []
    for name in ("source.spm", "target.spm"):
        with collecting(problems):
            models.append(checkpoint.bytes(name))
    for name, size in sizes.items():
        with collecting(problems):
            lists.append(_pieces(checkpoint.json(name), name, size))
    if len(sizes) == 2 and _tie(settings) == "all":
        problems.append("two vocabularies (separate_vocabs) share one matrix (share_encoder_decoder_embeddings)")
    if problems:
        raise ProblemList(problems)
    orders = [_order(pieces, settings, name) for pieces, name in zip(lists, sizes, strict=True)]
    names = [renamed(pieces, order) for pieces, order in zip(lists, orders, strict=True)]
    with reading_vocabulary("source.spm or target.spm"):
        file = PieceLists(names[0], names[1] if len(names) == 2 else None, tags=True).file()
        tokenizer = Tokenizer(models[0], models[1], file)
    return ImportedVocabulary(tokenizer, orders[0], orders[-1])


def _pieces(ids: Mapping[str, Any], name: str, size: object) -> list[str]:
    """Return the pieces in the order of their ids, which are 0 .. size - 1.  Raises ProblemList."""
    if len(ids) != size:
        raise ProblemList([f"{name}: {len(ids):,} pieces, but the vocabulary of config.json has {size}"])
    pieces = pieces_by_id(ids, name)
    if "<unk>" not in ids:
        raise ProblemList([f"{name}: no piece <unk>"])
    return pieces


def _order(pieces: list[str], settings: Mapping[str, Any], name: str) -> list[int]:
    """Return for each of our ids that of the checkpoint."""
    special = {
        PAD: settings.get(PADDING, -1), UNK: pieces.index("<unk>"), BOS: settings.get("decoder_start_token_id"),
        EOS: settings.get("eos_token_id"),
    }  # fmt: skip
    ids = [special[token] for token in sorted(special)]
    if any(type(token) is not int or token >= len(pieces) for token in ids) or len(set(ids)) < len(ids):
        raise ProblemList([f"{name}: the ids of <unk>, start and end, {ids[1:]}, are not different ids of the list"])
    order = [int(token) for token in ids if token is not None]
    return order + [token for token in range(len(pieces)) if token not in order]


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    config = checkpoint.config(_document(checkpoint, vocabulary))
    d_model, positions = config.model.d_model, settings["max_position_embeddings"]
    stream = stream_order(d_model)
    orders = vocabulary.orders()
    logits, start = list(vocabulary.target), vocabulary.target[BOS]
    excluded = checkpoint.generation.get("bad_words_ids")
    # `bad_words_ids` alone excludes the start token after the softmax, as our search excludes BOS.
    if checkpoint.generation.get("renormalize_logits") and isinstance(excluded, list) and [start] in excluded:
        logits[BOS] = -1

    def table(shape: tuple[int, ...]) -> Tensor | None:
        if shape != (positions, d_model):
            return None
        return torch.from_numpy(sinusoid_table(positions, d_model)[:, np.argsort(stream)])

    return Plan(
        config=config, vocabulary=vocabulary, table=name_table(settings),
        orders={"stream": AxisOrder(stream, d_model), **orders, "logits": AxisOrder(logits, orders["target"].size)},
        constants={f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")},
        unused="" if _tie(settings) == "all" else r"model\.shared\.weight", positions=positions,
    )  # fmt: skip


def stream_order(d_model: int) -> list[int]:
    """Return for each of our features its index in theirs: our feature 2k is a sine, 2k + 1 a cosine."""
    order: list[int] = np.arange(d_model).reshape(2, -1).T.flatten().tolist()
    return order


def _tie(settings: Mapping[str, Any]) -> str:
    if not settings.get("tie_word_embeddings", True):
        return "none"
    return "all" if settings.get("share_encoder_decoder_embeddings", True) else "target"


def _document(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> dict[str, Any]:
    settings, names = checkpoint.settings, checkpoint.optional_json("tokenizer_config.json")
    languages = names.get("source_lang"), names.get("target_lang")
    return text_sections(vocabulary, settings["max_position_embeddings"], languages) | {
        "model": model_document(settings, _tie(settings)),
        "search": search_section(checkpoint.generation) | {"split_sentences": "on"},  # as OPUS-MT was trained
    }


def name_table(settings: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rule of each of our tensors; its axes are "stream", "source", "target" and "logits"."""
    return encoder_decoder_table(settings, _tie(settings))
