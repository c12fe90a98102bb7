"""Draw the pictures of the lessons (`docs/learn/*.svg`).

    python docs/_site/lesson_figures.py [--out docs/learn]

Blue is positive, orange negative, white 0.  The same numbers give the same bytes; a test compares the files.  The
Chinese site shows NAME.zh_CN.svg in the place of NAME.svg, as Sphinx does where such a file exists.
"""

from __future__ import annotations

import argparse
import html
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import gelu

from dragoman.nn.attention import causal_bias, mask_to_bias
from dragoman.nn.positions import sinusoids
from dragoman.pages.charts import standalone

FOLDER = Path(__file__).parents[1] / "learn"
LEVELS = 5
"""Opacities of a color; with more, neighboring cells of slow features would not merge and the files would grow."""


def cells(values: Tensor, left: float, top: float, width: float, height: float) -> str:
    """Return the cells of a matrix of numbers in [-1, 1] as one path per color; equal neighbors of a column merge."""
    paths: dict[int, list[str]] = {}
    for column, numbers in enumerate((values * LEVELS).round().int().T.tolist()):
        start = 0
        for row in range(1, len(numbers) + 1):
            if row < len(numbers) and numbers[row] == numbers[start]:
                continue
            if level := numbers[start]:
                x, y = left + column * width, top + start * height
                paths.setdefault(level, []).append(f"M{x:g} {y:g}h{width:g}v{(row - start) * height:g}h-{width:g}z")
            start = row
    return "\n".join(
        f'<path fill="var(--s{0 if level > 0 else 1})" fill-opacity="{abs(level) / LEVELS:g}" d="{"".join(parts)}"/>'
        for level, parts in sorted(paths.items())
    )


def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{html.escape(words)}</text>'


def picture(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    return standalone(svg + "\n" + "\n".join(parts) + "\n</svg>", "text { fill: var(--ink); }")


def positions(count: int = 50, d_model: int = 64) -> str:
    """The sinusoids of the first `count` positions: features 0, 2, ... and features 1, 3, ..."""
    top, width, height = 40, 6.5, 5
    table, pairs = sinusoids(torch.arange(count), d_model), d_model // 2
    bottom, parts = top + count * height, []
    for half, (left, title) in enumerate([(44, "sines, features 0, 2, 4, …"), (276, "cosines, features 1, 3, 5, …")]):
        right = left + pairs * width
        parts += [
            cells(table[:, half::2], left, top, width, height),
            f'<path fill="none" stroke="var(--soft)" d="M{left} {top}H{right:g}V{bottom:g}H{left}z"/>',
            text((left + right) / 2, 14, title),
        ]
        for pair in (0, 8, 16, 24):
            x, wavelength = left + (pair + 0.5) * width, 2 * torch.pi * 10000.0 ** (2 * pair / d_model)
            parts += [text(x, top - 7, f"{2 * pair + half}"), text(x, bottom + 16, f"{wavelength:,.0f}")]
        parts.append(text((left + right) / 2, bottom + 34, "wavelength, in positions"))
    parts += [text(38, top + (row + 0.5) * height + 4, str(row), "end") for row in range(0, count, 10)]
    middle = (top + bottom) / 2
    parts.append(text(12, middle, "position", style=f' transform="rotate(-90 12 {middle:g})"'))
    return picture(492, bottom + 42, f"Sinusoids of positions 0 to {count - 1}", parts)


def masks() -> str:
    """Weights of equal scores under a padding mask and under the causal mask."""
    side, top = 38, 44
    source, target = ["a", "dog", "runs", "<pad>", "<pad>"], ["<s>", "ein", "Hund", "läuft", "."]
    padding = mask_to_bias(torch.tensor([[word != "<pad>" for word in source]] * 5), torch.float64)
    causal = causal_bias(torch.arange(5), torch.arange(5), torch.float64)
    parts = []
    for left, title, words, bias in ((48, "padding mask", source, padding), (294, "causal mask", target, causal)):
        weights = bias.softmax(-1)
        right, bottom = left + 5 * side, top + 5 * side
        parts += [text((left + right) / 2, 14, title), cells(0.6 * weights, left, top, side, side)]
        parts.append(f'<path fill="none" stroke="var(--soft)" d="M{left} {top}H{right}V{bottom}H{left}z"/>')
        for i, (word, row) in enumerate(zip(words, weights.tolist(), strict=True)):
            middle = (i + 0.5) * side
            parts += [text(left + middle, top - 8, word), text(left - 6, top + middle + 4, word, "end")]
            x = [left + (j + 0.5) * side for j in range(5)]
            parts += [text(x[j], top + middle + 4, f"{weight:.2f}") for j, weight in enumerate(row) if weight > 0]
    return picture(492, top + 5 * side + 8, "Attention weights under a padding mask and a causal mask", parts)


def numbers(left: float, top: float, entries: Sequence[str], color: str) -> list[str]:
    """A vector as a row of boxes."""
    parts = []
    for i, entry in enumerate(entries):
        box = f'x="{left + 34 * i:g}" y="{top:g}" width="34" height="26"'
        parts.append(f'<rect {box} fill="var({color})" fill-opacity="0.14" stroke="var({color})"/>')
        parts.append(text(left + 34 * i + 17, top + 17, entry))
    return parts


def lookup() -> str:
    """The first query of the example of `attention.md`, its scores, weights and result."""
    x = torch.tensor([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    q = x @ torch.tensor([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]])
    k = x @ torch.tensor([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]])
    v = x @ torch.tensor([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]])
    scores = q[0] @ k.T
    weights = scores.double().softmax(-1)
    top, row, keys, values = 38, 44, 150, 374
    titles = [(71, "query of word 1"), (keys + 51, "keys"), (278, "scores"), (326, "weights"), (values + 51, "values")]
    parts = [text(x, 20, title) for x, title in titles]
    middle = top + row + 13
    for i, (score, weight) in enumerate(zip(scores.tolist(), weights.tolist(), strict=True)):
        y = top + i * row + 13
        parts += [
            f'<path stroke="var(--soft)" d="M122 {middle}L{keys} {y}"/>',
            f'<path stroke="var(--s2)" stroke-width="{12 * weight:.2f}" d="M348 {y}H{values}"/>',
            text(278, y + 4, str(score)), text(326, y + 4, f"{weight:.3f}"),
            *numbers(keys, y - 13, [str(n) for n in k[i].tolist()], "--s1"),
            *numbers(values, y - 13, [str(n) for n in v[i].tolist()], "--s2"),
        ]  # fmt: skip
    parts += numbers(20, middle - 13, [str(n) for n in q[0].tolist()], "--s0")
    bottom = top + 3 * row + 12
    parts.append(text(values - 12, bottom + 17, "weights × values, added: the result of word 1", "end"))
    parts += numbers(values, bottom, [f"{n:.2f}" for n in (weights @ v.double()).tolist()], "--s2")
    return picture(490, bottom + 34, "A query, three keys, their scores, weights and values, and the result", parts)


def activations() -> str:
    """relu and gelu between -3 and 3."""
    across, up, middle, bottom = 70, 46, 246, 166
    x = torch.linspace(-3, 3, 121, dtype=torch.float64)
    axes = f'<path fill="none" stroke="var(--soft)" d="M{middle - 3 * across} {bottom}h{6 * across}M{middle} 20v174"/>'
    parts = [axes, *(text(middle + n * across, bottom + 21, str(n).replace("-", "−")) for n in (-3, -2, -1, 1, 2, 3))]
    parts += [text(middle - 8, bottom - n * up + 4, str(n), "end") for n in (1, 2, 3)]
    for color, name, y, left, top in (("--s1", "relu", x.relu(), 430, 84), ("--s0", "gelu", gelu(x), 212, 194)):
        points = " ".join(
            f"{middle + a * across:.1f},{bottom - b * up:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)
        )
        parts.append(f'<polyline fill="none" stroke="var({color})" stroke-width="2" points="{points}"/>')
        parts.append(text(left, top, name, style=f' style="fill: var({color})"'))
    return picture(492, 204, "The activation functions relu and gelu between −3 and 3", parts)


FIGURES = {"lookup.svg": lookup, "positions.svg": positions, "masks.svg": masks, "activations.svg": activations}
CHINESE = {
    "A query, three keys, their scores, weights and values, and the result": "一个查询、三个键、得分、权重、值与结果",
    "query of word 1": "第 1 个词的查询",
    "keys": "键",
    "scores": "得分",
    "weights": "权重",
    "values": "值",
    "weights × values, added: the result of word 1": "权重 × 值，相加：第 1 个词的结果",
    "Sinusoids of positions 0 to 49": "位置 0 到 49 的正弦编码",
    "sines, features 0, 2, 4, …": "正弦，特征 0、2、4、…",
    "cosines, features 1, 3, 5, …": "余弦，特征 1、3、5、…",
    "wavelength, in positions": "波长（位置数）",
    "position": "位置",
    "Attention weights under a padding mask and a causal mask": "填充掩码与因果掩码下的注意力权重",
    "The activation functions relu and gelu between −3 and 3": "两种激活函数在 −3 到 3 之间的曲线",
    "padding mask": "填充掩码",
    "causal mask": "因果掩码",
}


def chinese(drawn: str) -> str:
    """Return a picture with its words in Chinese; those of the example sentences stay."""
    for english, words in CHINESE.items():
        drawn = drawn.replace(f">{english}</text>", f">{words}</text>")
        drawn = drawn.replace(f'aria-label="{english}"', f'aria-label="{words}"')
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    out = parser.parse_args().out
    for name, draw in FIGURES.items():
        (out / name).write_text(draw(), encoding="utf-8")
        (out / name).with_suffix(".zh_CN.svg").write_text(chinese(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
