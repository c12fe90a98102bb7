"""Every recipe is a whole configuration whose model can be built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dragoman.config import dump_toml, load_config
from dragoman.models.build import build_model

ROOT = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(ROOT.rglob("*.toml"))


def test_there_are_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_recipe(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    (tmp_path / "again.toml").write_text(dump_toml(config), encoding="utf-8")
    assert load_config(tmp_path / "again.toml") == config
    vocabulary = config.tokenizer.vocab_size
    with torch.device("meta"):
        model = build_model(config.model, vocabulary, vocabulary, shared=config.tokenizer.shared)
    assert model.parameter_count() > vocabulary * config.model.d_model
    assert path.read_text(encoding="utf-8").startswith("#"), "a recipe begins with what it is"
