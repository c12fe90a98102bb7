"""One training step of a 2+2-layer model on "I am" -> "我 是", computed by hand in a text, reproduced with our code.

The text omits its inputs, some of its matrices and most parameters of its norms.  Those below were reconstructed and
reproduce all given numbers, backward as well as forward; the first layer's feed-forward network is one of several that
do.  The text rounds intermediate results: printed numbers are compared up to rounding, and consequences of its inputs
exactly.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import AdamConfig, TransformerConfig
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.nn.attention import CrossAttention, SelfAttention, Span, attend_explicit, causal_bias
from dragoman.nn.layers import EncoderLayer, FeedForward, SubLayer
from dragoman.nn.positions import Positions
from dragoman.tokenizers import BOS, PAD
from dragoman.training.loss import TokenLoss, cross_entropy
from dragoman.training.optim import build_optimizer

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
PRINTED: dict[str, Any] = {"rtol": 0.0, "atol": 5e-4}
"""The precision of the three decimals in the text."""

# Encoder layer 1, for row vectors: the first word is 1.1 (1, 2, 3, 4), the second one is 4.4 more everywhere.
WORDS = [[1.1, 2.2, 3.3, 4.4], [5.5, 6.6, 7.7, 8.8]]
W_Q = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 2, 0], [0, 1, 0, 2]]
W_K = [[2, 0, 1, 0], [0, 2, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0]]
W_V = [[0, 0, 1, 2], [0, 1, 0, 0], [2, 0, 1, 0], [0, 1, 0, 1]]
SCORES = [[112.53, 340.01], [281.93, 857.89]]
V_2 = [15.4, 15.4, 13.2, 19.8]
GAMMA_1, BETA_1 = [1, 1, 1.2, 1.2], [0, 0, 0.5, 0.5]
W_1 = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [2, 0, 1, 0], [0, 2, 0, 1], [2, 0, 1, 0], [0, 2, 0, 1]]
B_1 = [0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]
W_2 = [[1, 0, 1, 0, 1, 0, 1, 0], [1, 1, 1, 2, 1, 2, 1, 2], [1, 0, 1, 0, 1, 1, 1, 2], [1, 1, 1, 2, 1, 0, 1, 0]]
B_2 = [0.5, 0, 0.5, 0]
GAMMA_2, BETA_2 = [1.1, 1.1, 1, 1], [0.2, 0.2, 0, 0]
FFN_INNER = [-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]
FFN_OUT = [0.5, 15.233, 6.716, 6.945]

# The decoder's cross-attention: matrices as stored by `nn.Linear`, one row per output.
ENCODED = [-1.028, 1.479, -0.187, -0.263]
W_K_CROSS = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
W_V_CROSS = [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
K_CROSS, V_CROSS = [-1.291, 1.479, 1.292, -1.291], [1.292, -1.291, -1.215, 1.216]
OF_OUT = [0.2, 0.1, -0.3, 0.1]
V_PATH, K_PATH = [-0.1, 0.15, -0.05, 0.1], [0.003, 0.003, 0.082, 0.003]


def tensor(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def put(parameter: Tensor, numbers: Any) -> None:
    with torch.no_grad():
        parameter.copy_(numbers if isinstance(numbers, Tensor) else tensor(numbers))


def around(gamma: list[float], beta: list[float]) -> SubLayer:
    """A sub-layer whose norm has these parameters and a negligible epsilon, because the text has none."""
    norm = nn.LayerNorm(4, eps=1e-12).double()
    put(norm.weight, gamma)
    put(norm.bias, beta)
    return SubLayer(norm, 0.0, "post")


def first_attention() -> SelfAttention:
    attention = SelfAttention(4, 1, bias=False).double()
    put(attention.qkv.weight, torch.cat([tensor(matrix).T for matrix in (W_Q, W_K, W_V)]))
    put(attention.out.weight, torch.eye(4))
    return attention


def first_layer() -> EncoderLayer:
    ffn, sublayers = FeedForward(4, 8, "relu").double(), iter([around(GAMMA_1, BETA_1), around(GAMMA_2, BETA_2)])
    for parameter, numbers in zip(ffn.parameters(), (W_1, B_1, W_2, B_2), strict=True):
        put(parameter, numbers)
    return EncoderLayer(first_attention(), ffn, lambda: next(sublayers))


def cross_attention() -> CrossAttention:
    attention = CrossAttention(4, 1, bias=False).double()
    put(attention.q.weight, torch.eye(4))
    put(attention.kv.weight, torch.cat([tensor(W_K_CROSS), tensor(W_V_CROSS)]))
    put(attention.out.weight, torch.eye(4))
    return attention


def watch(attention: SelfAttention | CrossAttention) -> list[Tensor]:
    """Collect the weights of subsequent calls."""
    seen: list[Tensor] = []
    attention.weights.register_forward_hook(lambda module, inputs, output: seen.append(output))
    return seen


def weights_of(scores: list[list[float]], bias: Tensor | None = None) -> Tensor:
    """Weights of two words with heads of 4 and these products q . k: queries are their rows, keys unit vectors."""
    q, k = nn.functional.pad(tensor(scores), (0, 2))[None, None], torch.eye(2, 4, dtype=torch.float64)[None, None]
    return attend_explicit(q, k, k, bias)[1][0, 0]


# ----------------------------------------------------------------------------------------------------------- forwards


def test_scores_of_the_first_layer() -> None:
    q, k, v = first_attention().qkv(tensor(WORDS)).chunk(3, dim=-1)
    torch.testing.assert_close(q @ k.T, tensor(SCORES), **EXACT)
    torch.testing.assert_close(v[1], tensor(V_2), **EXACT)


def test_scores_far_apart_leave_the_second_word_only() -> None:
    """Not quite 0 and 1: the first weights are e^-113.74 and e^-287.98."""
    weights = weights_of(SCORES)
    torch.testing.assert_close(weights, tensor([[0, 1], [0, 1]]), rtol=0, atol=1e-40)
    assert weights[:, 0].log().tolist() == pytest.approx([-113.74, -287.98], abs=1e-9)


def test_both_words_take_the_second_ones_value() -> None:
    attention = first_attention()
    seen = watch(attention)
    out = attention(tensor(WORDS)[None], Positions(), torch.arange(2))[0]
    torch.testing.assert_close(seen[0][0, 0], weights_of(SCORES), **EXACT)
    torch.testing.assert_close(out, tensor([V_2, V_2]), **EXACT)


def test_the_norm_removes_a_constant_difference() -> None:
    """Normalising word + value gives [-2, -1, -2, 5] / sqrt(8.5), of variance 1, for both words."""
    layer, pos = first_layer(), torch.arange(2)
    y = layer.around_self_attn(tensor(WORDS)[None], lambda x: layer.self_attn(x, Positions(), pos))[0]
    normed = [number / math.sqrt(8.5) for number in (-2, -1, -2, 5)]
    want = [g * number + b for g, number, b in zip(GAMMA_1, normed, BETA_1, strict=True)]
    torch.testing.assert_close(y, tensor([want, want]), **EXACT)
    torch.testing.assert_close(y[0], tensor([-0.686, -0.343, -0.3232, 2.558]), rtol=0, atol=5e-5)


def test_output_of_the_first_layer() -> None:
    """The text has -1.3807 and 1.6608 instead of -1.3814 and 1.6611, because it truncated -1.4376 to -1.437."""
    layer, pos = first_layer(), torch.arange(2)
    inside: list[Tensor] = []
    for module in (layer.ffn.inner, layer.ffn):
        module.register_forward_hook(lambda module, inputs, output: inside.append(output[0]))
    out = layer(tensor(WORDS)[None], Span(Positions(), pos))[0]
    torch.testing.assert_close(inside[0], tensor([FFN_INNER, FFN_INNER]), rtol=0, atol=5e-5)
    torch.testing.assert_close(inside[1], tensor([FFN_OUT, FFN_OUT]), **PRINTED)
    torch.testing.assert_close(out[0], tensor([-1.3814, 1.6611, -0.2306, 0.34]), rtol=0, atol=1e-4)
    torch.testing.assert_close(out[0], tensor([-1.3807, 1.6608, -0.231, 0.34]), rtol=0, atol=1e-3)
    torch.testing.assert_close(out[1], out[0], **EXACT)


def test_equal_inputs_share_the_weight() -> None:
    """Encoder layer 2, for which the text needs no weights."""
    attention = SelfAttention(4, 1).double()
    seen = watch(attention)
    out = attention(tensor([[-1.3807, 1.6608, -0.231, 0.34]] * 2)[None], Positions(), torch.arange(2))[0]
    torch.testing.assert_close(seen[0][0, 0], tensor([[0.5, 0.5], [0.5, 0.5]]), **EXACT)
    torch.testing.assert_close(out[1], out[0], **EXACT)


def test_the_mask_turns_the_first_word_to_itself() -> None:
    """6.64 | 125 and 32.49 | 128.79 after the division; without the mask both words would attend to the second one."""
    products, pos = [[13.28, 250.0], [64.98, 257.58]], torch.arange(2)
    masked = weights_of(products, causal_bias(pos, pos, torch.float64))
    assert masked[0].tolist() == [1, 0]
    torch.testing.assert_close(masked, tensor([[1, 0], [0, 1]]), rtol=0, atol=1e-40)
    assert float(masked[1, 0].log()) == pytest.approx(32.49 - 128.79, abs=1e-9)
    torch.testing.assert_close(weights_of(products), tensor([[0, 1], [0, 1]]), rtol=0, atol=1e-40)


def test_equal_keys_give_their_common_value() -> None:
    """The text has the score -0.173 twice for either query; only their equality within a row matters."""
    torch.testing.assert_close(weights_of([[-0.346, -0.346]] * 2), tensor([[0.5, 0.5]] * 2), **EXACT)
    attention = cross_attention()
    seen, memory = watch(attention), attention.project(tensor([ENCODED, ENCODED])[None])
    torch.testing.assert_close(memory.keys[0, 0], tensor([K_CROSS] * 2), **EXACT)
    torch.testing.assert_close(memory.values[0, 0], tensor([V_CROSS] * 2), **EXACT)
    queries = tensor([[[0.997, -1.107, 1.2964, -0.9632], [0.816, 0, 1.0792, -1.8596]]])
    torch.testing.assert_close(attention(queries, memory)[0], tensor([V_CROSS] * 2), **EXACT)
    torch.testing.assert_close(seen[0][0, 0], tensor([[0.5, 0.5]] * 2), **EXACT)
    y = around([1, 1, 1, 1], [0.1, 0.1, 0.1, 0.1])(queries, lambda x: attention(x, memory))[0]
    want = [[1.443, -1.377, 0.115, 0.218], [1.741, -0.917, -0.014, -0.411]]
    torch.testing.assert_close(y, tensor(want), **PRINTED)


def test_the_loss_of_two_words() -> None:
    """-ln 0.670 - ln 0.70 = 0.400 + 0.357 = 0.757; the last column stands for all words omitted in the text.

    Of the other probabilities one does not fit: beside 0.70 for the logit 4.0, the logit 0.8 has 0.03 and not 0.04.
    """
    kept, rights = [[0.5, 3.5, 1.2], [0.8, 2.1, 4.0]], [0.67, 0.7]
    logits, targets = [], [1, 2]
    for row, target, p in zip(kept, targets, rights, strict=True):
        others = math.exp(row[target]) / p - math.fsum(map(math.exp, row))
        logits.append([*row, math.log(others)])
    _, nll = cross_entropy(tensor(logits), torch.tensor(targets), 0.0)
    assert float(nll) == pytest.approx(-math.log(0.67) - math.log(0.7), abs=1e-12)
    assert float(nll) == pytest.approx(0.757, abs=5e-4)
    each = [float(cross_entropy(tensor(logits[t : t + 1]), torch.tensor([targets[t]]), 0.0)[1]) for t in range(2)]
    assert each == pytest.approx([0.4, 0.357], abs=5e-4)
    probabilities = [float(tensor(row).softmax(0)[i]) for row in logits for i in range(3)]
    assert probabilities == pytest.approx([0.033, 0.67, 0.067, 0.0285, 0.105, 0.7], abs=5e-4)


# ---------------------------------------------------------------------------------------------------------- backwards


def small_model() -> Model:
    """The text's sizes; one head, three matrices of words."""
    config = TransformerConfig(
        d_model=4, d_ff=8, n_heads=1, encoder_layers=2, decoder_layers=2, dropout=0.0, tie="none"
    )
    model = build_model(config, 9, 9).double()
    assert isinstance(model, Model)
    return model


def test_the_gradient_of_a_shared_matrix_is_the_sum_over_positions() -> None:
    """For every parameter dL/dW = dL_1/dW + dL_2/dW, where the other target is replaced by padding."""
    model = small_model()
    src, told = torch.tensor([[4, 5]]), torch.tensor([[BOS, 6]])

    def gradients(*targets: int) -> tuple[Tensor, ...]:
        loss = model(src, None, told, TokenLoss(torch.tensor([targets]), 0.0))
        return torch.autograd.grad(loss.smoothed, list(model.parameters()))

    parts = gradients(6, PAD), gradients(PAD, 7)
    for (name, _), both, one, two in zip(model.named_parameters(), gradients(6, 7), *parts, strict=True):
        torch.testing.assert_close(both, one + two, **EXACT)
        assert both.any(), name


def test_the_gradient_of_the_last_matrix() -> None:
    """dL/dW_final = sum over positions of (p_t - target_t) h_t^T."""
    model = small_model()
    src, told, targets = torch.tensor([[4, 5]]), torch.tensor([[BOS, 6]]), torch.tensor([[6, 7]])
    model(src, None, told, TokenLoss(targets, 0.0)).smoothed.backward()
    hidden = model.hidden(src, None, told).detach()[0]
    matrix = model.get_submodule("output").weight
    assert isinstance(matrix, nn.Parameter)
    want = torch.zeros(9, 4, dtype=torch.float64)
    for h, target in zip(hidden, targets[0].tolist(), strict=True):
        wrong = (matrix.detach() @ h).softmax(0)
        wrong[target] -= 1
        want += wrong[:, None] * h
    assert matrix.grad is not None
    torch.testing.assert_close(matrix.grad, want, **EXACT)


def backwards(of_weights: list[float]) -> dict[str, Tensor]:
    """Gradients of sum(OF_OUT * out) + sum(of_weights * weights) of one query at the two encoded words."""
    attention = cross_attention()
    seen, memory = watch(attention), tensor([ENCODED, ENCODED])[None].requires_grad_()
    query = tensor([[[1.64, -1.58, 1.64, -1.58]]]).requires_grad_()
    projected = attention.project(memory)
    projected.keys.retain_grad()
    out = attention(query, projected)
    ((out * tensor(OF_OUT)).sum() + (seen[0] * tensor(of_weights)).sum()).backward()
    found = {"query": query, "memory": memory, "keys": projected.keys, "kv": attention.kv.weight}
    gradients = {name: x.grad for name, x in found.items()}
    return {name: grad for name, grad in gradients.items() if grad is not None}


def test_equal_values_send_nothing_back_through_the_weights() -> None:
    """With equal values the output is the common value, for any weights."""
    of = backwards([0.0, 0.0])
    assert of["query"].abs().max() < 1e-15 and of["keys"].abs().max() < 1e-15
    torch.testing.assert_close(of["memory"][0], tensor([V_PATH, V_PATH]), **EXACT)


def test_backwards_through_values_and_keys() -> None:
    """The text continues with assumed scores [0.1, -0.1].

    Weights of [0.5, 0.5] have it if the loss goes by them with [0.2, -0.2]: 0.5 (0.2 - 0) and 0.5 (-0.2 - 0).  Scaled,
    [0.05, -0.05] times the query goes to the keys, and times the equal keys nothing to the query.
    """
    of = backwards([0.2, -0.2])
    keys = tensor([0.082, -0.079, 0.082, -0.079])
    torch.testing.assert_close(of["keys"][0, 0], torch.stack([keys, -keys]), **EXACT)
    assert of["query"].abs().max() < 1e-15
    want = [[v + sign * k for v, k in zip(V_PATH, K_PATH, strict=True)] for sign in (1, -1)]
    torch.testing.assert_close(of["memory"][0], tensor(want), **EXACT)
    assert [[round(x, 3) for x in row] for row in want] == [
        [-0.097, 0.153, 0.032, 0.103],
        [-0.103, 0.147, -0.132, 0.097],
    ]


def test_the_update() -> None:
    """0 - 0.01 * -0.2056 = 0.002056 by gradient descent; Adam's first step is the rate, however large the gradient."""
    of_first = float(backwards([0.2, -0.2])["kv"][4, 0])  # W^V[0, 0]: behind the four rows of W^K
    assert of_first == pytest.approx(2 * 0.5 * OF_OUT[0] * ENCODED[0], abs=1e-12)
    assert of_first == pytest.approx(-0.2056, abs=1e-12)
    assert 0 - 0.01 * of_first == pytest.approx(0.002056, abs=1e-12)
    module = nn.Linear(1, 1, bias=False).double()
    put(module.weight, [[0.0]])
    module.weight.grad = tensor([[of_first]])
    optimizer = build_optimizer(AdamConfig(), module)
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert float(module.weight.detach()) == pytest.approx(0.01, rel=1e-6)
