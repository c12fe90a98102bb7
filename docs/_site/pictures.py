"""Take the pictures of the pages, docs/inside/*.png, with Chromium: `python docs/_site/pictures.py SITE`.

SITE is made by `scripts/docs`.  A test finds pictures that are older than their page by the hashes in pictures.json.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from dragoman.pages.page import read_assets

FOLDER = Path(__file__).parents[1] / "inside"
PICTURES = {"explain": ("explain", "", 760), "gallery": ("walkthrough", "", 760), "atlas": ("atlas", "", 760)}
PICTURES["playground"] = ("playground-demo", '#{"s":"three hundred and twenty-four"}', 1120)
"""Template -> live page, which names the picture, its state, and the height shown."""
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=9000"]


def sources(template: str) -> str:
    """Return a hash of what determines how the page looks, except its data."""
    text = read_assets(f"{template}.html", "shell.html")
    return hashlib.sha256((text + read_assets(*re.findall(r'"(\w+\.(?:css|js))"', text))).encode()).hexdigest()


def main(site: Path) -> None:
    from PIL import Image

    for page, state, height in PICTURES.values():
        path, address = FOLDER / f"{page}.png", (site / "en" / "live" / f"{page}.html").resolve().as_uri()
        shown = ["--force-device-scale-factor=1.5", f"--window-size=1000,{height}", f"--screenshot={path}"]
        subprocess.run(["chromium", *OPTIONS, *shown, address + quote(state, safe="#")], check=True)
        Image.open(path).quantize(48).save(path, optimize=True)
    (FOLDER / "pictures.json").write_text(json.dumps({name: sources(name) for name in PICTURES}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
