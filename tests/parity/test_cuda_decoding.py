"""A step of slots by Triton kernels, interpreted on a CPU, changes the memory as the step in PyTorch does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from dragoman.decoding.cuda_graphs.slots import (
    DONE,
    LIMIT,
    MIN_LENGTH,
    NBEST,
    NOT_A_NUMBER,
    POSITION,
    PlainOperations,
    SlotState,
    SlotStep,
)
from dragoman.models.transformer import Transformer
from dragoman.nn.fast.cuda.decoding import TritonOperations
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built, ending

VOCAB = 17
KINDS = ["paper", "modern", "multi-query", "narrow values", "t5 family", "learned", "normalized embeddings", "alibi"]


def prepared(model: Transformer, beams: int, steps: int) -> tuple[SlotState, SlotStep]:
    """Slots 0, 3 and 1 after different numbers of steps, with different limits, and one that stands for none."""
    state = SlotState(model, 4, beams, 8, 8)
    step = SlotStep(model, state, PlainOperations)
    sources = torch.tensor([[5, 6, 7, EOS], [9, EOS, 0, 0], [8, 8, EOS, 0]])
    slots = torch.tensor([0, 3, 1])
    lengths = torch.tensor([4, 2, 3])
    with torch.no_grad():
        step.encode(sources, lengths, slots)
    state.info[:, slots] = torch.stack(
        [lengths * 0, torch.tensor([8, steps + 1, 7]), torch.tensor([0, 0, 6]), torch.full((3,), min(beams, 2)),
         lengths * 0, lengths]
    ).int()  # fmt: skip
    state.alpha[slots] = torch.tensor([0.6, 1.0, 0.0]).double()
    state.forced[1, 1] = 6
    for count in range(steps):
        listed = [0, 3, 1, 4] if count else [0, 3, 4, 4]  # slot 1 joins one step later
        state.active.copy_(torch.tensor(listed))
        step(4)
    state.active.copy_(torch.tensor([0, 3, 1, 4]))
    return state, step


def assert_equal_slots(found: SlotState, wanted: SlotState) -> None:
    """Everything that a later step or the host reads of the slots in use."""
    at = wanted.info[POSITION]
    for slot in (0, 1, 3):
        assert found.info[:, slot].tolist() == wanted.info[:, slot].tolist()
        end, k = int(at[slot]), wanted.beams
        live = wanted.sums[slot] > float("-inf")
        torch.testing.assert_close(found.sums[slot], wanted.sums[slot])
        torch.testing.assert_close(found.totals[slot][live], wanted.totals[slot][live], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.pool_scores[slot], wanted.pool_scores[slot], atol=1e-5, rtol=1e-5)
        kept = wanted.pool_scores[slot] > float("-inf")
        assert found.pool_at[slot][kept].tolist() == wanted.pool_at[slot][kept].tolist()
        assert found.inputs[slot][live].tolist() == wanted.inputs[slot][live].tolist()
        rows = [state.origins[end % 2, slot, :, :end][live].tolist() for state in (found, wanted)]
        assert k == 1 or rows[0] == rows[1]
        for layer in range(len(wanted.keys)):
            for name in ("keys", "values"):
                mine, other = (getattr(state, name)[layer].unflatten(0, (-1, k))[slot] for state in (found, wanted))
                torch.testing.assert_close(mine[:, :end], other[:, :end], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "beams", "steps", "few"),
    [
        *((kind, 3, 3, 12) for kind in KINDS),
        ("paper", 3, 2, 0),
        ("ending", 4, 2, 0),
        ("paper", 1, 3, 8),
        ("paper", 4, 0, 8),
    ],
)
def test_a_step_by_kernels_equals_the_step_in_pytorch(
    kind: str, beams: int, steps: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """few: rows up to which norms and layers are computed together."""
    monkeypatch.setattr("dragoman.nn.fast.cuda.decoding._FEW", few)
    model = ending(VOCAB, seed=5) if kind == "ending" else built(TRANSLATORS[kind], VOCAB).float()
    assert isinstance(model, Transformer)
    wanted, plain = prepared(model, beams, steps)
    found = copy.deepcopy(wanted)
    found.log_probs = found.history.view(torch.float32)[:, 1]
    before = wanted.info[POSITION].clone()

    plain(4)
    SlotStep(model, found, TritonOperations(PlainOperations))(4)

    assert wanted.info[POSITION].tolist() == [at + (slot != 2) * (slot < 4) for slot, at in enumerate(before.tolist())]
    assert_equal_slots(found, wanted)
    for slot in (0, 1, 3):
        place = int(before[slot])
        real = wanted.log_probs[slot, :, place] > float("-inf")
        for part in (0, 2):
            ours, theirs = (state.history[slot, part, :, place][real].tolist() for state in (found, wanted))
            assert ours == theirs


def test_the_parts_of_a_large_vocabulary_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.nn.fast.cuda.decoding._CHUNK", 16)
    model = built(TRANSLATORS["paper"], 50).float()
    assert isinstance(model, Transformer)
    wanted, plain = prepared(model, 3, 2)
    found = copy.deepcopy(wanted)
    found.log_probs = found.history.view(torch.float32)[:, 1]
    plain(4)
    SlotStep(model, found, TritonOperations(PlainOperations))(4)
    assert_equal_slots(found, wanted)


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
def test_nan_ends_only_its_slot() -> None:
    model = built(TRANSLATORS["paper"], VOCAB).float()
    assert isinstance(model, Transformer)
    state, _ = prepared(model, 2, 2)
    logits = torch.randn(8, VOCAB)
    logits[0, 5] = float("nan")  # of one token, and so the softmax of all
    other: Any = copy.deepcopy(state)
    other.log_probs = other.history.view(torch.float32)[:, 1]
    PlainOperations.choose(logits, state, state.active)
    TritonOperations(PlainOperations).choose(logits, other, other.active)
    assert state.info[DONE].tolist() == other.info[DONE].tolist() and state.info[DONE, 0] == NOT_A_NUMBER
    assert {LIMIT, MIN_LENGTH, NBEST} == {1, 2, 3} and NOT_A_NUMBER not in state.info[DONE, 1:].tolist()
