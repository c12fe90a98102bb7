"""Charts as SVG: self-contained, deterministic, and drawn for every value that a log can hold."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from dragoman.pages.charts import COLORS, Line, draw_curves, draw_intervals, drawing, readout, standalone, time_unit

LINES = [Line("lstm", [(1, 4.0), (2, 2.0), (3, 1.0)], 0, [[(1, 5.0), (2, 3.0)]]), Line("conv", [(1, 3.0), (3, 1.5)], 1)]


def test_a_chart_is_well_formed_and_loads_nothing() -> None:
    svg = draw_curves("a", LINES, "steps", label='curves <of> "two" runs')
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'curves <of> "two" runs' and root.attrib["viewBox"] == "0 0 480 270"
    assert set(re.findall(r"https?://[^\"]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert "<style" not in svg and "font" not in svg and "#" not in re.sub(r"url\(#\w+\)|href=\"#\w+\"", "", svg)
    groups = [group.attrib.get("data-group") for group in root.iter("{http://www.w3.org/2000/svg}g")]
    assert [group for group in groups if group] == ["0", "0", "1"]


def test_the_same_values_give_the_same_bytes_and_every_chart_its_own_ids() -> None:
    one, again, other = (draw_curves(name, LINES, "steps") for name in ("a", "a", "b"))
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (one, other)]
    assert one == again and ids[0] and not ids[0] & ids[1]


def test_scales_and_views() -> None:
    def ticks(**options: bool) -> list[str]:
        svg = draw_curves("a", LINES, "steps", **options)  # type: ignore[arg-type]
        return re.findall(r">([\d.,−]+)</text>", svg)

    steps = ["0", "1", "2", "3"]
    assert ticks() == [*steps, "0", "2", "4"]
    assert ticks(close=True) == [*steps, "1", "1.5", "2", "2.5", "3"]
    assert ticks(log=True) == [*steps, "1", "2", "3", "4", "5"]
    assert readout(LINES, "steps")["x"] == (0.0, 3) and time_unit(179) == ("seconds", 1)
    assert time_unit(180) == ("minutes", 60) and time_unit(10800) == ("hours", 3600)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [(0, 5.0)], [(1, 0.0)], [(1, 3.0), (2, 3.0)], [(1, 1e308), (2, -1e308)], [(1, 1e308), (2, 1e-300)],
        [(1e300, 1.0), (1e308, 2.0)], [(float(i), 1e-320) for i in range(60)],
    ],
)  # fmt: skip
def test_every_value_is_drawn(points: list[tuple[float, float]], log: bool, close: bool) -> None:
    svg = draw_curves("a", [Line("x", points)], "steps", log=log, close=close)
    assert ET.fromstring(svg) is not None and not re.search(r"\b(nan|inf)\b", svg)


def test_names_stay_text() -> None:
    name = "<script>&\"'$x^2$ 猫 -->"
    svg = draw_intervals("a", [(name, 0, 33.25, 1.5), ("other", COLORS + 1, 30.0, 0.5)], "BLEU")
    texts = [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert name in texts and "33.25" in texts and "30.00" in texts
    with drawing("b") as chart:
        chart.tag(*chart.axes.plot([0, 1], [0, 1]), title=name, class_="dot")
        (title,) = ET.fromstring(chart.svg()).iter("{http://www.w3.org/2000/svg}title")
    assert title.text == name


def test_a_file_has_colours_for_light_and_dark() -> None:
    svg = standalone(draw_curves("a", LINES, "steps"), ".x { opacity: 1; }")
    root = ET.fromstring(svg)
    assert (root.attrib["width"], root.attrib["height"]) == ("480", "270")
    used, (style,) = set(re.findall(r"var\((--\w+)\)", svg)), root.iter("{http://www.w3.org/2000/svg}style")
    on_paper = {"--page", "--surface", "--ink", "--soft", "--line", "--faint"}  # the others are those of the light mode
    counts = {name: (style.text or "").count(f"{name}:") for name in used}
    assert used and counts == {name: 3 if name in on_paper else 2 for name in used}, "light, dark and print"


def test_nothing_is_imported_before_a_chart_is_drawn() -> None:
    code = "import sys, dragoman.interpret.demo, dragoman.vectors; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
