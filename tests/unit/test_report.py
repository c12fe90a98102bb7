"""The report's file: one page, nothing from outside, safe whatever the texts hold, whole or not there."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import DragomanError
from dragoman.pages.page import packed
from dragoman.pages.report import AttentionPicture, DemoReport, Sample, write_report

HOSTILE = '</script><script>alert("x")</script><!-- & {{ data }} {% endblock %} \u2028 ]]>'


def small_report(**changes: Any) -> DemoReport:
    """Layers 2, heads 3, target pieces 4, source pieces 5."""
    weights = [torch.full((3, 4, 5), 0.2)] * 2
    report = DemoReport(
        target="German",
        target_code="de",
        word_order="The unit precedes the ten.",
        title="Zahlen & Wörter",
        config={"model": {"kind": "transformer", "d_model": 64}, "train": {"seed": 7, "folder": Path("runs/demo")}},
        parameters=123_457,
        seconds=61.7,
        device="cpu",
        history=[
            {"step": 10, "loss": 5.25, "learning_rate": 0.001, "tokens_per_second": 900.5, "seconds": 1.5},
            {"step": 20, "loss": 2.125, "learning_rate": 0.002, "tokens_per_second": 910.0, "seconds": 3.0},
            {"step": 20, "seconds": 3.5, "exact_match": 0.125, "valid_loss": 1.75, "bleu": 30.5},
        ],
        exact_match=0.875,
        test_items=8,
        samples=[
            Sample("one", "eins", "eins", True, -0.01),
            Sample("twenty-four", "vierundzwanzig", "vierunddreißig", False, -0.9),
        ],
        attention=AttentionPicture(["▁", "t", "w", "o", "</s>"], ["▁z", "w", "ei", "</s>"], weights),
    )
    return dataclasses.replace(report, **changes)


class _Scripts(html.parser.HTMLParser):
    """Collects each script's text by its type, as a browser would cut it out."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._open:
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)


def scripts_of(page: str) -> list[tuple[str | None, str]]:
    parser = _Scripts()
    parser.feed(page)
    return parser.scripts


def data_of(page: str) -> dict[str, Any]:
    found = [text for kind, text in scripts_of(page) if kind == "application/json"]
    assert len(found) == 1
    data: dict[str, Any] = json.loads(found[0])
    return data


def test_the_page_holds_the_whole_report(tmp_path: Path) -> None:
    report = small_report()
    path = write_report(tmp_path / "new" / "report.html", report)
    assert path == tmp_path / "new" / "report.html"
    page = path.read_bytes().decode("utf-8")
    expected = dataclasses.asdict(report)
    expected["config"]["train"]["folder"] = str(Path("runs/demo"))
    expected["attention"]["weights"] = [packed(weights) for weights in report.attention.weights]
    data = data_of(page)
    charts = data.pop("charts")
    assert data == expected
    scores = [
        {"name": {"en": "exact match, %", "zh": "完全匹配率（%）"}, "group": 0, "points": [[20, 12.5]]},
        {"name": {"en": "BLEU", "zh": "BLEU"}, "group": 1, "points": [[20, 30.5]]},
    ]
    assert charts["exact_match-step"]["lines"] == scores and charts["loss-seconds"]["unit"] == {
        "en": "seconds",
        "zh": "秒",
    }
    assert "<title>Zahlen &amp; Wörter</title>" in page
    assert "{{" not in page and "{%" not in page


def test_the_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    page = write_report(tmp_path / "report.html", small_report()).read_text("utf-8")
    assert "default-src 'none'" in page
    loads = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#]*)|url\(([^)#]*)\)|@import|fetch\(|XMLHttpRequest""", page)
    assert set(loads) == {("data:,", ""), ("", "")}  # the empty icon, and links inside the page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}


def test_no_text_can_end_its_script_or_become_structure(tmp_path: Path) -> None:
    report = small_report(title=HOSTILE, device=HOSTILE, samples=[Sample(HOSTILE, HOSTILE, HOSTILE, True, 0.0)])
    page = write_report(tmp_path / "report.html", report).read_text("utf-8")
    assert [kind for kind, _ in scripts_of(page)] == ["application/json", None]
    assert data_of(page)["title"] == HOSTILE
    assert data_of(page)["samples"][0]["source"] == HOSTILE
    assert page.count("<script") == 2
    assert 'alert("x")' not in page
    assert "innerHTML" not in page


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": float("-inf")}, {"step": 3, "loss": 1 / 3}]
    page = write_report(tmp_path / "report.html", small_report(history=history)).read_text("utf-8")
    assert [row["loss"] for row in data_of(page)["history"]] == [None, None, 0.333333]


def test_a_write_that_fails_leaves_the_old_page_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dragoman.io.writing.os.fsync", full)
    with pytest.raises(DragomanError, match=r"report\.html could not be written: the disk is full\. Free some space"):
        write_report(path, small_report())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
