"""A tiny Transformer learns to copy, reverse and sort: 99 % of unseen sequences right in a stated number of steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dragoman.config import AdamConfig, BudgetSchedule, TransformerConfig
from dragoman.data.batching import collate, collate_source
from dragoman.data.tokenizer import EOS
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.search import ModelStepper, SearchSettings, generate
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.optim import build_optimizer, learning_rate

FIRST_DIGIT = EOS + 1
VOCABULARY = FIRST_DIGIT + 10
SHORTEST, LONGEST = 3, 8
BATCH, UNSEEN = 64, 300

TASKS: dict[str, Callable[[list[int]], list[int]]] = {
    "copy": lambda digits: digits,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
}
SIZES = {"d_model": 64, "d_ff": 128, "n_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
PAPER = TransformerConfig.model_validate(SIZES)
MODERN = TransformerConfig.model_validate(
    SIZES
    | {
        "order": "pre",
        "norm": {"kind": "rms"},
        "position": {"kind": "rotary"},
        "activation": "silu",
        "gated": True,
        "bias": False,
    }
)


def sequences(rng: random.Random, count: int) -> list[list[int]]:
    return [
        [rng.randrange(FIRST_DIGIT, VOCABULARY) for _ in range(rng.randint(SHORTEST, LONGEST))] for _ in range(count)
    ]


def learn(model: Model, task: Callable[[list[int]], list[int]], steps: int, unseen: list[list[int]]) -> None:
    """`steps` updates with the paper's optimizer; a batch is new random sequences, never an unseen one."""
    rng, held_out = random.Random(1), {tuple(digits) for digits in unseen}
    schedule = BudgetSchedule.model_validate({"peak": 2e-3, "warmup": 100})
    optimizer = build_optimizer(AdamConfig.model_validate({}), model)
    model.train()
    for step in range(1, steps + 1):
        drawn = [digits for digits in sequences(rng, BATCH) if tuple(digits) not in held_out]
        batch = collate([([*digits, EOS], [*task(digits), EOS]) for digits in drawn])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, 64, step, step / steps)
        loss: Loss = model(batch.src, batch.src_mask, batch.tgt_in, TokenLoss(batch.tgt_out, 0.0))
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def accuracy(model: Model, task: Callable[[list[int]], list[int]], unseen: list[list[int]]) -> float:
    """The part of the sequences whose greedy translation is right to the last digit."""
    model.eval()
    src, src_mask = collate_source([[*digits, EOS] for digits in unseen])
    found = generate(ModelStepper(model), src, src_mask, SearchSettings(beam=1, max_extra=5))
    right = sum(best.tokens == task(digits) for digits, (best,) in zip(unseen, found, strict=True))
    return right / len(unseen)


@pytest.mark.parametrize(
    ("name", "config", "steps"),
    [
        pytest.param("copy", PAPER, 400, id="copy"),
        pytest.param("reverse", PAPER, 500, id="reverse"),
        pytest.param("sort", PAPER, 400, id="sort"),
        pytest.param("reverse", MODERN, 500, id="reverse, pre-norm rotary gated", marks=pytest.mark.slow),
    ],
)
def test_a_tiny_transformer_learns(name: str, config: TransformerConfig, steps: int) -> None:
    unseen = sequences(random.Random(2), UNSEEN)
    model = build_model(config, VOCABULARY, VOCABULARY)
    assert accuracy(model, TASKS[name], unseen) < 0.05
    learn(model, TASKS[name], steps, unseen)
    assert accuracy(model, TASKS[name], unseen) >= 0.99
