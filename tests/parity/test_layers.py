"""Layers and norms against PyTorch's: values and gradients, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import TransformerConfig
from dragoman.models.build import build_model
from dragoman.nn.attention import CrossAttention, SelfAttention, Span, mask_to_bias
from dragoman.nn.layers import ACTIVATIONS, DecoderLayer, Embedding, EncoderLayer, FeedForward, RMSNorm, SubLayer
from dragoman.nn.positions import Positions

N, H, S, T, D, D_FF = 3, 4, 7, 5, 24, 40
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}

Pairs = Iterable[tuple[Tensor, Tensor]]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sublayer(order: str) -> Callable[[], SubLayer]:
    return lambda: SubLayer(nn.LayerNorm(D), 0.0, order)


def shake(module: nn.Module) -> None:
    """Avoid ones in norms and zeros in biases, which could hide an error."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def norms(ours: Iterable[SubLayer], theirs: Iterable[nn.Module]) -> Pairs:
    for around, other in zip(ours, theirs, strict=True):
        assert isinstance(around.norm, nn.LayerNorm) and isinstance(other, nn.LayerNorm)
        yield around.norm.weight, other.weight
        yield around.norm.bias, other.bias


def linear(mine: nn.Linear, their: nn.Module) -> Pairs:
    assert isinstance(their, nn.Linear)
    return [(mine.weight, their.weight), (mine.bias, their.bias)]


def encoder_pairs(mine: EncoderLayer, their: nn.TransformerEncoderLayer) -> Pairs:
    attention = their.self_attn
    yield mine.self_attn.qkv.weight, attention.in_proj_weight
    yield mine.self_attn.qkv.bias, attention.in_proj_bias
    yield from linear(mine.self_attn.out, attention.out_proj)
    yield from linear(mine.ffn.inner, their.linear1)
    yield from linear(mine.ffn.outer, their.linear2)
    yield from norms([mine.around_self_attn, mine.around_ffn], [their.norm1, their.norm2])


def check_same(outputs: tuple[Tensor, Tensor], inputs: Iterable[tuple[Tensor, Tensor]], pairs: Pairs) -> None:
    """Check for equal outputs and, from one upstream gradient, equal gradients of inputs and parameters."""
    mine, their = outputs
    torch.testing.assert_close(mine, their, **EXACT)
    upstream = random(*mine.shape)
    mine.backward(upstream)  # type: ignore[no-untyped-call]
    their.backward(upstream)  # type: ignore[no-untyped-call]
    for own, other in (*inputs, *pairs):
        assert own.grad is not None and other.grad is not None
        torch.testing.assert_close(own.grad, other.grad, **EXACT)


def copies(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone().requires_grad_(), x.clone().requires_grad_()


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer_is_torchs(order: str, activation: str) -> None:
    mine = EncoderLayer(SelfAttention(D, H), FeedForward(D, D_FF, activation), sublayer(order)).double()
    shake(mine)
    their = nn.TransformerEncoderLayer(
        D, H, D_FF, 0.0, activation, batch_first=True, norm_first=order == "pre", dtype=torch.float64
    )
    pairs = list(encoder_pairs(mine, their))
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own)
    mask = torch.arange(S) < torch.tensor([7, 4, 2])[:, None]  # (N, S)
    x, y = copies(random(N, S, D))
    bias = mask_to_bias(mask[:, None, None, :], torch.float64)
    outputs = mine(x, Span(Positions(), torch.arange(S), bias)), their(y, src_key_padding_mask=~mask)
    check_same(outputs, [(x, y)], pairs)


@pytest.mark.parametrize("order", ["post", "pre"])
def test_decoder_layer_is_torchs(order: str) -> None:
    ffn = FeedForward(D, D_FF, "relu")
    mine = DecoderLayer(SelfAttention(D, H), CrossAttention(D, H), ffn, sublayer(order)).double()
    shake(mine)
    their = nn.TransformerDecoderLayer(
        D, H, D_FF, 0.0, batch_first=True, norm_first=order == "pre", dtype=torch.float64
    )
    their_cross = their.multihead_attn
    with torch.no_grad():
        their_cross.in_proj_weight.copy_(torch.cat([mine.cross_attn.q.weight, mine.cross_attn.kv.weight]))
        their_cross.in_proj_bias.copy_(torch.cat([mine.cross_attn.q.bias, mine.cross_attn.kv.bias]))
    pairs = [
        (mine.self_attn.qkv.weight, their.self_attn.in_proj_weight),
        (mine.self_attn.qkv.bias, their.self_attn.in_proj_bias),
        *linear(mine.self_attn.out, their.self_attn.out_proj),
        *linear(mine.cross_attn.out, their_cross.out_proj),
        *linear(mine.ffn.inner, their.linear1),
        *linear(mine.ffn.outer, their.linear2),
        *norms(
            [mine.around_self_attn, mine.around_cross_attn, mine.around_ffn], [their.norm1, their.norm2, their.norm3]
        ),
    ]
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own)
    mask = torch.arange(S) < torch.tensor([3, 7, 6])[:, None]  # (N, S)
    (x, y), (memory, memory2) = copies(random(N, T, D)), copies(random(N, S, D))
    bias = mask_to_bias(mask[:, None, None, :], torch.float64)
    got = mine(x, Span(Positions(), torch.arange(T), causal=True), None, mine.cross_attn.project(memory), bias)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    want = their(y, memory2, tgt_mask=later, memory_key_padding_mask=~mask)
    check_same((got, want), [(x, y), (memory, memory2)], pairs)


def test_rms_norm_is_torchs() -> None:
    mine, their = RMSNorm(D, eps=1e-3).double(), nn.RMSNorm(D, eps=1e-3, dtype=torch.float64)
    shake(mine)
    with torch.no_grad():
        their.weight.copy_(mine.weight)
    x, y = copies(random(N, T, D))
    check_same((mine(x), their(y)), [(x, y)], [(mine.weight, their.weight)])


def test_rms_norm_gradient_against_differences() -> None:
    norm = RMSNorm(6, eps=0.2).double()
    shake(norm)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(norm, {"weight": weight}, (x,))
        return out

    assert torch.autograd.gradcheck(function, (random(2, 3, 6).requires_grad_(), norm.weight))


@pytest.mark.parametrize("norm", [{"kind": "layer", "eps": 0.1}, {"kind": "rms", "eps": 0.1}])
def test_norms_of_a_built_model_are_their_formulas(norm: dict[str, object]) -> None:
    config = TransformerConfig.model_validate(
        {"d_model": D, "d_ff": D_FF, "n_heads": H, "encoder_layers": 1, "decoder_layers": 1, "norm": norm}
    )
    built = build_model(config, 11, 11).double().get_submodule("encoder.layers.0.around_ffn.norm")
    x = random(N, S, D)
    centred = x - x.mean(-1, keepdim=True) if norm["kind"] == "layer" else x
    want = centred / ((centred**2).mean(-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(built(x), want, **EXACT)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_is_the_formula(activation: str, gated: bool) -> None:
    ffn = FeedForward(D, D_FF, activation, gated).double()
    formulas: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
        "tanh": lambda x: 1 - 2 / (1 + torch.exp(2 * x)),
    }
    x = random(N, T, D)
    w1, b1 = ffn.inner.weight, ffn.inner.bias
    hidden = formulas[activation](x @ w1[:D_FF].T + b1[:D_FF])
    if gated:
        hidden = hidden * (x @ w1[D_FF:].T + b1[D_FF:])
    torch.testing.assert_close(ffn(x), hidden @ ffn.outer.weight.T + ffn.outer.bias, **EXACT)


def test_sub_layer_has_the_norm_where_the_order_says() -> None:
    norm = nn.LayerNorm(D).double()
    shake(norm)
    x = random(N, T, D)
    torch.testing.assert_close(SubLayer(norm, 0.0, "post")(x, torch.sin), norm(x + x.sin()), **EXACT)
    torch.testing.assert_close(SubLayer(norm, 0.0, "pre")(x, torch.sin), x + norm(x).sin(), **EXACT)


def test_embedding_is_scaled_and_its_gradient_too() -> None:
    embedding = Embedding(13, 9).double()
    nn.init.normal_(embedding.weight)
    tokens = torch.tensor([[1, 12, 1], [4, 0, 4]])
    out = embedding(tokens)
    torch.testing.assert_close(out, embedding.weight[tokens] * 3.0, **EXACT)
    out.sum().backward()
    want = 3.0 * F.one_hot(tokens, 13).sum((0, 1))[:, None].expand(13, 9).double()
    assert embedding.weight.grad is not None
    torch.testing.assert_close(embedding.weight.grad, want, **EXACT)
