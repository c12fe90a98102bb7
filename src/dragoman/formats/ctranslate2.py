"""A Transformer in the terms of CTranslate2, weight by weight, and at work there.

Its specifications: https://github.com/OpenNMT/CTranslate2, python/ctranslate2/specs.

Letters: D d_model, V vocabulary.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import DecoderOnlyConfig, LearnedPosition, ModelConfig, RotaryPosition, TransformerConfig
from dragoman.data.tokenizer import BOS, EOS, PAD, UNK
from dragoman.extras import extra_package
from dragoman.formats.parity import Case
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Encoder, Transformer
from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.layers import DecoderLayer, EncoderLayer, FeedForward
from dragoman.nn.positions import T5, Shaw

__all__ = ["CTranslate2", "Quantization", "package", "specification", "unsupported", "write_specification"]

Quantization = Literal["float32", "int8"]
"""How the matrices are stored; int8 with a scale for each output."""

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "sigmoid": "Sigmoid"}
_POSITIONS = {
    "transformer": ("none", "sinusoidal", "learned", "rotary", "shaw", "t5"),
    "decoder_only": ("none", "sinusoidal", "learned", "rotary", "shaw", "alibi"),
}
_TABLE = 2048
"""Positions in the table of a kind that has no last position."""


# ------------------------------------------------------------------------------------------------------- specification


def package(name: str = "ctranslate2") -> Any:
    """The package, or a module of it, imported when it is needed.  Raises UsageError where it cannot be."""
    return extra_package(name, "formats", "the format ctranslate2")


def unsupported(config: ModelConfig) -> list[str]:
    """Why CTranslate2 cannot run such a model; empty where it can."""
    if not isinstance(config, TransformerConfig | DecoderOnlyConfig):
        accepted = " and ".join(_POSITIONS)
        return [f"its architecture is {config.architecture}; CTranslate2 has {accepted}"]
    reasons = []
    positions = _POSITIONS[config.architecture]
    if config.position.kind not in positions:
        reasons.append(f"its positions are {config.position.kind}; CTranslate2 has {', '.join(positions)}")
    if config.norm.kind == "batch":
        reasons.append("its norm is batch; CTranslate2 has layer, rms")
    if config.attention.kind == "linear":
        reasons.append("its attention is linear; CTranslate2 has softmax")
    return reasons


def specification(network: Network, config: ModelConfig, source: Sequence[str], target: Sequence[str]) -> Any:
    """The model as a `ctranslate2.specs` object with copies of all weights.

    source, target: the V pieces of each side in the order of their ids; of a language model only the target counts.
    """
    specs = package("ctranslate2.specs")

    assert isinstance(config, TransformerConfig | DecoderOnlyConfig) and not unsupported(config)
    shape = _shape(config)
    if isinstance(network, Transformer):
        encoder = specs.TransformerEncoderSpec(len(network.encoder.layers), **shape)
        decoder = specs.TransformerDecoderSpec(len(network.decoder.layers), **shape)
        spec: Any = specs.TransformerSpec(encoder, decoder)
        _fill_stack(encoder, encoder.embeddings[0], network.encoder, config)
        _fill_stack(decoder, decoder.embeddings, network.decoder, config)
        spec.register_source_vocabulary(list(source))
        spec.register_target_vocabulary(list(target))
        spec.config.decoder_start_token = target[BOS]
        spec.config.add_source_eos = True
    else:
        assert isinstance(network, DecoderOnly)
        alibi = config.position.kind == "alibi"
        decoder = specs.TransformerDecoderSpec(
            len(network.layers), with_encoder_attention=False, alibi=alibi, alibi_use_positive_positions=True, **shape
        )
        spec = specs.TransformerDecoderModelSpec(decoder)
        _fill_stack(decoder, decoder.embeddings, network, config)
        spec.register_vocabulary(list(target))
    assert isinstance(network.output, nn.Linear)
    _fill_linear(decoder.projection, network.output.weight, network.output.bias)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (target[i] for i in (UNK, BOS, EOS))
    spec.config.layer_norm_epsilon = config.norm.eps
    return spec


def write_specification(spec: Any, folder: Path, quantization: Quantization) -> None:
    """Write the folder, anew where there is one; the specification is used up."""
    spec.validate()
    spec.optimize(quantization=quantization)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    spec.save(str(folder))


def _shape(config: TransformerConfig | DecoderOnlyConfig) -> dict[str, Any]:
    shape = {
        "num_heads": config.n_heads,
        "num_heads_kv": config.n_kv_heads,
        "pre_norm": config.order == "pre",
        "activation": package("ctranslate2.specs").Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.gated,
        "rms_norm": config.norm.kind == "rms",
        "relative_position": config.position.kind == "shaw",
        "relative_attention_bias": config.position.kind == "t5",
    }
    if isinstance(config.position, RotaryPosition):  # both turn neighbours, which CTranslate2 calls interleaved
        turned = int(config.d_head * config.position.fraction)
        shape |= {"rotary_dim": turned, "rotary_interleave": True, "rotary_base": config.position.base}
    return shape


def _fill_stack(
    spec: Any, embedding: Any, stack: Encoder | Decoder | DecoderOnly, config: TransformerConfig | DecoderOnlyConfig
) -> None:
    embedding.weight = _numbers(stack.embedding.weight)  # scaled by sqrt(D) there as here
    if config.position.kind in ("none", "sinusoidal", "learned"):
        count = config.position.max_len if isinstance(config.position, LearnedPosition) else _TABLE
        table, _ = stack.positions.embed(torch.zeros(1, count, config.d_model), torch.arange(count), None)
        spec.position_encodings.encodings = _numbers(table[0])
    if config.order == "pre":
        _fill_norm(spec.layer_norm, stack.final_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer) and isinstance(layer.self_attn, SelfAttention)
        _fill_attention(layer_spec.self_attention, layer.self_attn, layer.around_self_attn.norm)
        _fill_distances(layer_spec.self_attention, stack.positions)
        if isinstance(layer, DecoderLayer):
            _fill_attention(layer_spec.attention, layer.cross_attn, layer.around_cross_attn.norm)
        _fill_feed_forward(layer_spec.ffn, layer.ffn, layer.around_ffn.norm)


def _fill_attention(spec: Any, attention: SelfAttention | CrossAttention, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    into = [attention.qkv] if isinstance(attention, SelfAttention) else [attention.q, attention.kv]
    for linear_spec, linear in zip(spec.linear, [*into, attention.out], strict=True):
        _fill_linear(linear_spec, linear.weight, linear.bias)


def _fill_distances(spec: Any, positions: nn.Module) -> None:
    """A stack's tables of distances, which CTranslate2 keeps in each layer."""
    if isinstance(positions, Shaw):
        spec.relative_position_keys = _numbers(positions.keys)
        spec.relative_position_values = _numbers(positions.values)
    if isinstance(positions, T5):
        spec.relative_attention_bias = _numbers(positions.table)
        spec.relative_attention_max_distance = np.dtype("int32").type(positions.max_distance)


def _fill_feed_forward(spec: Any, ffn: FeedForward, norm: nn.Module) -> None:
    _fill_norm(spec.layer_norm, norm)
    inner = [spec.linear_0, spec.linear_0_noact] if ffn.gated else [spec.linear_0]  # W1 above W3
    for place, linear_spec in enumerate(inner):
        weight, bias = (None if x is None else x.chunk(len(inner))[place] for x in (ffn.inner.weight, ffn.inner.bias))
        _fill_linear(linear_spec, weight, bias)
    _fill_linear(spec.linear_1, ffn.outer.weight, ffn.outer.bias)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _numbers(weight)
    if bias is not None:
        spec.bias = _numbers(bias)


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _numbers(cast(Tensor, norm.weight))
    if hasattr(norm, "bias"):
        spec.beta = _numbers(cast(Tensor, norm.bias))


def _numbers(tensor: Tensor) -> NDArray[np.float32]:
    # A copy: CTranslate2 quantizes in place, and this would be the model's own memory.
    return np.array(tensor.detach().float().cpu().numpy(), dtype=np.float32)


# ------------------------------------------------------------------------------------------------------------- at work


class CTranslate2:
    """A written folder at work on one thread: a `dragoman.formats.parity.Peer`."""

    def __init__(self, folder: Path, quantization: Quantization, source: Sequence[str], target: Sequence[str]) -> None:
        ctranslate2 = package()
        self.name = f"CTranslate2 {ctranslate2.__version__}, {quantization}"
        self.source, self.target = source, target
        self.ids = {piece: token for token, piece in enumerate(target)}
        self.translates = not (folder / "vocabulary.json").exists()  # which a language model has
        runner = ctranslate2.Translator if self.translates else ctranslate2.Generator
        self.runner = runner(str(folder), device="cpu", compute_type=quantization, inter_threads=1, intra_threads=1)

    def score(self, case: Case, ids: Sequence[int]) -> list[float]:
        """The log-probability of each of `ids`, which end with the end of sentence."""
        pieces = self._targets(ids)
        if self.translates:  # which adds the end by itself
            (row,) = self.runner.score_batch([self._source(case)], [pieces[:-1]], max_input_length=0)
        else:
            (row,) = self.runner.score_batch([[self.target[BOS], *pieces]], max_input_length=0)
        return list(row.log_probs)

    def greedy(self, cases: Sequence[Case], limit: int) -> list[list[int]]:
        """At most `limit` tokens a case, without the end of sentence."""
        return [best for (best,) in self._search(cases, 0, limit, beam_size=1)]

    def beam(self, cases: Sequence[Case], width: int, length: int) -> list[list[list[int]]]:
        """The `width` best targets of exactly `length` tokens a case."""
        return self._search(cases, length, length, beam_size=width, num_hypotheses=width)

    def _search(self, cases: Sequence[Case], shortest: int, longest: int, **settings: int) -> list[list[list[int]]]:
        never = [[self.target[PAD]], [self.target[BOS]]]
        asked: dict[str, Any] = settings | {"length_penalty": 0, "suppress_sequences": never, "max_batch_size": 32}
        if self.translates:
            asked |= {"min_decoding_length": shortest, "max_decoding_length": longest, "max_input_length": 0}
            found = self.runner.translate_batch([self._source(case) for case in cases], **asked)
            return [[self._ids(row) for row in each.hypotheses] for each in found]
        asked |= {"min_length": shortest, "max_length": longest, "include_prompt_in_result": False}
        starts = [[self.target[BOS], *self._targets(case.prefix)] for case in cases]
        return [[list(row) for row in each.sequences_ids] for each in self.runner.generate_batch(starts, **asked)]

    def _source(self, case: Case) -> list[str]:
        return [self.source[i] for i in case.source[:-1]]

    def _targets(self, ids: Iterable[int]) -> list[str]:
        return [self.target[i] for i in ids]

    def _ids(self, pieces: Iterable[str]) -> list[int]:
        return [self.ids[piece] for piece in pieces]
