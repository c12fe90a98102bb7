"""MarianMT, the translation models of OPUS-MT, in the layout of Hugging Face.

Differences from our Transformer, and where each is resolved:

- Their position table has sines in the first half of the features and cosines in the second; ours alternates.  Nothing
  else depends on the order of the features of the residual stream: matrices that read or write it, norms, and biases
  are reordered along the axis "stream", so that no setting is needed.
- The decoder starts with the padding token.  Its row becomes our BOS; our PAD is added, with zeros, since it is never
  read, and with the logit NEVER.
- `final_logits_bias`, a buffer that is a parameter in Marian: `model.output_bias`.
- One list of pieces for two sentencepiece models: `data.pieces`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.config import parse_config
from dragoman.data.ids import BOS, EOS, PAD, UNK
from dragoman.data.pieces import PieceLists
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_translators as compare
from dragoman.formats.importing.family import NEVER, ImportedVocabulary, Plan, ProblemList, accepted_values
from dragoman.formats.importing.names import Order, Rule, expanded
from dragoman.nn.position_tables import sinusoid_table

__all__ = ["ACTIVATIONS", "PADDING", "compare", "name_table", "plan", "read_vocabulary", "stream_order", "unsupported"]

PADDING = "dragoman_padding_id"
"""Setting of exported models: the id of our padding token, which is a row of its own; other checkpoints lack one."""

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu",
    "silu": "silu", "sigmoid": "sigmoid",
}  # fmt: skip
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
_SIZES = (
    "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size", "max_position_embeddings",
)  # fmt: skip
_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")


def unsupported(settings: Mapping[str, Any]) -> list[str]:
    problems = accepted_values(settings, _ACCEPTED)
    for key, least in {**dict.fromkeys(_SIZES, 1), **dict.fromkeys(_IDS, 0)}.items():
        if type(settings.get(key)) is not int or settings[key] < least:
            problems.append(f"{key} = {settings.get(key)!r}; accepted: an integer, at least {least}")
    padding = settings.get(PADDING, 0)
    if type(padding) is not int or padding < 0:
        problems.append(f"{PADDING} = {padding!r}; accepted: an integer, at least 0")
    if problems:
        return problems
    for key in ("attention_heads", "ffn_dim"):
        sides = settings[f"encoder_{key}"], settings[f"decoder_{key}"]
        if sides[0] != sides[1]:
            problems.append(f"encoder_{key} = {sides[0]}, decoder_{key} = {sides[1]}; accepted: the same for both")
    if settings["d_model"] % settings["encoder_attention_heads"] or settings["d_model"] % 2:
        problems.append(f"d_model = {settings['d_model']}; accepted: even, and a multiple of the number of heads")
    if settings["decoder_start_token_id"] != settings["pad_token_id"]:
        problems.append(
            f"decoder_start_token_id = {settings['decoder_start_token_id']}; accepted: pad_token_id = "
            f"{settings['pad_token_id']}"
        )
    if settings["pad_token_id"] == settings["eos_token_id"]:
        problems.append(f"pad_token_id = eos_token_id = {settings['pad_token_id']}; accepted: different ids")
    return problems


# ---------------------------------------------------------------------------------------------------------- vocabulary


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Read both sentencepiece models and the list, or two lists, of pieces; the special tokens get our ids."""
    problems: list[str] = []
    settings = checkpoint.settings

    def pieces(name: str, size: object) -> list[str]:
        try:
            return _pieces(checkpoint.json(name), name, size)
        except ProblemList as error:
            problems.extend(error.problems)
        except DragomanError as error:
            problems.append(str(error))
        return []

    def model(name: str) -> bytes:
        try:
            return checkpoint.bytes(name)
        except DragomanError as error:
            problems.append(str(error))
            return b""

    models = model("source.spm"), model("target.spm")
    source, target = pieces("vocab.json", settings.get("vocab_size")), None
    if _has_two_lists(checkpoint):
        size = settings.get("decoder_vocab_size")
        target = pieces("target_vocab.json", settings.get("vocab_size") if size is None else size)
    if target is not None and _tie(settings) == "all":
        problems.append("two vocabularies (separate_vocabs) share one matrix (share_encoder_decoder_embeddings)")
    if problems:
        raise ProblemList(problems)
    orders = [_order(side, settings, name) for side, name in ((source, "vocab.json"), (target, "target_vocab.json"))]
    lists = PieceLists(_reordered(source, orders[0]), target and _reordered(target, orders[1]), tags=True)
    try:
        tokenizer = Tokenizer(*models, lists.file())
    except RuntimeError as error:
        raise ProblemList([f"source.spm or target.spm cannot be read by sentencepiece: {error}"]) from None
    except ValueError as error:
        raise ProblemList([f"the vocabulary cannot be used: {error}"]) from None
    return ImportedVocabulary(tokenizer, orders[0], orders[1] or orders[0])


def _has_two_lists(checkpoint: Checkpoint) -> bool:
    if not (checkpoint.folder / "tokenizer_config.json").exists():
        return False
    return bool(checkpoint.json("tokenizer_config.json").get("separate_vocabs"))


def _pieces(ids: Mapping[str, Any], name: str, size: object) -> list[str]:
    """Return the pieces in the order of their ids, which are 0 .. size - 1.  Raises ProblemList."""
    if len(ids) != size:
        raise ProblemList([f"{name}: {len(ids):,} pieces, but the vocabulary of config.json has {size}"])
    if sorted(token for token in ids.values() if type(token) is int) != list(range(len(ids))):
        raise ProblemList([f"{name}: its ids are not 0 to {len(ids) - 1:,}, each once"])
    if "<unk>" not in ids:
        raise ProblemList([f"{name}: no piece <unk>"])
    return sorted(ids, key=lambda piece: int(ids[piece]))


def _order(pieces: list[str] | None, settings: Mapping[str, Any], name: str) -> list[int]:
    """Return for each of our ids that of the checkpoint."""
    if pieces is None:
        return []
    special = {
        PAD: settings.get(PADDING, -1), UNK: pieces.index("<unk>"), BOS: settings.get("decoder_start_token_id"),
        EOS: settings.get("eos_token_id"),
    }  # fmt: skip
    found = [special[token] for token in sorted(special)]
    if any(type(token) is not int or token >= len(pieces) for token in found) or len(set(found)) < len(found):
        raise ProblemList([f"{name}: the ids of <unk>, start and end, {found[1:]}, are not different ids of the list"])
    order = [int(token) for token in found if token is not None]
    return order + [token for token in range(len(pieces)) if token not in order]


def _reordered(pieces: list[str], order: list[int]) -> list[str]:
    """Return the pieces in our order; the names of the special ones are ours, and occur once."""
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    return special + [f"{pieces[i]} ({i})" if pieces[i] in special else pieces[i] for i in order[len(special) :]]


# ---------------------------------------------------------------------------------------------------------------- plan


def plan(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> Plan:
    settings = checkpoint.settings
    config = parse_config(_document(checkpoint, vocabulary), where=str(checkpoint.folder), stored=True)  # checks limits
    d_model, positions = config.model.d_model, settings["max_position_embeddings"]
    stream = stream_order(d_model)
    sizes = max(vocabulary.source) + 1, max(vocabulary.target) + 1

    def table(shape: tuple[int, ...]) -> Tensor | None:
        if shape != (positions, d_model):
            return None
        return torch.from_numpy(sinusoid_table(positions, d_model)[:, np.argsort(stream)])

    return Plan(
        config=config,
        vocabulary=vocabulary,
        table=name_table(settings),
        orders={
            "stream": Order(stream, d_model),
            "source": Order(vocabulary.source, sizes[0]),
            "target": Order(vocabulary.target, sizes[1]),
            "logits": Order(_generated(checkpoint.generation, vocabulary), sizes[1]),
        },
        constants={f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")},
        unused="" if _tie(settings) == "all" else r"model\.shared\.weight",
        positions=positions,
    )


def stream_order(d_model: int) -> list[int]:
    """Return for each of our features its index in theirs: our feature 2k is a sine, 2k + 1 a cosine."""
    order: list[int] = np.arange(d_model).reshape(2, -1).T.flatten().tolist()
    return order


def _tie(settings: Mapping[str, Any]) -> str:
    if not settings.get("tie_word_embeddings", True):
        return "none"
    return "all" if settings.get("share_encoder_decoder_embeddings", True) else "target"


def _generated(generation: Mapping[str, Any], vocabulary: ImportedVocabulary) -> list[int]:
    """Return the order of the target, with -1 for a start token that generation excludes from the softmax.

    `bad_words_ids` alone excludes it after the softmax, as our search excludes BOS.
    """
    order, start = list(vocabulary.target), vocabulary.target[BOS]
    excluded = generation.get("bad_words_ids")
    if generation.get("renormalize_logits") and isinstance(excluded, list) and [start] in excluded:
        order[BOS] = -1
    return order


def _document(checkpoint: Checkpoint, vocabulary: ImportedVocabulary) -> dict[str, Any]:
    settings, generation, tokenizer = checkpoint.settings, checkpoint.generation, vocabulary.tokenizer
    names = checkpoint.json("tokenizer_config.json") if (checkpoint.folder / "tokenizer_config.json").exists() else {}
    sides = {"source_language": names.get("source_lang"), "target_language": names.get("target_lang")}
    beams, penalty = generation.get("num_beams"), generation.get("length_penalty")
    return {
        "data": {
            "kind": "parallel", "train": [], "filter": {"max_tokens": settings["max_position_embeddings"]},
            **{key: value for key, value in sides.items() if isinstance(value, str) and value},
        },
        "tokenizer": {
            "kind": "unigram", "vocab_size": tokenizer.source_size, "shared": tokenizer.shared,
            "byte_fallback": False,
        },
        "model": {
            "architecture": "transformer", "d_model": settings["d_model"], "d_ff": settings["encoder_ffn_dim"],
            "n_heads": settings["encoder_attention_heads"], "encoder_layers": settings["encoder_layers"],
            "decoder_layers": settings["decoder_layers"], "tie": _tie(settings), "output_bias": True,
            "activation": ACTIVATIONS[settings.get("activation_function", "gelu")],
            "scale_embeddings": bool(settings.get("scale_embedding", False)),
            **{key: settings[key] for key in ("dropout", "attention_dropout", "activation_dropout") if key in settings},
        },
        # Their score is divided by length ** penalty, ours by ((5 + length) / 6) ** alpha.
        "search": {
            "beam": beams if type(beams) is int and 1 <= beams <= 4096 else 4,
            "alpha": float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 1.0,
        },
    }  # fmt: skip


def _attention(ours: str, theirs: str) -> dict[str, Rule]:
    """Return the rules of a multi-head attention and of its norm."""
    queries, keys, values = (f"{theirs}.{part}_proj" for part in "qkv")
    groups: dict[str, tuple[str, ...]] = {"qkv": (queries, keys, values)}
    if ours.endswith("cross_attn"):
        groups = {"q": (queries,), "kv": (keys, values)}
    rules = {}
    for name, parts in groups.items():
        rules[f"{ours}.{name}.weight"] = Rule(tuple(f"{part}.weight" for part in parts), ("", "stream"))
        rules[f"{ours}.{name}.bias"] = Rule(tuple(f"{part}.bias" for part in parts), ("",))
    rules[f"{ours}.out.weight"] = Rule((f"{theirs}.out_proj.weight",), ("stream", ""))
    rules[f"{ours}.out.bias"] = Rule((f"{theirs}.out_proj.bias",), ("stream",))
    return rules


def _norm(ours: str, theirs: str) -> dict[str, Rule]:
    return {f"{ours}.{part}": Rule((f"{theirs}.{part}",), ("stream",)) for part in ("weight", "bias")}


def _layer(stack: str) -> dict[str, Rule]:
    """Return the rules of a layer; `{}` is its number."""
    ours, theirs = f"{stack}.layers.{{}}", f"model.{stack}.layers.{{}}"
    rules = {
        **_attention(f"{ours}.self_attn", f"{theirs}.self_attn"),
        **_norm(f"{ours}.around_self_attn.norm", f"{theirs}.self_attn_layer_norm"),
        f"{ours}.ffn.inner.weight": Rule((f"{theirs}.fc1.weight",), ("", "stream")),
        f"{ours}.ffn.inner.bias": Rule((f"{theirs}.fc1.bias",), ("",)),
        f"{ours}.ffn.outer.weight": Rule((f"{theirs}.fc2.weight",), ("stream", "")),
        f"{ours}.ffn.outer.bias": Rule((f"{theirs}.fc2.bias",), ("stream",)),
        **_norm(f"{ours}.around_ffn.norm", f"{theirs}.final_layer_norm"),
    }
    if stack == "decoder":
        rules |= _attention(f"{ours}.cross_attn", f"{theirs}.encoder_attn")
        rules |= _norm(f"{ours}.around_cross_attn.norm", f"{theirs}.encoder_attn_layer_norm")
    return rules


_SHARED, _SOURCE, _TARGET = ("model.shared.weight", *(f"model.{s}.embed_tokens.weight" for s in ("encoder", "decoder")))
_EMBEDDINGS = {
    "all": {"encoder.embedding.weight": Rule((f"{_SHARED}|{_SOURCE}|{_TARGET}|lm_head.weight",), ("source", "stream"))},
    "target": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "stream")),
        "decoder.embedding.weight": Rule((f"{_TARGET}|lm_head.weight",), ("target", "stream")),
    },
    "none": {
        "encoder.embedding.weight": Rule((_SOURCE,), ("source", "stream")),
        "decoder.embedding.weight": Rule((_TARGET,), ("target", "stream")),
        "output.weight": Rule(("lm_head.weight",), ("target", "stream")),
    },
}


def name_table(settings: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the rule of each of our tensors; its axes are "stream", "source", "target" and "logits"."""
    table = dict(_EMBEDDINGS[_tie(settings)])
    for stack in ("encoder", "decoder"):
        table |= expanded(_layer(stack), settings[f"{stack}_layers"])
    table["output.bias"] = Rule(("final_logits_bias",), ("logits",), added=NEVER, optional=True)
    return table
