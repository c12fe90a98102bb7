"""docs/troubleshooting.md: its commands run, its messages are those of the source, its keys and links exist."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dragoman
from dragoman.config.reference import look_up
from small_run import Cli, digit_pairs, write_lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
NOT_EVERYWHERE = {"nvidia-smi", "uptime", "nproc", "df", "wc", "iconv"}
"""Commands of the system, which are run if they are installed."""


def blocks(language: str) -> list[str]:
    """The lines of all code blocks in a language, also of those in lists."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, flags=re.M | re.S)
    return [line.strip() for block in found for line in block.strip().split("\n")]


# ------------------------------------------------------------------------------------------------------------ messages


@cache
def messages() -> str:
    """All texts of the source, with `…` for the values in them; parts that stand side by side are joined."""
    return "\n".join(text for path in Path(dragoman.__file__).parent.rglob("*.py") for text in texts(path))


def texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)


@pytest.mark.parametrize("quote", blocks("text"))
def test_every_quoted_message_is_one_of_the_source(quote: str) -> None:
    parts = [part.strip() for part in quote.split("…") if part.strip()]
    assert max(len(part) for part in parts) >= 10, "a quote without words of its own"
    pattern = ".{0,60}?".join(re.escape(part) for part in parts)
    assert re.search(pattern, messages()), "no message of the source reads like this"


def test_a_message_that_does_not_exist_is_noticed() -> None:
    assert "the loss became sad" not in messages() and len(messages()) > 50_000


# ------------------------------------------------------------------------------------------------------------ commands


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page speaks of, and a short run."""
    folder = tmp_path_factory.mktemp("workshop")
    pairs = digit_pairs(240)
    for name, some in (("train", pairs[:200]), ("valid", pairs[200:220]), ("test", pairs[220:])):
        write_lines(folder / f"{name}.en", [s for s, _ in some])
        write_lines(folder / f"{name}.de", [t for _, t in some])
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = [b for b in re.findall(r"^```toml\n(.*?)^```", tutorial, flags=re.M | re.S) if "[data]" in b]
    for old, new in (
        ("d_model = 192", "d_model = 24"), ("d_ff = 320", "d_ff = 8"), ("_layers = 4", "_layers = 1"),
        ("_layers = 3", "_layers = 1"), ('"20 min"', '"6 steps"\nschedule.warmup = 2'),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    small = "[tokenizer]\nvocab_size = 56\nbyte_fallback = false\n[search]\nmax_extra = 5\n"
    (folder / "en-de.toml").write_text(text + small, encoding="utf-8")
    return folder


def test_every_command_runs(workshop: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(workshop)
    assert cli("train", "en-de.toml", "--out", "runs/en-de")[0] == 0
    commands = list(dict.fromkeys(blocks("sh")))
    for command in commands:
        words = shlex.split(command)
        while "=" in words[0]:  # an environment variable; the process has one thread in tests already
            assert words.pop(0) == "OMP_NUM_THREADS=1"
        if words[0] == "dragoman":
            code, out, err = cli(*words[1:])
            assert code == 0, (command, err)
            assert out or err or "--output" in words, command
        elif words[0] == "python":
            exec(words[2], {})
        elif shutil.which(words[0]):
            assert words[0] in NOT_EVERYWHERE, command
            done = subprocess.run(command, shell=True, capture_output=True, check=False, timeout=300)
            assert done.returncode == 0 or words[0] == "nvidia-smi", (command, done.stderr)
        else:
            assert words[0] in NOT_EVERYWHERE, command
    assert len(commands) > 25


# ------------------------------------------------------------------------------------------------------ keys and links


def test_every_key_exists() -> None:
    names = set(re.findall(r"`((?:data|tokenizer|model|train|search)\.[a-z_.]+[a-z])", PAGE)) - {"data.md"}
    assert len(names) > 25
    for name in names:
        assert look_up(name)[1], name


def test_every_link_leads_to_a_heading_or_a_file() -> None:
    heads = re.findall(r"^#+ (.+)$", PAGE, flags=re.M)
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= anchors
    files = {link.partition("#")[0] for link in links if not link.startswith(("#", "http"))}
    assert [file for file in files if not (ROOT / "docs" / file).exists()] == []
    symptoms = {anchor for anchor in anchors if f"### {anchor}" in PAGE.lower().replace(" ", "-")}
    assert symptoms <= {link.removeprefix("#") for link in links}
