"""The name table of Marian's Transformer: from which parameters each of our tensors is made."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from dragoman.formats.importing.family import NEVER
from dragoman.formats.importing.names import Rule, expanded


def table(settings: Mapping[str, Any], tensors: Container[str], order: str) -> dict[str, Rule]:
    """Return the rules of a model with these settings.

    tensors: names in the file.  order: "post", or "pre" for norms before the sub-layers.
    """
    suffix = "_pre" if order == "pre" else ""
    rules = _embeddings(settings, tensors)
    recurrent = settings.get("transformer-decoder-autoreg") == "rnn"
    rules |= expanded(_encoder_layer(suffix), settings["enc-depth"], first=1)
    rules |= expanded(_decoder_layer(suffix, recurrent), settings["dec-depth"], first=1)
    if order == "pre":
        rules |= _norm("encoder.final_norm", "encoder_top") | _norm("decoder.final_norm", "decoder_top")
    rules["output.bias"] = Rule(("decoder_ff_logit_out_b",), ("logits",), added=NEVER, optional=True)
    return rules


def _embeddings(settings: Mapping[str, Any], tensors: Container[str]) -> dict[str, Rule]:
    """Return the rules of the matrices of the vocabularies."""
    everything, sides = settings.get("tied-embeddings-all"), settings.get("tied-embeddings-src")
    output = settings.get("tied-embeddings")
    source = "Wemb" if everything or sides else "encoder_Wemb"
    target = "Wemb" if everything or sides else "decoder_Wemb"
    rules = {"encoder.embedding.weight": Rule((source,), ("source", "stream"))}
    if everything or (output and sides):
        return rules
    rules["decoder.embedding.weight"] = Rule((target,), ("target", "stream"))
    if not output:  # `_W` is the layout of older versions
        old = "decoder_ff_logit_out_W" in tensors
        name = f"decoder_ff_logit_out_{'W' if old else 'Wt'}"
        rules["output.weight"] = Rule((name,), ("target", "stream"), transposed=old)
    return rules


def _encoder_layer(suffix: str) -> dict[str, Rule]:
    """Return the rules of a layer; `{}` is its number.  suffix: of the names of norms."""
    ours, theirs = "encoder.layers.{}", "encoder_l{}"
    return {
        **_attention(f"{ours}.self_attn", f"{theirs}_self"),
        **_norm(f"{ours}.around_self_attn.norm", f"{theirs}_self_Wo", suffix),
        **_feed_forward(ours, theirs, suffix),
    }


def _decoder_layer(suffix: str, recurrent: bool) -> dict[str, Rule]:
    ours, theirs = "decoder.layers.{}", "decoder_l{}"
    if recurrent:
        # The norm before this sub-layer has another name than the norm after it.
        rules = _ssru(f"{ours}.ssru", f"{theirs}_rnn")
        rules |= _norm(f"{ours}.around_ssru.norm", f"{theirs}_rnn" if suffix else f"{theirs}_rnn_ffn", suffix)
    else:
        rules = _attention(f"{ours}.self_attn", f"{theirs}_self")
        rules |= _norm(f"{ours}.around_self_attn.norm", f"{theirs}_self_Wo", suffix)
    return {
        **rules,
        **_attention(f"{ours}.cross_attn", f"{theirs}_context"),
        **_norm(f"{ours}.around_cross_attn.norm", f"{theirs}_context_Wo", suffix),
        **_feed_forward(ours, theirs, suffix),
    }


def _matrix(names: tuple[str, ...], axes: tuple[str, str]) -> Rule:
    return Rule(names, axes, transposed=True)


def _attention(ours: str, theirs: str) -> dict[str, Rule]:
    groups = {"q": ("q",), "kv": ("k", "v")} if ours.endswith("cross_attn") else {"qkv": ("q", "k", "v")}
    rules = {}
    for name, parts in groups.items():
        rules[f"{ours}.{name}.weight"] = _matrix(tuple(f"{theirs}_W{part}" for part in parts), ("", "stream"))
        rules[f"{ours}.{name}.bias"] = Rule(tuple(f"{theirs}_b{part}" for part in parts), ("",))
    rules[f"{ours}.out.weight"] = _matrix((f"{theirs}_Wo",), ("stream", ""))
    rules[f"{ours}.out.bias"] = Rule((f"{theirs}_bo",), ("stream",))
    return rules


def _ssru(ours: str, theirs: str) -> dict[str, Rule]:
    """The cells are added to the residual stream: all axes have its order."""
    return {
        f"{ours}.project.weight": _matrix((f"{theirs}_W",), ("stream", "stream")),
        f"{ours}.gate.weight": _matrix((f"{theirs}_Wf",), ("stream", "stream")),
        f"{ours}.gate.bias": Rule((f"{theirs}_bf",), ("stream",)),
    }


def _feed_forward(ours: str, theirs: str, suffix: str) -> dict[str, Rule]:
    return {
        f"{ours}.ffn.inner.weight": _matrix((f"{theirs}_ffn_W1",), ("", "stream")),
        f"{ours}.ffn.inner.bias": Rule((f"{theirs}_ffn_b1",), ("",)),
        f"{ours}.ffn.outer.weight": _matrix((f"{theirs}_ffn_W2",), ("stream", "")),
        f"{ours}.ffn.outer.bias": Rule((f"{theirs}_ffn_b2",), ("stream",)),
        **_norm(f"{ours}.around_ffn.norm", f"{theirs}_ffn_ffn", suffix),
    }


def _norm(ours: str, theirs: str, suffix: str = "") -> dict[str, Rule]:
    return {
        f"{ours}.weight": Rule((f"{theirs}_ln_scale{suffix}",), ("stream",)),
        f"{ours}.bias": Rule((f"{theirs}_ln_bias{suffix}",), ("stream",)),
    }
