"""The charts of a comparison: curves of every metric, scores with intervals, BLEU by source length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dragoman.evaluation.compare.runs import Curve, Group, RunComparison
from dragoman.evaluation.compare.scores import EvalSet
from dragoman.pages.charts import WIDTH, Line, draw_curves, draw_intervals, readout, time_unit

MOST_POINTS = 200
_LOSSES = ("valid_loss", "loss", "perplexity", "bits_per_character")
_TITLES = {"loss": "training loss", "valid_loss": "validation loss", "bleu": "BLEU", "chrf": "chrF", "f1": "F1"}
_CHINESE = {
    "training loss": "训练损失", "validation loss": "验证损失", "perplexity": "困惑度",
    "bits per character": "每字符比特数", "exact match": "完全匹配率",
    "accuracy": "准确率", "precision": "精确率", "recall": "召回率",
}  # fmt: skip


def panels(comparison: RunComparison, charts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels of curves, each metric over steps and over time; `charts` receives the values to show."""
    keys = dict.fromkeys(key for run in comparison.runs for key in run.curves)
    losses = [key for key in _LOSSES if key in keys]
    scores = [key for key in keys if key not in _LOSSES]
    close = {"close": _pair("close-up", "局部放大")}
    log, linear, full = (
        _pair("log scale", "对数刻度"),
        _pair("linear scale", "线性刻度"),
        _pair("full range", "完整范围"),
    )
    for title, metrics, views in (
        (_pair("Loss", "损失"), losses, {"log": log, "linear": linear, **close}),
        (_pair("Scores", "得分"), scores, {"linear": full, **close}),
    ):
        if metrics:
            drawn = [chart for key in metrics for chart in _metric_charts(key, list(views), comparison, charts)]
            for chart in drawn:
                chart["hidden"] = (chart["metric"], chart["view"]) != (metrics[0], next(iter(views)))
            yield {"title": title, "metrics": {key: _title(key) for key in metrics}, "views": views, "charts": drawn}


def _pair(english: str, chinese: str) -> dict[str, str]:
    return {"en": english, "zh": chinese}


def _title(metric: str) -> dict[str, str]:
    english = _TITLES.get(metric, metric.replace("_", " "))
    return _pair(english, _CHINESE.get(english, english))


def _metric_charts(
    metric: str, views: Sequence[str], comparison: RunComparison, charts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    longest = max((point[1] for run in comparison.runs for point in run.curves.get(metric, ())), default=0.0)
    for axis, (unit, size) in (("steps", ("steps", 1)), ("time", time_unit(longest))):
        lines = [
            line
            for i, group in enumerate(comparison.groups)
            if (line := _line(i, group, metric, axis == "steps", size))
        ]
        name = f"{metric}-{axis}"
        charts[name] = readout(lines, unit)
        for view in views:
            svg = draw_curves(f"{name}-{view}", lines, unit, log=view == "log", close=view == "close")
            over, title = "步数" if axis == "steps" else "时间", _title(metric)
            titles = _pair(f"{title['en']} over {axis}", f"{title['zh']}（横轴：{over}）")
            yield {"title": titles, "metric": metric, "view": view, "values": name, "svg": svg}


def _line(index: int, group: Group, metric: str, steps: bool, unit: int) -> Line | None:
    """Return the curve of a group: that of its only run, or the mean over its seeds in the range that all cover."""
    curves = [
        [(step if steps else seconds / unit, value) for step, seconds, value in _thinned(run.curves[metric])]
        for run in group.runs
        if metric in run.curves
    ]
    if len(curves) < 2:
        return Line(group.name, curves[0], index) if curves else None
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    xs = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    if not xs:
        return Line(group.name, curves[0], index, curves[1:])
    means = np.mean([np.interp(xs, [x for x, _ in curve], [y for _, y in curve]) for curve in curves], axis=0)
    return Line(group.name, list(zip(xs, means.tolist(), strict=True)), index, curves)


def values_of_test(comparison: RunComparison, test: EvalSet, charts: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of the test set; `charts` receives the values of the chart by length."""
    scores, lines = [], []
    for key, title in (("bleu", "BLEU"), ("chrf", "chrF")):
        numbers = [(i, g.name, g.numbers) for i, g in enumerate(comparison.groups) if f"test.{key}" in g.numbers]
        rows = [(name, i, n[f"test.{key}"].mean, n[f"test.{key}_half"].mean) for i, name, n in numbers]
        scores.append((title, draw_intervals(f"test-{key}", rows, f"{title}: the first table has the numbers")))
    buckets = comparison.groups[0].by_length
    for i, group in enumerate(comparison.groups):
        points = [(float(x), bucket.bleu.score) for x, bucket in enumerate(group.by_length)]
        lines.append(Line(group.name, points, i, errors=[bucket.bleu.half for bucket in group.by_length]))
    ticks, unit = [bucket.title for bucket in buckets], f"{test.unit} in the source"
    charts["lengths"] = readout(lines, unit, ticks, 2 * WIDTH)
    lengths = draw_curves("lengths", lines, unit, ticks=ticks, width=2 * WIDTH)
    return {"unit": test.unit, "buckets": buckets, "scores": scores, "lengths": lengths}


def _thinned(curve: Curve) -> Curve:
    """Return at most MOST_POINTS points, each the mean of as many neighbours: less noise and a smaller page."""
    size = -(-len(curve) // MOST_POINTS)
    if size <= 1:
        return curve
    return tuple(tuple(np.mean(curve[i : i + size], axis=0).tolist()) for i in range(0, len(curve), size))
