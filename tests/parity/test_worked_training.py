"""The worked training step as one model: the printed numbers from end to end, and its update by the trainer.

The pieces of this step are in test_gallery_recomputed.py, with the matrices of the source where it gives them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from walkthrough_twin import Twin

from dragoman.errors import TrainingError
from dragoman.interpret.walkthrough.tiny_preset import (
    TINY_PAIR,
    TINY_WORDS,
    WORKED_MATRICES,
    tiny_matrices,
    tiny_model,
    tiny_walkthrough,
)
from dragoman.interpret.walkthrough.tiny_training import tiny_trainer
from dragoman.io.run_log import read_log
from dragoman.models.model_folder import load_network
from dragoman.nn.record import record
from dragoman.tokenizers import BOS
from dragoman.training.loss import TokenLoss

W_V = "decoder.layers.0.cross_attn.kv.weight"
ROW = 4
"""W_V lies below the four rows of W_K."""

PRINTED: dict[str, tuple[list[list[float]], float]] = {
    "encoder.layers.0.self_attn.scores": ([[56.265, 170.005], [140.965, 428.945]], 5e-4),
    "encoder.layers.0.self_attn.weights": ([[0, 1], [0, 1]], 5e-4),
    "encoder.layers.0.around_self_attn.norm.normed": ([[-0.686, -0.343, -0.3232, 2.558]] * 2, 5e-4),
    "encoder.layers.0.ffn.before": ([[-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]] * 2, 5e-4),
    "encoder.layers.0.ffn.hidden": ([[0, 2.315, 0, 2.315, 0, 2.072, 0, 2.072]] * 2, 5e-4),
    "encoder.layers.0.around_ffn.update": ([[0.5, 15.233, 6.716, 6.945]] * 2, 5e-4),
    "encoder.layers.0.stream": ([[-1.3807, 1.6608, -0.231, 0.340]] * 2, 1e-3),  # the source truncated -1.4376
    "encoder.layers.1.self_attn.weights": ([[0.5, 0.5]] * 2, 5e-4),
    "encoder.layers.1.around_self_attn.norm.normed": ([[-1.621, 1.487, -0.426, 0.160]] * 2, 5e-4),
    "encoder.layers.1.stream": ([[-1.028, 1.479, -0.187, -0.263]] * 2, 5e-4),
    "decoder.layers.0.self_attn.scores": ([[6.64, 125.0], [32.49, 128.79]], 5e-3),
    "decoder.layers.0.self_attn.weights": ([[1, 0], [0, 1]], 5e-4),
    # The second number follows from the others: a norm's output has mean 0 and variance 1 before gamma and beta.
    "decoder.layers.0.around_self_attn.norm.normed": (
        [[0.997, -1.107, 1.2964, -0.9632], [0.816, 0, 1.0792, -1.8596]],
        1e-3,
    ),
    "decoder.layers.0.cross_attn.keys": ([[-1.291, 1.479, 1.292, -1.291]] * 2, 5e-4),
    "decoder.layers.0.cross_attn.scores": ([[-0.173, -0.173]] * 2, 5e-4),
    "decoder.layers.0.cross_attn.weights": ([[0.5, 0.5]] * 2, 5e-4),
    "decoder.layers.0.cross_attn.heads": ([[1.292, -1.291, -1.215, 1.216]] * 2, 5e-4),
    "decoder.layers.0.around_cross_attn.norm.normed": (
        [[1.443, -1.377, 0.115, 0.218], [1.741, -0.917, -0.014, -0.411]],
        1e-3,
    ),
}


def worked() -> tuple[Any, Any, Tensor]:
    """The model after a backward pass from the sum of both losses, the recording, and the logits."""
    model = tiny_model(WORKED_MATRICES)
    with record(model, "*", gradients=True) as seen:
        model(*TINY_PAIR[:3], TokenLoss(TINY_PAIR.targets, 0.0)).smoothed.backward()
    with torch.no_grad():
        return model, seen, model(*TINY_PAIR[:3])[0]


@pytest.mark.parametrize("name", PRINTED)
def test_a_forward_pass_has_the_printed_numbers(name: str) -> None:
    _, seen, _ = worked()
    rows, rounding = PRINTED[name]
    torch.testing.assert_close(
        seen[name][0].reshape(len(rows), -1), torch.tensor(rows, dtype=torch.float64), rtol=0, atol=rounding
    )


def test_the_logits_and_the_loss() -> None:
    _, _, logits = worked()
    kept = logits[:, [0, 6, 7]]
    want = torch.tensor([[0.5, 3.5, 1.2], [0.8, 2.1, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(kept, want, rtol=0, atol=5e-4)
    probabilities = logits.softmax(-1)
    assert [round(float(probabilities[t, target]), 2) for t, target in enumerate((6, 7))] == [0.67, 0.7]
    story = tiny_walkthrough(WORKED_MATRICES)
    assert story["loss"] == pytest.approx(0.400 + 0.357, abs=1e-3) and story["loss_after"] < story["loss"]


def test_the_trainer_makes_the_update(tmp_path: Path) -> None:
    """0 - 0.01 * -0.2056 = 0.002056, in float32, by a whole training of one step."""
    trainer = tiny_trainer(tmp_path / "run", WORKED_MATRICES)
    weight = trainer.model.get_parameter(W_V)
    assert weight.dtype == torch.float32 and weight[ROW, 0].item() == 0
    result = trainer.train()
    assert result.progress.step == 1 and weight.grad is not None
    assert f"{weight.grad[ROW, 0]:.4f}" == "-0.2056"
    assert f"{weight[ROW, 0]:.6f}" == "0.002056"
    (row,) = read_log(tmp_path / "run")
    assert row["learning_rate"] == 0.01 and row["loss"] == pytest.approx((0.400 + 0.357) / 2, abs=5e-4)
    saved, tokenizer, _ = load_network(tmp_path / "run")
    assert torch.equal(saved.get_parameter(W_V), weight)
    assert [tokenizer.source_piece(i) for i in range(4, 8)] == [f"▁{word}" for word in TINY_WORDS[4:]]


@pytest.mark.parametrize("matrices", [{}, WORKED_MATRICES], ids=["preset", "worked step"])
def test_the_update_of_every_parameter_is_that_of_the_numpy_twin(matrices: dict[str, Any], tmp_path: Path) -> None:
    """w - 0.01 * mean gradient; the twin's gradients are of the sum."""
    values = {name: matrix.numpy() for name, matrix in tiny_matrices(matrices).items()}
    twin = Twin(values, 1)
    twin.step([4, 5], [BOS, 6], [6, 7])
    updated = {name: (twin.m[name] - 0.01 * twin.of[name] / 2).tolist() for name in values}
    want = dict(tiny_model(updated).named_parameters())
    trainer = tiny_trainer(tmp_path / "run", matrices)
    trainer.model.double().load_state_dict(tiny_model(matrices).state_dict())
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter, want[name], rtol=0, atol=1e-10, msg=name)


def test_more_steps_learn_the_pair_and_resume(tmp_path: Path) -> None:
    settings = ("train.budget=30 steps", "train.optimizer.momentum=0.5")
    tiny_trainer(tmp_path / "run", overrides=["train.budget=10 steps", settings[1]]).train()
    assert tiny_trainer(tmp_path / "run", overrides=settings).train().progress.step == 30
    tiny_trainer(tmp_path / "whole", overrides=settings).train()
    files = [tmp_path / run / "checkpoints" / "00000030" / "model.safetensors" for run in ("run", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(TrainingError, match=r"the training data changed .* started \(hash I am, matrices "):
        tiny_trainer(tmp_path / "run", {"encoder.layers.0.self_attn.q_bias": [1, 0, 0, 0]}, settings)
    with pytest.raises(TrainingError, match="feed-forward networks of width 6, and the matrices have 8; give another"):
        tiny_trainer(tmp_path / "run", WORKED_MATRICES, settings)
    assert tiny_trainer(tmp_path / "new").train().progress.step == 1, "overrides are those of one call"
    losses = [row["loss"] for row in read_log(tmp_path / "run")]
    # The smallest one: at this rate the loss has peaks, and on which steps depends on the rounding of the processor.
    assert len(losses) == 30 and min(losses) < 0.2 * losses[0], json.dumps(losses)
