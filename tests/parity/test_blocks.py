"""Variants of a layer, each against a second implementation: causal encoder layers and BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Memory
from dragoman.models.transformer import Decoder, Encoder, StackParts
from dragoman.nn.attention import CrossAttention, SelfAttention, Span, causal_bias
from dragoman.nn.layers import BatchNorm, DecoderLayer, Embedding, EncoderLayer, FeedForward, SubLayer
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Positions, Sinusoidal

B, K, H, S, T, DH, D_FF, V = 3, 2, 4, 7, 5, 6, 40, 19
D, N = H * DH, B * K
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def shake(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def test_as_many_heads_of_keys_as_of_queries_is_the_default() -> None:
    for kind in (SelfAttention, CrossAttention):
        default, same = kind(D, H), kind(D, H, n_kv_heads=H)
        shapes = {name: tensor.shape for name, tensor in default.state_dict().items()}
        assert shapes == {name: tensor.shape for name, tensor in same.state_dict().items()}
        assert default.n_kv_heads == H and default.parts == same.parts == (D,) * len(default.parts)


# ------------------------------------------------------------------------------------------ causal encoder layers

ATTENTIONS: dict[str, Callable[[], SelfAttention | LinearSelfAttention]] = {
    "full": lambda: SelfAttention(D, H),
    "grouped": lambda: SelfAttention(D, H, n_kv_heads=2),
    "multi-query": lambda: SelfAttention(D, H, n_kv_heads=1),
    "elu": lambda: LinearSelfAttention(D, H, "elu"),
    "softmax of features": lambda: LinearSelfAttention(D, H, "softmax"),
}


def sublayer(norm: Callable[[int], nn.Module] = nn.LayerNorm, order: str = "pre") -> Callable[[], SubLayer]:
    return lambda: SubLayer(norm(D), 0.0, order)


def decoder(norm: Callable[[int], nn.Module]) -> Decoder:
    layers = [
        DecoderLayer(SelfAttention(D, H), CrossAttention(D, H), FeedForward(D, D_FF, "relu"), sublayer(norm))
        for _ in range(2)
    ]
    made = Decoder(Embedding(V, D), StackParts(Sinusoidal(D), layers, 0.0, norm(D), nn.Identity())).double()
    shake(made)
    return made


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_encoder_layer_with_a_cache_is_causal(kind: str) -> None:
    layer = EncoderLayer(ATTENTIONS[kind](), FeedForward(D, D_FF, "relu"), sublayer(order="post")).double()
    shake(layer)
    x = random(N, T, D)
    full = layer(x, Span(Positions(), torch.arange(T), causal=True))
    cache = layer.self_attn.new_cache(N, T, like=x)
    for begin, end in ((0, 2), (2, 3), (3, T)):
        got = layer(x[:, begin:end], Span(Positions(), torch.arange(begin, end), causal=True), cache)
        torch.testing.assert_close(got, full[:, begin:end], **EXACT)


def test_a_causal_layer_reads_a_bias_too() -> None:
    layer = EncoderLayer(SelfAttention(D, H), FeedForward(D, D_FF, "relu"), sublayer()).double()
    shake(layer)
    x, pos, bias = random(B, S, D), torch.arange(S), random(H, 1, S)
    want = layer(x, Span(Positions(), pos, bias + causal_bias(pos, pos, x.dtype)))
    torch.testing.assert_close(layer(x, Span(Positions(), pos, bias, True)), want, **EXACT)
    cache = layer.self_attn.new_cache(B, S, like=x)
    layer(x[:, :3], Span(Positions(), pos[:3], bias[..., :3], True), cache)
    got = layer(x[:, 3:], Span(Positions(), pos[3:], bias, True), cache)
    torch.testing.assert_close(got, want[:, 3:], **EXACT)


# -------------------------------------------------------------------------------------------------------- BatchNorm


def both(eps: float = 0.1, momentum: float = 0.3) -> tuple[BatchNorm, nn.BatchNorm1d]:
    mine, their = BatchNorm(D, eps, momentum).double(), nn.BatchNorm1d(D, eps, momentum, dtype=torch.float64)
    shake(mine)
    with torch.no_grad():
        their.weight.copy_(mine.weight)
        their.bias.copy_(mine.bias)
    return mine, their


def test_batch_norm_equals_that_of_torch() -> None:
    mine, their = both()
    for step in range(4):
        mine.train(step < 3)
        their.train(step < 3)
        x = (random(N, T, D) * 2 + 1).requires_grad_()
        y = x.detach().clone().requires_grad_()
        outputs = mine(x), their(y.transpose(1, 2)).transpose(1, 2)
        torch.testing.assert_close(*outputs, **EXACT)
        upstream = random(N, T, D)
        got = torch.autograd.grad(outputs[0], [x, mine.weight, mine.bias], upstream)
        want = torch.autograd.grad(outputs[1], [y, their.weight, their.bias], upstream)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
    assert their.running_mean is not None and their.running_var is not None
    torch.testing.assert_close(mine.running_mean, their.running_mean, **EXACT)
    torch.testing.assert_close(mine.running_var, their.running_var, **EXACT)
    assert (mine.running_mean - 1).abs().max() < 0.8 and mine.running_var.mean() > 1.5


def test_batch_norm_is_its_formula_in_training() -> None:
    norm = BatchNorm(D, eps=0.2).double()
    x = random(B, S, D)
    mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
    torch.testing.assert_close(norm(x), (x - mean) / (variance + 0.2).sqrt(), **EXACT)


def test_batch_norm_takes_a_single_position_by_the_running_statistics() -> None:
    norm = BatchNorm(D).double()
    norm(random(B, S, D))
    before, x = norm.running_mean.clone(), random(1, 1, D)
    single = norm(x)
    assert torch.equal(single, norm.eval()(x)) and torch.equal(norm.running_mean, before)


def test_batch_norms_statistics_are_part_of_the_state() -> None:
    assert set(BatchNorm(D).state_dict()) == {"weight", "bias", "running_mean", "running_var"}


def test_a_batch_that_is_not_finite_leaves_the_running_statistics_alone() -> None:
    norm = BatchNorm(D).double().train()
    norm(torch.randn(2, 3, D, dtype=torch.float64))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    spoiled = torch.randn(2, 3, D, dtype=torch.float64)
    spoiled[0, 1, 2] = torch.inf
    assert not bool(torch.isfinite(norm(spoiled)).all())
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_evaluated_batch_norm_depends_on_neither_batch_nor_length() -> None:
    made = decoder(BatchNorm)
    layer = EncoderLayer(SelfAttention(D, H), FeedForward(D, D_FF, "relu"), sublayer(BatchNorm))
    encoder = Encoder(Embedding(V, D), StackParts(Sinusoidal(D), [layer], 0.0, BatchNorm(D), nn.Identity())).double()
    shake(encoder)
    src, tgt = torch.randint(1, V, (B, S)), torch.randint(1, V, (B, T))
    mask = torch.arange(S) < torch.tensor([7, 4, 2])[:, None]

    def run(rows: slice, length: int) -> Tensor:
        memory = Memory(encoder(src[rows, :length], mask[rows, :length]), mask[rows, :length])
        hidden: Tensor = made(tgt[rows], made.start(memory, 1, 0))
        return hidden

    for _ in range(3):
        trained = run(slice(None), S)  # updates the running statistics
    encoder.eval()
    made.eval()
    batch = run(slice(None), S)
    torch.testing.assert_close(batch[1:2], run(slice(1, 2), 4), **EXACT)
    assert not torch.allclose(batch, trained)
    memory = Memory(encoder(src, mask), mask)
    state = made.start(memory, 1, T)
    steps = [made(tgt[:, t : t + 1], state) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), batch, **EXACT)
