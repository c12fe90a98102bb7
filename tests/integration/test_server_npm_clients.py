"""Published npm clients of LibreTranslate, unmodified, against the server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from served_models import copying_direction, serving
from tiny_translator import round_trip

TEXT = "one two three"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--no-audit", "--no-fund", "translate@3", "libretranslate@1"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm cannot install the clients: {error}")
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(create_server(Directions([copying_direction("en", "de")]))) as opened:
        yield opened


def printed(folder: Path, script: str) -> list[str]:
    (folder / "script.mjs").write_text(script, encoding="utf-8")
    done = subprocess.run(["node", "script.mjs"], cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_translate(packages: Path, address: str) -> None:
    lines = printed(
        packages,
        f"""import translate from "translate";
        translate.engine = "libre";
        translate.url = "{address}/translate";
        console.log(await translate("{TEXT}", {{ from: "en", to: "de" }}));
        try {{ await translate("{TEXT}", {{ from: "en", to: "ja" }}); }} catch (error) {{ console.log(error.message); }}
        """,
    )
    assert lines == [round_trip(TEXT), "ja is not supported"]


def test_libretranslate(packages: Path, address: str) -> None:
    lines = printed(
        packages,
        f"""import {{ translate }} from "libretranslate";
        const options = {{ query: "{TEXT}", source: "auto", target: "de", apiurl: "{address}" }};
        console.log(await translate(options));
        """,
    )
    assert lines == [round_trip(TEXT)]
