"""Encoder-decoder Transformers of Dragoman for `transformers`: "Attention Is All You Need" (Vaswani et al. 2017) and
the variants that `DragomanConfig` names.

`dragoman export --format huggingface` copies this file next to the weights, and `trust_remote_code=True` runs it.  It
needs torch and transformers, not Dragoman.

Shapes: N rows, S source length, T target length, Tq/Tk query/key positions, H heads, Hkv key-value heads, D d_model, Dk
size of queries and keys per head, Dv size of values per head, R rotated features, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid,
}  # fmt: skip
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
BASE = {
    "vocab_size": 37000, "decoder_vocab_size": 37000, "d_model": 512, "d_ff": 2048, "n_heads": 8, "n_kv_heads": 8,
    "d_key": 64, "d_value": 64, "encoder_layers": 6, "decoder_layers": 6, "order": "post", "norm": "layer",
    "norm_eps": 1e-5, "normalize_embeddings": False, "scale_embeddings": True, "position": {"kind": "sinusoidal"},
    "activation": "relu", "gated": False, "bias": True, "tie": "all", "output_bias": False, "dropout": 0.1,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "is_encoder_decoder": True,
}  # fmt: skip
"""Settings with the values of the base model of Vaswani et al."""


class DragomanConfig(PretrainedConfig):
    """Settings of a model: those of `BASE`.

    order: "post" or "pre", whether a sub-layer is normalized after its residual connection or before it.  n_kv_heads:
    key and value heads, each shared by a group of query heads.  position: the kind (none, sinusoidal, learned, rotary,
    t5, alibi) and its settings.  tie: which matrices are one: "all" (source embedding, target embedding and output),
    "embeddings", "target" (target embedding and output) or "none".
    """

    model_type = "dragoman"
    attribute_map: ClassVar = {"hidden_size": "d_model", "num_hidden_layers": "decoder_layers"}  # for the cache

    def __init__(self, **settings: Any) -> None:
        for key, value in BASE.items():
            setattr(self, key, settings.pop(key, value))
        # A matrix that is tied exists once in the model, so that `transformers` has nothing to tie after loading.
        super().__init__(**settings | {"is_encoder_decoder": True, "tie_word_embeddings": False})


# ----------------------------------------------------------------------------------------------------------- positions


class Positions(nn.Module):
    """The order of the tokens: vectors added to embeddings, rotations of queries and keys, or a bias of the scores.

    Angles are computed in float64 on the CPU.  start: position of the first token of x (N, T, D).
    """

    def __init__(self, config: Any, bidirectional: bool) -> None:
        super().__init__()
        self.config, self.settings, self.bidirectional = config, config.position, bidirectional
        self.kind = config.position["kind"]
        if self.kind == "learned":
            self.table = nn.Parameter(torch.randn(self.settings["max_len"], config.d_model))
        if self.kind == "t5":
            self.table = nn.Parameter(torch.randn(self.settings["buckets"], config.n_heads))

    def add(self, x: Tensor, start: int) -> Tensor:
        """Add vectors to embeddings x."""
        end = start + x.size(1)
        if self.kind == "learned":
            if end > len(self.table):
                raise ValueError(f"{end} tokens, but the model has {len(self.table)} positions")
            return x + self.table[start:end]
        if self.kind != "sinusoidal":
            return x
        d_model = x.size(2)
        angles = _angles(start, end, d_model, 10000.0, max(1, d_model - 2) if self.settings["full_range"] else d_model)
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x)

    def rotations(self, x: Tensor, start: int) -> tuple[Tensor, Tensor] | None:
        """Return cosines and sines (T, R/2) of the angles by which pairs of features are rotated, or None."""
        if self.kind != "rotary":
            return None
        rotated = int(self.config.d_key * self.settings["fraction"])
        angles = _angles(start, start + x.size(1), rotated, self.settings["base"], rotated, self.settings["scaling"])
        dtype = torch.promote_types(x.dtype, torch.float32)
        return angles.cos().to(x.device, dtype), angles.sin().to(x.device, dtype)

    def bias(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the term of the scores (H, Tq, Tk) for the distances (Tq, Tk) of keys from queries, or None."""
        if self.kind == "t5":
            return F.embedding(self._bucket(distance), self.table).permute(2, 0, 1)
        if self.kind == "alibi":
            slopes = _alibi_slopes(self.config.n_heads).to(distance.device)
            return (slopes[:, None, None] * -distance.abs()).to(dtype)
        return None

    def _bucket(self, distance: Tensor) -> Tensor:
        """Half of the buckets hold one distance each, the others grow logarithmically (Raffel et al. 2020)."""
        buckets, later, size = self.settings["buckets"], torch.zeros_like(distance), (-distance).clamp(min=0)
        if self.bidirectional:
            buckets //= 2
            later, size = (distance > 0) * buckets, distance.abs()
        exact = buckets // 2
        logarithm = torch.log(size.clamp(min=1).float() / exact) / math.log(self.settings["max_distance"] / exact)
        shared = exact + (logarithm * (buckets - exact)).long()
        return later + torch.where(size < exact, size, shared.clamp(max=buckets - 1))


def _angles(start: int, end: int, size: int, base: float, span: int, scaling: dict[str, Any] | None = None) -> Tensor:
    """Return p * base^(-2k / span) for each position p and pair k of `size` features, (T, size / 2)."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / span)
    if scaling is not None and scaling["kind"] == "linear":
        rates = rates / scaling["factor"]
    elif scaling is not None and scaling["kind"] == "llama3":  # long wavelengths only
        turns = scaling["original_len"] * rates / (2 * math.pi)
        kept = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
        rates = (1 - kept) * rates / scaling["factor"] + kept * rates
    return torch.arange(start, end, dtype=torch.float64, device="cpu")[:, None] * rates


def _alibi_slopes(heads: int) -> Tensor:
    """Return 2^(-8h / H); if H is not a power of two, those of the next smaller one, and every second one of 2H."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32)


# -------------------------------------------------------------------------------------------------------------- layers


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(Dk) + bias) V in several heads, and the output projection."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.features = config, (config.d_key, config.d_key, config.d_value)
        heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
        self.sizes = [count * size for count, size in zip(heads, self.features, strict=True)]  # of Q, K and V
        self.out = nn.Linear(config.n_heads * config.d_value, config.d_model, bias=config.bias)

    def split(self, x: Tensor, parts: slice) -> list[Tensor]:
        """Split x (N, T, sum of the sizes) into Q, K or V, each with its heads: (N, H, T, size)."""
        pieces = zip(x.split(self.sizes[parts], dim=-1), self.features[parts], strict=True)
        return [piece.unflatten(-1, (-1, size)).transpose(1, 2) for piece, size in pieces]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Return (N, Tq, D); q (N, H, Tq, Dk), k (N, Hkv, Tk, Dk), v (N, Hkv, Tk, Dv)."""
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
        dropout = self.config.attention_dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return self.out(heads.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(config.d_model, sum(self.sizes), bias=config.bias)

    def forward(self, x: Tensor, bias: Tensor | None, rotations: Any, cache: Any, layer: int) -> Tensor:
        q, k, v = self.split(self.qkv(x), slice(0, 3))
        if rotations is not None:
            q, k = _rotate(q, *rotations), _rotate(k, *rotations)
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, layer)
        return self.attend(q, k, v, bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of neighbouring features, the first R of x (N, H, T, Dk) (Su et al. 2021)."""
    size = 2 * cos.size(-1)
    a, b = x[..., :size].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    return torch.cat([turned, x[..., size:]], dim=-1)


class CrossAttention(Attention):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.q = nn.Linear(config.d_model, self.sizes[0], bias=config.bias)
        self.kv = nn.Linear(config.d_model, sum(self.sizes[1:]), bias=config.bias)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None, cache: Any, layer: int) -> Tensor:
        (q,) = self.split(self.q(x), slice(0, 1))
        if cache is not None and cache.is_updated.get(layer):  # by an earlier token
            stored = cache.cross_attention_cache.layers[layer]
            return self.attend(q, stored.keys, stored.values, bias)
        k, v = self.split(self.kv(memory), slice(1, 3))
        if cache is not None:
            k, v = cache.cross_attention_cache.update(k, v, layer)
            cache.is_updated[layer] = True
        return self.attend(q, k, v, bias)


class FeedForward(nn.Module):
    """f(x W1) W2, or gated, (f(x W1) * x W3) W2."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[config.activation], config.gated
        self.inner = nn.Linear(config.d_model, config.d_ff * (2 if config.gated else 1), bias=config.bias)
        self.dropout = nn.Dropout(config.activation_dropout)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden, *gate = self.inner(x).chunk(2 if self.gated else 1, dim=-1)
        hidden = self.activation(hidden) * gate[0] if gate else self.activation(hidden)
        return self.outer(self.dropout(hidden))


class SubLayer(nn.Module):
    """norm(x + f(x)), or with pre-norm x + f(norm(x))."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm, self.dropout, self.order = _norm(config), nn.Dropout(config.dropout), config.order

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.order == "pre":
            return x + self.dropout(function(self.norm(x)))
        return self.norm(x + self.dropout(function(x)))


def _norm(config: Any, used: bool = True) -> nn.Module:
    return NORMS[config.norm](config.d_model, eps=config.norm_eps) if used else nn.Identity()


class Layer(nn.Module):
    """A layer of the encoder, or, with cross-attention, of the decoder."""

    def __init__(self, config: Any, cross: bool) -> None:
        super().__init__()
        self.self_attn, self.around_self_attn = SelfAttention(config), SubLayer(config)
        if cross:
            self.cross_attn, self.around_cross_attn = CrossAttention(config), SubLayer(config)
        self.ffn, self.around_ffn = FeedForward(config), SubLayer(config)

    def forward(
        self, x: Tensor, bias: Any, rotations: Any, layer: int, cache: Any, memory: Any, padding: Any
    ) -> Tensor:
        x = self.around_self_attn(x, lambda y: self.self_attn(y, bias, rotations, cache, layer))
        if memory is not None:
            x = self.around_cross_attn(x, lambda y: self.cross_attn(y, memory, padding, cache, layer))
        return self.around_ffn(x, self.ffn)


# --------------------------------------------------------------------------------------------------------------- model


class Stack(nn.Module):
    """Embedding, positions, layers, and with pre-norm a final norm."""

    def __init__(self, config: Any, layers: int, vocab_size: int, decoder: bool) -> None:
        """vocab_size: 0 if the embedding is that of the other stack."""
        super().__init__()
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.embedding: Any = nn.Embedding(vocab_size, config.d_model) if vocab_size else None
        self.positions = Positions(config, bidirectional=not decoder)
        self.embedding_norm, self.dropout = _norm(config, config.normalize_embeddings), nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config, cross=decoder) for _ in range(layers))
        self.final_norm = _norm(config, config.order == "pre")

    def run(
        self, x: Tensor, mask: Tensor | None, distance: Tensor, start: int = 0, cache: Any = None,
        memory: Tensor | None = None, padding: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Transform embeddings x (N, T, D) from position `start`.

        mask: bias of the scores of self-attention, padding: of cross-attention.  distance (T, Tk): of keys.
        """
        x = self.dropout(self.embedding_norm(self.positions.add(x * self.scale, start)))
        rotations, bias = self.positions.rotations(x, start), self.positions.bias(distance, x.dtype)
        bias = bias + mask if bias is not None and mask is not None else mask if bias is None else bias
        for i, layer in enumerate(self.layers):
            x = layer(x, bias, rotations, i, cache, memory, padding)
        return self.final_norm(x)


class Encoder(Stack):
    main_input_name = "input_ids"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any) -> BaseModelOutput:
        """Encode input_ids (N, S), with attention_mask (N, S), 0 for padding."""
        x = self.embedding(input_ids)
        return BaseModelOutput(last_hidden_state=self.run(x, _padding_bias(attention_mask, x), _distances(x, 0)))


class Decoder(Stack):
    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None, cache: Any) -> Tensor:
        """Decode embeddings x (N, T, D) of the tokens after those of the cache; memory (N, S, D)."""
        start = 0 if cache is None else cache.get_seq_length()
        distance = _distances(x, start)
        causal = torch.zeros_like(distance, dtype=x.dtype).masked_fill(distance > 0, -math.inf)
        return self.run(x, causal, distance, start, cache, memory, _padding_bias(memory_mask, x))


def _distances(x: Tensor, start: int) -> Tensor:
    """Return by how many positions each key from 0 is behind each query of x (N, Tq, D) from `start`: (Tq, Tk)."""
    keys = torch.arange(start + x.size(1), device=x.device)
    return keys[None, :] - keys[start:, None]


def _padding_bias(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the bias of the scores (N, 1, 1, S), -inf for padding, of a mask (N, S)."""
    if mask is None:
        return None
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask == 0, -math.inf)[:, None, None]


class Output(nn.Module):
    """Logits (N, T, V), with a matrix of its own unless it is tied to the target embedding."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        tied, size = config.tie in ("all", "target"), config.decoder_vocab_size
        self.weight = None if tied else nn.Parameter(torch.randn(size, config.d_model) * config.d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(size)) if config.output_bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


class DragomanForSeq2SeqLM(PreTrainedModel, GenerationMixin):
    """Encoder, decoder and output; `generate` translates."""

    config_class = DragomanConfig
    main_input_name = "input_ids"

    def __init__(self, config: DragomanConfig) -> None:
        super().__init__(config)
        own = 0 if config.tie in ("all", "embeddings") else config.decoder_vocab_size
        self.encoder = Encoder(config, config.encoder_layers, config.vocab_size, decoder=False)
        self.decoder = Decoder(config, config.decoder_layers, own, decoder=True)
        self.output = Output(config)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embedding

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None, encoder_outputs: Any = None, past_key_values: Any = None,
        labels: Tensor | None = None, use_cache: bool | None = None, return_dict: bool | None = True,
    ) -> Seq2SeqLMOutput:  # fmt: skip
        """Return logits (N, T, V), with labels (N, T), -100 if ignored, also the loss.

        Targets have no mask: they are padded on the right, where causal attention does not see the padding.
        """
        memory = self.encoder(input_ids, attention_mask)[0] if encoder_outputs is None else encoder_outputs[0]
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels are required")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        embedding = (self.encoder if self.decoder.embedding is None else self.decoder).embedding
        hidden = self.decoder(embedding(decoder_input_ids), memory, attention_mask, past_key_values)
        logits = self.output(hidden, embedding.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=past_key_values, encoder_last_hidden_state=memory
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        start, before = torch.full_like(labels[:, :1], self.config.decoder_start_token_id), labels[:, :-1]
        return torch.cat([start, before.masked_fill(before == -100, self.config.pad_token_id)], dim=1)

    def prepare_inputs_for_generation(
        self, decoder_input_ids: Tensor, past_key_values: Any = None, attention_mask: Any = None,
        encoder_outputs: Any = None, use_cache: Any = None, **unused: Any,
    ) -> dict[str, Any]:  # fmt: skip
        known = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "decoder_input_ids": decoder_input_ids[:, known:], "past_key_values": past_key_values,
            "attention_mask": attention_mask, "encoder_outputs": encoder_outputs, "use_cache": use_cache,
        }  # fmt: skip
