"""The C++ kernels of training steps against PyTorch: values, gradients, independence of rows and threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.fast import Linear, linear
from dragoman.nn.fast.native import kernels as native
from dragoman.nn.fast.native import library
from dragoman.nn.fast.native.kernels import multiply, smoothed_loss_, uses_kernels
from dragoman.nn.fast.native.library import has_kernel_products, kernels, preferred_build, prefers_products
from dragoman.training.loss import CrossEntropy, chunked, cross_entropy, loss_gradient
from native_builds import with_products, without_kernels

needs_kernels = pytest.mark.usefixtures("training_kernels")

# Below, at and above the sizes of tiles (12, 32) and blocks (192, 512), and more than one block of each.
SIZES = [(1, 1, 1), (2, 31, 1), (12, 32, 16), (13, 33, 17), (193, 5, 513), (11, 1100, 40), (400, 70, 1030)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


@pytest.fixture(params=["kernel", "PyTorch"])
def products(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute products by the kernel and, as on Intel's processors, by PyTorch."""
    with with_products(request.param == "kernel"):
        yield request.param


@pytest.fixture
def kernel_products() -> Iterator[None]:
    with with_products(True):
        yield


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def relative_error(got: Tensor, want: Tensor) -> float:
    """Return the largest error as a fraction of the largest value."""
    with torch.no_grad():
        return float((got.double() - want).abs().max() / want.abs().max())


def whole_numbers(*shape: int) -> Tensor:
    """Return a matrix whose products have no rounding errors."""
    return torch.randint(-8, 9, shape).float()


def layouts(rows: int, columns: int) -> dict[str, Tensor]:
    """Return matrices of one shape with every layout of memory that occurs."""
    return {
        "rows": whole_numbers(rows, columns),
        "columns": whole_numbers(columns, rows).t(),
        "rows of a wider matrix": whole_numbers(rows, columns + 7)[:, 3 : columns + 3],
        "columns of a taller matrix": whole_numbers(columns, rows + 7).t()[3 : rows + 3],
        "one row": whole_numbers(1, columns).expand(rows, columns),
        "one value": whole_numbers(1, 1).expand(rows, columns),
    }


@needs_kernels
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_all_layouts(m: int, n: int, k: int, products: str) -> None:
    bias, before = whole_numbers(n), whole_numbers(m, n)
    for a_layout, a in layouts(m, k).items():
        for b_layout, b in layouts(k, n).items():
            want = (a.double() @ b.double()).float()
            for got, added in [
                (multiply(a, b), torch.zeros(n)),
                (multiply(a, b, bias), bias),
                (multiply(a, b, out=before.clone(), add=True), before),
            ]:
                assert torch.equal(got, want + added), (a_layout, b_layout)


@needs_kernels
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_rounding_errors_are_those_of_float32(m: int, n: int, k: int, products: str) -> None:
    a, b = torch.randn(m, k), torch.randn(k, n)
    errors = (multiply(a, b) - a.double() @ b.double()).abs() / (a.double().abs() @ b.double().abs())
    assert float(errors.max()) < 1e-6


@needs_kernels
def test_nothing_beside_the_result_is_written(products: str) -> None:
    whole = torch.full((30, 60), 7.0)
    multiply(torch.zeros(14, 5), torch.zeros(5, 33), out=whole[3:17, 4:37])
    assert float(whole[3:17, 4:37].abs().sum()) == 0
    assert int((whole == 7).sum()) == 30 * 60 - 14 * 33


@needs_kernels
def test_a_row_does_not_depend_on_the_others(kernel_products: None) -> None:
    a, b = torch.randn(301, 700), torch.randn(700, 100)
    whole = multiply(a, b)
    for part in (slice(0, 1), slice(7, 20), slice(150, 301)):
        assert torch.equal(multiply(a[part], b), whole[part])


@needs_kernels
@pytest.mark.parametrize(("m", "n"), [(500, 64), (64, 500)])
def test_threads_do_not_change_a_bit(m: int, n: int, restored_threads: None, kernel_products: None) -> None:
    a, b, logits = torch.randn(m, 300), torch.randn(300, n), torch.randn(m, n)
    targets, bias = torch.randint(n, (m, 1)), torch.randn(n)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        copy = logits.clone()
        found.append((multiply(a, b, bias), *smoothed_loss_(copy, targets, 0.1), copy))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@needs_kernels
@pytest.mark.parametrize("wrong", ["depth", "rows of out", "dtype of out", "bias", "columns of out"])
def test_wrong_shapes_are_refused(wrong: str, kernel_products: None) -> None:
    a, b = torch.randn(3, 4), torch.randn(5 if wrong == "depth" else 4, 6)
    out = {
        "rows of out": torch.empty(2, 6),
        "dtype of out": torch.empty(3, 6, dtype=torch.float64),
        "columns of out": torch.empty(6, 3).t(),
    }.get(wrong)
    bias = torch.randn(5) if wrong == "bias" else None
    with pytest.raises(ValueError, match="accepted"):
        multiply(a, b, bias, out)


def test_empty_products() -> None:
    assert multiply(torch.zeros(3, 0), torch.zeros(0, 4)).tolist() == [[0.0] * 4] * 3
    assert linear(torch.zeros(2, 0, 5), torch.zeros(4, 5, requires_grad=True)).shape == (2, 0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_the_layer(dtype: torch.dtype, bias: bool, products: str) -> None:
    layer = Linear(37, 65, bias=bias).to(dtype)
    x = torch.randn(5, 11, 37, dtype=dtype).transpose(0, 1).requires_grad_()  # not contiguous
    upstream = torch.randn(11, 5, 65, dtype=dtype)
    out = layer(x)
    parameters = list(layer.parameters())
    found = torch.autograd.grad(out, [x, *parameters], upstream)
    exact = [p.detach().double().requires_grad_() for p in (x, *parameters)]
    want_out = F.linear(*exact)
    want = torch.autograd.grad(want_out, exact, upstream.double())
    limit = 1e-6 if dtype == torch.float32 else 1e-14
    assert out.dtype == dtype
    assert all(relative_error(g, w) < limit for g, w in zip((out, *found), (want_out, *want), strict=True))


@needs_kernels
def test_kernels_run_where_a_gradient_is_needed() -> None:
    def runs(x: Tensor, weight: Tensor) -> bool:
        out = linear(x, weight)
        return out.grad_fn is not None and "LinearLayer" in out.grad_fn.name()

    x, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    assert runs(x, weight)
    assert runs(x.clone().requires_grad_(), weight.detach())
    assert not runs(x, weight.detach())
    assert not runs(x.double(), weight.detach().double().requires_grad_())
    with torch.no_grad():
        assert not runs(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not runs(x, weight)
    with without_kernels():
        assert not runs(x, weight) and not uses_kernels(x)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_requested_gradients_are_computed(needs: tuple[bool, bool]) -> None:
    x, weight = torch.randn(6, 4, requires_grad=needs[0]), torch.randn(5, 4, requires_grad=needs[1])
    linear(x, weight).sum().backward()
    assert (x.grad is not None, weight.grad is not None) == needs


@needs_kernels
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [1, 15, 16, 1000, 1025])
def test_loss_kernel(vocab: int, smoothing: float) -> None:
    logits, targets = 6 * torch.randn(9, vocab), torch.randint(vocab, (9, 1))
    logits[0] += 80  # exp overflows without subtracting the maximum
    logits[1, 0] = -500
    exact = logits.double().requires_grad_()
    want, want_nll = cross_entropy(exact, targets.squeeze(1), smoothing)
    want.backward()
    assert exact.grad is not None
    gradient, smoothed, nll = loss_gradient(logits, targets, smoothing)
    assert gradient is logits  # computed by the kernel, in place
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-6, atol=3e-7)
    torch.testing.assert_close(smoothed.double(), want.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(nll.double(), want_nll.detach(), rtol=1e-6, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_kernel_is_not_finite_where_a_logit_is_not(value: float) -> None:
    for column in (0, 18):
        logits = torch.zeros(2, 20)
        logits[1, column] = value
        smoothed, nll = smoothed_loss_(logits, torch.ones(2, 1, dtype=torch.int64), 0.1)
        assert not bool(torch.isfinite(smoothed)) and not bool(torch.isfinite(nll))


@needs_kernels
@pytest.mark.parametrize("target", [-1, 20])
def test_loss_kernel_refuses_targets_outside_of_the_vocabulary(target: int) -> None:
    with pytest.raises(IndexError, match="accepted: 0 to 19"):
        smoothed_loss_(torch.zeros(2, 20), torch.tensor([[3], [target]]), 0.0)


def test_chunked_loss_with_and_without_kernels(products: str) -> None:
    hidden, weight, targets = torch.randn(700, 24), torch.randn(90, 24), torch.randint(90, (700,))

    def run() -> list[Tensor]:
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        smoothed, nll = chunked(h, w, CrossEntropy(targets, 0.1))
        return [smoothed.detach(), nll, *torch.autograd.grad(smoothed, [h, w])]

    found = run()
    with without_kernels():
        want = run()
    for got, expected in zip(found, want, strict=True):
        assert relative_error(got, expected.double()) < 1e-6


def cpuinfo(vendor: str, flags: str) -> str:
    one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: a: b\nflags\t\t: fpu {flags}\nbugs\t\t:\n"
    return f"{one}\n{one}"


def test_the_build_for_a_processor() -> None:
    avx512 = "fma avx512f avx512bw avx512vl avx512dq avx2 f16c"
    without = {avx512: "avx512", avx512.replace("avx512dq ", ""): "avx2", "avx2 f16c": None, "avx512f fma f16c": None}
    for vendor in ("AuthenticAMD", "GenuineIntel"):
        for flags, build in without.items():
            assert preferred_build(cpuinfo(vendor, flags)) == build
            assert prefers_products(cpuinfo(vendor, flags)) == (build is not None and vendor == "AuthenticAMD")
    for other, build in {"processor\t: 0\nFeatures\t: fp asimd\n": "neon", "": None}.items():
        assert preferred_build(other) == build and not prefers_products(other)


def test_products_follow_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "kernels", object)
    for vendor in ("AuthenticAMD", "GenuineIntel"):
        found = cpuinfo(vendor, "fma avx512f avx512bw avx512vl avx512dq")
        monkeypatch.setattr(library, "_cpuinfo", lambda found=found: found)
        assert has_kernel_products() == (vendor == "AuthenticAMD")
        for enabled in (False, True):
            with with_products(enabled):
                assert has_kernel_products() == enabled
    monkeypatch.setattr(library, "kernels", lambda: None)
    with with_products(True):
        assert not has_kernel_products()


@needs_kernels
def test_the_preferred_products_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(native, "_multiply", lambda *arguments: found.append(arguments))
    for enabled in (False, True):
        found.clear()
        with with_products(enabled):
            multiply(torch.randn(3, 4), torch.randn(4, 5))
        assert len(found) == (0 if enabled else 1)


def test_a_layer_is_stored_like_that_of_pytorch() -> None:
    assert isinstance(Linear(3, 4), nn.Linear)
    nn.Linear(3, 4).load_state_dict(Linear(3, 4).state_dict())


@pytest.mark.skipif(kernels() is None, reason="PyTorch is used on this processor")
def test_kernels_share_the_threads_of_pytorch() -> None:
    """A second OpenMP library in the process would have threads of its own."""
    code = (
        "from dragoman.nn.fast.native.library import kernels; import torch; kernels();"
        "maps = open('/proc/self/maps').read().split();"
        "print(len({p for p in maps if 'libgomp' in p or 'libiomp' in p}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"
