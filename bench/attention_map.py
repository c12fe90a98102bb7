"""Draw the cross-attention of a translation: one row per target token, one column per source token.

    python bench/attention_map.py RUN [--source "A man in a blue shirt ..."] [--out docs/attention.svg]

The picture of the README is that of a model that `dragoman new` trained on Multi30k for 20 minutes on one core.
"""

from __future__ import annotations

import argparse
import html
from pathlib import Path

from dragoman import Translator
from dragoman.pages.charts import standalone
from dragoman.pipelines.translated import Alignment

SOURCE = "A man in a blue shirt is standing on a ladder cleaning a window."
CELL, LEFT, TOP, MARGIN = 30, 130, 96, 24


def heat_map(alignment: Alignment, label: str) -> str:
    """Return an `<svg>` element of weights (T, S); the area of a square is proportional to its weight."""
    sources, targets = (
        [html.escape(piece.replace("▁", "") or piece) for piece in side]
        for side in (alignment.source, alignment.target)
    )
    right, bottom = LEFT + CELL * len(sources), TOP + CELL * len(targets)
    lines = [f"M{LEFT} {TOP + CELL * i}H{right}" for i in range(len(targets) + 1)]
    lines += [f"M{LEFT + CELL * j} {TOP}V{bottom}" for j in range(len(sources) + 1)]
    parts = [f'<path class="grid" d="{"".join(lines)}"/>']
    for j, word in enumerate(sources):
        x = LEFT + CELL * (j + 0.5) + 4
        parts.append(f'<text class="word" transform="translate({x} {TOP - 8}) rotate(-55)">{word}</text>')
    for i, word in enumerate(targets):
        y = TOP + CELL * (i + 0.5)
        parts.append(f'<text class="word" x="{LEFT - 10}" y="{y + 5}" text-anchor="end">{word}</text>')
        for j, weight in enumerate(alignment.weights[i]):
            side = (CELL - 3) * float(weight) ** 0.5
            if side >= 2:
                corner = f'x="{LEFT + CELL * (j + 0.5) - side / 2:.1f}" y="{y - side / 2:.1f}"'
                title = f"<title>{word} → {sources[j]}: {weight:.2f}</title>"
                parts.append(f'<rect {corner} width="{side:.1f}" height="{side:.1f}" rx="2">{title}</rect>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + MARGIN} {bottom + MARGIN}"'
    return "\n".join([f'{head} role="img" aria-label="{html.escape(label)}">', *parts, "</svg>"])


STYLE = """.word { font-size: 15px; fill: var(--ink); }
.grid { fill: none; stroke: var(--line); }
rect { fill: var(--first); }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--out", type=Path, default=Path("docs/attention.svg"))
    given = parser.parse_args()
    translator = Translator.load(given.run)
    translated = translator.translate([given.source])[0].text
    print(translated)
    (alignment,) = translator.align([given.source], [translated])
    given.out.write_text(
        standalone(heat_map(alignment, f"Attention of “{translated}” to “{given.source}”"), STYLE), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
