"""The tables of the documents show the recorded results, and their recipes have not changed since."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs" / "results").glob("*.jsonl"))


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("recipes")


def test_documents_show_the_recorded_results(recipes: ModuleType) -> None:
    paths = recipes.documents()
    assert len(paths) > 9
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert recipes.updated(text) == text, f"{path.relative_to(ROOT)}: run python bench/recipes.py update"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_recipes_have_not_changed_since(path: Path, recipes: ModuleType) -> None:
    assert recipes.table(path)[1] == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_file_of_results_is_shown(path: Path, recipes: ModuleType) -> None:
    marker = f"results: {path.relative_to(ROOT).as_posix()} -->"
    assert any(marker in document.read_text(encoding="utf-8") for document in recipes.documents())


def test_seeds_are_averaged_and_the_last_result_of_a_run_counts(tmp_path: Path, recipes: ModuleType) -> None:
    row = {
        "recipe": "recipes/digits.toml", "overrides": [], "seed": 1, "config": "-", "parameters": 1000, "threads": 1,
        "budget": "2 epochs", "minutes": 9, "cpu_minutes": 2, "processor": "P", "torch": "2",
    }  # fmt: skip
    scores = [(1, {"valid_loss": 9.0}), (1, {"valid_loss": 0.5, "accuracy": 90}), (2, {"valid_loss": 0.7})]
    lines = [json.dumps(row | {"seed": seed, "valid": valid}) for seed, valid in scores]
    lines[-1] = lines[-1].replace('"cpu_minutes": 2', '"cpu_minutes": null')  # a run that was resumed
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    text, stale = recipes.table(tmp_path / "results.jsonl")
    assert text.splitlines()[2:] == [
        "| `digits` | 2 | 1,000 | 2.0 (1 of 2) | 0.600 ± 0.141 | 90.0 (1 of 2) |",
        "",
        "Processor: P; threads per run: 1; PyTorch 2; budget: 2 epochs; seeds: 1, 2. The time of resumed "
        "runs is not known.",
    ]
    assert stale == ["recipes/digits.toml"]


def test_overrides_that_all_runs_share_are_stated_once(tmp_path: Path, recipes: ModuleType) -> None:
    row = {
        "recipe": "recipes/digits.toml", "seed": 1, "config": "-", "parameters": 1000, "threads": 1,
        "budget": "5 steps", "minutes": 9, "cpu_minutes": 2, "processor": "P", "torch": "2",
        "valid": {"valid_loss": 1.0},
    }  # fmt: skip
    lines = [json.dumps(row | {"overrides": ["train.budget=5 steps", f"train.ema={x}"]}) for x in (0.5, 0.9)]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    text = recipes.table(tmp_path / "results.jsonl")[0].splitlines()
    assert [line.split(" | ")[0] for line in text[2:4]] == ["| `digits` ema=0.5", "| `digits` ema=0.9"]
    assert text[-1].endswith(" All with `train.budget=5 steps`.")
