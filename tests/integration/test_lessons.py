"""The lessons print what they say: each block of Python, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_examples import workshop

from small_run import Cli

LESSONS = sorted((Path(__file__).parents[2] / "docs" / "learn").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", flags=re.M | re.S)

__all__ = ["workshop"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_its_output(
    lesson: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = lesson.read_text(encoding="utf-8")
    if "runs/en-de" in "".join(code for code, _ in BLOCK.findall(text)):
        assert Cli(monkeypatch, capsysbinary)("train", "en-de.toml", "--out", "runs/en-de")[0] == 0
    names: dict[str, object] = {}
    capsysbinary.readouterr()
    for code, expected in BLOCK.findall(text):
        exec(code, names)
        printed = capsysbinary.readouterr().out.decode()
        assert printed == expected, code


def test_there_are_lessons() -> None:
    assert len(LESSONS) > 3
