"""Recurrent models learn to copy and reverse: 99 % of unseen sequences right in a stated number of steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.config import AdamConfig, BudgetSchedule, GRUConfig, LSTMConfig, ModelConfig
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

TASKS: dict[str, Callable[[list[int]], list[int]]] = {"copy": lambda digits: digits, "reverse": lambda d: d[::-1]}
SIZES: dict[str, Any] = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
BAHDANAU = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "bahdanau"}})
LUONG = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "luong", "score": "general"}})
GRU = GRUConfig.model_validate(SIZES | {"attention": {"kind": "bahdanau"}})
NO_ATTENTION = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "none"}})


def sequences(rng: random.Random, count: int) -> list[list[int]]:
    return [
        [rng.randrange(FIRST_DIGIT, VOCABULARY) for _ in range(rng.randint(SHORTEST, LONGEST))] for _ in range(count)
    ]


def learn(model: Model, task: Callable[[list[int]], list[int]], steps: int, unseen: list[list[int]]) -> None:
    """`steps` updates; a batch is new random sequences, never an unseen one."""
    rng, held_out = random.Random(1), {tuple(digits) for digits in unseen}
    schedule = BudgetSchedule.model_validate({"peak": 5e-3, "warmup": 50})
    optimizer = build_optimizer(AdamConfig.model_validate({}), model)
    model.train()
    for step in range(1, steps + 1):
        drawn = [digits for digits in sequences(rng, BATCH) if tuple(digits) not in held_out]
        batch = collate([([*digits, EOS], [*task(digits), EOS]) for digits in drawn])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, 64, step, step / steps)
        loss: Loss = model(batch.src, batch.src_mask, batch.tgt_in, TokenLoss(batch.tgt_out, 0.0))
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()


def accuracy(model: Model, task: Callable[[list[int]], list[int]], unseen: list[list[int]]) -> float:
    """The part of the sequences whose greedy translation is right to the last digit."""
    model.eval()
    src, src_mask = collate_source([[*digits, EOS] for digits in unseen])
    found = generate(ModelStepper(model), src, src_mask, SearchSettings(beam=1, max_extra=5))
    right = sum(best.tokens == task(digits) for digits, (best,) in zip(unseen, found, strict=True))
    return right / len(unseen)


def trained(config: ModelConfig, name: str, steps: int) -> float:
    unseen = sequences(random.Random(2), UNSEEN)
    model = build_model(config, VOCABULARY, VOCABULARY)
    assert isinstance(model, Model)
    assert accuracy(model, TASKS[name], unseen) < 0.05
    learn(model, TASKS[name], steps, unseen)
    return accuracy(model, TASKS[name], unseen)


@pytest.mark.parametrize(
    ("name", "config", "steps"),
    [
        pytest.param("reverse", BAHDANAU, 400, id="reverse, lstm + bahdanau"),
        pytest.param("copy", LUONG, 500, id="copy, lstm + luong", marks=pytest.mark.slow),
        pytest.param("copy", GRU, 400, id="copy, gru + bahdanau", marks=pytest.mark.slow),
        pytest.param("reverse", LUONG, 500, id="reverse, lstm + luong", marks=pytest.mark.slow),
    ],
)
def test_a_recurrent_model_with_attention_learns(name: str, config: ModelConfig, steps: int) -> None:
    assert trained(config, name, steps) >= 0.99


def test_the_last_hidden_state_alone_is_a_bottleneck() -> None:
    """Without attention the same steps are not enough: all digits must pass one vector."""
    assert trained(NO_ATTENTION, "reverse", 400) < 0.9
