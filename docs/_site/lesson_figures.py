"""Draw the pictures of the lessons (`docs/learn/*.svg`).

    python docs/_site/lesson_figures.py [--out docs/learn]

Blue is positive, orange negative, white 0.  The same numbers give the same bytes; a test compares the files.  The
Chinese site shows NAME.zh_CN.svg in the place of NAME.svg, as Sphinx does where such a file exists.  What moves is
animated by the style of the picture, and stands still for readers who asked their system for less motion.
"""

from __future__ import annotations

import argparse
import cmath
import html
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

from dragoman.interpret.walkthrough.tiny_preset import TINY_PAIR, TINY_WORDS, tiny_model
from dragoman.nn.attention import causal_bias, mask_to_bias
from dragoman.nn.positions import sinusoids
from dragoman.pages.charts import standalone
from dragoman.training.loss import cross_entropy

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
        points = [(middle + a * across, bottom - b * up) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        parts += [line(points, color), colored(left, top, name, color)]
    return picture(492, 204, "The activation functions relu and gelu between −3 and 3", parts)


def moving(rules: str) -> str:
    """Rules of style for readers who did not ask for less motion."""
    return f"<style>@media (prefers-reduced-motion: no-preference) {{ {rules} }}</style>"


def frames(drawn: Sequence[str], seconds: float, still: int) -> list[str]:
    """Drawings shown one after the other, `seconds` for all; only number `still` where motion is to be reduced."""
    share, moment = 100 / len(drawn), seconds / len(drawn)
    show = f"@keyframes show {{ 0%, {share - 0.01:.4g}% {{ opacity: 1 }} {share:.4g}%, 100% {{ opacity: 0 }} }}"
    style = f"{show} .frame {{ animation: show {seconds:g}s infinite; }}"
    return [
        "<style>.frame { opacity: 0 } .still { opacity: 1 }</style>" + moving(style),
        *(
            f'<g class="frame{" still" * (i == still)}" style="animation-delay: {i * moment - seconds:.4g}s">{part}</g>'
            for i, part in enumerate(drawn)
        ),
    ]


def line(points: Sequence[tuple[float, float]], color: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="var({color})" stroke-width="2" points="{path}"/>'


def arrow(start: tuple[float, float], end: tuple[float, float], color: str, attributes: str = "") -> str:
    (x, y), (to_x, to_y) = start, end
    length = max(math.hypot(to_x - x, to_y - y), 1e-9)
    a, b = 8 * (to_x - x) / length, 8 * (to_y - y) / length
    tip = f"M{to_x:.1f} {to_y:.1f}"
    head = f"{tip}l{-a - b / 2:.1f} {-b + a / 2:.1f}{tip}l{-a + b / 2:.1f} {-b - a / 2:.1f}"
    path = f'd="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}{head}"'
    return f'<path fill="none" stroke="var({color})" stroke-width="2"{attributes} {path}/>'


def dot(x: float, y: float, color: str, attributes: str = "") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var({color})"{attributes}/>'


def colored(x: float, y: float, words: str, color: str, anchor: str = "middle") -> str:
    return text(x, y, words, anchor, f' style="fill: var({color})"')


def box(x: float, y: float, width: float, height: float, words: str, color: str) -> str:
    """A box with words in its middle."""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" stroke="var({color})"'
    return f'{shape} fill="var({color})" fill-opacity="0.14"/>' + text(x + width / 2, y + height / 2 + 4, words)


def bars(left: float, bottom: float, heights: Sequence[float], names: Sequence[str], color: str, scale: float) -> str:
    """Vertical bars of numbers, with their names below."""
    parts = []
    for i, (height, name) in enumerate(zip(heights, names, strict=True)):
        x, size, up = left + i * 44, round(abs(height) * scale, 1), height >= 0
        shape = f'x="{x:g}" y="{bottom - size * up:.1f}" width="34" height="{size:.1f}"'
        sign = "−" if height < 0 else ""
        parts += [
            f'<rect {shape} fill="var({color if up else "--s1"})" fill-opacity="0.8"/>',
            text(x + 17, bottom - size - 5 if up else bottom + size + 14, f"{sign}{abs(height):.2f}"),
            text(x + 17, bottom + 16 if up else bottom - 6, name),
        ]
    return "\n".join(parts)


def embeddings() -> str:
    """The rows of the embedding matrix of `text.md`."""
    rows = {"the": (0.1, 0.9), "cat": (0.8, 0.2), "dog": (0.9, 0.3), "saw": (0.1, -0.7), "ran": (0.3, -0.8)}
    left, middle, scale = 190, 130, 120
    parts = [f'<path stroke="var(--soft)" d="M{left} 14V250M{left - 20} {middle}h240"/>']
    parts += [text(left + 226, middle + 4, "first number", "start"), text(left, 13, "second number")]
    for i, (word, (x, y)) in enumerate(rows.items()):
        end = (left + scale * x, middle - scale * y)
        side = -7 if word == "saw" else 7
        parts += [arrow((left, middle), end, f"--s{(2, 0, 0, 1, 1)[i]}")]
        parts.append(text(end[0] + side, end[1] + 4, word, "end" if side < 0 else "start"))
    return picture(492, 256, "The vectors of five words as arrows: cat and dog are close, saw and ran as well", parts)


def temperature() -> str:
    """The probabilities of the logits 2, 1 and 0 at several temperatures."""
    z, drawn = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64), []
    temperatures = (4, 2, 1, 0.5, 0.25)
    for i, t in enumerate(temperatures):
        across = 196 + 100 * i / (len(temperatures) - 1)
        mark = dot(across, 186, "--s3") + text(246, 214, f"τ = {t:g}")
        drawn.append(bars(185, 146, (z / t).softmax(0).tolist(), ["2", "1", "0"], "--s0", 118) + mark)
    parts = ['<path stroke="var(--soft)" d="M170 146h152M196 186h100"/>', text(160, 162, "logits", "end")]
    parts += [text(160, 90, "probabilities", "end"), text(184, 190, "even", "end"), text(308, 190, "sharp", "start")]
    return picture(
        492, 224, "Softmax of three logits, sharper with each lower temperature", [*parts, *frames(drawn, 7.5, 2)]
    )


def lstm() -> str:
    """One step of an LSTM with one number per gate; the dot is the cell, which passes without a matrix."""
    before, candidate = 0.8, math.tanh(0.5)
    forget, write, show = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).sigmoid().tolist()
    cell = forget * before + write * candidate
    parts = [
        '<path fill="none" stroke="var(--s2)" stroke-width="3" d="M20 44H472"/>',
        '<path fill="none" stroke="var(--soft)" d="M20 206H336M86 206V44M170 206V108M254 206V108M336 206V163H420'
        'M170 108H254M212 108V44M420 44V163H472"/>',
        text(20, 30, f"c of the word before = {before:.2f}", "start"), text(472, 30, f"c = {cell:.2f}", "end"),
        text(20, 224, "x, and h of the word before", "start"),
        text(472, 184, f"h = {show * math.tanh(cell):.2f}", "end"), box(394, 84, 52, 24, "tanh", "--s3"),
    ]  # fmt: skip
    gates = {"forget": forget, "input": write, "candidate": candidate, "output": show}
    for x, (name, value) in zip((86, 170, 254, 336), gates.items(), strict=True):
        parts += [
            f'<rect x="{x - 36}" y="150" width="72" height="26" fill="var(--surface)"/>',
            text(x + 6, 142, f"{value:.2f}", "start"),
        ]
        parts.append(box(x - 36, 150, 72, 26, name, "--s3" if name == "candidate" else "--s0"))
    for x, y, sign in ((86, 44, "×"), (212, 108, "×"), (212, 44, "+"), (420, 163, "×")):
        circle = f'<circle cx="{x}" cy="{y}" r="11" fill="var(--surface)" stroke="var(--ink)"/>'
        parts += [circle, text(x, y + 4, sign)]
    pass_on = "@keyframes pass { to { transform: translateX(452px) } } .cell { animation: pass 5s linear infinite; }"
    parts += [moving(pass_on), dot(20, 44, "--s2", ' class="cell"')]
    return picture(492, 234, "One step of an LSTM: the cell passes through a product and a sum", parts)


def context() -> str:
    """The character of `attention.md` between its two meanings: what attention makes of it in two contexts."""
    rows = ([0.8, 0, 0.6], [0.7, 0.7, 0], [0, 0.3, 0.9], [0, 0.4, 0.9], [0, 0.9, 0.5])
    meanings = dict(zip("你好叶公龙", rows, strict=True))
    left, bottom, scale, drawn = 130, 226, 210, []
    places = {character: (left + scale * x, bottom - scale * y) for character, (x, y, _) in meanings.items()}
    start = places["好"]
    for sentence in ("你好", "叶公好龙"):
        x, own = torch.tensor([meanings[character] for character in sentence]).double(), sentence.index("好")
        weights = (2 * x @ x.T).softmax(-1)[own]
        good, fond, _ = (weights @ x).tolist()
        end, parts = (left + scale * good, bottom - scale * fond), []
        for character, weight in zip(sentence, weights.tolist(), strict=True):
            at, right = places[character], character == "好"
            width = f'stroke-width="{12 * weight:.1f}" stroke-opacity="0.35"'
            label = text(
                at[0] + (12 if right else -12), at[1] + 4, f"{character} {weight:.2f}", "start" if right else "end"
            )
            parts.append(f'<path stroke="var(--s2)" {width} d="M{at[0]:.1f} {at[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>')
            parts += [dot(*at, "--s0"), label]
        walk = f"translate({end[0] - start[0]:.1f}px, {end[1] - start[1]:.1f}px)"
        go = (
            f"@keyframes go{own} {{ 40%, 100% {{ transform: {walk} }} }} .go{own} {{ animation: go{own} 3s infinite; }}"
        )
        parts += [arrow(start, end, "--s1"), moving(go), dot(*start, "--s1", f' class="go{own}"')]
        drawn.append("\n".join([*parts, text(430, 60, sentence, style=' style="font-size: 22px"')]))
    label = "One character in two sentences: attention moves its vector towards one of its meanings"
    axes = f'<path fill="none" stroke="var(--soft)" d="M{left} 14V{bottom}H{left + 200}"/>'
    names = [text(left + 206, bottom + 4, "good", "start"), text(left, 13, "fond of")]
    return picture(492, 244, label, [axes, *names, *frames(drawn, 6, 1)])


def subject_and_object() -> str:
    """The weights of `heads.md`: one head reads a mixture, two heads read the subject and the object."""
    query, keys = torch.tensor([4, 4]).double(), torch.tensor([[2, 0], [0, 2], [0, 0]]).double()
    one = (keys @ query / math.sqrt(2)).softmax(0).tolist()
    titles = ("one head", "head 1 of 2", "head 2 of 2")
    groups = [one, *((keys[:, h] * query[h]).softmax(0).tolist() for h in (0, 1))]
    parts = ['<path stroke="var(--soft)" d="M10 140h472"/>']
    for i, (title, weights) in enumerate(zip(titles, groups, strict=True)):
        parts += [
            text(86 + 160 * i, 14, title),
            bars(25 + 160 * i, 140, weights, ["cat", "dog", "the"], ("--s2", "--s0", "--s0")[i], 96),
        ]
    return picture(492, 164, "Attention weights of one head, and of two heads, for the same query", parts)


def spectrum(words: int = 50, size: int = 4) -> str:
    """The singular values of the scores and of the weights of `heads.md`, on a logarithmic scale."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(words, size)) @ rng.normal(size=(words, size)).T / np.sqrt(size)
    weights = torch.from_numpy(scores).softmax(-1).numpy()
    left, top, across, decade = 70, 20, 7.6, 24.0
    parts = [f'<path fill="none" stroke="var(--soft)" d="M{left} {top}V{top + 9 * decade}h{across * words}"/>']
    for power in range(2, -8, -3):
        parts.append(text(left - 8, top + (2 - power) * decade + 4, f"1e{power}".replace("-", "−"), "end"))
    parts += [text(left + across * n, top + 9 * decade + 18, str(n)) for n in (1, 10, 20, 30, 40, 50)]
    for matrix, color in ((scores, "--s1"), (weights, "--s0")):
        values = np.linalg.svd(matrix, compute_uv=False)
        kept = [v for v in values.tolist() if v > 1e-9]
        parts.append(
            line([(left + across * (n + 1), top + (2 - math.log10(v)) * decade) for n, v in enumerate(kept)], color)
        )
    parts.append(colored(110, 34, "scores: 4, the others are 0", "--s1", "start"))
    parts.append(colored(230, 70, "weights: 50", "--s0", "start"))
    parts.append(text(left + across * words / 2, top + 9 * decade + 36, "number of the singular value"))
    return picture(
        492, top + 9 * decade + 44, "Singular values of the scores and of the attention weights of 50 words", parts
    )


def clocks(d_model: int = 8, count: int = 24, seconds: float = 24.0) -> str:
    """The pairs of sinusoids of `positions.md` as hands: one second is one position."""
    speeds, parts, rules = [10000.0 ** (-2 * k / d_model) for k in range(d_model // 2)], [], []
    for k, speed in enumerate(speeds):
        x, y, radius, turn = 66 + 120 * k, 70, 44, math.degrees(speed * count)
        sine, cosine = sinusoids(torch.arange(6), d_model)[5, 2 * k : 2 * k + 2].tolist()
        parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" fill="none" stroke="var(--soft)"/>')
        parts.append(arrow((x, y), (x + radius * sine, y - radius * cosine), f"--s{k}", f' class="hand{k}"'))
        parts += [text(x, y + radius + 20, f"pair {k}"), text(x, y + radius + 37, f"{2 * math.pi / speed:,.0f}")]
        # The drawing is that of position 5; the motion begins at position 0.
        begin, end = (f"{{ transform: rotate({a - math.degrees(5 * speed):.2f}deg) }}" for a in (0, turn))
        rules.append(f"@keyframes turn{k} {{ from {begin} to {end} }}")
        rules.append(f".hand{k} {{ transform-origin: {x}px {y}px; animation: turn{k} {seconds:g}s linear infinite; }}")
    labels = [text(246, 190, f"position {position}") for position in range(count)]
    parts += [text(246, 168, "words per turn"), *frames(labels, seconds, 5), moving(" ".join(rules))]
    return picture(492, 200, "Four pairs of sinusoids as the hands of clocks, fast ones and slow ones", parts)


def rotary(theta: float = 0.3) -> str:
    """The query and the key of `positions.md`, two positions apart: their angle stays while both turn."""
    q, k, radius = complex(1.0, 0.5), complex(0.2, 0.8), 70.0
    drawn = []
    for n in range(12):
        parts = []
        for x, m, key in ((130, n + 2, n), (362, n + 2, 1)):
            turned, other = q * cmath.rect(1, m * theta), k * cmath.rect(1, key * theta)
            score = turned.real * other.real + turned.imag * other.imag
            parts += [
                arrow((x, 100), (x + radius * turned.real, 100 - radius * turned.imag), "--query"),
                arrow((x, 100), (x + radius * other.real, 100 - radius * other.imag), "--key"),
                text(x, 214, f"q · k = {score:.2f}".replace("-", "−")),
                colored(x - 6, 232, f"m = {m}", "--query", "end"), colored(x + 6, 232, f"n = {key}", "--key", "start"),
            ]  # fmt: skip
        drawn.append("\n".join(parts))
    circle = f'cy="100" r="{radius * abs(q):.1f}" fill="none" stroke="var(--line)"/>'
    circles = [f'<circle cx="{x}" {circle}' for x in (130, 362)]
    titles = [text(130, 14, "both move on: m − n = 2"), text(362, 14, "only the query moves on")]
    label = "A query and a key as rotating arrows: if both turn, their product stays"
    return picture(492, 240, label, [*circles, *titles, *frames(drawn, 12, 1)])


def cache() -> str:
    """The steps of `transformer.md`: one query per step, and keys and values that stay."""
    words, drawn = ["<s>", "ein", "Hund", "läuft", "."], []
    for step in range(len(words)):
        parts = []
        for row, (y, color) in enumerate(((38, "--query"), (92, "--key"), (126, "--value"))):
            for t in range(step + 1):
                new = t == step
                shown = f"{'qkv'[row]}{'₁₂₃₄₅'[t]}"
                if row or new:
                    parts.append(box(130 + 66 * t, y, 58, 28, shown, color if new else "--soft"))
        parts += [text(159 + 66 * t, 22, words[t]) for t in range(step + 1)]
        parts += [f'<path stroke="var(--query)" d="M{159 + 66 * step} 66L{159 + 66 * t} 92"/>' for t in range(step + 1)]
        drawn.append("\n".join(parts))
    rows = {22: "the decoder reads", 56: "query, used once", 110: "keys, kept", 144: "values, kept"}
    titles = [text(118, y, title, "end") for y, title in rows.items()]
    label = "The cache of keys and values grows by one column per word"
    return picture(492, 166, label, [*titles, *frames(drawn, 7.5, 3)])


def gradient(layers: int = 20, size: int = 64) -> str:
    """Length of the gradient from layer 20 to layer 1 of `transformer.md`, on a logarithmic scale."""
    left, right, top, decade, curves = 70, 480, 30, 13.0, []
    for residual in (True, False):
        rng, vector, lengths = np.random.default_rng(0), np.ones(size) / np.sqrt(size), [1.0]
        for _ in range(layers):
            matrix = 0.3 * rng.normal(size=(size, size)) / np.sqrt(size)
            vector = vector @ matrix.T + (vector if residual else 0)
            lengths.append(float(np.linalg.norm(vector)))
        step = (right - left) / layers
        curves.append([(right - n * step, top - math.log10(v) * decade) for n, v in enumerate(lengths)])
    bottom = top + 11 * decade
    parts = [f'<path fill="none" stroke="var(--soft)" d="M{left} {top - 10}V{bottom}H{right}"/>']
    parts += [text(right, bottom + 18, "loss", "end"), text(left, bottom + 18, "first layer", "start")]
    parts += [text(left - 8, top + power * decade + 4, f"1e−{power}" if power else "1", "end") for power in (0, 5, 10)]
    rules = []
    for i, (curve, words) in enumerate(zip(curves, ("with residual connections", "without"), strict=True)):
        parts.append(line(curve, f"--s{i}"))
        parts.append(colored((250, 330)[i], (top - 14, top + 80)[i], words, f"--s{i}", ("middle", "start")[i]))
        stops = " ".join(
            f"{100 * n / layers:g}% {{ transform: translate({x - right:.1f}px, {y - top:.1f}px) }}"
            for n, (x, y) in enumerate(curve)
        )
        rules.append(f"@keyframes back{i} {{ {stops} }} .back{i} {{ animation: back{i} 6s linear infinite; }}")
        parts.append(dot(right, top, f"--s{i}", f' class="back{i}"'))
    label = "Length of the gradient from the loss back to the first of 20 layers"
    return picture(492, bottom + 28, label, [*parts, moving(" ".join(rules))])


def error() -> str:
    """Probabilities and gradient of the logits at the first position of `training_step.md`."""
    source, _, reads, correct = TINY_PAIR
    with torch.no_grad():
        p = tiny_model()(source, None, reads)[0].softmax(-1)[0].double()
    y = torch.eye(len(p), dtype=torch.float64)[int(correct[0, 0])]
    axes = '<path stroke="var(--soft)" d="M72 90h368M72 160h368"/>'
    parts = [text(64, 20, "p", "end"), text(64, 150, "p − y", "end"), axes]
    parts.append(bars(76, 90, p.tolist(), TINY_WORDS, "--s0", 110))
    parts.append(bars(76, 160, (p - y).tolist(), [""] * len(p), "--s0", 60))
    label = "Probabilities, and the gradient of the logits: only the correct token has a negative one"
    return picture(492, 242, label, parts)


def step() -> str:
    """The loss of `training_step.md` after one step with each learning rate, and its tangent at 0."""
    model, (source, _, reads, correct), left, top, losses = tiny_model(), TINY_PAIR, 60, 20, list[float]()

    def loss() -> Tensor:
        return cross_entropy(model(source, None, reads)[0], correct[0], 0.0)[0]

    loss().backward()
    gradients = {weight: weight.grad for weight in model.parameters() if weight.grad is not None}
    with torch.no_grad():
        for _ in range(61):  # learning rates of 0, 1 / 200, ..., 60 / 200
            losses.append(loss().item())
            for weight, gradient in gradients.items():
                weight -= gradient / 200
    slope = sum(float((gradient**2).sum()) for gradient in gradients.values()) / 200
    at = [(left + 6.2 * n, top + 90 * (4.6 - loss)) for n, loss in enumerate(losses)]
    end = (left + 6.2 * (losses[0] - 2.8) / slope, top + 90 * 1.8)
    parts = [f'<path fill="none" stroke="var(--soft)" d="M{left} {top}v170h380"/>', line(at, "--s0")]
    parts += [line([at[0], end], "--s1"), colored(end[0] + 6, end[1] + 3, "tangent at 0", "--s1", "start")]
    for n, (x, y) in ((n, at[n]) for n in (0, 2, 20, 60)):
        aside = (-14, -14) if n == 20 else (9, 0)
        parts += [dot(x, y, "--s0"), text(x + aside[0], y + aside[1], f"{losses[n]:.2f}", "start")]
    parts += [text(left + 6.2 * n, top + 187, f"{n / 200:g}") for n in (0, 20, 40, 60)]
    parts += [text(left - 8, top + 10, "loss", "end"), text(left + 190, top + 204, "learning rate")]
    return picture(492, 232, "The loss after one step: it falls, then rises with the learning rate", parts)


def learning_rate() -> str:
    """The learning rate of the paper's base model (section 5.3) over 20,000 steps."""
    left, bottom, steps, warmup = 80, 140, 20000, 4000
    at = [max(1, steps * n // 100) for n in range(101)]
    rates = [512**-0.5 * min(n**-0.5, n * warmup**-1.5) for n in at]
    points = [(left + 380 * n / steps, bottom - 120 * rate / max(rates)) for n, rate in zip(at, rates, strict=True)]
    parts = [f'<path fill="none" stroke="var(--soft)" d="M{left} 10V{bottom}H{left + 380}"/>', line(points, "--s0")]
    parts += [text(left + 380 * n / steps, bottom + 18, f"{n:,}") for n in range(0, steps + 1, 4000)]
    parts.append(text(left - 8, 24, f"{max(rates):.1e}".replace("-0", "−"), "end"))
    parts += [text(left - 8, bottom + 4, "0", "end"), text(left + 190, bottom + 36, "step")]
    return picture(492, bottom + 42, "The learning rate of the paper rises for 4,000 steps, then falls", parts)


DRAWN = (
    lookup, positions, masks, activations, embeddings, temperature, lstm, context, subject_and_object, spectrum, clocks,
    rotary, cache, gradient, error, step, learning_rate,
)  # fmt: skip
FIGURES = {f"{draw.__name__}.svg": draw for draw in DRAWN}
CHINESE = {
    **tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")),
    **{f"pair {k}": f"第 {k} 对" for k in range(4)},
    **{f"position {n}": f"位置 {n}" for n in range(24)},
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
