"""The report in a real browser: everything is drawn and no part reports a problem."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dragoman.pages.report import AttentionPicture, DemoReport, Sample, write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine to open the page with")

REPORT = DemoReport(
    target="German",
    target_code="de",
    word_order="The unit precedes the ten.",
    title="A <small> run",
    config={"model": {"kind": "transformer"}},
    parameters=2_500_000,
    seconds=200.0,
    device="cpu",
    history=[
        {
            "step": s,
            "loss": 6 / s,
            "learning_rate": 1e-4,
            "tokens_per_second": 9e3,
            "seconds": s / 2,
            "exact_match": 0.5,
        }
        for s in range(1, 12)
    ],
    exact_match=0.75,
    test_items=40,
    samples=[
        Sample("two", "zwei", "zwei", True, -0.1),
        Sample("thirty-one", "einunddreißig", "einundvierzig", False, -2.5),
        Sample("<b>", "<i>", "<i>", True, -0.2),
    ],
    attention=AttentionPicture(
        ["▁two", "</s>"], ["▁z", "wei", "</s>"], [torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]] * 4)] * 5
    ),
)


def drawn(path: Path, folder: Path) -> str:
    """The page's elements after its scripts have run, without the scripts."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
        f"--user-data-dir={folder}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout.decode("utf-8")
    return re.sub(r"<script.*?</script>|<style.*?</style>|<noscript.*?</noscript>", "", dom, flags=re.DOTALL)


def test_every_part_is_drawn(tmp_path: Path) -> None:
    page = drawn(write_report(tmp_path / "report.html", REPORT), tmp_path / "browser")
    assert 'class="problem"' not in page
    assert "30 of 40 texts" in page.replace("\u00a0", " ")
    assert "75.0" in page
    curves = re.findall(r'<g data-group="(\d)">\s*<path d="M [\d.]+ [\d.]+\s*L', page)
    assert curves == ["0"] * 4 * 2, "four quantities over steps and over time"
    assert page.count('<option value="') == 5 + 4 + 1
    sizes = re.findall(r'<canvas class="cells"[^>]* width="(\d+)" height="(\d+)"', page)
    assert sizes == [("2", "3")], "S columns, T rows"
    assert re.findall(r'class="heat[^>]* aria-valuemax="(\d+)"', page) == ["5"]
    assert page.count('class="link') >= 5
    rows = re.findall(r'<tr class="(\w+)">', page)
    assert rows == ["wrong", "right", "right"]
    assert '<mark class="bad">vierz</mark>' in page
    assert "&lt;b&gt;" in page
    assert "<b></td>" not in page
    assert "NaN" not in page and "undefined" not in page


def test_the_page_names_the_target_language(tmp_path: Path) -> None:
    chinese = dataclasses.replace(REPORT, target="Chinese", target_code="zh", word_order="The year comes first.")
    page = drawn(write_report(tmp_path / "report.html", chinese), tmp_path / "browser")
    assert "German" not in page and 'lang="de"' not in page
    for words in ("Chinese (model)", "numbers and dates in Chinese", "For each Chinese token", "The year comes first."):
        assert words in page
    assert '<td lang="zh">' in page


def test_a_run_without_results_is_reported(tmp_path: Path) -> None:
    empty = dataclasses.replace(
        REPORT, history=[], samples=[], attention=AttentionPicture([], [], []), exact_match=0.0, config={}
    )
    page = drawn(write_report(tmp_path / "report.html", empty), tmp_path / "browser")
    assert 'class="problem"' not in page
    assert page.count("The log contains no such values.") == 8
    assert "No attention was recorded." in page
    assert "No matches." in page
    assert "NaN" not in page
