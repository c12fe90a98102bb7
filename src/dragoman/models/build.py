"""From a configuration to a model: the one module that maps kinds to classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from dragoman.config import (
    AlibiPosition,
    BlockConfig,
    ConvolutionalConfig,
    DecoderOnlyConfig,
    EncoderOnlyConfig,
    GRUCell,
    GRUConfig,
    LearnedPosition,
    LinearAttention,
    LSTMCell,
    LSTMConfig,
    ModelConfig,
    NoPosition,
    RecurrentCell,
    RecurrentConfig,
    RecurrentEncoderConfig,
    RecurrentLMConfig,
    RecurrentPosition,
    RNNCell,
    RNNConfig,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    T5Position,
    TransformerConfig,
    VisionConfig,
)
from dragoman.models.convolutional import Convolutional, ConvolutionalDecoder, ConvolutionalEncoder, PositionedEmbedding
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.encoder_only import EncoderOnly
from dragoman.models.recurrent import (
    Bridge,
    Recurrent,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentEncoderOnly,
    RecurrentLM,
)
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Encoder, StackParts, Transformer
from dragoman.models.vision import Vision
from dragoman.nn import positions
from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.convolution import (
    ConvolutionalDecoderLayer,
    ConvolutionalEncoderLayer,
    GatedConvolution,
    MultiStepAttention,
)
from dragoman.nn.layers import (
    ACTIVATIONS,
    BatchNorm,
    DecoderLayer,
    DenseHead,
    Embedding,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    OutputProjection,
    RMSNorm,
    SubLayer,
)
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.recurrent import (
    GRU,
    LSTM,
    Cell,
    ContextLayer,
    InitialState,
    RecurrentDecoderLayer,
    RecurrentEncoderLayer,
    VanillaRNN,
)
from dragoman.nn.recurrent_attention import AdditiveAttention, BahdanauLayer, DotAttention, GeneralAttention, LuongLayer
from dragoman.nn.ssru import SSRU, SSRUDecoderLayer
from dragoman.registry import find

Attention = TypeVar("Attention", SelfAttention, CrossAttention)

_NORMS: dict[str, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm, "batch": BatchNorm}
"""Kind of norm -> its class, whose arguments after d_model are the other keys of the section."""


def build_model(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True, seed: int = 1) -> Network:
    """Build and initialize a model; the same seed gives the same weights.

    src_vocab: size of the source vocabulary, or for images the values per patch.  tgt_vocab: size of the target
    vocabulary, or number of labels.  shared: whether both are one vocabulary, which `tie = "all"` needs to share one
    matrix.
    """
    model = assemble(config, src_vocab, tgt_vocab, shared=shared)
    _initialize(model, seed)
    return model


def assemble(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True) -> Network:
    """Build a model as `build_model` does, with uninitialized weights."""
    network = _assemble(config, src_vocab, tgt_vocab, shared)
    network.config = config
    return network


def _assemble(config: ModelConfig, src_vocab: int, tgt_vocab: int, shared: bool) -> Network:
    match config:
        case TransformerConfig():
            sizes = src_vocab, tgt_vocab
            return _transformer(
                config, *_embeddings(config, *sizes, shared, config.scale_embeddings, config.output_bias)
            )
        case RecurrentConfig():
            return _recurrent(config, *_embeddings(config, src_vocab, tgt_vocab, shared))
        case ConvolutionalConfig():
            return _convolutional(config, *_embeddings(config, src_vocab, tgt_vocab, shared))
        case DecoderOnlyConfig():
            return _decoder_only(config, tgt_vocab)
        case EncoderOnlyConfig():
            return _encoder_only(config, src_vocab, tgt_vocab)
        case RecurrentLMConfig():
            return _recurrent_lm(config, tgt_vocab)
        case RecurrentEncoderConfig():
            return _recurrent_encoder_only(config, src_vocab, tgt_vocab)
        case VisionConfig():
            return _vision(config, src_vocab, tgt_vocab)
    network: Network = _registered("architecture", config.architecture)(config, src_vocab, tgt_vocab, shared)
    return network


def _registered(kind: str, name: str) -> Callable[..., Any]:
    """Return what makes a part that is not built in (`registry.py`)."""
    part = find(kind, name)
    assert part is not None  # the configuration accepts only registered names
    made: Callable[..., Any] = part.make
    return made


def _transformer(config: TransformerConfig, src: Embedding, tgt: Embedding, output: OutputProjection) -> Transformer:
    layers = [_decoder_layer(config) for _ in range(config.decoder_layers)]
    decoder = Decoder(tgt, _stack(config, layers, bidirectional=False))
    return Transformer(_encoder(config, src, config.encoder_layers), decoder, output)


def _decoder_only(config: DecoderOnlyConfig, vocab: int) -> DecoderOnly:
    embedding = Embedding(vocab, config.d_model, config.scale_embeddings)
    output = _output(config.d_model, vocab, embedding if config.tie == "all" else None, config.output_bias)
    stack = _stack(config, _encoder_layers(config, config.n_layers), bidirectional=False)
    return DecoderOnly(embedding, stack, output)


def _encoder_only(config: EncoderOnlyConfig, vocab: int, labels: int) -> EncoderOnly:
    embedding = Embedding(vocab, config.d_model, config.scale_embeddings)
    output = _output(config.d_model, labels, embedding if config.tie == "all" else None, config.output_bias)
    return EncoderOnly(_encoder(config, embedding, config.n_layers), _head(config), output, config.pooling)


def _head(config: EncoderOnlyConfig) -> nn.Module:
    match config.head:
        case "linear":
            return nn.Identity()
        case "tanh":
            return DenseHead(config.d_model, "tanh", nn.Identity())
        case "transform":
            return DenseHead(config.d_model, config.activation, _norm(config))


def _vision(config: VisionConfig, patch_values: int, classes: int) -> Vision:
    embedding = nn.Linear(patch_values, config.d_model)
    output = _output(config.d_model, classes, None, config.output_bias)
    stack = _stack(config, _encoder_layers(config, config.n_layers), bidirectional=True)
    return Vision(embedding, stack, output, config.n_patches)


def _recurrent(
    config: RNNConfig | GRUConfig | LSTMConfig, src: Embedding, tgt: Embedding, output: OutputProjection
) -> Recurrent:
    d = config.d_model
    encoder_layers = _recurrent_encoder_layers(config, config.encoder_layers)
    others = (RecurrentDecoderLayer(_cell(config.cell, d, d)) for _ in range(config.decoder_layers - 1))
    decoder_layers = [_first_recurrent_layer(config), *others]
    bridge = Bridge(d, config.directions, config.decoder_layers, decoder_layers[0].cell.parts)
    encoder = RecurrentEncoder(src, encoder_layers, config.dropout)
    return Recurrent(encoder, RecurrentDecoder(tgt, decoder_layers, bridge, config.dropout), output)


def _recurrent_lm(config: RecurrentLMConfig, vocab: int) -> RecurrentLM:
    d = config.d_model
    embedding = Embedding(vocab, d)
    output = _output(d, vocab, embedding if config.tie == "all" else None)
    cells = [_cell(config.cell, d, d, config.initial_state.kind) for _ in range(config.n_layers)]
    return RecurrentLM(embedding, map(RecurrentDecoderLayer, cells), config.dropout, output)


def _recurrent_encoder_only(config: RecurrentEncoderConfig, vocab: int, labels: int) -> RecurrentEncoderOnly:
    embedding = Embedding(vocab, config.d_model)
    output = _output(config.d_model, labels, embedding if config.tie == "all" else None)
    layers = _recurrent_encoder_layers(config, config.n_layers)
    encoder = RecurrentEncoder(embedding, layers, config.dropout)
    return RecurrentEncoderOnly(encoder, output, config.pooling, config.directions)


def _recurrent_encoder_layers(
    config: RNNConfig | GRUConfig | LSTMConfig | RecurrentEncoderConfig, count: int
) -> list[RecurrentEncoderLayer]:
    """Return layers of which each of two directions has d_model / 2 features, so that all vectors have d_model."""
    d, directions, initial = config.d_model, config.directions, config.initial_state.kind
    return [
        RecurrentEncoderLayer(*(_cell(config.cell, d, d // directions, initial) for _ in range(directions)))
        for _ in range(count)
    ]


def _cell(cell: RecurrentCell, d_in: int, d_model: int, initial_state: InitialState = "zeros") -> Cell:
    match cell:
        case RNNCell(activation=activation):
            return VanillaRNN(d_in, d_model, activation, initial_state)
        case GRUCell():
            return GRU(d_in, d_model, initial_state)
        case LSTMCell():
            return LSTM(d_in, d_model, initial_state)


def _first_recurrent_layer(config: RNNConfig | GRUConfig | LSTMConfig) -> RecurrentDecoderLayer:
    d, attention = config.d_model, config.attention
    if attention.kind == "none" and attention.context == "bridge":
        return RecurrentDecoderLayer(_cell(config.cell, d, d))
    cell = _cell(config.cell, 2 * d, d)  # reads [embedding; context vector, or vector fed back]
    if attention.kind == "none":
        return ContextLayer(cell)
    if attention.kind == "bahdanau":
        return BahdanauLayer(cell, AdditiveAttention(d), d)
    return LuongLayer(cell, DotAttention() if attention.score == "dot" else GeneralAttention(d), d)


def _convolutional(
    config: ConvolutionalConfig, src: Embedding, tgt: Embedding, output: OutputProjection
) -> Convolutional:
    d, dropout = config.d_model, config.dropout

    def conv() -> GatedConvolution:
        return GatedConvolution(d, config.kernel, dropout)

    encoder_layers = [ConvolutionalEncoderLayer(conv()) for _ in range(config.encoder_layers)]
    decoder_layers = [ConvolutionalDecoderLayer(conv(), MultiStepAttention(d)) for _ in range(config.decoder_layers)]
    encoder = ConvolutionalEncoder(PositionedEmbedding(src, config.max_positions, dropout), encoder_layers)
    decoder = ConvolutionalDecoder(PositionedEmbedding(tgt, config.max_positions, dropout), decoder_layers, dropout)
    return Convolutional(encoder, decoder, output)


def _embeddings(
    config: TransformerConfig | RecurrentConfig | ConvolutionalConfig,
    src_vocab: int,
    tgt_vocab: int,
    shared: bool,
    scaled: bool = True,
    bias: bool = False,
) -> tuple[Embedding, Embedding, OutputProjection]:
    """Build source embedding, target embedding and output projection, tied as configured."""
    src = Embedding(src_vocab, config.d_model, scaled)
    tgt = src if config.tie in ("all", "embeddings") and shared else Embedding(tgt_vocab, config.d_model, scaled)
    return src, tgt, _output(config.d_model, tgt_vocab, tgt if config.tie in ("all", "target") else None, bias)


def _output(d_model: int, vocab: int, tied: Embedding | None, bias: bool = False) -> OutputProjection:
    output = OutputProjection(d_model, vocab, bias)
    if tied is not None:
        output.weight = tied.weight
    return output


def _encoder(config: BlockConfig, embedding: Embedding, layers: int) -> Encoder:
    return Encoder(embedding, _stack(config, _encoder_layers(config, layers), bidirectional=True))


def _stack(config: BlockConfig, layers: Iterable[nn.Module], bidirectional: bool) -> StackParts:
    return StackParts(
        positions=_positions(config, bidirectional),
        layers=layers,
        dropout=config.dropout,
        # With pre-norm the output of the last layer is not yet normalized.
        final_norm=_norm(config) if config.order == "pre" else nn.Identity(),
        embedding_norm=_norm(config) if config.normalize_embeddings else nn.Identity(),
    )


def _positions(config: BlockConfig, bidirectional: bool) -> positions.Positions:
    match config.position:
        case NoPosition():
            return positions.Positions()
        case SinusoidalPosition():
            return positions.Sinusoidal(config.d_model, config.position.full_range)
        case LearnedPosition(max_len=max_len):
            return positions.Learned(config.d_model, max_len)
        case RecurrentPosition(source="embeddings"):
            return positions.RecurrentOverEmbeddings(config.d_model)
        case RecurrentPosition():
            return positions.RecurrentPositions(config.d_model)
        case ShawPosition(clip=clip):
            return positions.Shaw(config.d_head, clip, config.key_size)
        case T5Position(buckets=buckets, max_distance=max_distance):
            return positions.T5(config.n_heads, buckets, max_distance, bidirectional)
        case RotaryPosition(base=base, fraction=fraction, scaling=scaling):
            return positions.Rotary(config.key_size, base, fraction, scaling.numbers)
        case AlibiPosition():
            return positions.Alibi(config.n_heads)
    scheme: positions.Positions = _registered("position", config.position.kind)(config, bidirectional)
    return scheme


def _norm(config: BlockConfig) -> nn.Module:
    kind = config.norm.kind
    make = _NORMS.get(kind) or _registered("norm", kind)
    return make(config.d_model, **config.norm.model_dump(exclude={"kind"}))


def _encoder_layers(config: BlockConfig, count: int) -> list[EncoderLayer]:
    sublayer = partial(_sublayer, config)
    return [EncoderLayer(_self_attention(config), _feed_forward(config), sublayer) for _ in range(count)]


def _decoder_layer(config: TransformerConfig) -> DecoderLayer | SSRUDecoderLayer:
    cross_attn, ffn = _softmax_attention(CrossAttention, config), _feed_forward(config)
    sublayer = partial(_sublayer, config)
    if config.decoder_self == "ssru":
        return SSRUDecoderLayer(SSRU(config.d_model), cross_attn, ffn, sublayer)
    return DecoderLayer(_self_attention(config), cross_attn, ffn, sublayer)


def _self_attention(config: BlockConfig) -> SelfAttention | LinearSelfAttention:
    if isinstance(config.attention, LinearAttention):
        feature_map = config.attention.feature_map
        return LinearSelfAttention(
            config.d_model, config.n_heads, feature_map, config.bias, config.d_key, config.d_value
        )
    if config.attention.kind != "softmax":
        made: SelfAttention = _registered("attention", config.attention.kind)(config)
        return made
    return _softmax_attention(SelfAttention, config)


def _softmax_attention(kind: type[Attention], config: BlockConfig) -> Attention:
    return kind(
        config.d_model,
        config.n_heads,
        dropout=config.attention_dropout,
        bias=config.bias,
        n_kv_heads=config.n_kv_heads,
        d_key=config.d_key,
        d_value=config.d_value,
    )


def _feed_forward(config: BlockConfig) -> FeedForward:
    if config.activation not in ACTIVATIONS:
        ACTIVATIONS[config.activation] = _registered("activation", config.activation)
    return FeedForward(
        config.d_model, config.d_ff, config.activation, config.gated, config.activation_dropout, config.bias
    )


def _sublayer(config: BlockConfig) -> SubLayer:
    return SubLayer(_norm(config), config.dropout, config.order)


def _initialize(model: Network, seed: int) -> None:
    """Initialize embeddings N(0, 1/d_model), for variance 1 after scaling; matrices Glorot uniform; biases 0.

    The parts of a fused matrix (QKV, KV) are initialized separately, as if they were matrices of their own.  Modules
    with another initialization have a method `reset(generator)`.
    """
    generator = torch.Generator().manual_seed(seed)
    output = model.output
    assert isinstance(output, nn.Linear)  # if tied, the embedding below initializes the same matrix again
    nn.init.normal_(output.weight, std=output.in_features**-0.5, generator=generator)
    if output.bias is not None:
        nn.init.zeros_(output.bias)
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
