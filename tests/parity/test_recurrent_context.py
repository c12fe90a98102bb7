"""The context vector at every step: against the direct formula and torch.nn, by the kernel and by steps, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.nn.recurrent import ContextLayer, State
from recurrent_cells import CELLS, EXACT, assert_all_close, gradients, new_cell, random, torch_module

B, K, S, T, D = 4, 3, 7, 5, 6


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


def context_layer(kind: str, kernel: bool) -> tuple[ContextLayer, Tensor, Tensor, State]:
    """A layer that uses the kernel or the steps, inputs of K rows per sentence, c (B, D), and first states."""
    layer = ContextLayer(new_cell(kind, 2 * D, D))
    layer.cell.loops_on_cpu = not kernel
    first = tuple(random(B * K, D).requires_grad_() for _ in range(layer.cell.parts))
    return layer, random(B * K, T, D).requires_grad_(), random(B, D).requires_grad_(), first


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_every_step_reads_the_context_vector_by_the_direct_formula(kind: str, kernel: bool) -> None:
    layer, x, context, first = context_layer(kind, kernel)
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


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_every_step_is_torchs_layer_over_token_and_context(kind: str, kernel: bool) -> None:
    layer, x, context, first = context_layer(kind, kernel)
    theirs = torch_module(kind, 2 * D, D)
    theirs.load_state_dict(layer.cell.fused.state_dict())
    out = layer(x, layer.start(random(B, S, D), context, first), None)
    inputs = torch.cat([x, context.repeat_interleave(K, 0)[:, None].repeat(1, T, 1)], dim=-1)
    state = tuple(part[None] for part in first)
    expected = theirs(inputs, state if kind == "lstm" else state[0])[0]
    torch.testing.assert_close(out, expected, **EXACT)
    mine = gradients(out, x, context, *first, *layer.cell.weights)
    assert_all_close(mine, gradients(expected, x, context, *first, *theirs.all_weights[0]))
