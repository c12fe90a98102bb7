"""The Transformer of Marian, with self-attention or an SSRU in the decoder, in Marian's own files.

Differences from our Transformer, and where each is resolved:

- Matrices are (in, out): `Rule.transposed`.
- Sines are in the first half of the features and cosines in the second: the features of the residual stream are
  reordered, as for MarianMT.  The slowest rate is 1/10000: `full_range`.
- The decoder starts with a vector of zeros: the embedding of our BOS, which is tied to nothing that is computed.
- The vocabulary begins with `</s>` and `<unk>`; PAD and BOS are added, unless an export has made them pieces 2 and 3.
  Marian's search never chooses `<unk>`, so its logit is NEVER, like those of PAD and BOS, unless `allow-unk` is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm

from dragoman.config import parse_config
from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import ImportedVocabulary, Plan, ProblemList, accepted_values
from dragoman.formats.importing.marian_files.checkpoint import MarianCheckpoint
from dragoman.formats.importing.marian_files.comparison import allows_unknown, compare_with_definition
from dragoman.formats.importing.marian_files.lexical import read_shortlist
from dragoman.formats.importing.marian_files.table import table
from dragoman.formats.importing.names import AxisOrder
from dragoman.tokenizers import EOS, SPECIAL_NAMES, UNK, Tokenizer
from dragoman.tokenizers.listed_pieces import PieceLists

compare = compare_with_definition

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-decoder-dim-ffn": (0,),
    "transformer-decoder-ffn-depth": (0,),
    "transformer-ffn-activation": tuple(ACTIVATIONS),
    "transformer-ffn-depth": (2,),
    "transformer-no-affine": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-postprocess-emb": ("", "d"),
    "transformer-rnn-projection": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "ulr": (False,),
}
"""Setting -> accepted values; an absent setting has an accepted default."""
_RECURRENT: dict[str, tuple[Any, ...]] = {"dec-cell": ("ssru",), "layer-normalization": (False,)}
"""The same for models with `transformer-decoder-autoreg: rnn`."""
_SIZES = ("dim-emb", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn")
_ORDERS = {("", "dan", ""): "post", ("", "an", ""): "post", ("n", "da", "n"): "pre", ("n", "a", "n"): "pre"}
"""Preprocess, postprocess and postprocess-top of supported models -> `model.order`."""
NORM_EPS = 1e-6
PAD_PIECE, BOS_PIECE = 2, 3
"""Ids of our padding and begin in exported models."""
_MAX_TOKENS = 256
"""Longest source and target of the imported model.  Marian has no limit; its models are trained on sentences."""


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED)
    if settings.get("transformer-decoder-autoreg") == "rnn":
        problems += accepted_values(settings, _RECURRENT)
    for key in _SIZES:
        if type(settings.get(key)) is not int or settings[key] < 1:
            problems.append(f"{key} = {settings.get(key)!r}; accepted: an integer, at least 1")
    vocabularies = settings.get("dim-vocabs")
    if not _is_two_sizes(vocabularies):
        problems.append(f"dim-vocabs = {vocabularies!r}; accepted: the sizes of two vocabularies: [32000, 32000]")
    operations = _operations(settings)
    if operations not in _ORDERS:
        accepted = "; ".join(" ".join(map(repr, each)) for each in _ORDERS)
        problems.append(
            "transformer-preprocess, -postprocess and -postprocess-top = "
            f"{' '.join(map(repr, operations))}; accepted: {accepted}"
        )
    if not problems and (settings["dim-emb"] % settings["transformer-heads"] or settings["dim-emb"] % 2):
        problems.append(f"dim-emb = {settings['dim-emb']}; accepted: even, and a multiple of the number of heads")
    return problems


def _operations(settings: Mapping[str, Any]) -> tuple[object, object, object]:
    return (
        settings.get("transformer-preprocess", ""),
        settings.get("transformer-postprocess", "dan"),
        settings.get("transformer-postprocess-top", ""),
    )


def _is_two_sizes(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 2 for size in value)


# ---------------------------------------------------------------------------------------------------------- vocabulary


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Read the vocabularies; our ids of special tokens precede Marian's `</s>` and `<unk>`."""
    assert isinstance(checkpoint, MarianCheckpoint)
    paths = checkpoint.vocabularies
    sizes = checkpoint.settings.get("dim-vocabs")
    if not _is_two_sizes(sizes):
        raise ProblemList([])  # reported by `unsupported`
    problems: list[str] = []
    models, lists = [], []
    for side, path, size in zip(("source", "target"), paths, sizes or [], strict=True):
        try:
            if path.suffix == ".spm":
                model = checkpoint.bytes(path.name)
                models.append(model)
                lists.append(_model_pieces(model, path, size))
            else:
                models.append(checkpoint.bytes(f"{side}.spm"))
                lists.append(_listed_pieces(checkpoint.pieces(path), path, size))
        except ProblemList as error:
            problems += error.problems
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise ProblemList(list(dict.fromkeys(problems)))
    own = _has_own_specials(checkpoint, models)
    orders = [_order(len(pieces), own) for pieces in lists]
    same = paths[0] == paths[1]
    if not same and _ties_sides(checkpoint.settings):
        raise ProblemList(["two vocabularies, but the settings tie the embeddings of source and target"])
    source, target = (_named(pieces, own) for pieces in lists)
    file = PieceLists(source, None if same else target, tags=False).file()
    try:
        tokenizer = Tokenizer(models[0], None if models[0] == models[1] else models[1], file)
    except (RuntimeError, ValueError) as error:
        raise ProblemList([f"the vocabulary cannot be used: {error}"]) from None
    return ImportedVocabulary(tokenizer, *orders)


def _ties_sides(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("tied-embeddings-all") or settings.get("tied-embeddings-src"))


def _model_pieces(model: bytes, path: Path, size: int) -> list[str]:
    """Return the pieces of a sentencepiece model of a size, which starts with `</s>` and `<unk>`."""
    try:
        processor = spm.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ProblemList([f"{path}: cannot be read by sentencepiece: {error}"]) from None
    ids = (processor.eos_id(), processor.unk_id())
    if ids != (0, 1):
        raise ProblemList([f"{path}: the ids of </s> and <unk> are {ids}; accepted: (0, 1), as Marian trains it"])
    pieces = [str(processor.id_to_piece(token)) for token in range(processor.get_piece_size())]
    return _of_size(pieces, path, size)


def _listed_pieces(ids: Mapping[str, Any], path: Path, size: int) -> list[str]:
    if sorted(token for token in ids.values() if type(token) is int) != list(range(len(ids))):
        raise ProblemList([f"{path}: its ids are not 0 to {len(ids) - 1:,}, each once"])
    if (ids.get("</s>"), ids.get("<unk>")) != (0, 1):
        raise ProblemList([f"{path}: the ids of </s> and <unk> are not 0 and 1"])
    return _of_size(sorted(ids, key=lambda piece: int(ids[piece])), path, size)


def _of_size(pieces: list[str], path: Path, size: int) -> list[str]:
    if len(pieces) != size:
        raise ProblemList([f"{path}: {len(pieces):,} pieces, but dim-vocabs of the model has {size:,}"])
    return pieces


def _has_own_specials(checkpoint: MarianCheckpoint, models: Sequence[bytes]) -> bool:
    """Return whether our PAD and BOS are pieces of an exported model; its BOS, the start of the decoder, is zero."""
    if not all(path.suffix == ".spm" for path in checkpoint.vocabularies):
        return False
    if not all(has_own_specials(spm.SentencePieceProcessor(model_proto=model)) for model in models):
        return False
    name = "Wemb" if _ties_sides(checkpoint.settings) else "decoder_Wemb"
    embedding = checkpoint.tensors.get(name)
    return embedding is not None and embedding.dim() == 2 and len(embedding) > EOS and not embedding[BOS_PIECE].any()


def has_own_specials(model: spm.SentencePieceProcessor) -> bool:
    """Return whether the first pieces are the end, unknown, padding and begin, as in exported models."""
    return (model.eos_id(), model.unk_id(), model.pad_id(), model.bos_id()) == (0, 1, PAD_PIECE, BOS_PIECE)


def _order(size: int, own: bool) -> list[int]:
    """Return for each of our ids that of Marian: PAD, UNK, BOS, EOS and the pieces."""
    return [PAD_PIECE, 1, BOS_PIECE, 0, *range(4, size)] if own else [-1, 1, -1, 0, *range(2, size)]


def _named(pieces: list[str], own: bool) -> list[str]:
    first = 4 if own else 2
    rest = [f"{piece} ({i})" if piece in SPECIAL_NAMES else piece for i, piece in enumerate(pieces) if i >= first]
    return [*SPECIAL_NAMES, *rest]


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    assert isinstance(checkpoint, MarianCheckpoint)
    settings = checkpoint.settings
    config = parse_config(_document(checkpoint, vocabulary), where=str(checkpoint.model), stored=True)  # checks limits
    d_model = config.model.d_model
    source, target = settings["dim-vocabs"]
    logits = list(vocabulary.target)
    if not allows_unknown(checkpoint):
        logits[UNK] = -1
    return Plan(
        config=config,
        vocabulary=vocabulary,
        table=table(settings, checkpoint.tensors, _ORDERS[_operations(settings)]),  # type: ignore[index]
        orders={
            "stream": AxisOrder(stream_order(d_model), d_model),
            "source": AxisOrder(vocabulary.source, source),
            "target": AxisOrder(vocabulary.target, target),
            "logits": AxisOrder(logits, target),
        },
        constants={},
        unused="",
        positions=_MAX_TOKENS,
        files=_files(checkpoint, vocabulary),
    )


def stream_order(d_model: int) -> list[int]:
    """Return for each of our features that of Marian: 2k is a sine, 2k + 1 a cosine."""
    order: list[int] = np.arange(d_model).reshape(2, -1).T.flatten().tolist()
    return order


def _files(checkpoint: MarianCheckpoint, vocabulary: ImportedVocabulary) -> Callable[[str], dict[str, bytes]]:
    """Return a function that makes the shortlist for weights of a sha256."""
    path = checkpoint.shortlist

    def files(weights: str) -> dict[str, bytes]:
        if path is None:
            return {}
        shared = vocabulary.tokenizer.shared
        found = read_shortlist(path, vocabulary.source, vocabulary.target, shared, weights)
        return {"shortlist.bin": found.to_bytes()}

    return files


def _document(checkpoint: MarianCheckpoint, vocabulary: ImportedVocabulary) -> dict[str, Any]:
    settings, generation, tokenizer = checkpoint.settings, checkpoint.generation, vocabulary.tokenizer
    beam, penalty = generation.get("beam-size"), generation.get("normalize")
    return {
        "data": {
            "kind": "parallel", "train": [], "filter": {"max_tokens": _MAX_TOKENS}, **_languages(checkpoint.model.name),
        },
        "tokenizer": {
            "kind": "unigram", "vocab_size": tokenizer.source_size, "shared": tokenizer.shared, "byte_fallback": False,
        },
        "model": {
            "architecture": "transformer", "d_model": settings["dim-emb"], "d_ff": settings["transformer-dim-ffn"],
            "n_heads": settings["transformer-heads"], "encoder_layers": settings["enc-depth"],
            "decoder_layers": settings["dec-depth"], "tie": _tie(settings), "output_bias": True,
            "activation": ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")],
            "decoder_self": "ssru" if settings.get("transformer-decoder-autoreg") == "rnn" else "attention",
            "order": _ORDERS[_operations(settings)],  # type: ignore[index]
            "norm": {"kind": "layer", "eps": NORM_EPS}, "position": {"kind": "sinusoidal", "full_range": True},
            "dropout": 0.1,
        },
        # Their score is divided by length ** penalty, ours by ((5 + length) / 6) ** alpha.
        "search": {
            "beam": beam if type(beam) is int and 1 <= beam <= 4096 else 4, "shrink_beam": True,
            "alpha": float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 0.0,
        },
    }  # fmt: skip


def _tie(settings: Mapping[str, Any]) -> str:
    if settings.get("tied-embeddings-all") or (settings.get("tied-embeddings") and settings.get("tied-embeddings-src")):
        return "all"
    return "target" if settings.get("tied-embeddings") else "none"


def _languages(name: str) -> dict[str, str]:
    """Return the languages that the names of Firefox's models contain: model.ende.intgemm.alphas.bin."""
    found = re.fullmatch(r"model\.([a-z]{2})([a-z]{2})\..*", name)
    return {} if found is None else {"source_language": found[1], "target_language": found[2]}
