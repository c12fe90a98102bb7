"""Every architecture and kind, small: what holds of one must hold of all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from dragoman.config import ModelConfig
from dragoman.data.batching import Batch, collate
from dragoman.models.build import build_model
from dragoman.models.seq2seq import LanguageModel, Model, Network
from dragoman.tokenizers import BOS, EOS

BLOCK: dict[str, Any] = {"d_model": 12, "d_ff": 20, "n_heads": 2, "dropout": 0.0}
LAYERS = {"encoder_layers": 2, "decoder_layers": 3}
ONE_STACK: dict[str, Any] = {"d_model": 10, "n_layers": 2, "dropout": 0.0}
RECURRENT: dict[str, Any] = {"d_model": 10, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
EVERY_STEP = {"kind": "none", "context": "every_step"}

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"order": "pre", "activation": "gelu", "tie": "target"},
    "modern": {
        "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu",
        "gated": True, "bias": False,
    },
    "gemma 3": {
        "order": "sandwich", "norm": {"kind": "rms"}, "position": {"kind": "rotary_by_layer", "period": 2},
        "attention": {"kind": "qk_norm"}, "n_kv_heads": 1, "activation": "gelu_tanh", "gated": True, "bias": False,
    },
    "batch norm": {"norm": {"kind": "batch"}},
    "multi-query": {"n_kv_heads": 1, "position": {"kind": "rotary", "fraction": 0.67}},
    "grouped-query": {"n_heads": 6, "n_kv_heads": 3, "order": "pre"},
    "small keys": {"d_key": 4},
    "large keys": {"d_key": 8, "n_kv_heads": 1, "position": {"kind": "rotary"}, "order": "pre"},
    "wide values": {"n_heads": 5, "d_value": 7, "order": "pre"},
    "narrow values": {"d_key": 4, "d_value": 3, "n_kv_heads": 1, "order": "pre"},
    "t5 family": {
        "position": {"kind": "t5", "buckets": 8, "max_distance": 12}, "order": "pre", "norm": {"kind": "rms"},
        "activation": "gelu_tanh", "gated": True, "bias": False, "scale_embeddings": False, "n_heads": 3,
        "d_value": 8, "tie": "embeddings",
    },
    "no positions": {"position": {"kind": "none"}},
    "learned": {"position": {"kind": "learned", "max_len": 40}},
    "recurrent over embeddings": {"position": {"kind": "recurrent", "source": "embeddings"}},
    "recurrent positions": {"position": {"kind": "recurrent", "source": "positions"}, "order": "pre"},
    "shaw": {"position": {"kind": "shaw", "clip": 3}},
    "t5": {"position": {"kind": "t5", "buckets": 8, "max_distance": 12}, "order": "pre"},
    "alibi": {"position": {"kind": "alibi"}},
    "unscaled": {"scale_embeddings": False, "position": {"kind": "learned", "max_len": 40}, "order": "pre"},
    "normalized embeddings": {"normalize_embeddings": True, "position": {"kind": "learned", "max_len": 40}},
    "normalized embeddings pre-norm": {
        "normalize_embeddings": True, "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "none"},
    },
    "output bias": {"output_bias": True, "tie": "target"},
    "linear": {"attention": {"kind": "linear"}},
    "linear relu": {"attention": {"kind": "linear", "feature_map": "relu"}, "order": "pre"},
    "linear softmax": {"attention": {"kind": "linear", "feature_map": "softmax"}},
    "linear rotary": {"attention": {"kind": "linear"}, "position": {"kind": "rotary"}},
    "ssru": {"decoder_self": "ssru"},
    "ssru pre-norm": {
        "decoder_self": "ssru", "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "none"}, "bias": False,
        "n_kv_heads": 1,
    },
}  # fmt: skip
"""By name, the changes to a small Transformer."""

TRANSLATORS: dict[str, dict[str, Any]] = {
    name: {"architecture": "transformer", **BLOCK, **LAYERS, **changes} for name, changes in TRANSFORMERS.items()
} | {
    "rnn": {"architecture": "rnn", **RECURRENT, "attention": {"kind": "none"}, "directions": 1},
    "rnn every step": {"architecture": "rnn", **RECURRENT, "attention": EVERY_STEP, "directions": 1},
    "rnn relu bahdanau": {"architecture": "rnn", **RECURRENT, "activation": "relu"},
    "gru": {"architecture": "gru", **RECURRENT, "attention": {"kind": "none"}},
    "gru every step": {"architecture": "gru", **RECURRENT, "attention": EVERY_STEP},
    "gru luong dot": {"architecture": "gru", **RECURRENT, "attention": {"kind": "luong", "score": "dot"}},
    "lstm": {"architecture": "lstm", **RECURRENT, "attention": {"kind": "none"}, "tie": "none"},
    "lstm every step": {"architecture": "lstm", **RECURRENT, "attention": EVERY_STEP, "tie": "none"},
    "lstm learned state": {
        "architecture": "lstm", **RECURRENT, "encoder_layers": 2, "attention": {"kind": "none"},
        "initial_state": {"kind": "learned"},
    },
    "lstm bahdanau": {"architecture": "lstm", **RECURRENT, "encoder_layers": 2},
    "lstm luong": {"architecture": "lstm", **RECURRENT, "attention": {"kind": "luong", "score": "general"}},
    "convolutional": {
        "architecture": "convolutional", "d_model": 10, "encoder_layers": 2, "decoder_layers": 3, "kernel": 3,
        "dropout": 0.0, "max_positions": 40,
    },
}  # fmt: skip
"""By name, every model that has a source and writes a target."""

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "decoder only": {"architecture": "decoder_only", **BLOCK, "n_layers": 2},
    "rnn language model": {"architecture": "recurrent_lm", **ONE_STACK, "cell": {"kind": "rnn"}, "tie": "none"},
    "gru language model": {
        "architecture": "recurrent_lm", **ONE_STACK, "cell": {"kind": "gru"}, "initial_state": {"kind": "learned"},
    },
    "lstm language model": {"architecture": "recurrent_lm", **ONE_STACK, "initial_state": {"kind": "learned"}},
}  # fmt: skip
"""By name, models without a source."""

LABELLERS: dict[str, dict[str, Any]] = {
    "encoder only": {"architecture": "encoder_only", **BLOCK, "n_layers": 2},
    "pooler": {
        "architecture": "encoder_only", **BLOCK, "n_layers": 1, "pooling": "first", "head": "tanh", "output_bias": True,
        "scale_embeddings": False,
    },
    "transform": {
        "architecture": "encoder_only", **BLOCK, "n_layers": 1, "head": "transform", "activation": "gelu",
        "output_bias": True,
    },
    "rnn labels": {
        "architecture": "recurrent_encoder", **ONE_STACK, "cell": {"kind": "rnn", "activation": "relu"},
        "directions": 1, "pooling": "last",
    },
    "gru labels": {"architecture": "recurrent_encoder", **ONE_STACK, "cell": {"kind": "gru"}, "pooling": "mean"},
    "lstm labels": {"architecture": "recurrent_encoder", **ONE_STACK, "pooling": "last"},
    "lstm tags": {"architecture": "recurrent_encoder", **ONE_STACK, "initial_state": {"kind": "learned"}},
}  # fmt: skip
"""By name, models with one label per token or per text."""


COVERING = {
    "paper", "large keys", "t5 family", "recurrent over embeddings", "shaw", "linear rotary", "ssru pre-norm",
    "gru every step", "lstm luong", "convolutional", "decoder only", "lstm language model",
}  # fmt: skip
"""Kinds that together have every architecture, order and norm of layers, position, attention, cell and state."""


def covering(names: Iterable[Any], chosen: Collection[Any] = COVERING) -> list[Any]:
    """The parameters of a test of these kinds; by default, pytest runs only the chosen ones."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.thorough) for name in names]


def model_config(document: dict[str, Any]) -> ModelConfig:
    """A `[model]` section from its document."""
    adapter: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
    return adapter.validate_python(document)


def built_network(document: dict[str, Any], vocab: int, outputs: int, shake: bool = True, seed: int = 1) -> Network:
    """The network in float64 and in evaluation mode; `shake` moves it away from the ones and zeros of a fresh one."""
    network = build_model(model_config(document), vocab, outputs, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in network.parameters() if shake else ():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.4, generator=generator)
        else:
            nn.init.uniform_(parameter, 0.5, 1.0, generator=generator)
    return network


def built(document: dict[str, Any], vocab: int, shake: bool = True, seed: int = 1) -> Model:
    """As `built_network`, a model that writes tokens of the vocabulary that it reads."""
    model = built_network(document, vocab, vocab, shake, seed)
    assert isinstance(model, Model)
    return model


def ending(vocab: int, seed: int = 1, document: dict[str, Any] = TRANSLATORS["modern"]) -> Model:
    """A model with an end of sentence so probable that a search completes hypotheses of many lengths; in float32."""
    model = built(document | {"tie": "none"}, vocab).float()
    with torch.no_grad():
        weight = model.get_parameter("output.weight")
        nn.init.normal_(weight, std=0.4, generator=torch.Generator().manual_seed(seed))
        weight[EOS] *= 2
    return model


def improving(vocab: int) -> Model:
    """A model whose long targets have the best scores with alpha = 9, although their first tokens have poor ones.

    A token depends only on the one before it, because the layers add nothing.  In float32.
    """
    model = built(TRANSLATORS["modern"] | {"tie": "none"}, vocab).float()
    first, later = torch.randn(2, vocab, generator=torch.Generator().manual_seed(1)) / 2
    first[EOS] = math.log(2 * vocab)  # a probability of 0.6
    later[EOS], later[7] = math.log(vocab), math.log(20 * vocab)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("out.weight", "outer.weight")):
                parameter.zero_()
        model.get_parameter("decoder.final_norm.weight").fill_(1)
        embedding, output = model.get_parameter("decoder.embedding.weight"), model.get_parameter("output.weight")
        embedding.zero_()
        embedding[:, 1] = 1
        embedding[BOS] = torch.eye(embedding.size(1))[0]
        output.zero_()
        output[:, :2] = torch.stack([first, later], dim=1) / math.sqrt(embedding.size(1))
    return model


def bigrams(vocab: int) -> Model:
    """A model whose tokens depend only on the one before them, in a random way.

    With alpha = 2, some unfinished hypotheses cannot enter the list by ending with the next token, but by continuing
    for longer than others that can.  In float32.
    """
    model, generator = improving(vocab), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, std in (("decoder.embedding.weight", 1.0), ("output.weight", 0.3)):
            nn.init.normal_(model.get_parameter(name), std=std, generator=generator)
    return model


def random_batch(lengths: Iterable[tuple[int, int]], vocab: int) -> Batch:
    """Random pairs with these lengths of source and target, which include the end of sentence."""
    generator = torch.Generator().manual_seed(3)

    def sentence(length: int) -> list[int]:
        return [*torch.randint(EOS + 1, vocab, (length - 1,), generator=generator).tolist(), EOS]

    return collate([(sentence(src), sentence(tgt)) for src, tgt in lengths])


def readable(model: Network, batch: Batch) -> Batch:
    """The batch, without its source for a language model."""
    if not isinstance(model, LanguageModel):
        return batch
    return dataclasses.replace(batch, src=batch.src[:, :0], src_mask=None)
