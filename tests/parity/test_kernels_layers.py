"""The C++ kernels of the feed-forward network, and of dropout, residual and layer norm, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.nn.attention import SelfAttention
from dragoman.nn.fast.dropout import Dropout, seed_dropout
from dragoman.nn.fast.native import kernels
from dragoman.nn.fast.native.kernels import (
    add_and_norm,
    add_and_norm_backward,
    add_bias_relu_,
    attend,
    empty,
    join_heads,
    relu_backward_,
    sum_rows,
)
from dragoman.nn.layers import FeedForward, LayerNorm, SubLayer
from dragoman.nn.lora import LoRALinear
from dragoman.nn.positions import Positions
from dragoman.nn.record import Tap
from native_builds import with_products, without_kernels

pytestmark = pytest.mark.usefixtures("training_kernels")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def relative_error(got: Tensor, want: Tensor) -> float:
    """Return the largest error as a fraction of the largest value."""
    return float((got.detach().double() - want.detach()).abs().max() / want.detach().abs().max())


def is_fused(out: Tensor) -> bool:
    return out.grad_fn is not None and ("ReluNetwork" in out.grad_fn.name() or "AddAndNorm" in out.grad_fn.name())


def gradients(module: nn.Module, run: Callable[[], Tensor], inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """Return the result and the gradients of inputs and parameters."""
    out = run()
    return [out, *torch.autograd.grad(out, [*inputs, *module.parameters()], upstream)]


@pytest.mark.parametrize(("d_model", "d_ff"), [(1, 1), (7, 16), (24, 33), (16, 100)])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward(d_model: int, d_ff: int, bias: bool) -> None:
    ffn = FeedForward(d_model, d_ff, "relu", bias=bias)
    x = torch.randn(5, 13, d_model).transpose(0, 1).requires_grad_()  # not contiguous
    upstream = torch.randn(13, 5, d_model)
    assert is_fused(ffn(x))
    found = gradients(ffn, lambda: ffn(x), [x], upstream)
    exact_x, exact = x.detach().double().requires_grad_(), FeedForward(d_model, d_ff, "relu", bias=bias).double()
    exact.load_state_dict(ffn.state_dict())
    want = gradients(exact, lambda: exact(exact_x), [exact_x], upstream.double())
    assert not is_fused(exact(exact_x))
    assert all(relative_error(g, w) < 2e-6 for g, w in zip(found, want, strict=True))


def test_feed_forward_that_is_not_fused() -> None:
    def fused(ffn: FeedForward, x: Tensor) -> bool:
        return is_fused(ffn(x))

    x = torch.randn(3, 8, requires_grad=True)
    assert fused(FeedForward(8, 16, "relu"), x)
    assert fused(FeedForward(8, 16, "relu", dropout=0.1).eval(), x)
    assert not fused(FeedForward(8, 16, "relu", dropout=0.1), x)
    assert not fused(FeedForward(8, 16, "gelu"), x)
    assert not fused(FeedForward(8, 16, "relu", gated=True), x)
    assert not fused(FeedForward(8, 16, "relu"), x.detach())
    adapted = FeedForward(8, 16, "relu")
    adapted.outer = LoRALinear(adapted.outer, 2, 1.0, torch.Generator())
    assert not fused(adapted, x)
    intervened = FeedForward(8, 16, "relu")
    intervened.hidden.register_forward_hook(lambda *_: None)
    assert not fused(intervened, x)
    with torch.no_grad():
        assert not fused(FeedForward(8, 16, "relu"), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fused(FeedForward(8, 16, "relu"), x)
    with without_kernels():
        assert not fused(FeedForward(8, 16, "relu"), x)


def test_only_requested_gradients_of_a_feed_forward_network() -> None:
    ffn, x = FeedForward(8, 16, "relu"), torch.randn(3, 8, requires_grad=True)
    ffn.requires_grad_(False)
    ffn(x).sum().backward()
    assert x.grad is not None and all(p.grad is None for p in ffn.parameters())


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_second_backward_pass_is_refused(by_kernel: bool) -> None:
    """The first pass writes its gradients over the saved activations."""
    with with_products(by_kernel):
        out = FeedForward(8, 16, "relu")(torch.randn(3, 8, requires_grad=True)).sum()
        out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_relu_keeps_nan() -> None:
    x = torch.tensor([[-1.0, math.nan, 2.0, 0.0]])
    positive = add_bias_relu_(x, torch.tensor([0.5, 0.0, -1.0, 0.0]))
    torch.testing.assert_close(x, torch.tensor([[0.0, math.nan, 1.0, 0.0]]), equal_nan=True)
    grad = torch.ones(1, 4)
    assert relu_backward_(grad, positive).tolist() == [0, 1, 1, 0] == grad[0].tolist()


def sublayer(size: int, dropout: float) -> SubLayer:
    module = SubLayer(LayerNorm(size), dropout, "post")
    with torch.no_grad():
        module.norm.weight.copy_(torch.linspace(0.5, 2, size) * (-1) ** torch.arange(size))
        module.norm.bias.copy_(torch.linspace(-0.5, 0.5, size))
    return module


@pytest.mark.parametrize("size", [2, 16, 33, 512])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_dropout_residual_and_norm(size: int, dropout: float) -> None:
    module = sublayer(size, dropout)
    x = torch.randn(7, 9, size).transpose(0, 1).requires_grad_()
    update = torch.randn(9, 7, size, requires_grad=True)
    upstream = torch.randn(9, 7, size)

    def run() -> Tensor:
        seed_dropout(1)
        return module(x, lambda _: update)

    assert is_fused(run())
    found = gradients(module, run, [update, x], upstream)
    with without_kernels():
        assert not is_fused(run())
        want = gradients(module, run, [update, x], upstream)
    limit = 1e-3 if size == 2 else 5e-6  # the norm of two features amplifies rounding errors
    assert all(relative_error(g, w.double()) < limit for g, w in zip(found, want, strict=True))
    assert torch.equal(found[1] == 0, want[1] == 0)
    assert bool((found[1] == 0).any()) == (dropout > 0)


def test_norm_against_float64() -> None:
    module, exact = sublayer(48, 0.0), sublayer(48, 0.0).double()
    values = [3 * torch.randn(200, 48) + 1, torch.randn(200, 48)]
    upstream = torch.randn(200, 48)
    found, want = (
        gradients(m, lambda m=m, v=v: m(v[1], lambda _: v[0]), v, upstream.to(v[0].dtype))  # type: ignore[misc]
        for m, v in [
            (module, [t.requires_grad_() for t in values]),
            (exact, [t.detach().double().requires_grad_() for t in values]),
        ]
    )
    assert all(relative_error(g, w) < 2e-6 for g, w in zip(found, want, strict=True))


def test_sublayers_that_are_not_fused() -> None:
    x, update = torch.randn(3, 8), torch.randn(3, 8, requires_grad=True)
    assert is_fused(sublayer(8, 0.1)(x, lambda _: update))
    assert not is_fused(SubLayer(LayerNorm(8), 0.1, "pre")(x, lambda _: update))
    assert not is_fused(SubLayer(nn.LayerNorm(8), 0.1, "post")(x, lambda _: update))
    assert not is_fused(sublayer(8, 0.1)(x, lambda _: update.detach()))
    zero = sublayer(8, 0.1)
    with torch.no_grad():
        zero.norm.weight[3] = 0.0
    assert not is_fused(zero(x, lambda _: update))
    intervened = sublayer(8, 0.1)
    intervened.residual.register_forward_hook(lambda *_: None)
    assert not is_fused(intervened(x, lambda _: update))


def test_observed_taps_change_no_bit() -> None:
    x, update = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    ffn, around = FeedForward(8, 16, "relu"), sublayer(8, 0.3)
    seen: dict[Tap, Tensor] = {}

    def run() -> Tensor:
        seed_dropout(1)
        return around(ffn(x), lambda _: update)

    plain = run()
    assert is_fused(plain)
    taps = [ffn.before, ffn.hidden, around.residual, around.norm.mean, around.norm.std]
    for tap in taps:
        tap.register_forward_hook(lambda tap, _, out: seen.update({tap: out}))
        tap.observers = 1
    assert torch.equal(run(), plain)
    observed = dict(seen)
    with without_kernels():
        run()
    for tap in taps:
        torch.testing.assert_close(observed[tap], seen[tap])


def test_threads_do_not_change_a_bit() -> None:
    x, residual, upstream = torch.randn(3, 100, 24).unbind()
    weight, bias, random = torch.randn(24), torch.randn(24), torch.randint(256, (100, 24), dtype=torch.uint8)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, inverse, kept = add_and_norm(x, residual, weight, bias, 1e-5, (random, 26, 1.1))
            hidden, grad = x.clone(), upstream.clone()
            positive = add_bias_relu_(hidden, bias)
            backward = add_and_norm_backward(upstream, out, weight, bias, inverse, kept, 1.1)
            found.append([out, hidden, *backward, relu_backward_(grad, positive), grad, sum_rows(x)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_wrong_shapes_are_refused() -> None:
    x, vector = torch.randn(4, 16), torch.randn(16)
    random = torch.zeros(4, 16, dtype=torch.uint8)
    out, inverse, kept = add_and_norm(x, x, vector, vector, 1e-5, (random, 1, 1.0))
    assert kept is not None
    for wrong in (
        lambda: add_and_norm(x, x[:3], vector, vector, 1e-5, None),
        lambda: add_and_norm(x, x, vector[:8], vector, 1e-5, None),
        lambda: add_and_norm(x, x, vector, vector, 1e-5, (random[:3], 1, 1.0)),
        lambda: add_and_norm(x.t(), x.t(), vector[:4], vector[:4], 1e-5, None),
        lambda: add_and_norm_backward(x, out, vector, vector, inverse[:3], kept, 1.0),
        lambda: add_and_norm_backward(x, out, vector, vector, inverse, kept[:3], 1.0),
        lambda: add_bias_relu_(x, vector[:8]),
        lambda: relu_backward_(x, kept[:3]),
        lambda: sum_rows(x.double()),
    ):
        with pytest.raises(ValueError, match="accepted"):
            wrong()


def test_gradients_of_queries_keys_and_values_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = SelfAttention(16, 2), torch.randn(3, 5, 16, requires_grad=True)
    shared: list[bool] = []

    def join(parts: list[Tensor]) -> Tensor:
        joined = join_heads(parts)
        shared.append(joined.data_ptr() == parts[0].data_ptr())
        return joined

    monkeypatch.setattr(kernels, "join_heads", join)
    layer(x, Positions(), torch.arange(5)).sum().backward()
    assert shared == [True]


def test_heads_in_other_memory_are_copied() -> None:
    whole = torch.randn(3, 5, 12)
    q, k, v = (part.view(3, 5, 2, 2).transpose(1, 2) for part in whole.split(4, 2))
    assert join_heads([q, k, v]).data_ptr() == whole.data_ptr()
    for parts in ([q.clone(), k, v], [k, q, v], [q, v], [k, v], [q.contiguous(), k.contiguous(), v.contiguous()]):
        want = torch.cat([part.transpose(1, 2).flatten(2) for part in parts], 2)
        joined = join_heads(parts)
        assert torch.equal(joined, want) and joined.data_ptr() != whole.data_ptr()


def test_memory_of_results_is_aligned_and_no_view() -> None:
    for _ in range(20):
        found = empty(3, 7)
        assert found.data_ptr() % 64 == 0 and found.shape == (3, 7) and found._base is None


def test_attention_weights_below_the_smallest_normal_number_are_zero() -> None:
    k = torch.tensor([0.0, -80.0, -90.0, -200.0, -math.inf])[None, None, :, None]
    _, weights = attend(torch.ones(1, 1, 1, 1), k, torch.ones(1, 1, 5, 1), None)
    assert weights.flatten()[2:].tolist() == [0, 0, 0]
    assert float(weights[0, 0, 0, 1]) == pytest.approx(math.exp(-80), rel=1e-5)


def test_dropout_draws_what_its_forward_pass_draws() -> None:
    dropout, x = Dropout(0.3), torch.ones(40, 9)
    seed_dropout(1)
    drawn = dropout.draw(x.shape)
    assert drawn is not None
    random, threshold, scale = drawn
    seed_dropout(1)
    assert torch.equal(dropout(x), scale * (random >= threshold).float())
    assert dropout.eval().draw(x.shape) is None
