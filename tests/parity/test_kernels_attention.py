"""The C++ kernels of attention and dropout against the formula and against PyTorch."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from dragoman.nn import fast
from dragoman.nn.attention import SelfAttention, attend_explicit, causal_bias, padding_bias
from dragoman.nn.fast import attend_short
from dragoman.nn.fast.dropout import Dropout, seed_dropout
from dragoman.nn.fast.native.kernels import attend, attend_backward, drop
from dragoman.nn.positions import Positions
from native_builds import without_kernels

needs_kernels = pytest.mark.usefixtures("training_kernels")

N, DK, DH = 3, 5, 7


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(4)


def biases(heads: int, tq: int, tk: int) -> list[Tensor | None]:
    """Return biases of all shapes that occur: none, padding, causal, both, and one per head."""
    lengths = torch.tensor([tk, max(1, tk - 2), 1])
    padding = padding_bias(torch.arange(tk) < lengths[:, None], torch.float32)
    assert padding is not None
    causal = causal_bias(torch.arange(tq) + max(0, tk - tq), torch.arange(tk), torch.float32)
    return [None, padding, causal, padding + causal, torch.randn(heads, tq, tk), torch.randn(N, heads, tq, tk)]


def inputs(heads: int, groups: int, tq: int, tk: int, packed: bool) -> list[Tensor]:
    """Return q, k and v, contiguous or as views of one matrix like that of a layer."""
    if not packed:
        return [torch.randn(N, heads, tq, DK), torch.randn(N, groups, tk, DK), torch.randn(N, groups, tk, DH)]
    q = torch.randn(N, tq, heads * DK).view(N, tq, heads, DK).transpose(1, 2)
    k, v = torch.randn(N, tk, groups * (DK + DH)).split([groups * DK, groups * DH], 2)
    return [q, *(x.view(N, tk, groups, -1).transpose(1, 2) for x in (k, v))]


@needs_kernels
@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("tq", "tk"), [(1, 1), (2, 15), (13, 16), (17, 33), (40, 3)])
@pytest.mark.parametrize("packed", [True, False])
def test_attention(heads: int, groups: int, tq: int, tk: int, packed: bool) -> None:
    values = inputs(heads, groups, tq, tk, packed)
    upstream = torch.randn(N, tq, heads, DH).transpose(1, 2)
    for bias in biases(heads, tq, tk):
        short = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in values]
        out = attend_short(*short, bias)
        assert out.grad_fn is not None and "KernelAttention" in out.grad_fn.name()
        exact = [x.double().requires_grad_() for x in values]
        want, _ = attend_explicit(*exact, None if bias is None else bias.double())
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
        found = torch.autograd.grad(out, short, upstream)
        for got, expected in zip(found, torch.autograd.grad(want, exact, upstream.double()), strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=3e-6)


@needs_kernels
def test_weights_are_the_softmax_and_masked_ones_are_zero() -> None:
    q, k, v = inputs(2, 2, 4, 9, packed=True)
    bias = padding_bias(torch.arange(9) < torch.tensor([[9], [4], [1]]), torch.float32)
    assert bias is not None
    _, weights = attend(q, k, v, bias)
    torch.testing.assert_close(weights, (q @ k.transpose(2, 3) / math.sqrt(DK) + bias).softmax(-1))
    assert float(weights[1, :, :, 4:].abs().max()) == 0
    assert bool((weights[2, :, :, 0] == 1).all())


@needs_kernels
def test_a_row_that_attends_to_nothing_is_nan_as_in_pytorch() -> None:
    q, k, v = inputs(1, 1, 2, 3, packed=False)
    _, weights = attend(q, k, v, torch.full((1, 3), -math.inf))
    assert bool(weights.isnan().all())


@needs_kernels
def test_attention_with_one_and_more_threads() -> None:
    values, upstream = inputs(4, 2, 9, 11, packed=True), torch.randn(N, 4, 9, DH)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, weights = attend(*values, None)
            found.append([out, weights, *attend_backward(*values, weights, upstream)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@needs_kernels
def test_a_sentence_does_not_depend_on_the_others() -> None:
    q, k, v = inputs(4, 4, 9, 11, packed=False)
    whole, _ = attend(q, k, v, None)
    alone, _ = attend(q[1:2], k[1:2], v[1:2], None)
    assert torch.equal(whole[1:2], alone)


@needs_kernels
@pytest.mark.parametrize("wrong", ["keys", "groups", "rows", "weights", "grad"])
def test_wrong_shapes_are_refused(wrong: str) -> None:
    q, k, v = inputs(4, 2, 5, 6, packed=False)
    weights, grad = torch.zeros(N, 4, 5, 6), torch.zeros(N, 4, 5, DH)
    if wrong == "keys":
        k = k[:, :, :5]
    elif wrong == "groups":
        q = q[:, :3]
    elif wrong == "rows":
        v = v[:2]
    elif wrong == "weights":
        weights = weights[:, :, :, :5]
    else:
        grad = grad[:, :3]
    with pytest.raises(ValueError, match="accepted"):
        attend_backward(q, k, v, weights, grad)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 40_001])
@pytest.mark.parametrize("with_residual", [True, False])
def test_dropout_kernel_and_pytorch(size: int, with_residual: bool) -> None:
    random = torch.randint(256, (size,), dtype=torch.uint8)
    random[0] = 200
    x, residual = torch.randn(size), torch.randn(size) if with_residual else None
    for threshold in (1, 128, 200, 201, 255):
        found = drop(random, threshold, 1.7, x, residual)
        with without_kernels():
            torch.testing.assert_close(found, drop(random, threshold, 1.7, x, residual))
        kept = random >= threshold
        base = torch.zeros(size) if residual is None else residual
        assert torch.equal(found[~kept], base[~kept])
        torch.testing.assert_close(found, base + 1.7 * x * kept)


def test_dropout_of_a_view_that_is_not_contiguous() -> None:
    dropout = Dropout(0.5)
    x, residual = torch.randn(6, 5, 4).transpose(0, 2), torch.randn(4, 5, 6)
    seed_dropout(1)
    found = dropout(x, residual)
    seed_dropout(1)
    assert torch.equal(found, dropout(x.contiguous(), residual))


def test_dropout_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="accepted"):
        drop(torch.zeros(3, dtype=torch.uint8), 1, 1.0, torch.zeros(4), None)
    with pytest.raises(ValueError, match="accepted"):
        drop(torch.zeros(4, dtype=torch.uint8), 1, 1.0, torch.zeros(4), torch.zeros(1))


def test_the_backward_pass_stores_no_mask() -> None:
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.append(t.nbytes) or t, lambda t: t):
        Dropout(0.1)(torch.randn(100, 10, requires_grad=True), torch.randn(100, 10))
    assert not stored


@pytest.mark.parametrize("with_kernels", [True, False])
def test_attention_of_bf16_training_is_computed_in_float32(with_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, pos = SelfAttention(16, 2), torch.randn(3, 6, 16), torch.arange(6)
    bias = padding_bias(torch.arange(6) < torch.tensor([[6], [4], [1]]), torch.bfloat16)
    seen: list[torch.dtype] = []

    def attend_and_record(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        seen.extend(t.dtype for t in (q, k, v, bias) if t is not None)
        return attend_short(q, k, v, bias)

    monkeypatch.setattr(fast, "attend_short", attend_and_record)
    with nullcontext() if with_kernels else without_kernels():
        want = layer(x, Positions(), pos, None if bias is None else bias.float())
        seen.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x, Positions(), pos, bias)
        out.float().sum().backward()
    assert seen == [torch.float32] * 4
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("with_residual", [True, False])
def test_dropout_of_bf16_values(with_residual: bool) -> None:
    x, residual = torch.randn(50, 8).bfloat16().requires_grad_(), torch.randn(50, 8) if with_residual else None
    seed_dropout(2)
    out = Dropout(0.5)(x, residual)
    seed_dropout(2)
    want = Dropout(0.5)(x.detach().float(), residual)
    assert out.dtype == (torch.float32 if with_residual else torch.bfloat16)
    torch.testing.assert_close(out.float(), want if with_residual else want.bfloat16().float())
    out.float().sum().backward()
    assert x.grad is not None and set(x.grad.unique().tolist()) == {0.0, 2.0}
