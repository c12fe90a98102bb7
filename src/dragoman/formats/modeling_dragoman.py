"""Encoder-decoder Transformers of Dragoman for `transformers`.

`dragoman export --format huggingface` copies this file next to the weights, and `trust_remote_code=True` runs it.  It
needs torch and transformers, not Dragoman; it only defines the classes below.

The model is that of "Attention Is All You Need" (Vaswani et al. 2017) with the variants that `DragomanConfig` names.

Shapes: N rows, S source length, T target length, Tq/Tk query/key positions, H heads, D d_model, Dk size of queries and
keys per head, Dv size of values per head, V vocabulary.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ACTIVATIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid,
}  # fmt: skip
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class DragomanConfig(PretrainedConfig):
    """Settings of a model; the defaults are the base model of Vaswani et al. 2017.

    order: "post" or "pre", whether a sub-layer is normalized after its residual connection or before it.  norm: a key
    of `NORMS`.  n_kv_heads: number of key and value heads, each shared by a group of query heads.  position: `kind`
    (none, sinusoidal, learned, rotary, t5, alibi) and its settings.  tie: which matrices are one: "all" (source and
    target embedding, output), "embeddings", "target" (target embedding and output) or "none".
    """

    model_type = "dragoman"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads",
        "num_hidden_layers": "decoder_layers",
    }  # fmt: skip

    def __init__(
        self, vocab_size=8000, decoder_vocab_size=None, d_model=512, d_ff=2048, n_heads=8, n_kv_heads=None, d_key=None,
        d_value=None, encoder_layers=6, decoder_layers=6, order="post", norm="layer", norm_eps=1e-5,
        normalize_embeddings=False, position=None, activation="relu", gated=False, bias=True, scale_embeddings=True,
        output_bias=False, tie="all", dropout=0.1, attention_dropout=0.0, activation_dropout=0.0, pad_token_id=2,
        eos_token_id=0, decoder_start_token_id=2, is_encoder_decoder=True, **kwargs,
    ):  # fmt: skip
        self.vocab_size, self.decoder_vocab_size = vocab_size, decoder_vocab_size or vocab_size
        self.d_model, self.d_ff = d_model, d_ff
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.d_value = d_value or d_model // n_heads
        self.d_key = d_key or self.d_value
        self.encoder_layers, self.decoder_layers = encoder_layers, decoder_layers
        self.order, self.norm, self.norm_eps = order, norm, norm_eps
        self.normalize_embeddings, self.scale_embeddings = normalize_embeddings, scale_embeddings
        self.position = position or {"kind": "sinusoidal"}
        self.activation, self.gated, self.bias = activation, gated, bias
        self.output_bias, self.tie = output_bias, tie
        self.dropout, self.attention_dropout, self.activation_dropout = dropout, attention_dropout, activation_dropout
        # Matrices that are one have one owner in the model, so that nothing is left to tie after loading.
        kwargs["tie_word_embeddings"] = False
        super().__init__(
            pad_token_id=pad_token_id, eos_token_id=eos_token_id, decoder_start_token_id=decoder_start_token_id,
            is_encoder_decoder=is_encoder_decoder, **kwargs,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- positions


class Positions(nn.Module):
    """The order of the tokens: vectors added to embeddings, rotations of queries and keys, or a bias of the scores.

    Tables are computed in float64 on the CPU.  `start` is the position of the first of `length` tokens.
    """

    def __init__(self, config, bidirectional):
        super().__init__()
        self.config, self.settings, self.bidirectional = config, config.position, bidirectional
        self.kind = config.position["kind"]
        if self.kind == "learned":
            self.table = nn.Parameter(torch.randn(self.settings["max_len"], config.d_model))
        elif self.kind == "t5":
            self.table = nn.Parameter(torch.randn(self.settings["buckets"], config.n_heads))

    def add(self, x, start):
        """Add vectors to embeddings x (N, T, D)."""
        length = x.size(1)
        if self.kind == "learned":
            if start + length > len(self.table):
                raise ValueError(f"{start + length} tokens; this model has {len(self.table)} positions")
            return x + self.table[start : start + length]
        if self.kind != "sinusoidal":
            return x
        d_model = self.config.d_model
        span = max(1, d_model - 2) if self.settings.get("full_range") else d_model
        rates = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / span)
        angles = torch.arange(start, start + length, dtype=torch.float64, device="cpu")[:, None] * rates  # (T, D/2)
        return x + torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x)

    def rotations(self, x, start):
        """Return cosines and sines (T, R/2) of the angles by which pairs of features are rotated, or None."""
        if self.kind != "rotary":
            return None
        rotated = int(self.config.d_key * self.settings.get("fraction", 1.0))  # R
        rates = self.settings["base"] ** (-torch.arange(0, rotated, 2, dtype=torch.float64, device="cpu") / rotated)
        rates = scaled_rates(rates, self.settings.get("scaling", {"kind": "none"}))
        angles = torch.arange(start, start + x.size(1), dtype=torch.float64, device="cpu")[:, None] * rates
        dtype = torch.promote_types(x.dtype, torch.float32)
        return angles.cos().to(x.device, dtype), angles.sin().to(x.device, dtype)

    def bias(self, x, start):
        """Return the term of the scores (H, Tq, Tk) of queries from `start` and of keys from 0; or None."""
        distance = distances(x, start)
        if self.kind == "t5":
            return F.embedding(self.bucket(distance), self.table).permute(2, 0, 1)
        if self.kind == "alibi":
            return (alibi_slopes(self.config.n_heads).to(x.device)[:, None, None] * -distance.abs()).to(x.dtype)
        return None

    def bucket(self, distance):
        """Return the row of each distance: half of the rows hold one distance each, the others grow logarithmically."""
        rows, offset, size = self.settings["buckets"], 0, (-distance).clamp(min=0)
        if self.bidirectional:
            rows //= 2
            offset, size = (distance > 0) * rows, distance.abs()
        exact = rows // 2
        logarithm = torch.log(size.clamp(min=1).float() / exact) / math.log(self.settings["max_distance"] / exact)
        shared = exact + (logarithm * (rows - exact)).long()
        return offset + torch.where(size < exact, size, shared.clamp(max=rows - 1))


def distances(x, start):
    """Return how far each key from 0 is behind each query of x (N, Tq, D) from `start`: (Tq, Tk)."""
    keys = torch.arange(start + x.size(1), device=x.device)
    return keys[None, :] - keys[start:, None]


def scaled_rates(rates, scaling):
    """Return the rates of rotary positions for longer texts: all divided by a factor, or as in Llama 3.1."""
    if scaling["kind"] == "none":
        return rates
    if scaling["kind"] == "linear":
        return rates / scaling["factor"]
    turns = scaling["original_len"] * rates / (2 * math.pi)
    kept = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return (1 - kept) * rates / scaling["factor"] + kept * rates


def alibi_slopes(heads):
    """Return 2^(-8h / H), for a power of two H; for other H those of the next smaller one and every second of 2H."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32)


# -------------------------------------------------------------------------------------------------------------- layers


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(Dk) + bias) V in several heads, and the output projection."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.sizes = (config.n_heads * config.d_key, config.n_kv_heads * config.d_key, config.n_kv_heads * config.d_value)
        self.out = nn.Linear(config.n_heads * config.d_value, config.d_model, bias=config.bias)

    def split(self, x, sizes, features):
        """(N, T, sum of sizes) -> one tensor (N, heads, T, features) per size."""
        parts = zip(x.split(sizes, dim=-1), features, strict=True)
        return [part.unflatten(-1, (-1, size)).transpose(1, 2) for part, size in parts]

    def attend(self, q, k, v, bias):
        """Return (N, Tq, D).  q (N, H, Tq, Dk), k (N, Hkv, Tk, Dk), v (N, Hkv, Tk, Dv)."""
        group = self.config.n_heads // self.config.n_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        dropout = self.config.attention_dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return self.out(heads.transpose(1, 2).flatten(2))


class SelfAttention(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.qkv = nn.Linear(config.d_model, sum(self.sizes), bias=config.bias)

    def forward(self, x, bias, rotations, cache, layer):
        q, k, v = self.split(self.qkv(x), self.sizes, (self.config.d_key, self.config.d_key, self.config.d_value))
        if rotations is not None:
            q, k = rotate(q, *rotations), rotate(k, *rotations)
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, layer)
        return self.attend(q, k, v, bias)


def rotate(x, cos, sin):
    """Rotate each pair of neighbouring features of x (N, H, T, Dk), the first R of them, by its angle."""
    size = 2 * cos.size(-1)
    a, b = x[..., :size].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    return torch.cat([turned, x[..., size:]], dim=-1)


class CrossAttention(Attention):
    def __init__(self, config):
        super().__init__(config)
        self.q = nn.Linear(config.d_model, self.sizes[0], bias=config.bias)
        self.kv = nn.Linear(config.d_model, sum(self.sizes[1:]), bias=config.bias)

    def forward(self, x, memory, bias, cache, layer):
        (q,) = self.split(self.q(x), self.sizes[:1], (self.config.d_key,))
        if cache is not None and cache.is_updated.get(layer):
            stored = cache.cross_attention_cache.layers[layer]
            return self.attend(q, stored.keys, stored.values, bias)
        k, v = self.split(self.kv(memory), self.sizes[1:], (self.config.d_key, self.config.d_value))
        if cache is not None:
            k, v = cache.cross_attention_cache.update(k, v, layer)
            cache.is_updated[layer] = True
        return self.attend(q, k, v, bias)


class FeedForward(nn.Module):
    """f(x W1) W2, or gated, (f(x W1) * x W3) W2."""

    def __init__(self, config):
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[config.activation], config.gated
        self.inner = nn.Linear(config.d_model, config.d_ff * (2 if config.gated else 1), bias=config.bias)
        self.dropout = nn.Dropout(config.activation_dropout)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x):
        if not self.gated:
            return self.outer(self.dropout(self.activation(self.inner(x))))
        hidden, gate = self.inner(x).chunk(2, dim=-1)
        return self.outer(self.dropout(self.activation(hidden) * gate))


class SubLayer(nn.Module):
    """norm(x + f(x)), or with pre-norm x + f(norm(x))."""

    def __init__(self, config):
        super().__init__()
        self.norm = NORMS[config.norm](config.d_model, eps=config.norm_eps)
        self.dropout, self.order = nn.Dropout(config.dropout), config.order

    def forward(self, x, function):
        if self.order == "pre":
            return x + self.dropout(function(self.norm(x)))
        return self.norm(x + self.dropout(function(x)))


class Layer(nn.Module):
    """A layer of the encoder, or, with cross-attention, of the decoder."""

    def __init__(self, config, cross):
        super().__init__()
        self.self_attn, self.around_self_attn = SelfAttention(config), SubLayer(config)
        if cross:
            self.cross_attn, self.around_cross_attn = CrossAttention(config), SubLayer(config)
        self.ffn, self.around_ffn = FeedForward(config), SubLayer(config)

    def forward(self, x, bias, rotations, cache=None, layer=0, memory=None, memory_bias=None):
        x = self.around_self_attn(x, lambda y: self.self_attn(y, bias, rotations, cache, layer))
        if memory is not None:
            x = self.around_cross_attn(x, lambda y: self.cross_attn(y, memory, memory_bias, cache, layer))
        return self.around_ffn(x, self.ffn)


class Stack(nn.Module):
    """Embedding, positions, layers, and with pre-norm a final norm."""

    def __init__(self, config, layers, vocab_size, decoder):
        """vocab_size: 0 if the embedding is that of the other stack."""
        super().__init__()

        def norm(used):
            return NORMS[config.norm](config.d_model, eps=config.norm_eps) if used else nn.Identity()

        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.embedding = nn.Embedding(vocab_size, config.d_model) if vocab_size else None
        self.positions = Positions(config, bidirectional=not decoder)
        self.embedding_norm = norm(config.normalize_embeddings)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config, cross=decoder) for _ in range(layers))
        self.final_norm = norm(config.order == "pre")

    def run(self, x, mask, start=0, **arguments):
        """Transform embeddings x (N, T, D) from position `start`; mask: bias of the scores, without positions."""
        x = self.dropout(self.embedding_norm(self.positions.add(x * self.scale, start)))
        rotations, bias = self.positions.rotations(x, start), self.positions.bias(x, start)
        bias = mask if bias is None else bias if mask is None else bias + mask
        for i, layer in enumerate(self.layers):
            x = layer(x, bias, rotations, layer=i, **arguments)
        return self.final_norm(x)


class Encoder(Stack):
    main_input_name = "input_ids"

    def forward(self, input_ids, attention_mask=None, **unused):
        """input_ids (N, S); attention_mask (N, S) with 0 for padding."""
        x = self.embedding(input_ids)
        return BaseModelOutput(last_hidden_state=self.run(x, padding_bias(attention_mask, x)))


class Decoder(Stack):
    def forward(self, embedded, memory, attention_mask, cache):
        """embedded (N, T, D): tokens after those of the cache; attention_mask (N, S): of the memory (N, S, D)."""
        start = 0 if cache is None else cache.get_seq_length()
        later = distances(embedded, start) > 0  # (Tq, Tk)
        causal = torch.zeros(later.shape, dtype=embedded.dtype, device=embedded.device).masked_fill(later, -math.inf)
        memory_bias = padding_bias(attention_mask, embedded)
        return self.run(embedded, causal, start, cache=cache, memory=memory, memory_bias=memory_bias)


def padding_bias(mask, like):
    """(N, S) -> (N, 1, 1, S) with -inf for padding; None for None."""
    return None if mask is None else torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask == 0, -math.inf)[:, None, None]


class Output(nn.Module):
    """Logits; a matrix of its own only if it is not that of the target embedding."""

    def __init__(self, config, tied):
        super().__init__()
        size = config.decoder_vocab_size
        self.weight = None if tied else nn.Parameter(torch.randn(size, config.d_model) * config.d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(size)) if config.output_bias else None

    def forward(self, x, embedding):
        return F.linear(x, embedding.weight if self.weight is None else self.weight, self.bias)


class DragomanForSeq2SeqLM(PreTrainedModel, GenerationMixin):
    config_class = DragomanConfig
    main_input_name = "input_ids"

    def __init__(self, config):
        super().__init__(config)
        shared = config.tie in ("all", "embeddings")
        self.encoder = Encoder(config, config.encoder_layers, config.vocab_size, decoder=False)
        self.decoder = Decoder(config, config.decoder_layers, 0 if shared else config.decoder_vocab_size, decoder=True)
        self.output = Output(config, tied=config.tie in ("all", "target"))
        self.post_init()

    def get_encoder(self, modality=None):
        return self.encoder

    def get_input_embeddings(self):
        return self.encoder.embedding

    def forward(
        self, input_ids=None, attention_mask=None, decoder_input_ids=None, encoder_outputs=None, past_key_values=None,
        labels=None, use_cache=None, return_dict=True,
    ):  # fmt: skip
        """Return logits (N, T, V), with labels (N, T; -100: ignored) also the loss.

        The target has no mask: pad it on the right, where causal attention does not see the padding.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        if decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        embedding = self.encoder.embedding if self.decoder.embedding is None else self.decoder.embedding
        memory = encoder_outputs[0]
        hidden = self.decoder(embedding(decoder_input_ids), memory, attention_mask, past_key_values)
        logits = self.output(hidden, embedding)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=past_key_values, encoder_last_hidden_state=memory
        )

    def prepare_decoder_input_ids_from_labels(self, labels):
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)], dim=1)

    def prepare_inputs_for_generation(
        self, decoder_input_ids, past_key_values=None, attention_mask=None, encoder_outputs=None, use_cache=None, **unused
    ):  # fmt: skip
        known = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "decoder_input_ids": decoder_input_ids[:, known:], "past_key_values": past_key_values,
            "attention_mask": attention_mask, "encoder_outputs": encoder_outputs, "use_cache": use_cache,
        }  # fmt: skip
