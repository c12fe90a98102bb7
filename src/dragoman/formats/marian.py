"""Export to Marian's own files: the inverse of `formats.importing.marian_files`, whose name table it uses.

Ids of the tokens: `</s>` and `<unk>` are 0 and 1, as Marian trains its vocabularies; our PAD and BOS are control pieces
2 and 3, which no text contains but which are part of the softmax.  A model that was imported from Marian lacks them.

The first input of Marian's decoder is a vector of zeros, ours the embedding of BOS: see `zero_start`.  Neither pre-norm
nor an SSRU, whose input has no bias, can be written this way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm
from torch import Tensor

from dragoman.config import Config, TransformerConfig
from dragoman.errors import UsageError
from dragoman.extras import extra_package
from dragoman.formats.importing.comparison import TextCodec
from dragoman.formats.importing.encoder_decoder import renamed
from dragoman.formats.importing.family import NEVER, ImportedVocabulary
from dragoman.formats.importing.marian import stream_order
from dragoman.formats.importing.marian_files import (
    ACTIVATIONS,
    BOS_PIECE,
    NORM_EPS,
    PAD_PIECE,
    definition_runtime,
    has_own_specials,
    name_table,
    reference_tokenizer,
)
from dragoman.formats.importing.marian_items import SETTINGS, MarianCheckpoint
from dragoman.formats.importing.name_tables import AxisOrder, reverted
from dragoman.formats.parity import ExternalRuntime
from dragoman.formats.target import ExportSource, accepted_settings, tokenizer_reasons, usage_page, without, zero_start
from dragoman.io.reading import protobuf_field, protobuf_fields
from dragoman.tokenizers import BOS, EOS, PAD, SPECIAL_NAMES, UNK, Tokenizer
from dragoman.tokenizers.pieces import read_sentencepiece

PROGRAM = "Marian"
QUANTIZATIONS: tuple[str, ...] = ("float32",)
_MODEL, _DECODER = "model.npz", "decoder.yml"
_SPECIAL = {PAD: PAD_PIECE, UNK: 1, BOS: BOS_PIECE, EOS: 0}
"""Ids of our special tokens; the ids of all other tokens stay the same."""
_OPERATIONS = {"post": ("", "dan", ""), "pre": ("n", "da", "n")}
"""`model.order` -> preprocess, postprocess and postprocess-top."""


positions = without


def versions() -> dict[str, str]:
    return {"pyyaml": extra_package("yaml", "formats", "the export to Marian").__version__}


def unsupported(config: Config, tokenizer: Tokenizer) -> list[str]:
    model = config.model
    if not isinstance(model, TransformerConfig):
        return [f"architecture = {model.architecture!r}; {PROGRAM} supports transformer"]
    size = model.d_model // model.n_heads
    reasons = accepted_settings(PROGRAM, model, {
        "norm.kind": "layer", "norm.eps": NORM_EPS, "position.kind": "sinusoidal", "position.full_range": True,
        "normalize_embeddings": False, "scale_embeddings": True, "attention.kind": "softmax",
        "activation": tuple(ACTIVATIONS.values()), "gated": False, "bias": True, "n_kv_heads": model.n_heads,
        "d_key": size, "d_value": size, "order": ("post", "pre"),
    })  # fmt: skip
    if model.order == "pre" and model.decoder_self == "attention":
        reasons.append(
            'order = "pre" with decoder_self = "attention": when it decodes, Marian 1.12 normalizes only the queries '
            f'of self-attention; {PROGRAM} supports order = "post", or decoder_self = "ssru"'
        )
    if model.d_model % 2:
        reasons.append(f"d_model = {model.d_model}; {PROGRAM} supports even numbers")
    if tokenizer.lists is not None and (tokenizer.lists.tags or tokenizer.lists.sentinels):
        reasons.append(f"tokenizer with language tags or sentinels; {PROGRAM} supports sentencepiece")
    return reasons + tokenizer_reasons(PROGRAM, tokenizer)


def write(model: ExportSource, folder: Path, quantization: str) -> None:
    settings = _settings(model)
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
    rows = {name: x.float().reshape(-1, x.size(-1)) for name, x in _tensors(model, settings).items()}  # no vectors
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in rows.items()}
    items = {**tensors, SETTINGS: np.frombuffer(text.encode() + b"\0", np.int8)}
    with (folder / _MODEL).open("wb") as file:
        np.savez(file, **items)  # type: ignore[arg-type]  # of its own parameters
    files = _vocabulary_files(model)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    decoding = _decoding(model, [name for name in files if "vocab" in name])
    (folder / _DECODER).write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in decoding.items()))


def runtime(model: ExportSource, folder: Path, quantization: str) -> ExternalRuntime:
    return definition_runtime(MarianCheckpoint(folder / _MODEL), _vocabulary(model))


def other_tokenizer(model: ExportSource, folder: Path) -> TextCodec:
    return reference_tokenizer(MarianCheckpoint(folder / _MODEL), _vocabulary(model))


def page(model: ExportSource, quantization: str) -> str:
    return usage_page("marian", lists=_is_listed(model.tokenizer))


# ----------------------------------------------------------------------------------------------------------- settings


def _settings(model: ExportSource) -> dict[str, Any]:
    """Return the settings inside of the model file, all that Marian writes for a Transformer."""
    config, vocabulary = _transformer(model), _vocabulary(model)
    recurrent = config.decoder_self == "ssru"
    preprocess, postprocess, top = _OPERATIONS[config.order]
    tie = "target" if config.tie == "all" and not model.tokenizer.shared else config.tie
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    return {
        "type": "transformer", "version": "v1.12.0",
        "dim-vocabs": [max(vocabulary.source) + 1, max(vocabulary.target) + 1],
        "dim-emb": config.d_model, "dim-rnn": 1024,
        "enc-type": "bidirectional", "enc-cell": "gru", "enc-cell-depth": 1, "enc-depth": config.encoder_layers,
        "dec-cell": "ssru" if recurrent else "gru", "dec-cell-base-depth": 2, "dec-cell-high-depth": 1,
        "dec-depth": config.decoder_layers, "skip": False, "layer-normalization": False, "right-left": False,
        "input-types": [], "factors-combine": "sum", "factors-dim-emb": 0, "lemma-dim-emb": 0, "lemma-dependency": "",
        "tied-embeddings": tie == "target", "tied-embeddings-src": False, "tied-embeddings-all": tie == "all",
        "output-omit-bias": False,
        "transformer-heads": config.n_heads, "transformer-no-projection": False, "transformer-pool": False,
        "transformer-dim-ffn": config.d_ff, "transformer-decoder-dim-ffn": 0, "transformer-ffn-depth": 2,
        "transformer-decoder-ffn-depth": 0, "transformer-ffn-activation": activation,
        "transformer-dim-aan": 2048, "transformer-aan-depth": 2, "transformer-aan-activation": "swish",
        "transformer-aan-nogate": False, "transformer-decoder-autoreg": "rnn" if recurrent else "self-attention",
        "transformer-tied-layers": [], "transformer-guided-alignment-layer": "last",
        "transformer-preprocess": preprocess, "transformer-postprocess-emb": "d",
        "transformer-postprocess": postprocess, "transformer-postprocess-top": top,
        "transformer-rnn-projection": False, "transformer-train-position-embeddings": False,
        "transformer-depth-scaling": False, "ulr": False, "ulr-dim-emb": 0, "ulr-trainable-transformation": False,
        "bert-train-type-embeddings": True, "bert-type-vocab-size": 2,
    }  # fmt: skip


def _decoding(model: ExportSource, vocabularies: list[str]) -> dict[str, Any]:
    """Return the settings of decoding.  The score is divided by length ** normalize, ours by ((5 + length) / 6)**a."""
    search = model.config.search
    return {
        "relative-paths": True, "models": [_MODEL], "vocabs": [vocabularies[0], vocabularies[-1]],
        "beam-size": search.beam, "normalize": search.alpha, "word-penalty": 0, "allow-unk": _allows_unknown(model),
        "max-length": model.config.data.max_tokens, "max-length-crop": True,
    }  # fmt: skip


def _transformer(model: ExportSource) -> TransformerConfig:
    assert isinstance(model.config.model, TransformerConfig)
    return model.config.model


# ---------------------------------------------------------------------------------------------------------- vocabulary


def _allows_unknown(model: ExportSource) -> bool:
    return bool(model.output_bias[UNK].item() != NEVER)


def _vocabulary(model: ExportSource) -> ImportedVocabulary:
    """Return for each of our ids that of Marian."""
    tokenizer = model.tokenizer
    special = {PAD: -1, UNK: 1, BOS: -1, EOS: 0} if tokenizer.lists is not None else _SPECIAL
    first = max(special.values()) + 1
    ids = [special[token] for token in sorted(special)]
    sizes = tokenizer.source_size, tokenizer.target_size
    sides = ([*ids, *range(first, first + size - len(ids))] for size in sizes)
    return ImportedVocabulary(tokenizer, *sides)


def _is_listed(tokenizer: Tokenizer) -> bool:
    """Return whether the ids of an imported model are not those of its sentencepiece models."""
    if tokenizer.lists is None:
        return False
    source, target, *_ = tokenizer.models
    sides = ((source, tokenizer.lists.source), (target or source, tokenizer.lists.target or tokenizer.lists.source))
    for content, listed in sides:
        pieces = read_sentencepiece(content)[1]
        if listed != renamed(pieces, [-1, 1, -1, 0, *range(2, len(pieces))]):  # the order of an import
            return True
    return False


def _vocabulary_files(model: ExportSource) -> dict[str, bytes]:
    """Return sentencepiece models with Marian's ids; or, with other ids, those models and lists of pieces."""
    tokenizer = model.tokenizer
    source, target, *_ = tokenizer.models
    if _is_listed(tokenizer):
        assert tokenizer.lists is not None
        lists = {"srcvocab.yml": tokenizer.lists.source, "trgvocab.yml": tokenizer.lists.target}
        if tokenizer.lists.target is None:
            lists = {"vocab.yml": tokenizer.lists.source}
        files = {"source.spm": source, "target.spm": target or source}
        return files | {name: _yaml_list(pieces) for name, pieces in lists.items() if pieces is not None}
    sides = {"srcvocab.spm": source, "trgvocab.spm": target or source}
    models = {"vocab.spm": source} if tokenizer.shared else sides
    if tokenizer.lists is None:
        models = {name: _with_specials_first(content) for name, content in models.items()}
    return models


def _yaml_list(pieces: list[str]) -> bytes:
    """Return ids by piece, in YAML; a piece that an import has renamed gets its name again."""
    names = ["</s>", "<unk>", *(re.sub(r"^(<.*>) \(\d+\)$", r"\1", piece) for piece in pieces[len(SPECIAL_NAMES) :])]
    return "".join(f"{json.dumps(name, ensure_ascii=False)}: {i}\n" for i, name in enumerate(names)).encode()


def _with_specials_first(content: bytes) -> bytes:
    """Return a sentencepiece model with the first four pieces in Marian's order."""
    parts = [(number, protobuf_field(number, part)) for number, part in protobuf_fields(content)]
    pieces = [part for number, part in parts if number == 1]
    first = sorted(_SPECIAL, key=lambda token: _SPECIAL[token])
    reordered = [pieces[token] for token in first] + pieces[len(first) :]
    result = b"".join(reordered + [part for number, part in parts if number != 1])
    assert has_own_specials(spm.SentencePieceProcessor(model_proto=result))
    return result


# ------------------------------------------------------------------------------------------------------------- weights


def _tensors(model: ExportSource, settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters by Marian's names.  Raises UsageError for a start that is not zero."""
    config, vocabulary = _transformer(model), _vocabulary(model)
    order = stream_order(config.d_model)
    orders = {"stream": AxisOrder(order, config.d_model), **vocabulary.orders(*settings["dim-vocabs"])}
    if (config.order == "pre" or config.decoder_self == "ssru") and model.start.any():
        raise UsageError(
            "Marian does not support this model: its decoder starts with a learned embedding (of <s>), Marian's with "
            'zeros; only models with order = "post" and decoder_self = "attention" can be converted. Models that were '
            "imported from Marian start with zeros until all of their weights are fine-tuned; train.lora keeps them."
        )
    ours = zero_start(model)
    ours["output.bias"] = model.output_bias.float().clone()
    if not _allows_unknown(model):  # Marian excludes `<unk>` itself, so that an import need not add the bias twice
        ours["output.bias"][UNK] = 0
    return reverted(name_table(settings, (), config.order), orders, ours)
