"""P4: a model folder once written loads for ever and answers what it answered; one golden model a format version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.model_folder import FORMAT_VERSION, verify
from dragoman.translate import Translator

HERE = Path(__file__).parents[1] / "golden"
VERSIONS = range(1, FORMAT_VERSION + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_model(version: int) -> None:
    folder = HERE / f"model_v{version}"
    assert verify(folder)["format_version"] == version
    expected = json.loads((HERE / f"expected_v{version}.json").read_bytes())
    translator = Translator.load(folder, engine="plain")
    rows = expected["translations"]
    found = translator.translate([row["source"] for row in rows], beam=3)
    assert any(row["text"] for row in rows)
    for row, translation in zip(rows, found, strict=True):
        assert (translation.text, translation.tokens) == (row["text"], row["tokens"])
        assert translation.score == pytest.approx(row["score"], abs=1e-4)
    scores = translator.score(["one two", "nine"], ["deux un", "neuf"])
    assert [s.log_prob for s in scores] == pytest.approx(expected["scores"], abs=1e-4)


def test_golden_models_are_small() -> None:
    for version in VERSIONS:
        assert sum(p.stat().st_size for p in (HERE / f"model_v{version}").iterdir()) < 60_000
