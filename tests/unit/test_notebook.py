"""Results in a notebook: escaped, and equal to the plain values."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from dragoman.evaluation.compare.page import cell_text, columns, differences
from dragoman.evaluation.compare.runs import compare_runs
from dragoman.interpret.notebook import MOST_ROWS, matrix
from dragoman.nn.record import record
from dragoman.pipelines.lines import Alternative, Results, Translation
from fabricated_run import three_runs
from tiny_translator import tiny_translator


def html(value: object) -> str:
    """The HTML of a result: its elements are closed, it names no script and no colour of text."""
    shown: str = value._repr_html_()
    stack: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag != "rect":  # <rect/>
                assert stack.pop() == tag

    Elements().feed(re.sub(r"<rect [^>]*/>", "", shown))
    assert not stack and "<script" not in shown and ";color:" not in shown
    return shown


def cells(shown: str) -> list[str]:
    return [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", shown)]


def test_translations_and_their_tokens() -> None:
    translator = tiny_translator()
    found = translator.translate(["one two", "<b>&"], beam=3, nbest=2)
    assert isinstance(found, list)
    for t, row in zip(found, re.findall(r"<tr>(?!<th).*?</tr>", html(found)), strict=True):
        assert cells(row) == [t.source, t.text, f"{t.score:.4g}", ", ".join(t.flags), " ".join(t.tokens)]
        assert f'title="{t.score!r}"' in row
        probabilities = [float(p) for p in re.findall(r'title="p = (.*?)"', row)]
        assert probabilities == pytest.approx(torch.tensor(t.token_log_probs).exp().tolist(), rel=1e-3)
        colors = [float(a) for a in re.findall(r"rgba\(217,130,43,(.*?)\)", row)]
        assert colors == pytest.approx([0.55 * (1 - p) for p in probabilities], abs=1e-3)
    best = [cell for n in found[0].nbest for cell in (n.text, f"{n.score:.4g}", f"{n.log_prob:.4g}")]
    assert cells(html(found[0]))[-6:] == best
    evil = Translation("<script>", "x", 0.0, 0.0, ["</td>"], [0.0], (), [Alternative("x", 0.0, 0.0)])
    assert cells(html(evil)) == ["<script>", "x", "0", "", "</td>"]
    assert f"({7:,} more rows)" in html(Results([evil] * (MOST_ROWS + 7)))
    (score,) = translator.score(["one"], ["un"])
    assert cells(html(score)) == [f"{score.log_prob:.4g}", " ".join(score.tokens)]


def test_alignments_and_recordings() -> None:
    translator = tiny_translator()
    (one,) = found = translator.align(["one two"], ["un deux"])
    rows = [[name, *(f"{x:.2f}" for x in row)] for name, row in zip(one.target, one.weights.tolist(), strict=True)]
    assert cells(html(found)) == cells(html(one)) == [cell for row in rows for cell in row]
    colors = re.findall(r"rgba\((\S+?),([\d.]+)\)", matrix(["a"], ["b", "c"], [[2.0, -1.0]]))
    assert colors == [("63,127,224", "0.550"), ("217,130,43", "0.275")]
    with record(translator.model, "*.cross_attn.weights", "encoder.embedded") as recording:
        translator.align(["one two"], ["un deux"])
    shown = html(recording)
    for name, (x,) in recording.items():
        row = re.search(rf"<tr><td[^>]*>{re.escape(name)}<.*?</tr>", shown)
        assert row is not None
        numbers = [f"{float(v):.4g}" for v in (x.min(), x.double().mean(), x.max())]
        assert cells(row[0])[1] == "1" and cells(row[0])[3:6] == numbers
        drawn = [float(a) for a in re.findall(r'fill="rgba\(63,127,224,(.*?)\)"', row[0])]
        assert drawn == pytest.approx(x[0].flatten().tolist() if "weights" in name else [], abs=6e-4)


def test_comparisons(tmp_path: Path) -> None:
    comparison = compare_runs([three_runs(tmp_path)])
    shown = html(comparison)
    for group in comparison.groups:
        texts = [" ".join(cell_text(group, column)).strip() for column in columns(comparison)]
        row = [group.name, ", ".join(differences(group, comparison)), *texts]
        assert "\n".join(row) in "\n".join(cells(shown))
