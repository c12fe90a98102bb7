"""Claims of five texts about the Transformer, checked with our code; docstrings correct those that do not hold.

Shapes: N rows, H heads, T positions, S source length, D d_model, Dh head size, V vocabulary.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import (
    PRESETS,
    ConvolutionalConfig,
    EncoderOnlyConfig,
    LearnedPosition,
    NoPosition,
    TransformerConfig,
)
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.convolutional import Convolutional
from dragoman.models.seq2seq import Model
from dragoman.nn.attention import AttentionTaps, SelfAttention, attend_explicit, causal_bias
from dragoman.nn.fast import attend_short, split_heads
from dragoman.nn.layers import BatchNorm, LayerNorm
from dragoman.nn.linear_attention import causal_linear_attention
from dragoman.nn.positions import Positions, Rotary, Sinusoidal
from dragoman.nn.record import Tap
from dragoman.nn.recurrent import VanillaRNN
from dragoman.vectors import WordVectors
from small_networks import EXACT, causal_linear_recurrence, random

H, T, DH, V = 3, 7, 4, 23
D = H * DH


def replaced(by: Callable[[Tensor], Tensor]) -> AttentionTaps:
    """Taps of which the last replaces the weights."""
    tap = Tap()
    tap.register_forward_hook(lambda module, inputs, output: by(output))
    return AttentionTaps(Tap(), Tap(), tap)


def with_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without softmax and divisor: its weights are the bare products q . k."""
    return attend_explicit(q, k, v, None, taps=replaced(lambda weights: q @ k.transpose(-1, -2)))[0]


# ------------------------------------------------------------------------------------------- attention and its softmax


def test_orthonormal_vectors_are_the_sum_of_their_products_with_all() -> None:
    """x_t = sum_i (x_t . x_i) x_i, which a text compares with attention, holds for orthonormal vectors only."""
    x = torch.linalg.qr(random(D, T))[0].T[None, None]  # (1, 1, T, D)
    torch.testing.assert_close(with_products(x, x, x), x, **EXACT)
    sharp, weights = attend_explicit(1e4 * x, x, x, None)  # the softmax's limit is the same
    torch.testing.assert_close(weights[0, 0], torch.eye(T, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(sharp, x, **EXACT)
    other = random(1, 1, T, D)
    assert not torch.allclose(with_products(other, other, other), other)


def test_a_score_of_words_with_places_has_four_terms() -> None:
    """q . k = word.word + word.position + position.word + position.position.

    The last term is called the relative position.  It depends on the distance only if W^Q and W^K preserve the products
    of positions, as identity matrices do.
    """
    attention, pos = SelfAttention(D, 1, bias=False).double(), torch.arange(T)
    seen: list[Tensor] = []
    attention.weights.register_forward_hook(lambda module, inputs, output: seen.append(output[0, 0]))
    x, places = random(T, D), Sinusoidal(D)
    x_and_p, _ = places.embed(x[None], pos, None)
    p = x_and_p[0] - x
    attention(x_and_p, Positions(), pos)
    (q_x, k_x, _), (q_p, k_p, _) = (attention.qkv(y).chunk(3, dim=-1) for y in (x, p))
    terms = q_x @ k_x.T + q_x @ k_p.T + q_p @ k_x.T + q_p @ k_p.T
    torch.testing.assert_close(seen[0], (terms / math.sqrt(D)).softmax(-1), **EXACT)
    one_away, identity_one_away = (q_p @ k_p.T).diagonal(1), (p @ p.T).diagonal(1)
    torch.testing.assert_close(identity_one_away, identity_one_away[:1].expand(T - 1), **EXACT)
    assert one_away.max() - one_away.min() > 1e-3


def test_without_softmax_keys_and_values_are_summed_before_any_query() -> None:
    """z_t = q_t sum_i k_i^T v_i, and over i <= t a recurrence: T x T products and one Dh x Dh matrix agree."""
    q, k, v = random(1, 1, T, DH), random(1, 1, T, DH), random(1, 1, T, DH + 1)
    _, state = causal_linear_attention(q, k, v)
    assert state.shape == (1, 1, DH, DH + 1)
    torch.testing.assert_close(with_products(q, k, v), q @ state, **EXACT)
    past = replaced(lambda weights: (q @ k.transpose(-1, -2)).tril())
    torch.testing.assert_close(attend_explicit(q, k, v, None, taps=past)[0], causal_linear_recurrence(q, k, v), **EXACT)


def test_without_softmax_heads_are_blocks_of_one_heads_matrix() -> None:
    """The text states that heads change nothing, because their scores add up to the score of one head, which is true.

    But the values of each head are weighted by that head's score only.  The heads compute one head whose matrix, the
    sum of k_i^T v_i, is reduced to its H diagonal blocks: a special case of one head, with a different result.
    """
    many, one = SelfAttention(D, H, bias=False).double(), SelfAttention(D, 1, bias=False).double()
    one.load_state_dict(many.state_dict())
    x = random(1, T, D)

    def parts(attention: SelfAttention) -> tuple[Tensor, ...]:
        return split_heads(attention.qkv(x), attention.parts, (attention.d_head,) * 3)

    (q, k, v), (q_one, k_one, v_one) = parts(many), parts(one)
    of_heads, of_one = q @ k.transpose(-1, -2), q_one @ k_one.transpose(-1, -2)
    assert of_heads.shape == (1, H, T, T) and of_one.shape == (1, 1, T, T)
    torch.testing.assert_close(of_heads.sum(1), of_one[:, 0], **EXACT)
    blocks = torch.block_diag(*[torch.ones(DH, DH, dtype=torch.float64)] * H)
    state = k_one.transpose(-1, -2) @ v_one
    heads = many.join(with_products(q, k, v))
    torch.testing.assert_close(heads, one.join(q_one @ (state * blocks)), **EXACT)
    assert not torch.allclose(heads, one.join(with_products(q_one, k_one, v_one)))


def test_larger_scores_turn_the_softmax_into_a_hardmax_without_gradient() -> None:
    q, k = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    v = torch.arange(4.0, dtype=torch.float64)[:, None]
    largest, steepest = [], []
    for factor in (1, 2, 5, 20, 100):
        scores = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)  # a bias: receives the scores' gradient
        scaled = 2 * factor * q  # Dh = 4
        out, weights = attend_explicit(scaled[None, None], k[None, None], v[None, None], scores)
        (gradient,) = torch.autograd.grad(out.sum(), scores)
        largest.append(float(weights.detach().max()))
        steepest.append(float(gradient.abs().max()))
    assert largest == sorted(largest) and largest[0] < 0.7 and largest[-1] == 1
    assert steepest == sorted(steepest, reverse=True) and steepest[0] > 0.3 and steepest[-1] < 1e-40


@pytest.mark.parametrize("attend", [attend_explicit, attend_short])
def test_the_softmaxs_derivative_is_a_matrix(attend: Callable[..., Any]) -> None:
    """One of the texts keeps the diagonal only, and squares the exponential before subtracting.

    The Jacobian is diag(w) - w^T w.  Its rows sum to 0: increasing one score decreases the other weights.  With unit
    vectors as keys and values, the scores are q / sqrt(Dh) and the outputs the weights, so the derivative of our
    attention with respect to q is this matrix divided by sqrt(Dh).
    """
    words = 5
    query, unit = random(words), torch.eye(words, dtype=torch.float64)[None, None]

    def weights_of(q: Tensor) -> Tensor:
        out = attend(q[None, None, None], unit, unit, None)
        return (out[0] if isinstance(out, tuple) else out)[0, 0, 0]

    powers = [math.exp(x / math.sqrt(words)) for x in query.tolist()]
    w = [power / sum(powers) for power in powers]
    torch.testing.assert_close(weights_of(query), torch.tensor(w, dtype=torch.float64), **EXACT)
    by_hand = [[w[i] * (i == j) - w[i] * w[j] for j in range(words)] for i in range(words)]
    whole = torch.autograd.functional.jacobian(weights_of, query) * math.sqrt(words)
    torch.testing.assert_close(whole, torch.tensor(by_hand, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(whole.sum(-1), torch.zeros(words, dtype=torch.float64), **EXACT)
    squared = torch.tensor([p * (sum(powers) - p**2) / sum(powers) ** 2 for p in powers], dtype=torch.float64)
    assert (whole - whole.diagonal().diag()).abs().max() > 1e-2 and not torch.allclose(squared, whole.diagonal())


def test_the_backward_pass_is_products_of_matrices() -> None:
    q, k, v = (random(T, DH).requires_grad_() for _ in range(3))
    of_out = random(T, DH)
    out, weights = attend_explicit(q[None, None], k[None, None], v[None, None], None)
    found = torch.autograd.grad(out[0, 0], (q, k, v), of_out)
    a, of_a = weights[0, 0], of_out @ v.T
    of_s = a * (of_a - (a * of_a).sum(1, keepdim=True)) / math.sqrt(DH)
    torch.testing.assert_close(found, (of_s @ k, of_s.T @ q, a.T @ of_out), **EXACT)


@pytest.mark.parametrize(("words", "scaled", "plain"), [(8, 0.56, 0.98), (30, 0.28, 0.94), (50, 0.21, 0.92)])
def test_the_softmax_of_scaled_scores_is_not_sparse(words: int, scaled: float, plain: float) -> None:
    scores = random(4000, words)
    for deviation, share in ((1, scaled), (8, plain)):
        assert float((deviation * scores).softmax(-1).topk(2).values.sum(1).mean()) == pytest.approx(share, abs=0.015)


def test_the_exponential_is_a_sum_of_powers_of_bounded_rank() -> None:
    scores, x = random(50, 4) @ random(4, 50) / 2, random(10, 2)
    powers = torch.stack([scores**p / math.factorial(p) for p in range(13)])
    assert torch.linalg.matrix_rank(powers[1:4]).tolist() == [math.comb(3 + p, p) for p in (1, 2, 3)]
    assert torch.linalg.eigvalsh((x @ x.T).exp()).min() > 0 and torch.linalg.matrix_rank(x @ x.T) == 2
    sums = powers.cumsum(0)[[2, 6, 12]]  # products of 15, 210 and 1,820 features
    errors = (sums / sums.sum(2, keepdim=True) - scores.softmax(-1)).abs().sum(2).mean(1).tolist()
    assert errors[0] > 0.05 and errors[1] < errors[0] / 5 and errors[2] < 0.005


# ---------------------------------------------------------------------------------------------------- cache and masks


def multiply_adds(function: Callable[[], Tensor]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops()) // 2


def test_a_cached_step_grows_with_the_length_and_all_steps_with_its_square() -> None:
    """4 D^2 + 2 t D multiply-adds at step t; without a cache the terms are multiplied by t.

    Keys and values are kept.  Queries are not: an old one was needed for an old output only.
    """
    attention, x = SelfAttention(D, H), torch.randn(1, T, D)
    cache = attention.new_cache(1, T, like=x)
    assert set(vars(cache)) == {"keys", "values", "length"} and cache.nbytes() == 2 * T * D * 4
    steps, anew = [], []
    for t in range(T):
        pos = torch.arange(t + 1)
        steps.append(
            multiply_adds(lambda t=t, pos=pos: attention(x[:, t : t + 1], Positions(), pos[t:], None, False, cache))
        )
        anew.append(multiply_adds(lambda t=t, pos=pos: attention(x[:, : t + 1], Positions(), pos, None, True)))
    assert steps == [4 * D * D + 2 * t * D for t in range(1, T + 1)]
    assert anew == [t * 4 * D * D + 2 * t * t * D for t in range(1, T + 1)]
    assert sum(steps) == 4 * T * D * D + T * (T + 1) * D


def test_zeros_behind_the_softmax_are_no_mask() -> None:
    """Rows no longer sum to 1, and later words change earlier outputs by the divisor; a bias of -inf avoids both."""
    q, k, v, pos = random(1, 1, T, DH), random(1, 1, T, DH), random(1, 1, T, DH), torch.arange(T)
    other = k.clone()
    other[:, :, -1] += 1
    zeros = replaced(lambda weights: weights.tril())
    bias = causal_bias(pos, pos, torch.float64)
    (out, weights), (changed, _) = (attend_explicit(q, keys, v, None, taps=zeros) for keys in (k, other))
    assert (weights.sum(-1)[0, 0, :-1] < 1 - 1e-6).all()
    assert ((changed - out)[0, 0, :-1].abs().amax(-1) > 1e-9).all()
    (out, weights), (changed, _) = (attend_explicit(q, keys, v, bias) for keys in (k, other))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, T, dtype=torch.float64), **EXACT)
    assert torch.equal(changed[:, :, :-1], out[:, :, :-1])


@pytest.mark.parametrize("words", [10, 1000])
def test_a_word_is_forgotten_when_it_leaves_the_window(words: int) -> None:
    first = torch.eye(words, 1, dtype=torch.float64)[None, None]
    read, cut = (attend_explicit(16 * first[:, :, :1], k, k, None)[0] for k in (first, first[:, :, 1:]))
    assert read > 0.99 and cut == 0


@pytest.mark.parametrize(
    ("query", "later_key", "weights"),
    [([1.0, 1.0], [1.0, -2.0], None), ([1.0, 1.0], [-1.0, -2.0], None), ([1.0, 1.0], [1.0, 2.0], [1.0, 0.0])],
    ids=["inf - inf in the score", "a score of +inf", "0 times -inf in the output"],
)
def test_infinite_keys_and_values_are_no_mask_either(
    query: list[float], later_key: list[float], weights: list[float] | None
) -> None:
    """The text proposes to multiply later keys and values by -inf; correct is only a *score* of -inf.

    Where all products happen to be positive the weights come out, and 0 * -inf spoils the output.
    """
    q = torch.tensor([query], dtype=torch.float64)[None, None]
    factor = torch.tensor([[1.0], [-math.inf]], dtype=torch.float64)
    k = torch.tensor([[0.5, 0.5], later_key], dtype=torch.float64)
    v = torch.tensor([[3.0], [4.0]], dtype=torch.float64)
    out, got = attend_explicit(q, (k * factor)[None, None], (v * factor)[None, None], None)
    assert out.isnan().all()
    assert got[0, 0, 0].tolist() == weights if weights else got.isnan().any()
    bias = torch.tensor([[0.0, -math.inf]], dtype=torch.float64)
    assert attend_explicit(q, k[None, None], v[None, None], bias)[0].tolist() == [[[[3.0]]]]


# ----------------------------------------------------------------------------------------------- convolutions, places


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 6, 12])
def test_a_stack_of_convolutions_reaches_as_far_as_it_is_deep(layers: int, place: int) -> None:
    """With kernels of 3, L layers see 2 L + 1 words (two layers 5, where the text counts 6), attention sees all."""
    src = torch.randint(4, V - 1, (1, 13))
    other = src.clone()
    other[0, place] = V - 1

    def moved(states: Callable[[Tensor], Tensor]) -> list[bool]:
        return ((states(other) - states(src)).abs().amax(-1)[0] > 1e-12).tolist()

    convolutions = build_model(
        ConvolutionalConfig(d_model=10, encoder_layers=layers, decoder_layers=1, kernel=3, dropout=0.0), V, V
    ).double()
    assert isinstance(convolutions, Convolutional)
    seen = moved(lambda ids: convolutions.encoder(ids, None))
    assert seen == [abs(i - place) <= layers for i in range(13)]
    attention = build_model(
        TransformerConfig(d_model=D, d_ff=8, n_heads=H, encoder_layers=1, decoder_layers=1, dropout=0.0), V, V
    ).double()
    assert isinstance(attention, Model)
    assert all(moved(lambda ids: attention.encode(ids, None).states))


def test_learned_positions_of_the_example_are_393216_numbers() -> None:
    """A table of 512 x 768 parameters; a text trains the rows of its positions only."""
    sizes: dict[str, Any] = {"d_model": 768, "d_ff": 8, "n_heads": 12, "n_layers": 1, "dropout": 0.0}
    learned = build_model(EncoderOnlyConfig(position=LearnedPosition(max_len=512), **sizes), V, V)
    without = build_model(EncoderOnlyConfig(position=NoPosition(), **sizes), V, V)
    assert learned.parameter_count() - without.parameter_count() == 512 * 768 == 393_216
    table = dict(learned.named_parameters())["encoder.positions.table"]
    for words in (T, 512):
        text = torch.randint(4, V, (1, words))
        hidden = learned.hidden(text, None, text)
        (gradient,) = torch.autograd.grad(hidden, table, random(*hidden.shape).float())
        assert gradient[:words].ne(0).all(), "every number of a place that is used"
        assert not gradient[words:].any()
    with pytest.raises(UsageError, match=r"513 tokens exceed the learned positions \(max_len = 512"):
        learned.hidden(torch.full((1, 513), 5), None, torch.full((1, 513), 5))


def test_the_gradient_of_an_rnn_vanishes_over_long_distances() -> None:
    cell, x = VanillaRNN(D, D, activation="tanh").double(), random(1, 101, D).requires_grad_()
    cell.weights[1].data = torch.linalg.qr(random(D, D))[0]  # preserves lengths: the best case
    (gradient,) = torch.autograd.grad(cell(x)[0][:, -1].sum(), x)
    assert gradient[0, -1].norm() > 0.1 and 0 < gradient[0, 0].norm() < 1e-8


def test_layer_norm_drops_mean_and_scale_and_lets_a_feature_shift() -> None:
    x, norm, batch = random(1, 200, D), LayerNorm(D).double(), BatchNorm(D).double()
    torch.testing.assert_close(norm(10 * x + 100), norm(x), rtol=0, atol=1e-3)
    shifted = x + 3 * torch.eye(D, dtype=torch.float64)[0]
    assert norm(shifted)[..., 0].mean() - norm(x)[..., 0].mean() > 1
    torch.testing.assert_close(batch(shifted), batch(x), **EXACT)


@pytest.mark.parametrize(("m", "n"), [(0, 0), (5, 2), (2, 5), (103, 100)])
def test_rotary_is_the_real_part_of_a_complex_product(m: int, n: int) -> None:
    """Re[(x W_q e^(i m t)) (y W_k e^(i n t))*] = Re[x W_q (y W_k)* e^(i (m - n) t)]: only the distance remains."""
    w_q, w_k, x, y = random(2, 2), random(2, 2), random(2), random(2)
    q, k, rotary = (w_q @ x)[None, None, None], (w_k @ y)[None, None, None], Rotary(2, 10000.0)
    turned_q, _ = rotary.rotate(q, k, torch.tensor([m]))
    _, turned_k = rotary.rotate(q, k, torch.tensor([n]))
    one, other = complex(*q.flatten().tolist()), complex(*k.flatten().tolist())
    turn = cmath.exp(1j * (m - n))  # the single pair of a head of 2 rotates by 1 per position
    assert float((turned_q * turned_k).sum()) == pytest.approx((one * other.conjugate() * turn).real, abs=1e-10)
    both = (one * cmath.exp(1j * m)) * (other * cmath.exp(1j * n)).conjugate()
    assert both == pytest.approx(one * other.conjugate() * turn, abs=1e-10)


# ------------------------------------------------------------------------------------------------ parameters, meanings


def matrices(model: nn.Module, within: str, only: str = "") -> int:
    """Number of matrix elements in a part of the model, without biases and norms."""
    names = model.get_submodule(within).named_parameters()
    return sum(p.numel() for name, p in names if p.dim() == 2 and only in name)


def test_how_much_of_a_model_is_feed_forward() -> None:
    """The text states two thirds; this holds for an encoder layer with F = 4 D.

    Of a decoder layer it is a half, of the paper's base model with its embeddings two fifths.
    """
    with torch.device("meta"):
        base = build_model(TransformerConfig.model_validate(PRESETS["base"]), 37_000, 37_000)
    for layer, attentions in (("encoder.layers.0", 1), ("decoder.layers.5", 2)):
        ffn, whole = matrices(base, layer, "ffn."), matrices(base, layer)
        assert ffn == 8 * 512**2 and whole == ffn + attentions * 4 * 512**2
        assert ffn / whole == pytest.approx({1: 2 / 3, 2: 1 / 2}[attentions], abs=1e-12)
    ffn = matrices(base, "encoder", ".ffn.") + matrices(base, "decoder", ".ffn.")
    assert ffn / base.parameter_count() == pytest.approx(0.4, abs=0.002)


def test_a_sum_of_word_vectors_is_near_its_summands() -> None:
    """A text heard that Mussolini - pizza + sausage is near Hitler: so is it with random vectors for the two foods."""
    words, matrix = ["a", "pizza", "sausage", "like a", *map(str, range(2000))], random(2004, 100)
    matrix[3] = matrix[0] + 0.75 * matrix[3]
    best, second = WordVectors(words, matrix).analogy("pizza", "a", "sausage", 2)
    assert best.word == "like a" and best.value > second.value


def test_one_word_with_two_meanings_has_one_embedding_and_two_outputs() -> None:
    """好 in 你好 and in 叶公好龙.  Without positions, the vectors differ because of the context, in any order."""
    ni, hao, ye, gong, long = range(4, 9)
    config = TransformerConfig(
        d_model=D, d_ff=20, n_heads=H, encoder_layers=1, decoder_layers=1, dropout=0.0, position=NoPosition()
    )
    model = build_model(config, V, V).double()
    assert isinstance(model, Model)

    def vectors(*words: int) -> tuple[Tensor, Tensor]:
        src = torch.tensor([words])
        place = words.index(hao)
        return model.get_submodule("encoder.embedding")(src)[0, place], model.encode(src, None).states[0, place]

    (embedded, greeting), (again, fondness) = vectors(ni, hao), vectors(ye, gong, hao, long)
    assert torch.equal(embedded, again)
    assert (greeting - fondness).abs().max() > 0.1
    torch.testing.assert_close(vectors(hao, ni)[1], greeting, **EXACT)


def test_a_later_word_changes_an_earlier_one_by_attention_only() -> None:
    """The state of a recurrent network depends on what it has read; the output of an encoder on the whole sentence."""
    config = TransformerConfig(d_model=D, d_ff=20, n_heads=H, encoder_layers=1, decoder_layers=1, dropout=0.0)
    model = build_model(config, V, V).double()
    assert isinstance(model, Model)
    sentence, other = torch.tensor([[4, 5, 6, 7], [4, 5, 6, 8]])[:, None]
    attended = [model.encode(words, None).states for words in (sentence, other)]
    assert (attended[0] - attended[1])[0, :3].abs().amax(-1).min() > 1e-3

    embedding = random(V, D)
    cell = VanillaRNN(D, D, activation="tanh").double()
    states = [cell(embedding[words])[0] for words in (sentence, other)]
    assert torch.equal(states[0][:, :3], states[1][:, :3]) and not torch.equal(states[0], states[1])
