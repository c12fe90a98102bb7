"""The loss against PyTorch's, whole and in chunks: values and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.config import EncoderOnlyConfig
from dragoman.data.batching import Batch, collate_source
from dragoman.models.build import build_model
from dragoman.tokenizers import PAD
from dragoman.training.loss import (
    CrossEntropy,
    TokenLoss,
    accuracy_head,
    chunked,
    cross_entropy,
    label_scores,
    mean_loss,
)

M, D, V = 23, 6, 17
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
SMOOTHINGS = [0.0, 0.1, 0.35]


def case() -> tuple[Tensor, Tensor, Tensor]:
    """hidden (M, D), weight (V, D), targets (M,); the same at each call."""
    torch.manual_seed(5)
    hidden = torch.randn(M, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(V, (M,))


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 1.7, of, retain_graph=True)  # 1.7: includes the upstream gradient


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_cross_entropy_is_torchs(smoothing: float) -> None:
    hidden, weight, targets = case()
    logits = hidden @ weight.T
    smoothed, nll = cross_entropy(logits, targets, smoothing)
    theirs = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(smoothed, theirs, **EXACT)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"), **EXACT)
    for mine, their in zip(gradients(smoothed, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        torch.testing.assert_close(mine, their, **EXACT)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("rows", [0, 1, 5, 22, 23, 100])
def test_chunks_of_any_size_are_the_whole(smoothing: float, rows: int) -> None:
    hidden, weight, targets = case()
    smoothed, nll = chunked(hidden, weight, CrossEntropy(targets, smoothing), rows)
    want, want_nll = cross_entropy(hidden @ weight.T, targets, smoothing)
    torch.testing.assert_close(smoothed, want, **EXACT)
    torch.testing.assert_close(nll, want_nll, **EXACT)
    for mine, their in zip(gradients(smoothed, hidden, weight), gradients(want, hidden, weight), strict=True):
        torch.testing.assert_close(mine, their, **EXACT)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_chunks_give_the_gradient_that_is_wanted_when_the_other_is_frozen(frozen: str) -> None:
    hidden, weight, targets = case()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    free = weight if frozen == "hidden" else hidden
    (mine,) = gradients(chunked(hidden, weight, CrossEntropy(targets, 0.1), rows=5)[0], free)
    (their,) = gradients(cross_entropy(hidden @ weight.T, targets, 0.1)[0], free)
    torch.testing.assert_close(mine, their, **EXACT)


@pytest.mark.parametrize("bias", [False, True], ids=["chunked", "whole"])
def test_token_loss_leaves_padding_out(bias: bool) -> None:
    b, t = 3, 5
    output = nn.Linear(D, V, bias=bias, dtype=torch.float64)
    hidden = torch.randn(b, t, D, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(PAD + 1, V, (b, t))
    targets[0, 2:] = PAD
    targets[2, 4:] = PAD
    loss = TokenLoss(targets, 0.1)(hidden, output)
    assert loss.tokens == 11 and not loss.nll.requires_grad
    theirs = F.cross_entropy(
        output(hidden).flatten(0, 1), targets.flatten(), label_smoothing=0.1, ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(loss.smoothed, theirs, **EXACT)
    (mine,), (their,) = gradients(loss.smoothed, hidden), gradients(theirs, hidden)
    torch.testing.assert_close(mine, their, **EXACT)
    assert not mine[targets == PAD].any() and mine[targets != PAD].any(-1).all()


class Products(TorchDispatchMode):
    """Record the dtypes and shape of every matrix product, and the largest number of elements of any result."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[str, tuple[torch.dtype, ...], tuple[int, ...]]] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if isinstance(out, Tensor):
            if name in ("mm", "addmm", "addmm_", "matmul", "bmm"):
                dtypes = tuple(a.dtype for a in args if isinstance(a, Tensor))
                self.products.append((name, dtypes, tuple(out.shape)))
            if out.untyped_storage().data_ptr() not in {
                a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)
            }:  # a view of an input allocates no memory
                self.largest = max(self.largest, out.numel())
        return out


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_no_gradient_is_computed(context: Any) -> None:
    hidden, weight, targets = case()
    with context(), Products() as seen:
        smoothed, nll = chunked(hidden, weight, CrossEntropy(targets, 0.1), rows=4)
    assert [shape for _, _, shape in seen.products] == [(4, V)] * 5 + [(3, V)], "one product per chunk: the logits"
    assert seen.largest == 4 * V, "no buffer of the shape of the hidden states or of the weight"
    want, want_nll = cross_entropy(hidden @ weight.T, targets, 0.1)
    torch.testing.assert_close(smoothed, want.detach(), **EXACT)
    torch.testing.assert_close(nll, want_nll.detach(), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_every_product_runs_in_its_dtype(dtype: torch.dtype) -> None:
    """dtype: of the hidden states, which a norm may leave in float32 under autocast."""
    torch.manual_seed(3)
    start, weight = torch.randn(M, D), torch.randn(V, D, requires_grad=True)
    hidden, targets = start.to(dtype).requires_grad_(), torch.randint(V, (M,))
    with torch.autocast("cpu", dtype=torch.bfloat16), Products() as seen:
        smoothed, nll = chunked(hidden, weight, CrossEntropy(targets, 0.1), rows=M)
        of_hidden, of_weight = torch.autograd.grad(smoothed, (hidden, weight))
    assert sorted(shape for _, _, shape in seen.products) == sorted([(M, V), (M, D), (V, D)])
    assert {d for _, dtypes, _ in seen.products for d in dtypes} == {torch.bfloat16}, seen.products
    assert (smoothed.dtype, nll.dtype, of_weight.dtype) == (torch.float32,) * 3 and of_hidden.dtype == dtype
    h, w = start.to(torch.bfloat16).double().requires_grad_(), weight.detach().bfloat16().double().requires_grad_()
    exact = cross_entropy(h @ w.T, targets, 0.1)[0]
    assert smoothed.item() == pytest.approx(exact.item(), rel=0.01)
    for mine, theirs in zip((of_hidden, of_weight), torch.autograd.grad(exact, (h, w)), strict=True):
        assert (mine.double() - theirs).norm() < 0.01 * theirs.norm()


def test_the_weight_gradient_is_summed_over_the_chunks_in_float32() -> None:
    """1,024 chunks of one row: summed in bf16, the small terms would be lost against the sum."""
    torch.manual_seed(4)
    hidden, weight = torch.ones(1024, D), torch.zeros(V, D, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        smoothed, _ = chunked(hidden, weight, CrossEntropy(torch.zeros(1024, dtype=torch.long), 0.0), rows=1)
    (of_weight,) = torch.autograd.grad(smoothed, weight)
    assert of_weight[1, 0] == pytest.approx(1024 / V, rel=4e-3)


def test_autocast_leaves_float64_alone() -> None:
    hidden, weight, targets = case()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        smoothed, _ = chunked(hidden, weight, CrossEntropy(targets, 0.1), rows=5)
    torch.testing.assert_close(smoothed, cross_entropy(hidden @ weight.T, targets, 0.1)[0], **EXACT)


def test_logits_are_held_for_one_chunk_at_a_time() -> None:
    """The reason for the chunks: no tensor has as many elements as all logits (600 x 900)."""
    hidden, weight = torch.randn(600, 5, requires_grad=True), torch.randn(900, 5, requires_grad=True)
    with Products() as seen:
        chunked(hidden, weight, CrossEntropy(torch.randint(900, (600,)), 0.1))[0].backward()
    assert 256 * 900 <= seen.largest <= 256 * 900 + 64  # unused memory of a kernel


def test_label_scores_are_means_over_labels() -> None:
    network = build_model(EncoderOnlyConfig(d_model=8, d_ff=12, n_heads=2, n_layers=1), 9, 5).eval()
    batches = []
    for rows, labels in (([[4, 5, 3], [6, 3]], [[1, 2, 0], [4, 0, 0]]), ([[7, 3]], [[3, 0]])):
        src, mask = collate_source(rows)
        targets = torch.tensor(labels)
        batches.append(
            Batch(src, mask, targets.new_zeros(len(rows), 0), targets, src.numel(), int((targets != 0).sum()))
        )
    scores = label_scores(network, batches)
    assert scores["valid_loss"] == pytest.approx(mean_loss(network, batches), rel=1e-6)
    correct = 0
    for batch in batches:
        logits = network(batch.src, batch.src_mask, batch.tgt_in)
        correct += int((logits[..., 1:].argmax(-1) + 1 == batch.tgt_out).sum())
    assert scores["accuracy"] == pytest.approx(100 * correct / 4)


def test_padding_is_not_a_predicted_label() -> None:
    logits = torch.tensor([[[9.0, 1.0, 2.0], [9.0, 2.0, 1.0]]])
    _, correct, labels = accuracy_head(torch.tensor([[2, 2]]), logits, torch.nn.Identity())
    assert (correct, labels) == (1, 2)
