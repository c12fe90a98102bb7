"""Variants of a layer, each against a second implementation: shared key heads, causal encoder layers, BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Memory
from dragoman.models.transformer import Decoder, Encoder, StackParts
from dragoman.nn import fast
from dragoman.nn.attention import CrossAttention, SelfAttention, Span, causal_bias, mask_to_bias
from dragoman.nn.fast import attend_short
from dragoman.nn.layers import BatchNorm, DecoderLayer, Embedding, EncoderLayer, FeedForward, SubLayer
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Alibi, Positions, Rotary, Sinusoidal

B, K, H, S, T, DH, D_FF, V = 3, 2, 4, 7, 5, 6, 40, 19
D, N = H * DH, B * K
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def shake(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


# ------------------------------------------------------------------------------- shared heads of keys and values


def repeated(x: Tensor, parts: tuple[int, ...], n_kv_heads: int) -> Tensor:
    """Repeat the rows of a fused matrix (or bias) to one key and value head per query head."""
    wide = []
    for part, rows in zip(x.split(parts), parts, strict=True):
        heads = part.unflatten(0, (-1, DH))
        wide.append((heads if rows == D else heads.repeat_interleave(H // n_kv_heads, 0)).flatten(0, 1))
    return torch.cat(wide)


def full_twin(shared: SelfAttention | CrossAttention) -> SelfAttention | CrossAttention:
    """Full multi-head attention whose neighbouring heads have equal keys and values, as a function of `shared`."""
    full = type(shared)(D, H).double()
    name = "qkv" if isinstance(shared, SelfAttention) else "kv"
    for kind in ("weight", "bias"):
        wide = repeated(getattr(getattr(shared, name), kind), shared.parts, shared.n_kv_heads)
        del getattr(full, name)._parameters[kind]
        setattr(getattr(full, name), kind, wide)  # in the graph: gradients come back to the shared matrix
    full.out = shared.out
    if isinstance(full, CrossAttention) and isinstance(shared, CrossAttention):
        full.q = shared.q
    return full


def take(monkeypatch: pytest.MonkeyPatch, way: str, *modules: SelfAttention | CrossAttention) -> list[Tensor]:
    """Select one of the three implementations; return the weights that the explicit one records."""
    seen: list[Tensor] = []
    if way == "fused":
        monkeypatch.setattr(fast, "_SHORT", 0)
    if way == "explicit":
        for module in modules:
            module.weights.register_forward_hook(lambda module, inputs, output: seen.append(output))
    return seen


def check(shared: nn.Module, outputs: tuple[Tensor, Tensor], inputs: list[Tensor]) -> None:
    """Check for equal outputs and, from one upstream gradient, equal gradients."""
    torch.testing.assert_close(*outputs, **EXACT)
    upstream = random(*outputs[0].shape)
    got, want = (
        torch.autograd.grad(out, [*inputs, *shared.parameters()], upstream, retain_graph=True) for out in outputs
    )
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("n_kv_heads", [1, 2, H])
@pytest.mark.parametrize("way", ["short", "explicit", "fused"])
@pytest.mark.parametrize("looks", ["everywhere", "back", "words", "by head"])
def test_shared_heads_are_full_attention_with_repeated_weights(
    n_kv_heads: int, way: str, looks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SelfAttention(D, H, n_kv_heads=n_kv_heads).double()
    assert shared.qkv.out_features == sum(shared.parts) == D + 2 * n_kv_heads * DH
    shake(shared)
    full = full_twin(shared)
    seen = take(monkeypatch, way, shared, full)
    words = torch.arange(S) < torch.tensor([7, 4, 2])[:, None]
    bias = {"words": mask_to_bias(words[:, None, None, :], torch.float64), "by head": random(H, S, S)}.get(looks)
    x, pos = random(B, S, D).requires_grad_(), torch.arange(S)
    outputs = tuple(a(x, Rotary(DH, 10000.0), pos, bias, looks == "back") for a in (shared, full))
    check(shared, (outputs[0], outputs[1]), [x])
    assert len(seen) == (2 if way == "explicit" else 0)
    if seen:
        assert seen[0].shape == (B, H, S, S)
        torch.testing.assert_close(*seen, **EXACT)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("way", ["short", "explicit", "fused"])
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_with_shared_heads_is_full_attention_with_repeated_weights(
    n_kv_heads: int, way: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = CrossAttention(D, H, n_kv_heads=n_kv_heads).double()
    shake(shared)
    full = full_twin(shared)
    assert isinstance(full, CrossAttention)
    take(monkeypatch, way, shared, full)
    words = torch.arange(S) < torch.tensor([2, 7, 5])[:, None]
    bias = mask_to_bias(words[:, None, None, :], torch.float64) if padded else None
    x, memory = random(N, T, D).requires_grad_(), random(B, S, D).requires_grad_()
    projected = shared.project(memory), full.project(memory)
    assert projected[0].nbytes() * H == projected[1].nbytes() * n_kv_heads
    check(shared, (shared(x, projected[0], bias), full(x, projected[1], bias)), [x, memory])


def test_gradient_of_shared_heads_against_differences() -> None:
    q, k, v = random(2, 6, 3, 2).requires_grad_(), random(2, 2, 4, 2).requires_grad_(), random(2, 2, 4, 2)
    assert torch.autograd.gradcheck(attend_short, (q, k, v.requires_grad_(), random(6, 1, 4)))


def test_as_many_heads_of_keys_as_of_queries_is_the_default() -> None:
    for kind in (SelfAttention, CrossAttention):
        default, same = kind(D, H), kind(D, H, n_kv_heads=H)
        shapes = {name: tensor.shape for name, tensor in default.state_dict().items()}
        assert shapes == {name: tensor.shape for name, tensor in same.state_dict().items()}
        assert default.n_kv_heads == H and default.parts == same.parts == (D,) * len(default.parts)


def test_the_cache_holds_the_shared_heads_only() -> None:
    like = random(1)
    whole = SelfAttention(D, H).new_cache(N, 11, like).nbytes()
    assert whole == 2 * N * 11 * D * 8
    assert [SelfAttention(D, H, n_kv_heads=g).new_cache(N, 11, like).nbytes() * H // whole for g in (1, 2)] == [1, 2]


# ----------------------------------------------------------------------------------------- decoders of every kind

ATTENTIONS: dict[str, Callable[[], SelfAttention | LinearSelfAttention]] = {
    "full": lambda: SelfAttention(D, H),
    "grouped": lambda: SelfAttention(D, H, n_kv_heads=2),
    "multi-query": lambda: SelfAttention(D, H, n_kv_heads=1),
    "elu": lambda: LinearSelfAttention(D, H, "elu"),
    "softmax of features": lambda: LinearSelfAttention(D, H, "softmax"),
}
POSITIONS: dict[str, Callable[[], Positions]] = {
    "sinusoidal": lambda: Sinusoidal(D),
    "rotary": lambda: Rotary(DH, 10000.0),
    "alibi": lambda: Alibi(H),
}
PAIRS = [
    (kind, p) for kind in ATTENTIONS for p in POSITIONS if p != "alibi" or isinstance(ATTENTIONS[kind](), SelfAttention)
]
"""Linear attention has no scores that ALiBi could change."""


def sublayer(norm: Callable[[int], nn.Module] = nn.LayerNorm, order: str = "pre") -> Callable[[], SubLayer]:
    return lambda: SubLayer(norm(D), 0.0, order)


def decoder(kind: str, positions: str, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> Decoder:
    layers = [
        DecoderLayer(
            ATTENTIONS[kind](),
            CrossAttention(D, H, n_kv_heads=1 if kind == "multi-query" else None),
            FeedForward(D, D_FF, "sigmoid", gated=True),
            sublayer(norm),
        )
        for _ in range(2)
    ]
    made = Decoder(Embedding(V, D), StackParts(POSITIONS[positions](), layers, 0.0, norm(D), nn.Identity())).double()
    shake(made)
    return made


@pytest.mark.parametrize(("kind", "positions"), PAIRS)
def test_cached_is_full_decoding_also_after_select(kind: str, positions: str) -> None:
    made = decoder(kind, positions)
    memory = Memory(random(B, S, D), torch.arange(S) < torch.tensor([7, 4, 2])[:, None])
    tokens = torch.randint(1, V, (N, T + 4))
    state = made.start(memory, beams=K, max_len=tokens.size(1))
    begin = 0
    for end in (2, 3, 6, 7, T + 4):  # also several tokens in one call
        got = made(tokens[:, begin:end], state)
        whole = made(tokens[:, :end], made.start(memory, K, 0))
        torch.testing.assert_close(got, whole[:, begin:end], **EXACT)
        begin = end
        if end == 3:  # the second and third sentence, beams exchanged
            rows = torch.tensor([3, 2, 4, 4])
            state.select(rows)
            tokens, memory = tokens[rows], Memory(memory.states[1:], torch.arange(S) < torch.tensor([4, 2])[:, None])
    assert state.length == T + 4


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


def test_batch_norm_is_torchs() -> None:
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
    made = decoder("full", "sinusoidal", BatchNorm)
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
