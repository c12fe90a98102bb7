"""Layer normalization that stores its result in place of its input, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.nn.layers import LayerNorm

D = 24


def case(dtype: torch.dtype, smallest: float, bias: float) -> tuple[LayerNorm, Tensor, Tensor]:
    """Return a norm whose weights are at least `smallest` in size, x, and the gradient of the result."""
    torch.manual_seed(6)
    norm = LayerNorm(D).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(smallest, 3, D) * torch.tensor([1.0, -1.0]).repeat(D // 2))
        norm.bias.copy_(bias * norm.weight.flip(0).sign() * norm.weight.abs())
    return norm, 2 * torch.randn(7, 5, D, dtype=dtype) + 1, torch.randn(7, 5, D, dtype=dtype)


def is_from_result(out: Tensor) -> bool:
    return out.grad_fn is not None and "LayerNormFromResult" in out.grad_fn.name()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize(("smallest", "bias"), [(1.0, 0.0), (0.5, 1.9), (2e-4, 1.9), (0.01, -1.0)])
def test_gradients(dtype: torch.dtype, limit: float, smallest: float, bias: float) -> None:
    norm, x, upstream = case(dtype, smallest, bias)
    x.requires_grad_()
    out = norm(x)
    assert is_from_result(out)
    exact = [t.detach().double().requires_grad_() for t in (x, norm.weight, norm.bias)]
    want = F.layer_norm(exact[0], (D,), exact[1], exact[2], norm.eps)
    assert torch.equal(out, F.layer_norm(x, (D,), norm.weight, norm.bias, norm.eps))
    found = torch.autograd.grad(out, [x, norm.weight, norm.bias], upstream)
    for got, expected in zip(found, torch.autograd.grad(want, exact, upstream.double()), strict=True):
        assert float((got - expected).abs().max() / expected.abs().max()) < limit


@pytest.mark.parametrize(("smallest", "bias"), [(0.0, 0.0), (5e-5, 1.0), (1.0, 2.1), (1.0, float("nan"))])
def test_a_result_that_does_not_determine_the_input_is_not_used(smallest: float, bias: float) -> None:
    norm, x, upstream = case(torch.float32, smallest, bias)
    x.requires_grad_()
    out = norm(x)
    assert not is_from_result(out)
    if bias == bias:
        assert bool(torch.isfinite(torch.autograd.grad(out, x, upstream)[0]).all())


def test_the_input_is_not_stored() -> None:
    norm, x, _ = case(torch.float32, 1.0, 0.0)
    stored: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        stored.append(tensor)
        return tensor

    x.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = norm(x)
    shared = {t.data_ptr() for t in stored}
    assert out.data_ptr() in shared and x.data_ptr() not in shared


def test_without_a_gradient_and_in_bf16_pytorch_is_used() -> None:
    norm, x, _ = case(torch.float32, 1.0, 0.0)
    assert not is_from_result(norm(x))
    with torch.no_grad():
        assert not is_from_result(norm(x.requires_grad_()))
    assert norm(x.detach().bfloat16().float().requires_grad_()).dtype == torch.float32
