"""Recurrent networks against torch.nn, attention and context vectors against formulas, in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.flop_counter import FlopCounterMode

from dragoman.config import BahdanauAttention, GRUConfig, LSTMConfig, LuongAttention, NoAttention, RNNConfig
from dragoman.data.batching import Batch
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.nn.attention import mask_to_bias
from dragoman.nn.recurrent import LSTM, Cell, ContextLayer, RecurrentEncoderLayer, RecurrentState, State, reversal
from dragoman.nn.recurrent_attention import (
    AdditiveAttention,
    BahdanauLayer,
    DotAttention,
    GeneralAttention,
    LuongLayer,
    RecurrentAttention,
)
from dragoman.tokenizers import BOS
from dragoman.training.loss import Loss, TokenLoss
from every_kind import random_batch
from small_networks import CELLS, EXACT, assert_all_close, drawn, fresh_cell, gradients, new_cell, random, torch_module

N, T, D_IN, D = 4, 5, 3, 6
B, K, S, V = 4, 3, 7, 19
ATTENTIONS: dict[str, NoAttention | BahdanauAttention | LuongAttention] = {
    "none": NoAttention(), "every step": NoAttention(context="every_step"), "bahdanau": BahdanauAttention(),
    "dot": LuongAttention(score="dot"), "general": LuongAttention(score="general"),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("way", ["forward", "unroll"])
@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_equals_that_of_torch(kind: str, way: str) -> None:
    ours, theirs = new_cell(kind, D_IN, D), torch_module(kind, D_IN, D)
    theirs.load_state_dict(ours.fused.state_dict())
    x, state = random(N, T, D_IN).requires_grad_(), tuple(random(N, D).requires_grad_() for _ in range(ours.parts))
    out, last = getattr(ours, way)(x, state)
    first = tuple(part[None] for part in state)
    expected, final = theirs(x, first if kind == "lstm" else first[0])
    final = final if kind == "lstm" else (final,)
    torch.testing.assert_close(out, expected, **EXACT)
    assert_all_close([part[None] for part in last], final)
    mine = gradients(torch.cat([out.flatten(), *(p.flatten() for p in last)]), x, *state, *ours.weights)
    their = gradients(torch.cat([expected.flatten(), *(p.flatten() for p in final)]), x, *state, *theirs.all_weights[0])
    assert_all_close(mine, their)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_the_kernel_of_float32_is_the_formula_too(kind: str, grad: bool) -> None:
    cell = new_cell(kind, 24, 32).float()
    x, state = torch.randn(N, T, 24), tuple(torch.randn(N, 32) for _ in range(cell.parts))
    cell.train(grad)
    with torch.set_grad_enabled(grad):
        fused, steps = cell(x, state), cell.unroll(x, state)
    for one, other in zip((fused[0], *fused[1]), (steps[0], *steps[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    if grad:
        for one, other in zip(gradients(fused[0], *cell.weights), gradients(steps[0], *cell.weights), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", ["forward", "unroll"])
@pytest.mark.parametrize("kind", CELLS)
def test_a_learned_initial_state_equals_the_first_state_of_torch(kind: str, way: str) -> None:
    """Its gradient is the sum over the rows, each of which starts from it."""
    ours, theirs = new_cell(kind, D_IN, D, "learned"), torch_module(kind, D_IN, D)
    theirs.load_state_dict(ours.fused.state_dict())
    learned, x = [ours.initial[name] for name in ("h", "c")[: ours.parts]], random(N, T, D_IN).requires_grad_()
    assert [part.shape for part in learned] == [(D,)] * ours.parts
    out, last = ours(x) if way == "forward" else ours.unroll(x, ours.initial_state(x))
    rows = tuple(torch.stack([part.detach()] * N)[None].requires_grad_() for part in learned)
    expected, final = theirs(x, rows if kind == "lstm" else rows[0])
    final = final if kind == "lstm" else (final,)
    torch.testing.assert_close(out, expected, **EXACT)
    assert_all_close([part[None] for part in last], final)
    mine = gradients(torch.cat([out.flatten(), *(p.flatten() for p in last)]), x, *learned)
    their = gradients(torch.cat([expected.flatten(), *(p.flatten() for p in final)]), x, *rows)
    assert_all_close(mine, [their[0], *(g[0].sum(0) for g in their[1:])])


@pytest.mark.parametrize("kind", CELLS)
def test_a_learned_initial_state_starts_as_zeros(kind: str) -> None:
    learned, zeros = (fresh_cell(kind, D_IN, D, initial_state) for initial_state in ("learned", "zeros"))
    for cell in (learned, zeros):
        cell.reset(torch.Generator().manual_seed(3))
    x = torch.randn(N, T, D_IN)
    assert torch.equal(learned(x)[0], zeros(x)[0])
    added = [f"initial.{name}" for name in ("h", "c")[: learned.parts]]
    assert sorted(learned.state_dict()) == sorted([*zeros.state_dict(), *added])
    # A state that is passed replaces the learned one.
    given = tuple(torch.randn(N, D) for _ in range(learned.parts))
    nn.init.normal_(learned.initial["h"])
    assert torch.equal(learned(x, given)[0], zeros(x, given)[0]) and not torch.equal(learned(x)[0], zeros(x)[0])


def test_cells_are_initialized_orthogonal_and_the_forget_bias_is_one() -> None:
    one, other = LSTM(D_IN, D), LSTM(D_IN, D)
    for cell in (one, other):
        cell.reset(torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))
    _, u, b, d = one.weights
    for gate in u.detach().split(D):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D), rtol=0, atol=1e-5)
    assert b.tolist() == [0.0] * D + [1.0] * D + [0.0] * 2 * D and not d.any()


# -------------------------------------------------------------------------------------------------------- directions


def test_reversal_keeps_padding_in_place() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    order = reversal(mask, mask)
    assert order.tolist() == [2, 1, 0, 3, 4, 5, 7, 6, 8]
    assert torch.equal(order[order], torch.arange(9))
    assert reversal(None, torch.zeros(2, 3)).tolist() == [2, 1, 0, 5, 4, 3]


@pytest.mark.parametrize("kind", CELLS)
def test_two_directions_of_padded_sentences_equal_those_of_torch(kind: str) -> None:
    layer = RecurrentEncoderLayer(new_cell(kind, D_IN, D), new_cell(kind, D_IN, D))
    assert layer.back is not None
    theirs = torch_module(kind, D_IN, D, bidirectional=True)
    back = {f"{name}_reverse": weight for name, weight in layer.back.fused.state_dict().items()}
    theirs.load_state_dict(layer.ahead.fused.state_dict() | back)
    lengths = [2, 5, 1, 4]
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    x = random(N, T, D_IN).requires_grad_()
    packed = theirs(pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False))[0]
    expected = pad_packed_sequence(packed, batch_first=True)[0][mask]
    out = layer(x, reversal(mask, x))[mask]
    torch.testing.assert_close(out, expected, **EXACT)
    ours = (x, *layer.ahead.weights, *layer.back.weights)
    assert_all_close(gradients(out, *ours), gradients(expected, x, *theirs.all_weights[0], *theirs.all_weights[1]))


# --------------------------------------------------------------------------------------------------------- attention

WORDS = [7, 2, 5, 4]
MASK = torch.arange(S) < torch.tensor(WORDS)[:, None]  # (B, S)
SCORES = ["additive", "dot", "general"]


def new_attention(kind: str) -> RecurrentAttention:
    made: RecurrentAttention = {
        "additive": lambda: AdditiveAttention(D), "dot": DotAttention, "general": lambda: GeneralAttention(D)
    }[kind]()  # fmt: skip
    return drawn(made, 0.7)


def score_by_hand(attention: RecurrentAttention, s: Tensor, h: Tensor) -> Tensor:
    """The score of one hidden state and one source position."""
    if isinstance(attention, AdditiveAttention):
        w, u, b, v = attention.w.weight, attention.u.weight, attention.u.bias, attention.v.weight[0]
        inner = [sum(w[i, j] * s[j] + u[i, j] * h[j] for j in range(D)) + b[i] for i in range(D)]
        return sum((v[i] * torch.tanh(inner[i]) for i in range(D)), start=torch.zeros(()).double())
    if isinstance(attention, GeneralAttention):
        return sum((s[i] * attention.w.weight[i] @ h for i in range(D)), start=torch.zeros(()).double())
    return sum((s[i] * h[i] for i in range(D)), start=torch.zeros(()).double())


def attend_by_hand(attention: RecurrentAttention, s: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """s (D,), words (S', D) without padding -> context (D,), weights (S',)."""
    powers = torch.stack([torch.exp(score_by_hand(attention, s, h)) for h in words])
    weights = powers / powers.sum()
    return sum((a * h for a, h in zip(weights, words, strict=True)), start=torch.zeros(D).double()), weights


@pytest.mark.parametrize("beams", [1, K])
@pytest.mark.parametrize("kind", SCORES)
def test_attention_is_the_direct_formula(kind: str, beams: int) -> None:
    attention, states = new_attention(kind), random(B, S, D)
    memory, s = attention.project(states), random(B * beams, D)
    assert memory.keys.shape == memory.values.shape == (B, 1, S, D)
    contexts, weights = attention.attend(s, memory, mask_to_bias(MASK[:, None, None], torch.float64))
    assert weights.shape == (B, 1, beams, S) and not weights.masked_select(~MASK[:, None, None]).any()
    for row in range(B * beams):
        sentence = row // beams
        context, expected = attend_by_hand(attention, s[row], states[sentence, : WORDS[sentence]])
        torch.testing.assert_close(contexts[row], context, **EXACT)
        torch.testing.assert_close(weights[sentence, 0, row % beams, : WORDS[sentence]], expected, **EXACT)


def step_by_hand(kind: str, cell: Cell, x: Tensor, state: State) -> State:
    """One step of PyTorch's cell for one row."""
    rows = tuple(part[None] for part in state)
    if kind == "lstm":
        return tuple(part[0] for part in torch.lstm_cell(x[None], rows, *cell.weights))
    step = {"gru": torch.gru_cell, "tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[kind]
    return (step(x[None], rows[0], *cell.weights)[0],)


def layer_by_hand(kind: str, layer: BahdanauLayer | LuongLayer, x: Tensor, words: Tensor, state: State) -> list[Tensor]:
    """x (T, D), words (S', D), state (D,) -> T outputs (D,), by the papers' formulas."""
    outputs, attentional = [], torch.zeros(D).double()
    for y in x:
        if isinstance(layer, BahdanauLayer):
            context, _ = attend_by_hand(layer.cross_attn, state[0], words)
            state = step_by_hand(kind, layer.cell, torch.cat([y, context]), state)
            outputs.append(torch.tanh(layer.out.weight @ torch.cat([state[0], context, y]) + layer.out.bias))
        else:
            state = step_by_hand(kind, layer.cell, torch.cat([y, attentional]), state)
            context, _ = attend_by_hand(layer.cross_attn, state[0], words)
            attentional = torch.tanh(layer.out.weight @ torch.cat([context, state[0]]))
            outputs.append(attentional)
    return outputs


@pytest.mark.parametrize(
    ("kind", "score"), [("gru", "additive"), ("lstm", "additive"), ("tanh", "dot"), ("lstm", "general")]
)
def test_an_attending_layer_is_the_papers_equations(kind: str, score: str) -> None:
    attention, cell = new_attention(score), new_cell(kind, 2 * D, D)
    layer = (BahdanauLayer if score == "additive" else LuongLayer)(cell, attention, D).double()
    x, states, first = random(B * K, T, D), random(B, S, D), tuple(random(B * K, D) for _ in range(cell.parts))
    state = layer.start(states, states[:, -1], first)
    got = layer(x, state, mask_to_bias(MASK[:, None, None], torch.float64))
    for row in (0, 1, 5, B * K - 1):
        words = states[row // K, : WORDS[row // K]]
        want = layer_by_hand(kind, layer, x[row], words, tuple(part[row] for part in first))
        torch.testing.assert_close(got[row], torch.stack(want), **EXACT)


# ------------------------------------------------------------------------------------------------------------ models


def new_model(cell: str, attention: str, directions: int, vocab: int = V, layers: int = 2, std: float = 0.3) -> Model:
    kind = {"gru": GRUConfig, "lstm": LSTMConfig}.get(cell, RNNConfig)
    config = kind.model_validate(
        {"d_model": 12, "encoder_layers": layers, "decoder_layers": layers, "directions": directions, "dropout": 0.0}
        | {"attention": ATTENTIONS[attention], "tie": "none"}
        | ({"activation": cell} if kind is RNNConfig else {})
    )
    model = build_model(config, vocab, vocab)
    assert isinstance(model, Model)
    return drawn(model, std)


def batch() -> Batch:
    return random_batch([(S, 4), (3, T), (5, 6), (2, 3)], V)


@pytest.mark.parametrize("kind", CELLS)
def test_a_step_with_context_costs_a_step_without(kind: str) -> None:
    """c W^c is computed when decoding starts, once per sentence; the state holds it for B sentences, not for rows."""
    data, costs, starts = batch(), {}, {}
    for attention in ("none", "every step"):
        model = new_model(kind, attention, 2)
        with torch.no_grad():
            memory = model.encode(data.src, data.src_mask)
            with FlopCounterMode(display=False) as start:
                state = model.start(memory, beams=K, max_len=5)
            with FlopCounterMode(display=False) as step:
                for _ in range(5):
                    model.decode(torch.full((B * K, 1), BOS), state)
        costs[attention], starts[attention] = step.get_total_flops(), start.get_total_flops()
    assert costs["every step"] == costs["none"] > 0
    gates = {"gru": 3, "lstm": 4}.get(kind, 1)
    assert starts["every step"] - starts["none"] == 2 * B * 12 * gates * 12
    first = state.layers[0]
    assert isinstance(first, RecurrentState) and first.context is not None
    assert first.context.vector.shape == (B, 12) and first.context.product.shape == (B, gates * 12)


@pytest.mark.parametrize("attention", ["none", "every step", "bahdanau", "dot"])
@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_is_near_float32(cell: str, attention: str) -> None:
    model, data = new_model(cell, attention, 2).float(), batch()
    exact = model(data.src, data.src_mask, data.tgt_in)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss: Loss = model(data.src, data.src_mask, data.tgt_in, TokenLoss(data.tgt_out, 0.0))
        logits = model(data.src, data.src_mask, data.tgt_in)
    loss.smoothed.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    half = model.bfloat16()(data.src, data.src_mask, data.tgt_in)
    assert half.dtype == torch.bfloat16
    for near in (logits, half):
        torch.testing.assert_close(near.float(), exact, rtol=0.1, atol=0.1)


def test_an_lstm_runs_in_bfloat16_where_the_processor_has_no_kernel_for_it() -> None:
    """Restrict oneDNN to AVX2, in a new process because oneDNN reads the setting once."""
    code = """
import torch
from dragoman.nn.recurrent import LSTM
cell, x = LSTM(8, 12), torch.randn(2, 5, 8, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out, (h, c) = cell(x)
out.float().sum().backward()
torch.testing.assert_close(out.float(), cell(x)[0], rtol=0.05, atol=0.05)
assert x.grad.isfinite().all() and h.shape == c.shape == (2, 12)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------- context vector


def context_step(kind: str, blocks: dict[str, Tensor], y: Tensor, c: Tensor, state: State) -> State:
    """One row of s_t = f(y W^y + c W^c + b + s W^s + d), gate by gate, from separate (transposed) matrices."""
    h = state[0]
    source = [w_y @ y + w_c @ c + b for w_y, w_c, b in zip(*(blocks[k].split(D) for k in ("y", "c", "b")), strict=True)]
    own = [w_s @ h + d for w_s, d in zip(blocks["s"].split(D), blocks["d"].split(D), strict=True)]
    if kind == "gru":
        r, z = (torch.sigmoid(source[gate] + own[gate]) for gate in (0, 1))
        return ((1 - z) * torch.tanh(source[2] + r * own[2]) + z * h,)
    if kind == "lstm":
        i, f, g, o = (one + other for one, other in zip(source, own, strict=True))
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell
    return ({"tanh": torch.tanh, "relu": torch.relu}[kind](source[0] + own[0]),)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_every_step_reads_the_context_vector_by_the_direct_formula(kind: str, kernel: bool) -> None:
    """A layer that uses the kernel or the steps, for K rows per sentence and one context vector c (B, D) for all."""
    layer = ContextLayer(new_cell(kind, 2 * D, D))
    layer.cell.loops_on_cpu = not kernel
    first = tuple(random(B * K, D).requires_grad_() for _ in range(layer.cell.parts))
    x, context = random(B * K, T, D).requires_grad_(), random(B, D).requires_grad_()
    w, u, b, d = layer.cell.weights
    blocks = {"y": w[:, :D], "c": layer.w_context, "s": u, "b": b, "d": d}
    assert torch.equal(layer.w_context, w[:, D:])
    state = layer.start(random(B, S, D), context, first)
    together = layer(x, state, None)
    apart = layer.start(random(B, S, D), context, first)  # the first two positions, then one after the other
    parts = torch.cat([layer(part, apart, None) for part in x.split([2] + [1] * (T - 2), dim=1)], dim=1)
    for row in range(B * K):
        parts_by_hand = tuple(part[row] for part in first)
        for t in range(T):
            parts_by_hand = context_step(kind, blocks, x[row, t], context[row // K], parts_by_hand)
            for got in (together, parts):
                torch.testing.assert_close(got[row, t], parts_by_hand[0], **EXACT)
        for after in (state, apart):
            assert_all_close([part[row] for part in after.parts], parts_by_hand)
