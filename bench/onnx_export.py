"""A model of ours as two ONNX graphs, as somebody would cut them who decodes with onnxruntime.

encoder: source ids and their mask -> the keys and values of each layer's cross-attention, made once a sentence.
step: the last token of every row and all keys and values -> the best continuations, and the keys and values with one
more position.  In int8 the matrices have a scale for each output, and activations get theirs as they come.

Letters: B sentences, K beams, N = B*K rows, S source length, T tokens so far, D d_model, Dh head size, V vocabulary.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.models.transformer import Decoder, Transformer
from dragoman.nn.attention import MultiHead, mask_to_bias
from dragoman.nn.layers import DecoderLayer, RMSNorm
from dragoman.nn.positions import Learned, Positions
from dragoman.nn.state import CrossKeyValues
from dragoman.tokenizers import BOS, EOS, PAD

ROOM = 512  # positions of the tables
BEST = 5  # continuations of a row: of four beams, and one more in case that one is an end that must not come yet
AXES = {
    "src": {0: "sentences", 1: "words"}, "mask": {0: "sentences", 1: "words"}, "tokens": {0: "sentences", 1: "beams"},
    "position": {}, "cross": {0: "sentences", 2: "words"}, "own": {0: "rows", 2: "positions"},
    "best": {0: "rows"}, "picked": {0: "rows"}, "end": {0: "rows"}, "grown": {0: "rows", 2: "grown"},
}  # fmt: skip
"""The sizes that change, of what has such a name or one with a number behind it."""


class Looked(Positions):
    """What a scheme adds and how it turns, looked up in tables: no position leaves the graph for Python."""

    def __init__(self, scheme: Positions, d_model: int, d_key: int) -> None:
        super().__init__()
        pos = torch.arange(scheme.table.size(0) if isinstance(scheme, Learned) else ROOM)
        if scheme.needs_weights or scheme.static_bias(pos, pos) is not None:
            raise SystemExit(f"onnxruntime: {type(scheme).__name__} positions are not exported; leave out that peer")
        with torch.no_grad():
            added = scheme.embed(torch.zeros(1, len(pos), d_model), pos, None)[0][0]  # (positions, D)
            ones = torch.tensor([1.0, 0.0]).repeat(d_key // 2).expand(1, 1, len(pos), d_key)
            turned = scheme.rotate(ones, ones, pos)[0][0, 0].unflatten(-1, (-1, 2))  # (positions, Dh/2, 2)
        cos, sin = turned.unbind(-1)
        self.adds, self.turns = bool(added.any()), bool(sin.any())
        self.register_buffer("added", added)
        self.register_buffer("cos", cos.repeat_interleave(2, -1))
        self.register_buffer("sin", torch.stack([-sin, sin], -1).flatten(-2))
        self.register_buffer("beside", torch.arange(d_key) ^ 1)
        self.added: Tensor
        self.cos: Tensor
        self.sin: Tensor
        self.beside: Tensor

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return (x + self.added[pos] if self.adds else x), carry

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        if not self.turns:
            return q, k
        cos, sin = self.cos[pos], self.sin[pos]  # (T, Dh)
        return q * cos + q[..., self.beside] * sin, k * cos + k[..., self.beside] * sin


class Root(nn.Module):
    """RMSNorm in the operations in which onnxruntime finds one."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Grown:
    """A layer's memory, given and grown by concatenation."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        return self.keys, self.values


def layers_of(decoder: Decoder) -> list[DecoderLayer]:
    return [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]


class EncoderGraph(nn.Module):
    """src, mask (B, S) -> keys and values (B, Hkv, S, Dh) of every layer, in turn."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, src: Tensor, mask: Tensor) -> list[Tensor]:
        states = self.encoder(src, mask)
        projected = [layer.cross_attn.project(states) for layer in layers_of(self.decoder)]
        return [part for each in projected for part in (each.keys, each.values)]


class StepGraph(nn.Module):
    """tokens (B, K) at position (1,), mask (B, S), of every layer in turn cross keys and values (B, Hkv, S, Dh), then
    own (N, Hkv, T, Dh) -> log-probabilities and ids (N, BEST) of the best words, log-probability (N,) of the end, own
    keys and values (N, Hkv, T + 1, Dh).
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.decoder, self.output = model.decoder, model.output
        never = torch.zeros(model.decoder.embedding.weight.size(0))
        never[[PAD, BOS]] = -math.inf
        self.register_buffer("never", never)
        self.never: Tensor

    def forward(self, tokens: Tensor, position: Tensor, mask: Tensor, *memory: Tensor) -> list[Tensor]:
        decoder, count = self.decoder, len(self.decoder.layers)
        x, _ = decoder.positions.embed(decoder.embedding(tokens.flatten()[:, None]), position, None)  # (N, 1, D)
        bias = mask_to_bias(mask[:, None, None, :], x.dtype)
        pairs = list(zip(memory[::2], memory[1::2], strict=True))
        grown = [Grown(*pair) for pair in pairs[count:]]
        for layer, cross, own in zip(decoder.layers, pairs[:count], grown, strict=True):
            x = layer(x, decoder.positions, position, None, False, own, CrossKeyValues(*cross), bias)
        log_probs = self.output(decoder.final_norm(x))[:, 0].log_softmax(-1)
        best, words = (log_probs + self.never).topk(BEST)
        return [best, words, log_probs[:, EOS], *(part for own in grown for part in (own.keys, own.values))]


def plain_operations(model: Transformer) -> Transformer:
    """A copy whose layers do everything in operations that ONNX has."""
    model = copy.deepcopy(model).eval()
    heads = layers_of(model.decoder)[0].cross_attn
    for stack in (model.encoder, model.decoder):
        stack.positions = Looked(stack.positions, heads.n_heads * heads.d_head, heads.d_key)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RMSNorm):
                setattr(module, name, Root(child))
        if isinstance(module, MultiHead):  # who may replace the weights has the formula written out
            module.weights.register_forward_hook(lambda tap, given, weights: weights)
    return model


def export(model: Transformer, folder: Path) -> None:
    """Write encoder.onnx and step.onnx into `folder`/onnx-float32 and `folder`/onnx-int8."""
    model = plain_operations(model)
    encoder, step = EncoderGraph(model).eval(), StepGraph(model).eval()
    src, mask = torch.full((2, 7), EOS), torch.ones(2, 7, dtype=torch.bool)
    with torch.no_grad():
        memory = encoder(src, mask)
    past = [part.new_zeros(6, part.size(1), 5, part.size(3)) for part in memory]
    cross, own, grown = ([f"{name}_{i}" for i in range(len(memory))] for name in ("cross", "own", "grown"))
    inputs = {"tokens": torch.full((2, 3), EOS), "position": torch.tensor([5]), "mask": mask}
    inputs |= dict(zip(cross + own, memory + past, strict=True))
    for precision in ("float32", "int8"):
        (folder / f"onnx-{precision}").mkdir()
    write(encoder, {"src": src, "mask": mask}, cross, folder, "encoder.onnx")
    write(step, inputs, ["best", "picked", "end", *grown], folder, "step.onnx")


def write(graph: nn.Module, inputs: dict[str, Tensor], outputs: list[str], folder: Path, name: str) -> None:
    """A graph traced with these inputs, and in 8 bits: a scale for each output of a matrix, activations as they come.

    The tracer, because what torch 2.13 has in its place asks for the strides of an input, which ONNX does not have.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    traced = folder / "onnx-float32" / name
    axes = {each: AXES[each.partition("_")[0]] for each in (*inputs, *outputs)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that decide nothing here but how attention goes about it
        torch.onnx.export(
            graph, tuple(inputs.values()), traced, input_names=list(inputs), output_names=outputs, dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip
    logging.disable(logging.WARNING)  # it recommends what dynamic quantization has no use for
    quantize_dynamic(traced, folder / "onnx-int8" / name, per_channel=True, weight_type=QuantType.QInt8)
    logging.disable(logging.NOTSET)
