"""What the encoder-decoders of `transformers` (Marian, BART, M2M-100) share: settings, and the rules of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.formats.importing.family import ACTIVATIONS, NEVER
from dragoman.formats.importing.names import Rule, expanded
from dragoman.tokenizers import SPECIAL_NAMES

_SIZES = (
    "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size", "max_position_embeddings",
)  # fmt: skip
_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")


def size_problems(settings: Mapping[str, Any], even: bool) -> Iterator[str]:
    """Yield what is wrong with sizes and ids of special tokens.  even: whether d_model must be even."""
    problems = [
        f"{key} = {settings.get(key)!r}; accepted: an integer, at least {least}"
        for key, least in {**dict.fromkeys(_SIZES, 1), **dict.fromkeys(_IDS, 0)}.items()
        if type(settings.get(key)) is not int or settings[key] < least
    ]
    yield from problems
    if problems:
        return
    for key in ("attention_heads", "ffn_dim"):
        sides = settings[f"encoder_{key}"], settings[f"decoder_{key}"]
        if sides[0] != sides[1]:
            yield f"encoder_{key} = {sides[0]}, decoder_{key} = {sides[1]}; accepted: the same for both"
    if settings["d_model"] % settings["encoder_attention_heads"] or (even and settings["d_model"] % 2):
        parts = "even, and a multiple" if even else "a multiple"
        yield f"d_model = {settings['d_model']}; accepted: {parts} of the number of heads"
    if settings["pad_token_id"] == settings["eos_token_id"]:
        yield f"pad_token_id = eos_token_id = {settings['pad_token_id']}; accepted: different ids"


def model_document(settings: Mapping[str, Any], tie: str) -> dict[str, Any]:
    """Return the section `model` of the configuration, with sinusoidal positions and post-norm."""
    return {
        "architecture": "transformer", "d_model": settings["d_model"], "d_ff": settings["encoder_ffn_dim"],
        "n_heads": settings["encoder_attention_heads"], "encoder_layers": settings["encoder_layers"],
        "decoder_layers": settings["decoder_layers"], "tie": tie, "output_bias": True,
        "activation": ACTIVATIONS[settings.get("activation_function", "gelu")],
        "scale_embeddings": bool(settings.get("scale_embedding", False)),
        **{key: settings[key] for key in ("dropout", "attention_dropout", "activation_dropout") if key in settings},
    }  # fmt: skip


def search_document(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `search` of the configuration."""
    beams, penalty = generation.get("num_beams"), generation.get("length_penalty")
    # Their score is divided by length ** penalty, ours by ((5 + length) / 6) ** alpha.
    return {
        "beam": beams if type(beams) is int and 1 <= beams <= 4096 else 4,
        "alpha": float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 1.0,
    }


def renamed(pieces: Sequence[str], order: Sequence[int]) -> list[str]:
    """Return the pieces in our order; the names of the special ones are ours, and occur once."""
    rest = [f"{pieces[i]} ({i})" if pieces[i] in SPECIAL_NAMES else pieces[i] for i in order[len(SPECIAL_NAMES) :]]
    return [*SPECIAL_NAMES, *rest]


# ---------------------------------------------------------------------------------------------------------- name table


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


def norm_rules(ours: str, theirs: str) -> dict[str, Rule]:
    return {f"{ours}.{part}": Rule((f"{theirs}.{part}",), ("stream",)) for part in ("weight", "bias")}


def _layer(stack: str) -> dict[str, Rule]:
    """Return the rules of a layer; `{}` is its number."""
    ours, theirs = f"{stack}.layers.{{}}", f"model.{stack}.layers.{{}}"
    rules = {
        **_attention(f"{ours}.self_attn", f"{theirs}.self_attn"),
        **norm_rules(f"{ours}.around_self_attn.norm", f"{theirs}.self_attn_layer_norm"),
        f"{ours}.ffn.inner.weight": Rule((f"{theirs}.fc1.weight",), ("", "stream")),
        f"{ours}.ffn.inner.bias": Rule((f"{theirs}.fc1.bias",), ("",)),
        f"{ours}.ffn.outer.weight": Rule((f"{theirs}.fc2.weight",), ("stream", "")),
        f"{ours}.ffn.outer.bias": Rule((f"{theirs}.fc2.bias",), ("stream",)),
        **norm_rules(f"{ours}.around_ffn.norm", f"{theirs}.final_layer_norm"),
    }
    if stack == "decoder":
        rules |= _attention(f"{ours}.cross_attn", f"{theirs}.encoder_attn")
        rules |= norm_rules(f"{ours}.around_cross_attn.norm", f"{theirs}.encoder_attn_layer_norm")
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


def encoder_decoder_table(settings: Mapping[str, Any], tie: str) -> dict[str, Rule]:
    """Return the rules of embeddings, layers and output bias."""
    table = dict(_EMBEDDINGS[tie])
    for stack in ("encoder", "decoder"):
        table |= expanded(_layer(stack), settings[f"{stack}_layers"])
    table["output.bias"] = Rule(("final_logits_bias",), ("logits",), added=NEVER, optional=True)
    return table
