"""Conversion of a model to the file that the native engine reads, with the weights in the order of their use.

Matrices are stored in blocks of 64 outputs, padded with zeros: float32 as [out / 64][in][64], bfloat16 as
[out / 64][in / 2][64][2], int8 as [out / 64][in / 4][64][4] with one scale per output.  csrc/model.h declares the
header, csrc/gemm.h the matrices; a change of the format increments VERSION on both sides.  The engine has one size for
queries, keys and values of a head: the smaller of d_key and d_head is padded with zeros, which adds 0 to every product.
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
from dragoman.errors import ModelFolderError, check_problems
from dragoman.io.writing import atomic_file
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Encoder, Transformer
from dragoman.nn.attention import CrossAttention, MultiHead, SelfAttention
from dragoman.nn.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, FeedForward, LayerNorm, RMSNorm, SubLayer
from dragoman.nn.positions import T5, Alibi, Learned, Positions, Rotary, Sinusoidal

__all__ = ["native_unsupported_reasons", "pack"]

_DTYPES = {"float32": 0, "int8": 1, "bfloat16": 2}
_OUTPUT_BLOCK, _KV_BLOCK = 64, 16
_MOST_FEATURES = {"head": 1 << 12, "heads": 1 << 16}
"""Features of one head and of all heads of an attention that csrc/model.cpp accepts."""
_NO_POSITIONS, _ADDITIVE, _ROTARY, _RELATIVE_BIAS = range(4)
_POSITION_KINDS = {
    Positions: _NO_POSITIONS,
    Sinusoidal: _ADDITIVE,
    Learned: _ADDITIVE,
    Rotary: _ROTARY,
    T5: _RELATIVE_BIAS,
    Alibi: _RELATIVE_BIAS,
}
_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid")


def native_unsupported_reasons(model: Network) -> list[str]:
    """Return why the native engine does not support a model; empty if it does."""
    if not isinstance(model, Transformer | DecoderOnly):
        return [f"its architecture is {model.architecture}; supported: transformer and decoder_only"]
    reasons = []
    for stack in _stacks(model):
        if type(stack.positions) not in _POSITION_KINDS:
            reasons.append(f"its positions are {type(stack.positions).__name__}")
        for module in stack.modules():
            if isinstance(module, SubLayer) and not isinstance(module.norm, LayerNorm | RMSNorm):
                reasons.append(f"its norm is {type(module.norm).__name__}")
        if any(not isinstance(layer.self_attn, SelfAttention) for layer in stack.layers):
            reasons.append("its attention is linear")
        reasons += _attention_too_large(stack)
    return list(dict.fromkeys(reasons))


def pack(model: Network, path: Path, precision: Precision, max_positions: int = 1024) -> Path:
    """Write a packed model to `path` atomically.

    max_positions: maximum length of sources and targets in tokens.  Raises UsageError with all reasons why the native
    engine does not support the model, and ModelFolderError if a weight is not finite.
    """
    check_problems("the native engine does not support this model:", native_unsupported_reasons(model))
    assert isinstance(model, Transformer | DecoderOnly)
    invalid = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    if invalid:
        raise ModelFolderError(
            f"{', '.join(invalid[:5])}: not all numbers are finite: the weights are damaged or the training diverged; "
            "load an earlier checkpoint"
        )
    with atomic_file(path) as file, torch.no_grad():
        _Packer(model, file, precision, max_positions).write()
    return path


def _stacks(model: Transformer | DecoderOnly) -> list[Encoder | Decoder | DecoderOnly]:
    return [model] if isinstance(model, DecoderOnly) else [model.encoder, model.decoder]


def _attention_too_large(stack: Encoder | Decoder | DecoderOnly) -> list[str]:
    attention = stack.layers[0].self_attn
    assert isinstance(attention, MultiHead)
    size = _head_features(attention)
    if size <= _MOST_FEATURES["head"] and size * attention.n_heads <= _MOST_FEATURES["heads"]:
        return []
    return [f"its {attention.n_heads} heads have {size:,} features; supported: {_MOST_FEATURES['head']:,} per head, "
            f"{_MOST_FEATURES['heads']:,} in all"]  # fmt: skip


def _head_features(attention: MultiHead) -> int:
    """Return the number of features of a padded head."""
    return _padded(max(attention.d_key, attention.d_head), _KV_BLOCK)


def _padded(count: int, multiple: int = _OUTPUT_BLOCK) -> int:
    return -(-count // multiple) * multiple


class _Packer:
    """Writes one model; `write` gives the order of the file."""

    def __init__(self, model: Transformer | DecoderOnly, file: IO[bytes], precision: Precision, positions: int) -> None:
        self.model, self.file, self.precision = model, file, precision
        self.stacks = _stacks(model)
        first = self.stacks[-1].layers[0]
        assert isinstance(first, EncoderLayer | DecoderLayer) and isinstance(first.self_attn, SelfAttention)
        self.attention, self.ffn, self.sublayer = first.self_attn, first.ffn, first.around_ffn
        self.d_key, self.d_head = self.attention.d_key, self.attention.d_head
        self.head_features, self.d_model = _head_features(self.attention), self.attention.out.out_features
        scheme = self.stacks[-1].positions
        self.position_kind, self.rotary = _POSITION_KINDS[type(scheme)], scheme if isinstance(scheme, Rotary) else None
        learned = [s.positions.table.size(0) for s in self.stacks if isinstance(s.positions, Learned)]
        self.max_positions = min([positions, *learned])
        self.shared = isinstance(model, Transformer) and self.stacks[0].embedding is self.stacks[1].embedding

    def write(self) -> None:
        self.file.write(self._header())
        self._align()
        dtype = np.float16 if self.precision == "int8" else np.float32
        for stack in self.stacks[:1] if self.shared else self.stacks:
            self._write_array(_pad_features(stack.embedding.weight), dtype)
        if self.rotary is not None:
            rates = self.rotary.base ** (-np.arange(0, self.rotary.rotated, 2) / self.rotary.rotated)
            angles = np.arange(self.max_positions)[:, None] * rates
            self._write_array(np.cos(angles))
            self._write_array(np.sin(angles))
        for stack in self.stacks:
            self._write_positions(stack)
        for stack in self.stacks:
            self._write_stack(stack)
        weight = self.model.output.weight
        assert isinstance(weight, Tensor)
        self._write_matrix(weight, None)

    def _header(self) -> bytes:
        norm = self.sublayer.norm
        assert isinstance(norm, LayerNorm | RMSNorm)
        activation = next(i for i, name in enumerate(_ACTIVATIONS) if ACTIVATIONS[name] is self.ffn.activation)
        has_encoder = len(self.stacks) == 2
        integers = [
            VERSION,
            self.precision == "int8",
            _padded(self.d_model), self.d_model, _padded(self.ffn.outer.in_features),
            self.attention.n_heads, self.attention.n_kv_heads, self.head_features,
            len(self.stacks[0].layers) if has_encoder else 0, len(self.stacks[-1].layers),
            self.stacks[0].embedding.weight.size(0), self.stacks[-1].embedding.weight.size(0),
            self.shared,
            self.sublayer.order == "pre", isinstance(norm, LayerNorm),
            activation, self.ffn.gated,
            self.position_kind, self.rotary.rotated if self.rotary is not None else 0, self.max_positions,
        ]  # fmt: skip
        floats = [norm.eps, 1 / math.sqrt(self.d_key), self.stacks[-1].embedding.scale]
        return b"DRAGOMAN" + struct.pack(f"<{len(integers)}i3f", *map(int, integers), *floats)

    def _write_positions(self, stack: Encoder | Decoder | DecoderOnly) -> None:
        positions = torch.arange(self.max_positions, device=self.model.device)
        if self.position_kind == _ADDITIVE:
            zeros = torch.zeros(1, self.max_positions, self.d_model, device=positions.device)
            table, _ = stack.positions.embed(zeros, positions, None)
            self._write_array(_pad_features(table[0]))
        if self.position_kind == _RELATIVE_BIAS:  # of the middle query of 2P - 1 positions, which has all distances
            keys = torch.arange(2 * self.max_positions - 1, device=positions.device)
            bias = stack.positions.static_bias(positions[-1:], keys)
            assert bias is not None
            self._write_array(bias[:, 0].float().cpu().numpy())

    def _write_stack(self, stack: Encoder | Decoder | DecoderOnly) -> None:
        d_key, d_head = self.d_key, self.d_head
        for layer in stack.layers:
            assert isinstance(layer, EncoderLayer | DecoderLayer) and isinstance(layer.self_attn, SelfAttention)
            self._write_norm(layer.around_self_attn.norm)
            self._write_projection(layer.self_attn.qkv, layer.self_attn.parts, (d_key, d_key, d_head), rotated=2)
            self._write_output(layer.self_attn)
            if isinstance(layer, DecoderLayer):
                self._write_norm(layer.around_cross_attn.norm)
                self._write_projection(layer.cross_attn.q, [layer.cross_attn.q.out_features], (d_key,))
                self._write_projection(layer.cross_attn.kv, layer.cross_attn.parts, (d_key, d_head))
                self._write_output(layer.cross_attn)
            self._write_norm(layer.around_ffn.norm)
            self._write_feed_forward(layer.ffn)
        if not isinstance(stack.final_norm, nn.Identity):
            self._write_norm(stack.final_norm)

    def _write_norm(self, norm: nn.Module) -> None:
        assert isinstance(norm, LayerNorm | RMSNorm)
        self._write_array(_pad_features(norm.weight))
        if isinstance(norm, LayerNorm):
            self._write_array(_pad_features(norm.bias))

    def _write_projection(
        self, linear: nn.Linear, parts: Sequence[int], sizes: Sequence[int], rotated: int = 0
    ) -> None:
        """sizes: for each part of the outputs, the features per head.  rotated: number of first parts to rotate."""

        def padded(rows: Tensor) -> Tensor:
            heads = zip(rows.split(list(parts)), sizes, strict=True)
            return torch.cat([self._pad_heads(part, size, i < rotated) for i, (part, size) in enumerate(heads)])

        self._write_matrix(padded(linear.weight), None if linear.bias is None else padded(linear.bias))

    def _write_output(self, attention: SelfAttention | CrossAttention) -> None:
        self._write_matrix(self._pad_heads(attention.out.weight.T, self.d_head).T, attention.out.bias)

    def _write_feed_forward(self, ffn: FeedForward) -> None:
        d_ff = ffn.outer.in_features

        def padded(rows: Tensor) -> Tensor:  # W1, and W3 if the layer is gated, are padded separately
            return torch.cat([_pad_rows(part, _padded(d_ff)) for part in rows.split(d_ff)])

        self._write_matrix(padded(ffn.inner.weight), None if ffn.inner.bias is None else padded(ffn.inner.bias))
        self._write_matrix(ffn.outer.weight, ffn.outer.bias)

    def _pad_heads(self, rows: Tensor, size: int, rotary: bool = False) -> Tensor:
        """(heads * size, ...) -> (heads * padded size, ...).

        rotary: the features of a rotated pair move from 2i, 2i + 1 to i, i + R / 2, R = number of rotated features.
        """
        heads = rows.unflatten(0, (-1, size))
        if rotary and self.rotary is not None:
            rotated = torch.arange(self.rotary.rotated)
            order = torch.cat([rotated[::2], rotated[1::2], torch.arange(self.rotary.rotated, size)])
            heads = heads[:, order]
        padded = heads.new_zeros(heads.size(0), self.head_features, *heads.shape[2:])
        padded[:, :size] = heads
        flat: Tensor = padded.flatten(0, 1)
        return flat

    def _write_matrix(self, weight: Tensor, bias: Tensor | None) -> None:
        outputs, inputs = map(_padded, weight.shape)
        w = np.zeros((outputs, inputs), dtype=np.float32)
        w[: weight.size(0), : weight.size(1)] = weight.float().cpu().numpy()
        self.file.write(struct.pack("<4i", outputs, inputs, _DTYPES[self.precision], bias is not None))
        self._align()
        if self.precision == "int8":
            scales = np.abs(w).max(1) / 127
            q = np.rint(w / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
            self._write_array(q.reshape(-1, _OUTPUT_BLOCK, inputs // 4, 4).transpose(0, 2, 1, 3), np.int8)
            self._write_array(scales)
            self._write_array(128 * q.sum(1, dtype=np.int32), np.int32)
        elif self.precision == "bfloat16":
            bits = torch.from_numpy(w).bfloat16().view(torch.int16).numpy()
            self._write_array(bits.reshape(-1, _OUTPUT_BLOCK, inputs // 2, 2).transpose(0, 2, 1, 3), np.int16)
        else:
            self._write_array(w.reshape(-1, _OUTPUT_BLOCK, inputs).transpose(0, 2, 1))
        if bias is not None:
            self._write_array(_pad_rows(bias.float(), outputs).cpu().numpy())

    def _write_array(self, values: NDArray[Any], dtype: type[np.generic] = np.float32) -> None:
        with np.errstate(over="ignore"):  # the search reports output that is not finite
            self.file.write(np.ascontiguousarray(values, dtype=dtype).tobytes())
        self._align()

    def _align(self) -> None:
        self.file.write(b"\0" * (-self.file.tell() % 64))


def _pad_rows(x: Tensor, count: int) -> Tensor:
    """(rows, ...) -> (count, ...), padded with zeros."""
    padded = x.new_zeros(count, *x.shape[1:])
    padded[: x.size(0)] = x
    return padded


def _pad_features(x: Tensor) -> NDArray[np.float32]:
    """(..., D) -> (..., padded D)."""
    return np.asarray(_pad_rows(x.float().movedim(-1, 0), _padded(x.size(-1))).movedim(0, -1).cpu().numpy())
