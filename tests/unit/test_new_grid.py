"""The guide shows the recorded measurements of sizes and budgets, and its rules are those of the code."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dragoman.advice import choice

ROOT = Path(__file__).parents[2]


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("new_grid")


def test_the_guide_shows_the_recorded_results(grid: ModuleType) -> None:
    text = grid.GUIDE.read_text(encoding="utf-8")
    assert grid.updated(text) == text, "run python bench/new_grid.py update"
    assert text.count("| tatoeba_en_fr | 6 |") >= 2 and "| 128 × 2 | 1 |" in text


def test_the_guide_states_the_rules_of_the_code(grid: ModuleType) -> None:
    text = grid.GUIDE.read_text(encoding="utf-8")
    *smaller, largest = (f"{size.d_model} × {size.layers}" for size in choice.SIZES)
    assert f"{', '.join(smaller)} and {largest}" in text
    assert f"sees {choice.TOKENS_PER_WEIGHT:g} training tokens per weight" in text
    assert f"√(tokens per pair / {choice.SHORT_PAIR}) if the pairs have more than {choice.SHORT_PAIR} tokens" in text
    assert f"at most {choice.PARAMETERS_PER_TOKEN:g} parameters per token" in text


def row(size: str, bleu: float, minutes: float = 6.0, **changes: Any) -> dict[str, Any]:
    d_model, _, layers = size.partition("x")
    return {
        "corpus": "multi30k", "minutes": minutes, "size": size, "overrides": [], "seed": 1, "d_model": int(d_model),
        "layers": int(layers), "budget": "2000000 tokens", "batch_tokens": 1536, "steps": 1300,
        "valid": {"valid_loss": 2.5}, "test": {"bleu": bleu, "chrf": 50.0},
    } | changes  # fmt: skip


def test_the_best_size_of_a_budget_stands_first_and_the_last_result_of_a_cell_counts(grid: ModuleType) -> None:
    rows = [row("128x2", 1.0), row("192x4", 20.0), row("128x2", 24.04), row("128x4", 30.0, minutes=20.0)]
    assert grid.table(rows).splitlines()[2:] == [
        "| multi30k | 6 | 128 × 2 | – | 2.0 M | 1,536 | 1,300 | 2.500 | 24.0 | 50.0 |",
        "| multi30k | 6 | 192 × 4 | – | 2.0 M | 1,536 | 1,300 | 2.500 | 20.0 | 50.0 |",
        "| multi30k | 20 | 128 × 4 | – | 2.0 M | 1,536 | 1,300 | 2.500 | 30.0 | 50.0 |",
    ]


def test_recorded_cells_are_not_trained_again(
    grid: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Any, ...]] = []
    monkeypatch.setattr(grid, "train_one", lambda args, *cell: trained.append(cell))
    (tmp_path / "grid.jsonl").write_text(json.dumps(row("128x2", 24.0)) + "\n")
    args = SimpleNamespace(corpora=["multi30k"], minutes=[6.0, 20.0], sizes=["128x2", "new"], seeds=[1], set=[], jobs=1,
                           into=tmp_path / "grid.jsonl", runs=tmp_path)  # fmt: skip

    grid.train_all(args)
    assert trained == [("multi30k", 6.0, "new", 1), ("multi30k", 20.0, "128x2", 1), ("multi30k", 20.0, "new", 1)]

    trained.clear()
    grid.train_all(SimpleNamespace(**{**vars(args), "minutes": [6.0], "set": ["train.batch_tokens=1024"]}))
    assert [cell[2] for cell in trained] == ["128x2", "new"]
