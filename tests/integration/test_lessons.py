"""The lessons print what they say: each block of Python, in the order of the page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from test_examples import ATTRIBUTION
from test_examples import workshop as workshop

from small_run import Cli

LEARN = Path(__file__).parents[2] / "docs" / "learn"
PAGES = sorted(LEARN.glob("*.md"))
BESIDE = ["class", "concepts", "errata", "numbers"]
"""Pages that are no lessons, in the order of the site."""
LESSONS = [path for path in PAGES if path.stem not in ("README", *BESIDE)]
notebook = runpy.run_path(str(LEARN.parents[1] / "scripts" / "notebooks"))["notebook"]
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", flags=re.M | re.S)


@pytest.mark.parametrize("lesson", [*PAGES, ATTRIBUTION], ids=lambda path: path.stem)
def test_a_lesson_prints_its_output(
    lesson: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = lesson.read_text(encoding="utf-8")
    if "runs/en-de" in "".join(code for code, _ in BLOCK.findall(text)):
        assert Cli(monkeypatch, capsysbinary)("train", "en-de.toml", "--out", "runs/en-de")[0] == 0
    names: dict[str, object] = {}
    capsysbinary.readouterr()
    cells = [cell for cell in notebook(lesson)["cells"] if cell["cell_type"] == "code"]
    assert [cell["source"] + "\n" for cell in cells] == [code for code, _ in BLOCK.findall(text)]
    for cell in cells:
        exec(cell["source"], names)
        assert capsysbinary.readouterr().out.decode() == "".join(output["text"] for output in cell["outputs"]), cell


def test_lessons_are_one_book() -> None:
    """The index lists every lesson, each links to its neighbors in this order, and the site has the same order."""
    index = (LEARN / "README.md").read_text(encoding="utf-8")
    order = re.findall(r"^\d\. \[.+?\]\((\w+)\.md\)", index, flags=re.M)
    assert sorted(order) == sorted(path.stem for path in LESSONS)
    toctree = (LEARN.parent / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^(?:\d\. .+ <)?learn/(\w+)>?$", toctree, flags=re.M) == ["README", *order, *BESIDE]
    assert re.findall(r"^- \[.+?\]\((\w+)\.md\)", index, flags=re.M) == BESIDE
    for i, stem in enumerate(order):
        text = (LEARN / f"{stem}.md").read_text(encoding="utf-8")
        (links,) = re.findall(r"^\[All lessons\]\(README\.md\) · (.+)$", text, flags=re.M)
        before, following = (re.search(rf"{word}: \[[^]]+\]\((\S+)\)", links) for word in ("before", "next"))
        assert (before and before[1]) == (f"{order[i - 1]}.md" if i else None), stem
        if i + 1 < len(order):
            assert following and following[1] == f"{order[i + 1]}.md", stem


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_parts(lesson: Path) -> None:
    """A question, formulas, code with output, the cost, the limits, and experiments, in this order."""
    text = lesson.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", text, flags=re.M)
    assert heads[-3:] == ["What it costs", "Where it fails", "Try it"]
    introduction = text.partition("\n[All lessons]")[0]
    assert "?" in introduction
    assert text.count("\n$$\n") >= 2 and sum(bool(expected) for _, expected in BLOCK.findall(text)) >= 2


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_exercises_have_folded_answers(lesson: Path) -> None:
    """At least four, from "By hand" to "Build it", each with its answer; what is built has at most 40 lines."""
    exercises = lesson.read_text(encoding="utf-8").partition("## Try it\n\n")[2]
    kinds, numbers = [], []
    for exercise in re.split(r"\n\n(?=\d\. )", exercises.rstrip("\n")):
        parts = re.fullmatch(
            r"(\d)\. \*\*([\w ]+)\.\*\* [^\n]+\n\n<details>\n<summary>Answer (\d)</summary>\n\n.+\n\n</details>",
            exercise,
            flags=re.S,
        )
        assert parts is not None and parts[1] == parts[3], exercise
        assert exercise.count("<details>") == exercise.count("</details>") == 1
        numbers.append(int(parts[1]))
        kinds.append(parts[2])
    assert numbers == list(range(1, len(kinds) + 1)) and len(kinds) >= 4
    assert kinds[0] == "By hand" and kinds[-1] == "Build it"
    built, printed = BLOCK.findall(exercise)[-1]
    assert printed and len(re.findall(r"^.*\S", built, flags=re.M)) <= 40
