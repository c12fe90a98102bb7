"""From a trained model to the one file that the native engine reads: weights in the order in which a step needs them.

A matrix lies in blocks of 64 outputs, padded with zeros: float32 as [out / 64][in][64], bfloat16 as
[out / 64][in / 2][64][2], int8 as [out / 64][in / 4][64][4] with a scale an output.  native/model.h has the header,
native/matrix.h the numbers; both sides change together, with the version.

Letters: D d_model, Dh head size, H heads, Hkv heads of keys and values, F d_ff, V vocabulary, P positions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.decoding.native.library import VERSION, Precision
from dragoman.errors import ModelFolderError, UsageError
from dragoman.io.writing import atomic_file
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Encoder, Transformer
from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, FeedForward, LayerNorm, RMSNorm, SubLayer
from dragoman.nn.positions import T5, Alibi, Learned, Positions, Rotary, Sinusoidal

__all__ = ["pack", "unsupported"]

_KINDS = {"float32": 0, "int8": 1, "bfloat16": 2}
_BLOCK, _LANES = 64, 16
_POSITIONS = {Positions: 0, Sinusoidal: 1, Learned: 1, Rotary: 2, T5: 3, Alibi: 3}
_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")

Floats = NDArray[np.float32]


def unsupported(model: Network) -> list[str]:
    """Why the engine cannot run this model; empty where it can."""
    if not isinstance(model, Transformer | DecoderOnly):
        return [f"its architecture is {type(model).__name__}: the engine has transformer and decoder_only"]
    reasons = []
    for stack in _stacks(model):
        if type(stack.positions) not in _POSITIONS:
            reasons.append(f"its positions are {type(stack.positions).__name__}")
        for module in stack.modules():
            if isinstance(module, SubLayer) and not isinstance(module.norm, LayerNorm | RMSNorm):
                reasons.append(f"its norm is {type(module.norm).__name__}")
        if any(not isinstance(layer.self_attn, SelfAttention) for layer in stack.layers):
            reasons.append("its attention is linear")
    return list(dict.fromkeys(reasons))


def pack(model: Network, path: Path, precision: Precision, max_positions: int = 1024) -> Path:
    """Write the packed model to `path`, whole or not at all.

    max_positions: the longest source and target, in tokens.  Raises UsageError with all that the engine does not have.
    """
    reasons = unsupported(model)
    if reasons:
        raise UsageError("\n".join(["this model runs on the plain path only:", *(f"  - {r}" for r in reasons)]))
    assert isinstance(model, Transformer | DecoderOnly)
    wrong = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    if wrong:
        raise ModelFolderError(
            f"{', '.join(wrong[:5])}: not all numbers are finite: the weights are damaged or the training diverged; "
            "load an earlier checkpoint"
        )
    with atomic_file(path) as file, torch.no_grad():
        _Packer(model, file, precision, max_positions).write()
    return path


def _stacks(model: Transformer | DecoderOnly) -> list[Encoder | Decoder | DecoderOnly]:
    return [model] if isinstance(model, DecoderOnly) else [model.encoder, model.decoder]


def _padded(count: int, to: int = _BLOCK) -> int:
    return -(-count // to) * to


class _Packer:
    """The sizes of one model, and the pieces of the file in their order."""

    def __init__(self, model: Transformer | DecoderOnly, file: IO[bytes], precision: Precision, positions: int) -> None:
        self.model, self.file, self.precision = model, file, precision
        self.stacks = _stacks(model)
        first = self.stacks[-1].layers[0]
        assert isinstance(first, EncoderLayer | DecoderLayer) and isinstance(first.self_attn, SelfAttention)
        self.attention, self.ffn, self.around = first.self_attn, first.ffn, first.around_ffn
        self.d_head, self.width = self.attention.d_head, self.attention.out.out_features
        self.position = _POSITIONS[type(self.stacks[-1].positions)]
        learned = [s.positions.table.size(0) for s in self.stacks if isinstance(s.positions, Learned)]
        self.positions = min([positions, *learned])

    # ------------------------------------------------------------------------------------------------------- the file

    def write(self) -> None:
        self.file.write(self._header())
        self._align()
        shared = isinstance(self.model, Transformer) and self._shared()
        half = np.float16 if self.precision == "int8" else np.float32
        for stack in self.stacks[:1] if shared else self.stacks:
            self._numbers(self._columns(stack.embedding.weight), half)
        rotary = self.stacks[-1].positions
        if isinstance(rotary, Rotary):
            rates = rotary.base ** (-np.arange(0, rotary.rotated, 2) / rotary.rotated)
            angles = np.arange(self.positions)[:, None] * rates
            self._numbers(np.cos(angles))
            self._numbers(np.sin(angles))
        for stack in self.stacks:
            self._positions(stack)
        for stack in self.stacks:
            self._stack(stack)
        weight = self.model.output.weight
        assert isinstance(weight, Tensor)
        self._matrix(weight, None)

    def _header(self) -> bytes:
        norm = self.around.norm
        assert isinstance(norm, LayerNorm | RMSNorm)
        positions = self.stacks[-1].positions
        activation = next(i for i, name in enumerate(_ACTIVATIONS) if ACTIVATIONS[name] is self.ffn.activation)
        numbers = [
            VERSION,
            self.precision == "int8",
            _padded(self.width), self.width, _padded(self.ffn.outer.in_features),
            self.attention.n_heads, self.attention.n_kv_heads, _padded(self.d_head, _LANES),
            len(self.stacks[0].layers) if len(self.stacks) == 2 else 0, len(self.stacks[-1].layers),
            self.stacks[0].embedding.weight.size(0), self.stacks[-1].embedding.weight.size(0),
            len(self.stacks) == 2 and self._shared(),
            self.around.order == "pre", isinstance(norm, LayerNorm),
            activation, self.ffn.gated,
            self.position, positions.rotated if isinstance(positions, Rotary) else 0, self.positions,
        ]  # fmt: skip
        scales = [norm.eps, 1 / math.sqrt(self.d_head), self.stacks[-1].embedding.scale]
        return b"DRAGOMAN" + struct.pack(f"<{len(numbers)}i3f", *map(int, numbers), *scales)

    def _shared(self) -> bool:
        return self.stacks[0].embedding is self.stacks[1].embedding

    def _positions(self, stack: Encoder | Decoder | DecoderOnly) -> None:
        places = torch.arange(self.positions, device=self.model.device)
        if self.position == 1:
            table, _ = stack.positions.embed(
                torch.zeros(1, self.positions, self.width, device=places.device), places, None
            )
            self._numbers(self._columns(table[0]))
        if self.position == 3:  # as a query in the middle sees all distances
            bias = stack.positions.static_bias(places[-1:], torch.arange(2 * self.positions - 1, device=places.device))
            assert bias is not None
            self._numbers(bias[:, 0].float().cpu().numpy())

    def _stack(self, stack: Encoder | Decoder | DecoderOnly) -> None:
        for layer in stack.layers:
            assert isinstance(layer, EncoderLayer | DecoderLayer) and isinstance(layer.self_attn, SelfAttention)
            self._norm(layer.around_self_attn.norm)
            self._self_attention(layer.self_attn)
            if isinstance(layer, DecoderLayer):
                self._norm(layer.around_cross_attn.norm)
                self._cross_attention(layer.cross_attn)
            self._norm(layer.around_ffn.norm)
            self._feed_forward(layer.ffn)
        if not isinstance(stack.final_norm, nn.Identity):
            self._norm(stack.final_norm)

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _norm(self, norm: nn.Module) -> None:
        assert isinstance(norm, LayerNorm | RMSNorm)
        self._numbers(self._columns(norm.weight))
        if isinstance(norm, LayerNorm):
            self._numbers(self._columns(norm.bias))

    def _self_attention(self, attention: SelfAttention) -> None:
        q, k, v = attention.qkv.weight.split(attention.parts)
        biases = [None] * 3 if attention.qkv.bias is None else attention.qkv.bias.split(attention.parts)
        rows = [self._heads(q, turn=True), self._heads(k, turn=True), self._heads(v)]
        self._matrix(torch.cat(rows), self._all_heads(biases, (True, True, False)))
        self._out(attention)

    def _cross_attention(self, attention: CrossAttention) -> None:
        self._matrix(self._heads(attention.q.weight), self._all_heads([attention.q.bias], (False,)))
        k, v = attention.kv.weight.split(attention.parts)
        biases = [None] * 2 if attention.kv.bias is None else attention.kv.bias.split(attention.parts)
        self._matrix(torch.cat([self._heads(k), self._heads(v)]), self._all_heads(biases, (False, False)))
        self._out(attention)

    def _out(self, attention: SelfAttention | CrossAttention) -> None:
        self._matrix(self._heads(attention.out.weight.T).T, attention.out.bias)

    def _feed_forward(self, ffn: FeedForward) -> None:
        width = ffn.outer.in_features
        halves = ffn.inner.weight.split(width)  # W1, and W3 where it is gated: each padded by itself
        biases = [] if ffn.inner.bias is None else ffn.inner.bias.split(width)
        wide = _padded(width)
        self._matrix(
            torch.cat([_rows(half, wide) for half in halves]),
            torch.cat([_rows(b, wide) for b in biases]) if biases else None,
        )
        self._matrix(ffn.outer.weight, ffn.outer.bias)

    def _heads(self, rows: Tensor, turn: bool = False) -> Tensor:
        """(heads * Dh, ...) -> (heads * padded Dh, ...); pairs that turn together move to the two halves of a head."""
        heads = rows.unflatten(0, (-1, self.d_head))
        positions = self.stacks[-1].positions
        if turn and isinstance(positions, Rotary):
            turned = torch.arange(positions.rotated)
            order = torch.cat([turned[::2], turned[1::2], torch.arange(positions.rotated, self.d_head)])
            heads = heads[:, order]
        room = heads.new_zeros(heads.size(0), _padded(self.d_head, _LANES), *heads.shape[2:])
        room[:, : self.d_head] = heads
        flat: Tensor = room.flatten(0, 1)
        return flat

    def _all_heads(self, biases: Sequence[Tensor | None], turns: tuple[bool, ...]) -> Tensor | None:
        known = [self._heads(b, turn) for b, turn in zip(biases, turns, strict=True) if b is not None]
        return torch.cat(known) if known else None

    # --------------------------------------------------------------------------------------------------------- numbers

    def _columns(self, rows: Tensor) -> Floats:
        """(..., D) -> (..., padded D)."""
        return np.asarray(_rows(rows.float().movedim(-1, 0), _padded(rows.size(-1))).movedim(0, -1).cpu().numpy())

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> None:
        out, inputs = map(_padded, weight.shape)
        w = np.zeros((out, inputs), dtype=np.float32)
        w[: weight.size(0), : weight.size(1)] = weight.float().cpu().numpy()
        self.file.write(struct.pack("<4i", out, inputs, _KINDS[self.precision], bias is not None))
        self._align()
        if self.precision == "int8":
            scales = np.abs(w).max(1) / 127
            q = np.rint(w / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
            self._numbers(q.reshape(-1, _BLOCK, inputs // 4, 4).transpose(0, 2, 1, 3), np.int8)
            self._numbers(scales)
            self._numbers(128 * q.sum(1, dtype=np.int32), np.int32)
        elif self.precision == "bfloat16":
            short = torch.from_numpy(w).bfloat16().view(torch.int16).numpy()
            self._numbers(short.reshape(-1, _BLOCK, inputs // 2, 2).transpose(0, 2, 1, 3), np.int16)
        else:
            self._numbers(w.reshape(-1, _BLOCK, inputs).transpose(0, 2, 1))
        if bias is not None:
            self._numbers(_rows(bias.float(), out).cpu().numpy())

    def _numbers(self, values: NDArray[Any], dtype: type[np.generic] = np.float32) -> None:
        self.file.write(np.ascontiguousarray(values, dtype=dtype).tobytes())
        self._align()

    def _align(self) -> None:
        self.file.write(b"\0" * (-self.file.tell() % 64))


def _rows(x: Tensor, count: int) -> Tensor:
    """(rows, ...) -> (count, ...), zeros below."""
    room = x.new_zeros(count, *x.shape[1:])
    room[: x.size(0)] = x
    return room
