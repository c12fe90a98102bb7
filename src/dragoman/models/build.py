"""From a configuration to a model: the one place that knows which class a kind is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dragoman.config import (
    AlibiPosition,
    BatchNormConfig,
    BlockConfig,
    ConvolutionalConfig,
    DecoderOnlyConfig,
    EncoderOnlyConfig,
    LayerNormConfig,
    LearnedPosition,
    LinearAttention,
    ModelConfig,
    NoPosition,
    RecurrentConfig,
    RecurrentPosition,
    RMSNormConfig,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    T5Position,
    TransformerConfig,
    VisionConfig,
)
from dragoman.models.convolutional import convolutional_model
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.encoder_only import EncoderOnly
from dragoman.models.recurrent import recurrent_model
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Encoder, Transformer
from dragoman.models.vision import Vision
from dragoman.nn import positions
from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.layers import (
    BatchNorm,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    OutputProjection,
    RMSNorm,
    SubLayer,
)
from dragoman.nn.linear_attention import LinearSelfAttention

__all__ = ["assemble", "build_model"]


def build_model(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True, seed: int = 1) -> Network:
    """A freshly initialised model; the same seed gives the same weights.

    `shared`: source and target ids are of one vocabulary (with `tie = "all"` they then share one matrix).  A model of
    images takes the numbers of a patch for `src_vocab`; one that gives labels takes their number for `tgt_vocab`.
    """
    model = assemble(config, src_vocab, tgt_vocab, shared=shared)
    _initialise(model, seed)
    return model


def assemble(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True) -> Network:
    """As `build_model`, with weights that are not initialised."""
    match config:
        case TransformerConfig():
            model: Network = _transformer(config, src_vocab, tgt_vocab, shared)
        case RecurrentConfig():
            model = recurrent_model(config, *_embeddings(config, src_vocab, tgt_vocab, shared))
        case ConvolutionalConfig():
            model = convolutional_model(config, *_embeddings(config, src_vocab, tgt_vocab, shared))
        case DecoderOnlyConfig():
            model = _decoder_only(config, tgt_vocab)
        case EncoderOnlyConfig():
            model = _encoder_only(config, src_vocab, tgt_vocab)
        case VisionConfig():
            model = _vision(config, src_vocab, tgt_vocab)
    return model


# ----------------------------------------------------------------------------------------------------- architectures


def _transformer(config: TransformerConfig, src_vocab: int, tgt_vocab: int, shared: bool) -> Transformer:
    src_embedding, tgt_embedding, output = _embeddings(config, src_vocab, tgt_vocab, shared)
    encoder = _encoder(config, src_embedding, config.encoder_layers)
    decoder = Decoder(
        tgt_embedding,
        _positions(config, bidirectional=False),
        [_decoder_layer(config) for _ in range(config.decoder_layers)],
        _final_norm(config),
        config.dropout,
    )
    return Transformer(encoder, decoder, output)


def _decoder_only(config: DecoderOnlyConfig, vocab: int) -> DecoderOnly:
    embedding, output = Embedding(vocab, config.d_model), OutputProjection(config.d_model, vocab)
    if config.tie == "all":
        output.weight = embedding.weight
    layers = [_encoder_layer(config) for _ in range(config.n_layers)]
    position = _positions(config, bidirectional=False)
    return DecoderOnly(embedding, position, layers, _final_norm(config), output, config.dropout)


def _encoder_only(config: EncoderOnlyConfig, vocab: int, labels: int) -> EncoderOnly:
    embedding, output = Embedding(vocab, config.d_model), OutputProjection(config.d_model, labels)
    if config.tie == "all":
        output.weight = embedding.weight
    return EncoderOnly(_encoder(config, embedding, config.n_layers), output, config.pooling)


def _vision(config: VisionConfig, patch_numbers: int, labels: int) -> Vision:
    layers = [_encoder_layer(config) for _ in range(config.n_layers)]
    output = OutputProjection(config.d_model, labels)
    position = _positions(config, bidirectional=True)
    return Vision(
        patch_numbers, config.d_model, config.n_patches, position, layers, _final_norm(config), output, config.dropout
    )


# ------------------------------------------------------------------------------------------------------------- parts


def _embeddings(
    config: TransformerConfig | RecurrentConfig | ConvolutionalConfig, src_vocab: int, tgt_vocab: int, shared: bool
) -> tuple[Embedding, Embedding, OutputProjection]:
    """Source and target embedding and the output layer, which share one matrix where `tie` says so."""
    src = Embedding(src_vocab, config.d_model)
    tgt = src if config.tie == "all" and shared else Embedding(tgt_vocab, config.d_model)
    output = OutputProjection(config.d_model, tgt_vocab)
    if config.tie != "none":
        output.weight = tgt.weight
    return src, tgt, output


def _encoder(config: BlockConfig, embedding: Embedding, layers: int) -> Encoder:
    return Encoder(
        embedding,
        _positions(config, bidirectional=True),
        [_encoder_layer(config) for _ in range(layers)],
        _final_norm(config),
        config.dropout,
    )


def _positions(config: BlockConfig, bidirectional: bool) -> positions.Positions:
    """The positions of one stack, which sees both directions or only what came before."""
    match config.position:
        case NoPosition():
            return positions.Positions()
        case SinusoidalPosition():
            return positions.Sinusoidal(config.d_model)
        case LearnedPosition(max_len=max_len):
            return positions.Learned(config.d_model, max_len)
        case RecurrentPosition(source="embeddings"):
            return positions.RecurrentOverEmbeddings(config.d_model)
        case RecurrentPosition():
            return positions.RecurrentPositions(config.d_model)
        case ShawPosition(clip=clip):
            return positions.Shaw(config.d_head, clip)
        case T5Position(buckets=buckets, max_distance=max_distance):
            return positions.T5(config.n_heads, buckets, max_distance, bidirectional)
        case RotaryPosition(base=base, fraction=fraction):
            return positions.Rotary(config.d_head, base, fraction)
        case AlibiPosition():
            return positions.Alibi(config.n_heads)


def _norm(config: BlockConfig) -> nn.Module:
    match config.norm:
        case LayerNormConfig(eps=eps):
            return LayerNorm(config.d_model, eps=eps)
        case RMSNormConfig(eps=eps):
            return RMSNorm(config.d_model, eps=eps)
        case BatchNormConfig(eps=eps, momentum=momentum):
            return BatchNorm(config.d_model, eps=eps, momentum=momentum)


def _final_norm(config: BlockConfig) -> nn.Module:
    """With pre-norm nothing normalises what the last layer added: the stack does."""
    return _norm(config) if config.order == "pre" else nn.Identity()


def _sublayer(config: BlockConfig) -> Callable[[], SubLayer]:
    return lambda: SubLayer(_norm(config), config.dropout, config.order)


def _feed_forward(config: BlockConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.activation, config.gated, config.activation_dropout, config.bias
    )


def _self_attention(config: BlockConfig) -> SelfAttention | LinearSelfAttention:
    if isinstance(config.attention, LinearAttention):
        return LinearSelfAttention(config.d_model, config.n_heads, config.attention.feature_map, config.bias)
    return SelfAttention(config.d_model, config.n_heads, config.attention_dropout, config.bias, config.n_kv_heads)


def _encoder_layer(config: BlockConfig) -> EncoderLayer:
    return EncoderLayer(_self_attention(config), _feed_forward(config), _sublayer(config))


def _decoder_layer(config: BlockConfig) -> DecoderLayer:
    cross = CrossAttention(config.d_model, config.n_heads, config.attention_dropout, config.bias, config.n_kv_heads)
    return DecoderLayer(_self_attention(config), cross, _feed_forward(config), _sublayer(config))


# ---------------------------------------------------------------------------------------------------- initialisation


def _initialise(model: Network, seed: int) -> None:
    """Embeddings N(0, 1/d_model), so that scaled they have variance 1; matrices Glorot uniform; biases 0.

    A fused matrix (QKV, KV) is initialised a part at a time, as if its parts were apart.  What wants another
    beginning has a `reset(generator)` of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    output = model.output
    assert isinstance(output, nn.Linear)  # where it is tied, the embedding below writes the same matrix again
    nn.init.normal_(output.weight, std=output.in_features**-0.5, generator=generator)
    parts: dict[nn.Module, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention | LinearSelfAttention):
            parts[module.qkv] = module.parts
        elif isinstance(module, CrossAttention):
            parts[module.kv] = module.parts
        elif isinstance(module, Embedding):
            nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5, generator=generator)
        elif isinstance(module, nn.Linear) and module is not output:
            for part in module.weight.data.split(parts.get(module, (module.out_features,))):
                nn.init.xavier_uniform_(part, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif callable(reset := getattr(module, "reset", None)):
            reset(generator)
