"""The convolutional model against the paper's formulas, computed position by position in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config import ConvolutionalConfig
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.convolutional import Convolutional
from dragoman.nn.convolution import GatedConvolution
from dragoman.tokenizers import EOS, PAD
from small_networks import EXACT, drawn, random_targets

B, K, S, T, D, W, V, PLACES = 4, 3, 7, 6, 10, 5, 19, 9
LENGTHS = [S, 3, 5, 2]
SIZES: dict[str, Any] = {
    "d_model": D, "encoder_layers": 2, "decoder_layers": 3, "kernel": W, "max_positions": PLACES, "dropout": 0.0,
}  # fmt: skip


def build(**changes: Any) -> Convolutional:
    """A float64 model without the zeros of its initialisation."""
    built = build_model(ConvolutionalConfig.model_validate(SIZES | changes), V, V)
    assert isinstance(built, Convolutional)
    return drawn(built, 0.3)


@pytest.fixture
def model() -> Convolutional:
    return build()


def sources() -> tuple[Tensor, Tensor]:
    """src (B, S) and src_mask (B, S) of sentences of different lengths."""
    src = torch.randint(EOS + 1, V, (B, S))
    mask = torch.arange(S) < torch.tensor(LENGTHS)[:, None]
    return src.masked_fill(~mask, PAD), mask


# ------------------------------------------------------------------------------------------ the paper, word by word


def unit(conv: GatedConvolution, window: list[Tensor]) -> Tensor:
    """v(x W + b) of vectors (D,): A * sigmoid(B), one number at a time."""
    both = conv.weight @ torch.cat(window) + conv.bias
    return torch.stack([both[i] / (1 + torch.exp(-both[D + i])) for i in range(D)])


def outside(xs: list[Tensor], place: int) -> Tensor:
    return xs[place] if 0 <= place < len(xs) else torch.zeros(D, dtype=torch.float64)


def embed(table: Tensor, positions: Tensor, tokens: list[int]) -> list[Tensor]:
    """e_i = w_i + p_i; our embedding matrix is N(0, 1/D), the paper's N(0, 0.1^2)."""
    return [0.1 * math.sqrt(D) * table[token] + positions[i] for i, token in enumerate(tokens)]


def written_out(model: Convolutional, source: list[int], target: list[int]) -> Tensor:
    """Logits (T, V) of one sentence: equations 1 and 2 and the formulas of section 3."""
    half = math.sqrt(0.5)
    e = embed(model.encoder.embedding.embedding.weight, model.encoder.embedding.positions, source)
    z = e
    for layer in model.encoder.layers:
        z = [
            (unit(layer.conv, [outside(z, i + j) for j in range(-(W // 2), W // 2 + 1)]) + z[i]) * half
            for i in range(len(z))
        ]
    m = len(source)
    g = embed(model.decoder.embedding.embedding.weight, model.decoder.embedding.positions, target)
    h = g
    for layer in model.decoder.layers:
        h = [(unit(layer.conv, [outside(h, i - j) for j in range(W - 1, -1, -1)]) + h[i]) * half for i in range(len(h))]
        attention = layer.cross_attn
        for i in range(len(h)):
            d = attention.q.weight @ h[i] + attention.q.bias + g[i]
            powers = [torch.exp((d * z[j]).sum()) for j in range(m)]
            c = m * math.sqrt(1 / m) * sum(powers[j] / sum(powers) * (z[j] + e[j]) for j in range(m))
            h[i] = (h[i] + c) * half
    return torch.stack([model.output.weight @ x for x in h])


def test_a_batch_is_the_formula_of_each_sentence_alone(model: Convolutional) -> None:
    src, mask = sources()
    ids = random_targets(B, T, V)
    logits = model(src, mask, ids)
    for row, length in enumerate(LENGTHS):
        want = written_out(model, src[row, :length].tolist(), ids[row].tolist())
        torch.testing.assert_close(logits[row], want, **EXACT)
        alone = model(src[row : row + 1, :length], None, ids[row : row + 1])
        torch.testing.assert_close(alone[0], want, **EXACT)


def test_a_gated_convolution_equals_conv1d_and_glu_of_torch() -> None:
    ours = GatedConvolution(D, W).double()
    nn.init.normal_(ours.bias)
    x = torch.randn(B, T + W - 1, D, dtype=torch.float64).requires_grad_()
    y = x.detach().clone().requires_grad_()
    kernel = ours.weight.detach().view(2 * D, W, D).transpose(1, 2).clone().requires_grad_()
    mine = ours(x)
    theirs = F.glu(F.conv1d(y.transpose(1, 2), kernel, ours.bias.detach()), dim=1).transpose(1, 2)
    torch.testing.assert_close(mine, theirs, **EXACT)
    upstream = torch.randn(B, T, D, dtype=torch.float64)
    mine.backward(upstream)
    theirs.backward(upstream)
    assert x.grad is not None and y.grad is not None and kernel.grad is not None and ours.weight.grad is not None
    torch.testing.assert_close(x.grad, y.grad, **EXACT)
    torch.testing.assert_close(ours.weight.grad.view(2 * D, W, D).transpose(1, 2), kernel.grad, **EXACT)


# ---------------------------------------------------------------------------------------------------- two ways to one


@pytest.mark.parametrize("kernel", [1, W])
def test_a_kernel_of_any_size_decodes_in_chunks(kernel: int) -> None:
    model = build(kernel=kernel)
    src, mask = sources()
    ids, sentences = random_targets(B * K, T, V), torch.arange(B).repeat_interleave(K)
    state = model.start(model.encode(src, mask), beams=K, max_len=T)
    parts = [model.decode(chunk, state) for chunk in torch.split(ids, [2, 1, 3], dim=1)]
    assert state.length == T
    torch.testing.assert_close(torch.cat(parts, dim=1), model(src[sentences], mask[sentences], ids), **EXACT)


# -------------------------------------------------------------------------------------------------- limits, beginnings


def test_a_position_beyond_the_table_is_refused_with_what_to_do(model: Convolutional) -> None:
    ids = torch.full((2, PLACES + 1), EOS + 1)
    assert model(ids[:, :PLACES], None, ids[:, :PLACES]).shape == (2, PLACES, V)
    for src, tgt in ((ids, ids[:, :1]), (ids[:, :1], ids)):
        with pytest.raises(UsageError, match=f"{PLACES + 1} tokens.* {PLACES} positions.*max_positions = {PLACES + 1}"):
            model(src, None, tgt)
    state = model.start(model.encode(ids[:, :2], None), beams=1, max_len=PLACES + 1)
    model.decode(ids[:, :PLACES], state)
    with pytest.raises(UsageError, match=f"{PLACES + 1} tokens"):
        model.decode(ids[:, :1], state)


def test_the_same_seed_gives_the_same_weights_and_biases_of_zero() -> None:
    config = ConvolutionalConfig.model_validate(SIZES)
    one, other = (build_model(config, V, V, seed=seed).state_dict() for seed in (4, 5))
    for name, weight in one.items():
        assert torch.equal(weight, other[name]) == name.endswith("bias"), name


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_encoder_preserves_the_variance(dropout: float) -> None:
    sizes = {"d_model": 192, "encoder_layers": 8, "decoder_layers": 1, "dropout": dropout, "max_positions": 64}
    model = build_model(ConvolutionalConfig.model_validate(sizes), 300, 300)
    assert isinstance(model, Convolutional)
    with torch.no_grad():
        z, values = model.encoder(torch.randint(4, 300, (8, 64)), None).chunk(2, dim=-1)
    e = values / 64**0.5 - z  # values are sqrt(m) (z + e)
    assert 0.7 < float(z.std() / e.std()) < 1.3
    words = build_model(ConvolutionalConfig.model_validate(sizes | {"dropout": 0.0}), 300, 300)
    assert isinstance(words, Convolutional)
    embedded = words.encoder.embedding(torch.arange(4, 68)[None]).detach()
    assert float(embedded.std()) == pytest.approx(math.sqrt(0.02), rel=0.05)
