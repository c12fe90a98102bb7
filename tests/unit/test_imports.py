"""The shape of the package: which part may import which, what it may be called, and the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman

ROOT = Path(dragoman.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Part -> the parts it may import.  What is not listed here may import everything but `cli`.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "io": {"errors"},
    "config": {"errors"},
    "nn": {"errors"},
    "models": {"errors", "config", "nn"},
    "data": {"errors", "extras", "config", "io"},
    "search": {"errors", "io", "nn", "models", "data"},
    "inside": {
        "errors",
        "config",
        "nn",
        "models",
        "data",
        "search",
        "model_folder",
        "translate",
        "text_generator",
        "label",
        "parse",
        "evaluate",
        "training",
        "page",
    },
    "serve": {
        "errors",
        "nn",
        "models",
        "data",
        "search",
        "model_folder",
        "translate",
        "text_generator",
        "inside",
        "page",
    },
    "formats": {"errors", "extras", "io", "config", "nn", "models", "data", "search", "model_folder"},
    "bulk": {"errors", "extras", "io", "data", "model_folder", "search", "translate", "training"},
    "fast": {"errors", "io", "config", "nn", "models", "data", "search", "model_folder"},
    "report": {"errors", "page"},
    "model_folder": {"errors", "io", "config", "models", "data"},
    "shortlist": {"errors", "config", "data", "search", "model_folder", "translate"},
    "translate": {"errors", "models", "data", "search", "fast", "model_folder"},
    "text_generator": {"errors", "models", "data", "search", "fast", "model_folder"},
    "label": {"errors", "config", "models", "data", "model_folder"},
    "parse": {"errors", "models", "data", "search", "model_folder"},
    "evaluate": {"errors", "config", "data", "model_folder", "translate"},
    "training": {
        "errors",
        "io",
        "config",
        "nn",
        "models",
        "data",
        "search",
        "evaluate",
        "translate",
        "parse",
        "model_folder",
    },
    "vectors": {"errors", "extras", "io", "nn", "data", "model_folder"},
    "compare": {"errors", "config", "data", "model_folder", "evaluate", "translate", "training", "page"},
    "page": {"errors", "io"},
}

PUBLIC_NAMES = [
    "Config",
    "Labeller",
    "Parser",
    "TextGenerator",
    "Translation",
    "Translator",
    "WordVectors",
    "__version__",
    "build_model",
    "evaluate_texts",
    "load_config",
    "record",
    "replace",
    "train",
]


def part(module: str) -> str:
    """dragoman.nn.attention -> nn; dragoman itself -> ''."""
    return [*module.split("."), ""][1]


def imports(text: str) -> Iterator[str]:
    """Every module that the source text imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            # `from dragoman import cli` imports dragoman.cli
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_parts(text: str) -> set[str]:
    """The parts of Dragoman that the source text imports."""
    named = {part(module) for module in imports(text) if module.split(".")[0] == "dragoman"}
    parts = {path.stem for path in ROOT.glob("*.py")} | {path.name for path in ROOT.iterdir() if path.is_dir()}
    return named & parts - {"__init__"}


def test_imports_are_found_wherever_they_stand() -> None:
    text = "import os, dragoman.cli\ndef f():\n    from dragoman import errors\n    from dragoman.nn.taps import Tap\n"
    assert own_parts(text) == {"cli", "errors", "nn"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows(path: Path) -> None:
    here = part(f"dragoman.{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}")
    found = own_parts(path.read_text(encoding="utf-8")) - {here}
    assert "cli" not in found, f"{path}: nothing imports cli"
    if here in ARROWS:
        assert sorted(found - ARROWS[here]) == [], f"{path}: {here} may import {sorted(ARROWS[here])}"


def test_only_the_world_knows_torch_distributed() -> None:
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(module.startswith("torch.distributed") for module in imports(path.read_text(encoding="utf-8")))
    }
    assert importers <= {"training/world.py"}


def test_no_drawer_for_odds_and_ends() -> None:
    names = {path.stem for path in FILES} | {path.parent.name for path in FILES}
    assert not names & {"utils", "util", "helpers", "helper", "common", "base", "misc"}


def test_public_names_are_frozen_and_exist() -> None:
    assert sorted(dragoman.__all__) == PUBLIC_NAMES
    assert [name for name in PUBLIC_NAMES if getattr(dragoman, name) is None] == []
    assert sorted(dir(dragoman)) == PUBLIC_NAMES
    with pytest.raises(AttributeError, match="no attribute 'Transformer'"):
        _ = dragoman.Transformer


def test_no_package_hides_a_public_name() -> None:
    """Python puts an imported submodule into its package, over what `__getattr__` would find."""
    assert [name for name in PUBLIC_NAMES if (ROOT / name).exists() or (ROOT / f"{name}.py").exists()] == []


def test_importing_dragoman_imports_no_torch() -> None:
    code = "import sys, dragoman; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
