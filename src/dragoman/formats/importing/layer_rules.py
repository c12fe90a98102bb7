"""The name table of a Transformer, from the names that a format has for its parts.

A part of a layer is a linear layer or a norm, under our name: "self_attn.qkv", "cross_attn.kv", "ffn.inner",
"around_ffn.norm"; in Marian also "ssru.project" and "ssru.gate".  Its names in a checkpoint are several if it joins
matrices, such as those of queries, keys and values; `{}` in them is the number of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dragoman.formats.importing.names import Rule, expanded

STACKS = ("encoder", "decoder")
Parts = Mapping[str, tuple[str, ...]]
"""Our name of a part -> its names in a checkpoint."""


@dataclass(frozen=True)
class Naming:
    """How a format names the tensors of a part and stores them.

    weight, bias, gain, shift: name of a tensor for the name of a linear layer (the former) or a norm (the latter), None
    if there is none.  stream: axis of the features of the residual stream, if the format has them in another order.
    transposed, optional_bias: as in `Rule`.
    """

    weight: Callable[[str], str] = "{}.weight".format
    bias: Callable[[str], str] | None = "{}.bias".format
    gain: Callable[[str], str] = "{}.weight".format
    shift: Callable[[str], str] | None = "{}.bias".format
    stream: str = ""
    transposed: bool = False
    optional_bias: bool = False


@dataclass(frozen=True)
class TransformerNames:
    """The names of an encoder-decoder.

    layers: the parts of a layer of each stack.  others: our name -> the name of a tensor ("encoder.embedding",
    "decoder.embedding", "output", all with (V, D)) or of a norm ("encoder.final_norm", "decoder.embedding_norm"), which
    is left out if the model has no such norm.
    """

    layers: Mapping[str, Parts]
    others: Mapping[str, str]
    naming: Naming = Naming()

    def rules(self, layers: tuple[int, int], tie: str, first: int = 0) -> dict[str, Rule]:
        """Return the table: embeddings, layers and norms, without positions and output bias.

        layers: of encoder and decoder.  tie: `model.tie`.  first: number of the first layer in the checkpoint.
        """
        source, target, output = (self.others[name] for name in ("encoder.embedding", "decoder.embedding", "output"))
        rules = embedding_rules(tie, source, target, output, self.naming.stream)
        for stack, count in zip(STACKS, layers, strict=True):
            rules |= expanded(part_rules(f"{stack}.layers.{{}}.", self.layers[stack], self.naming), count, first)
        norms = {name: (theirs,) for name, theirs in self.others.items() if name.endswith("norm")}
        return rules | part_rules("", norms, self.naming)


def attention_parts(ours: str, queries: str, keys: str, values: str, out: str) -> dict[str, tuple[str, ...]]:
    """Return the parts of an attention, "self_attn" or "cross_attn"."""
    if ours == "self_attn":
        return {"self_attn.qkv": (queries, keys, values), "self_attn.out": (out,)}
    return {"cross_attn.q": (queries,), "cross_attn.kv": (keys, values), "cross_attn.out": (out,)}


def part_rules(prefix: str, parts: Parts, naming: Naming = Naming()) -> dict[str, Rule]:
    """Return the rules of linear layers and norms.  prefix: of our names."""
    rules = {}
    for part, theirs in parts.items():
        name = f"{prefix}{part}"
        if part.endswith("norm"):
            rules[f"{name}.weight"] = Rule(tuple(map(naming.gain, theirs)), (naming.stream,))
            if naming.shift is not None:
                rules[f"{name}.bias"] = Rule(tuple(map(naming.shift, theirs)), (naming.stream,))
            continue
        # The last layer of attention or of a feed-forward network writes the residual stream, the first one reads it.
        # The cells of an SSRU do both, since they are added to it.
        is_last, is_cell = part.endswith(("out", "outer")), part.startswith("ssru.")
        axes = naming.stream if is_last or is_cell else "", "" if is_last else naming.stream
        rules[f"{name}.weight"] = Rule(tuple(map(naming.weight, theirs)), axes, transposed=naming.transposed)
        if naming.bias is not None and part != "ssru.project":
            biases = tuple(map(naming.bias, theirs))
            rules[f"{name}.bias"] = Rule(biases, axes[:1], optional=naming.optional_bias)
    return rules


def embedding_rules(tie: str, source: str, target: str, output: str, stream: str = "") -> dict[str, Rule]:
    """Return the rules of embeddings and output layer.  source, target, output: names of the matrices."""

    def rule(side: str, *names: str) -> Rule:
        return Rule(("|".join(dict.fromkeys(names)),), (side, stream))

    encoder, decoder, logits = (f"{name}.weight" for name in ("encoder.embedding", "decoder.embedding", "output"))
    match tie:
        case "all":
            return {encoder: rule("source", source, target, output)}
        case "embeddings":
            return {encoder: rule("source", source, target), logits: rule("target", output)}
        case "target":
            return {encoder: rule("source", source), decoder: rule("target", target, output)}
    return {encoder: rule("source", source), decoder: rule("target", target), logits: rule("target", output)}
