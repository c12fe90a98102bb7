"""The Triton kernels equal their twins in PyTorch, forward and backward: on a GPU, else by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed")

import dragoman.nn.fast.dropout
import dragoman.training.loss
from dragoman.config.model import TransformerConfig
from dragoman.models.build import build_model
from dragoman.nn.attention import attend_explicit, causal_bias, mask_to_bias
from dragoman.nn.fast.cuda import layers
from dragoman.training.loss import TokenLoss, cross_entropy

PAD = 0
GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(layers, "interprets", not GPU)
    torch.manual_seed(3)
    with torch.device("cuda" if GPU else "cpu"):
        yield


def packed(n: int, t: int, *heads: tuple[int, int]) -> list[Tensor]:
    """Heads (N, H, T, D) as views of one matrix, as in the layers."""
    matrix = torch.randn(n, t, sum(h * d for h, d in heads))
    parts = matrix.split([h * d for h, d in heads], 2)
    return [p.view(n, t, h, d).transpose(1, 2).detach() for p, (h, d) in zip(parts, heads, strict=True)]


@pytest.mark.parametrize(
    ("n", "tq", "tk", "heads", "kv_heads", "sizes", "causal", "padded"),
    [
        (3, 7, 7, 4, 4, (8, 8), True, False),
        (2, 5, 19, 4, 4, (16, 16), False, True),
        (2, 33, 33, 4, 2, (12, 20), True, True),
        (1, 1, 3, 2, 1, (8, 8), False, False),
    ],
)
def test_attention(
    n: int, tq: int, tk: int, heads: int, kv_heads: int, sizes: tuple[int, int], causal: bool, padded: bool
) -> None:
    dk, dv = sizes
    if tq == tk:
        q, k, v = packed(n, tq, (heads, dk), (kv_heads, dk), (kv_heads, dv))
    else:
        (q,), (k, v) = packed(n, tq, (heads, dk)), packed(n, tk, (kv_heads, dk), (kv_heads, dv))
    bias = None
    if padded:
        lengths = torch.arange(tk, tk - n, -1)
        bias = mask_to_bias((torch.arange(tk) < lengths[:, None])[:, None, None, :], q.dtype)
    twin_bias = bias
    if causal:
        pos = torch.arange(tq)
        twin_bias = causal_bias(pos, pos, q.dtype) + (0 if bias is None else bias)
    fast, plain = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    assert layers.can_attend(*fast, bias)
    out = layers.attend(*fast, bias, causal)
    expected = attend_explicit(*plain, twin_bias)[0]
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(expected)
    out.backward(grad)
    expected.backward(grad)
    for a, b in zip(fast, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_gradients_of_packed_heads_are_packed() -> None:
    q, k, v = (x.requires_grad_() for x in packed(2, 6, (4, 8), (2, 8), (2, 8)))
    out = layers.attend(q, k, v, None, True)
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert dq._base is dk._base is dv._base is not None  # joined without a copy


@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_add_and_norm(norm: str | None, has_residual: bool, dropout: float) -> None:
    width = 20
    x, residual = (torch.randn(5, 7, width) for _ in range(2))
    weight, bias = torch.randn(width), torch.randn(width) if norm == "layer" else None
    parameters = [p.requires_grad_() for p in ([] if norm is None else [weight] if bias is None else [weight, bias])]
    layers.seed_rows(11)
    fast_norm = None if norm is None else (weight, bias, 1e-5)
    fast = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
    out = layers.add_and_norm(fast[0], fast[1] if has_residual else None, dropout, fast_norm, norm != "rms")
    # The mask of this call, by dropping ones.
    layers.seed_rows(11)
    kept = layers.add_and_norm(torch.ones_like(x), None, dropout) if dropout else torch.ones_like(x)
    if dropout:
        values = kept.unique()
        torch.testing.assert_close(values, torch.tensor([0.0, 256 / (256 - round(dropout * 256))]))
        assert 0.15 < (kept == 0).float().mean() < 0.45
    plain = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
    expected = plain[0] * kept
    if has_residual:
        expected = expected + plain[1]
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    if norm == "layer":
        expected = F.layer_norm(expected, (width,), *copies, 1e-5)
    elif norm == "rms":
        expected = F.rms_norm(expected, (width,), *copies, 1e-5)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(expected)
    out.backward(grad)
    expected.backward(grad)
    for a, b in zip([*fast[: 1 + has_residual], *parameters], [*plain[: 1 + has_residual], *copies], strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)


def test_calls_of_a_pass_drop_other_elements() -> None:
    x = torch.ones(4, 64)
    layers.seed_rows(5)
    first, second = (layers.add_and_norm(x, None, 0.5) for _ in range(2))
    layers.seed_rows(5)
    assert torch.equal(layers.add_and_norm(x, None, 0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_bf16", [False, True])
def test_linear_and_relu_network(has_bias: bool, is_bf16: bool) -> None:
    x = torch.randn(3, 50, 24)
    shapes = [(130, 24), (130,), (24, 130), (24,)]
    weights = [torch.randn(shape) / 5 for shape in shapes]
    results = []
    for is_fast in (False, True):
        own = x.clone().requires_grad_()
        w1, b1, w2, b2 = (w.clone().requires_grad_() for w in weights)
        biases = (b1, b2) if has_bias else (None, None)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=is_bf16):
            if is_fast:
                out = layers.relu_network(own, w1, biases[0], w2, biases[1])
                out = layers.linear(out, w1, b1)
            else:
                out = F.linear(F.relu(F.linear(own, w1, biases[0])), w2, biases[1])
                out = F.linear(out, w1, b1)
        assert out.dtype == (torch.bfloat16 if is_bf16 else torch.float32)
        out.float().square().mean().backward()
        results.append([out.detach(), *(p.grad for p in (own, w1, b1, w2, *((b2,) if has_bias else ())))])
    for plain, fast in zip(*results, strict=True):
        assert plain.dtype == fast.dtype
        tolerance = {"atol": 0.03 * float(plain.float().abs().max()), "rtol": 0.0} if is_bf16 else {}
        torch.testing.assert_close(fast, plain, **tolerance)


@pytest.mark.parametrize("vocab", [11, 5000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss(vocab: int, smoothing: float) -> None:
    logits, targets = torch.randn(9, vocab) * 3, torch.randint(1, vocab, (9,))
    targets[[2, 8]] = PAD
    plain = logits.clone().requires_grad_()
    counted = targets != PAD
    expected = cross_entropy(plain[counted], targets[counted], smoothing)
    expected[0].backward()
    found = layers.loss_gradient_(logits, targets, smoothing, PAD)
    torch.testing.assert_close(found, (expected[0].detach(), expected[1].detach()))
    torch.testing.assert_close(logits, plain.grad, atol=1e-6, rtol=1e-5)
    assert not logits[2].any()


LLAMA = {
    "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu", "gated": True,
    "bias": False, "n_kv_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, LLAMA, {"order": "pre", "position": {"kind": "alibi"}}])
def test_gradients_of_a_model(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 32, "d_ff": 48, "n_heads": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    config = TransformerConfig(**{**sizes, **options})  # type: ignore[arg-type]
    src, tgt = torch.randint(3, 20, (3, 7)), torch.randint(3, 20, (3, 5))
    mask = torch.arange(7) < torch.tensor([[7], [4], [6]])
    results = []
    for kernels in (layers.kernels(), None):
        monkeypatch.setattr(layers, "kernels", lambda kernels=kernels: kernels)
        network = build_model(config, 20, 20)
        found = network(src, mask, tgt, TokenLoss(tgt, 0.1, padded=True))
        found.smoothed.backward()
        results.append([found.smoothed.detach(), *(p.grad for p in network.parameters())])
    torch.testing.assert_close(*results, atol=2e-5, rtol=2e-5)


def test_a_model_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("attend", "add_and_norm", "loss_gradient_"):
        kernel = getattr(layers, name)
        for user in (layers, dragoman.nn.fast.dropout, dragoman.training.loss):
            if hasattr(user, name):
                monkeypatch.setattr(user, name, lambda *a, kernel=kernel, name=name: called.append(name) or kernel(*a))
    sizes = {"d_model": 16, "d_ff": 16, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
    network = build_model(TransformerConfig(**sizes), 20, 20)  # type: ignore[arg-type]
    tokens = torch.randint(3, 20, (2, 4))
    network(tokens, None, tokens, TokenLoss(tokens, 0.1, padded=True)).smoothed.backward()
    counts = {name: called.count(name) for name in called}
    assert counts == {"attend": 3, "add_and_norm": 7, "loss_gradient_": 1}  # two embeddings, five sublayers
