"""`dragoman gallery` and `dragoman walkthrough`: pages of numbers that can be calculated by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.interpret.walkthrough.tiny_preset import TINY_MATRICES, tiny_walkthrough
from small_run import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(monkeypatch, capsysbinary)


def shown(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script[^>]*id="gallery"[^>]*>(.*?)</script>', text, flags=re.S)
    found: dict[str, Any] = json.loads(data)
    return found


def test_the_gallery_has_the_worked_examples(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("gallery", "--out", "numbers.html", "--lang", "zh")
    assert code == 0 and "page: numbers.html" in err
    assert len(shown(tmp_path / "numbers.html")["chapters"]) >= 4


@pytest.mark.parametrize("nested", [False, True])
def test_the_walkthrough_has_the_given_matrices(cli: Cli, tmp_path: Path, nested: bool) -> None:
    name = "encoder.layers.0.self_attn.q"
    assert name in TINY_MATRICES
    query = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 2, 0], [0, 1, 0, 2]]
    text = f"[encoder.layers.0.self_attn]\nq = {query}\n" if nested else f'"{name}" = {query}\n'
    (tmp_path / "mine.toml").write_text(text)
    code, out, err = cli("walkthrough", "mine.toml", "--heads", 2, "--learning-rate", 0.1)
    assert code == 0, err
    expected = tiny_walkthrough({name: query}, heads=2, learning_rate=0.1)
    assert out.decode() == f"loss {expected['loss']:.6g} -> {expected['loss_after']:.6g} after one update\n"
    data = shown(tmp_path / "walkthrough.html")
    assert data["chapters"] == [] and data["walkthrough"]["loss"] == pytest.approx(expected["loss"])
    assert expected["loss"] != tiny_walkthrough()["loss"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q = [1", "mine.toml is not TOML"),
        ("encoder.embeding = [1]\noutput = [[1]]", "did you mean"),
        ("output = [[1]]", "output has shape (1, 1); accepted: (4, 8)"),
    ],
)
def test_invalid_matrices_are_refused(cli: Cli, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    code, _, err = cli("walkthrough", "mine.toml")
    assert code in (1, 2) and message in err and not (tmp_path / "walkthrough.html").exists()
    code, _, err = cli("walkthrough", "missing.toml")
    assert code in (1, 2) and "missing.toml cannot be read: No such file or directory" in err
