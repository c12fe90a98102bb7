"""Rows of digits to be copied, reversed or sorted: what a small model learns from, and how well it has learned."""

from __future__ import annotations

import random
from collections.abc import Callable

from dragoman.config import AdamConfig, BudgetSchedule, ModelConfig
from dragoman.data.batching import collate, collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.optim import build_optimizer, learning_rate

FIRST_DIGIT = EOS + 1
VOCABULARY = FIRST_DIGIT + 10
SHORTEST, LONGEST = 3, 8
BATCH, UNSEEN = 64, 300

Task = Callable[[list[int]], list[int]]
TASKS: dict[str, Task] = {"copy": lambda digits: digits, "reverse": lambda digits: digits[::-1], "sort": sorted}


def sequences(rng: random.Random, count: int) -> list[list[int]]:
    return [
        [rng.randrange(FIRST_DIGIT, VOCABULARY) for _ in range(rng.randint(SHORTEST, LONGEST))] for _ in range(count)
    ]


def learn(model: Model, task: Task, steps: int, unseen: list[list[int]], peak: float, warmup: int) -> None:
    """`steps` updates; a batch is new random sequences, never an unseen one."""
    rng, held_out = random.Random(1), {tuple(digits) for digits in unseen}
    schedule = BudgetSchedule.model_validate({"peak": peak, "warmup": warmup})
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


def accuracy(model: Model, task: Task, unseen: list[list[int]]) -> float:
    """The part of the sequences whose greedy translation is right to the last digit."""
    model.eval()
    src, src_mask = collate_source([[*digits, EOS] for digits in unseen])
    found = generate(ModelStepper(model), src, src_mask, SearchSettings(beam=1, max_extra=5))
    right = sum(best.tokens == task(digits) for digits, (best,) in zip(unseen, found, strict=True))
    return right / len(unseen)


def trained(config: ModelConfig, name: str, steps: int, peak: float, warmup: int) -> float:
    """The accuracy on unseen sequences after `steps` updates; a fresh model gets next to none right."""
    unseen = sequences(random.Random(2), UNSEEN)
    model = build_model(config, VOCABULARY, VOCABULARY)
    assert isinstance(model, Model)
    assert accuracy(model, TASKS[name], unseen) < 0.05
    learn(model, TASKS[name], steps, unseen, peak, warmup)
    return accuracy(model, TASKS[name], unseen)
