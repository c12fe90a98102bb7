"""What the README and the documents show is run: commands, configurations, Python."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Config, load_config, parse_config
from dragoman.config.stages import load_stages
from dragoman.config.tune import Tuning
from dragoman.interpret.walkthrough.tiny_preset import TINY_MATRICES, tiny_model
from dragoman.serve.app import load_models
from dragoman.serve.settings import ServerConfig
from small_run import Cli, digit_pairs, write_lines
from transformers_checkpoints import marian_checkpoint

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
ATTRIBUTION = ROOT / "docs" / "inside" / "attribution.md"
EXTENDING = ROOT / "docs" / "extending.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL = """
[tokenizer]
vocab_size = 56
byte_fallback = false
"""


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the tutorial speaks of, and its configuration made small."""
    pairs = digit_pairs(240)
    for name, some in (("train", pairs[:200]), ("valid", pairs[200:220]), ("test", pairs[220:])):
        write_lines(tmp_path / f"{name}.en", [s for s, _ in some])
        write_lines(tmp_path / f"{name}.de", [t for _, t in some])
    (text,) = [b for b in blocks(TUTORIAL, "toml") if "[data]" in b]
    assert 'budget = "20 min"' in text and "d_model = 192" in text
    text = text.replace("d_model = 192", "d_model = 24").replace("d_ff = 320", "d_ff = 8")
    text = text.replace('"20 min"', '"6 steps"\nschedule.warmup = 2')
    (tmp_path / "en-de.toml").write_text(text + SMALL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tutorial_from_text_to_translator(
    workshop: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    shells = blocks(TUTORIAL, "sh")
    (walk,) = [b for b in shells if "dragoman doctor" in b]
    (look,) = [b for b in shells if "dragoman explain" in b]
    cli = Cli(monkeypatch, capsysbinary)
    ran = []
    for line in (walk + look).strip().split("\n"):
        command = line.split("   #")[0].strip()
        said, _, call = command.rpartition("|")
        words = shlex.split(call)
        assert words[0] == "dragoman"
        if words[1] == "serve":  # it would not end; tests/unit/test_serve.py asks it
            assert list(load_models(words[2:])) == ["en-de"]
            continue
        stdin = shlex.split(said)[1].encode() + b"\n" if said else b""
        code, out, err = cli(*words[1:], stdin=stdin)
        assert code == 0, (command, err)
        assert out.count(b"\n") == 1 if words[1] == "translate" else out or err
        ran.append(words[1])
    assert ran == ["doctor", "train", "translate", "evaluate", "score", "info", "explain", "atlas"]
    assert all((workshop / page).stat().st_size > 10_000 for page in ("explain.html", "atlas.html"))

    namespace: dict[str, object] = {}
    for block in blocks(TUTORIAL, "python"):
        exec(block, namespace)
    for block in blocks(ROOT / "README.md", "python"):
        exec(block, {})
    out = capsysbinary.readouterr().out
    assert b"decoder.layers.2.cross_attn.weights" in out and b"(1, 6, " in out


def test_readme_walk_from_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    (walk,) = [b for b in blocks(ROOT / "README.md", "sh") if "dragoman new" in b]
    assert blocks(TUTORIAL, "sh")[1] in walk
    new, train, translate, explain = (line.split("   #")[0].strip() for line in walk.strip().split("\n"))
    pairs = digit_pairs(400)
    write_lines(tmp_path / "corpus.en", [s for s, _ in pairs])
    write_lines(tmp_path / "corpus.de", [t for _, t in pairs])
    monkeypatch.chdir(tmp_path)
    assert '"20 min"' in new
    for command in (new.replace("20 min", "30 s"), f"{train} 'train.budget=2 s'"):
        code, _, err = cli(*shlex.split(command)[1:])
        assert code == 0, (command, err)
    assert "expected" in (tmp_path / "en-de.toml").read_text(encoding="utf-8").lower()
    said, _, call = translate.rpartition("|")
    code, out, err = cli(*shlex.split(call)[1:], stdin=shlex.split(said)[1].encode() + b"\n")
    assert code == 0 and out.count(b"\n") == 1, err
    code, _, err = cli(*shlex.split(explain)[1:])
    assert code == 0 and (tmp_path / "explain.html").stat().st_size > 10_000, err


@pytest.mark.filterwarnings("ignore")  # of transformers, which computes what an import is compared with
def test_documents_in_python(workshop: Path, cli: Cli) -> None:
    assert cli("train", "en-de.toml", "--out", "runs/en-de")[0] == 0
    marian_checkpoint(workshop / "Helsinki-NLP" / "opus-mt-en-de", "one layer, unscaled")
    ran = 0
    for path in DOCUMENTS[1:]:
        # The blocks of these pages build on each other, or register kinds, which stay; they have tests of their own.
        if path.parent.name == "learn" or path in (TUTORIAL, EXTENDING, ATTRIBUTION):
            continue
        for block in blocks(path, "python"):
            if "from pymarian import" in block and not find_spec("pymarian"):
                continue  # 600 MB, not among the test dependencies
            exec(block, {})
            ran += 1
    assert ran >= 3
    assert (workshop / "data" / "spelled_numbers" / "train.en").is_file()


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p != EXTENDING], ids=lambda p: p.name)
def test_documents_in_toml(path: Path, tmp_path: Path) -> None:
    for block in blocks(path, "toml"):
        document = tomllib.loads(block)
        if "models" in document:
            assert isinstance(ServerConfig.parse(document, path.name), ServerConfig)
            continue
        if document.keys() & TINY_MATRICES.keys():
            assert tiny_model(document)
            continue
        if "stage" in document:
            for model in {"en-de", "small"} & set(re.findall(r'"([\w-]+)"', block)):
                shutil.copytree(ROOT / "tests" / "golden" / "ssru_v1", tmp_path / model)
                block = block.replace('target_language = "de"', 'target_language = "xx"')  # that of the model
            (tmp_path / path.name).write_text(block, encoding="utf-8")
            assert load_stages(tmp_path / path.name, run=tmp_path)
            continue
        if "tune" in document:
            assert Tuning.model_validate({"tune": document.pop("tune")}).tune.trials > 0
        document["data"] = data_for(document.get("model", {})) | document.get("data", {})
        assert isinstance(parse_config(document), Config)


def data_for(model: dict[str, Any]) -> dict[str, Any]:
    """A `[data]` section that a model learns from."""
    match model.get("architecture"):
        case "decoder_only" | "recurrent_lm":
            return {"kind": "text", "train": ["a"]}
        case "encoder_only" | "recurrent_encoder":
            kind = "tagged" if model.get("pooling", "none") == "none" else "labelled"
            return {"kind": kind, "train": ["a"]}
        case "vision":
            return {"kind": "images", "dataset": "digits"}
    return {"train": [{"source": "a", "target": "b"}]}


def test_the_tutorial_names_the_recipes_that_exist() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    for recipe in (ROOT / "recipes").glob("*.toml"):
        assert recipe.name in text, recipe.name


def test_the_stages_of_a_recipe_have_the_budget_of_the_recipe_without_stages(tmp_path: Path) -> None:
    stages = load_stages(ROOT / "recipes" / "multi30k-stages.toml", run=tmp_path)
    budgets = [stage.config.train.budget for stage in stages]
    plain = load_config(ROOT / "recipes" / "multi30k.toml").train.budget
    assert (sum(b.amount for b in budgets), {b.unit for b in budgets}) == (plain.amount, {plain.unit})


def test_ci_calls_the_readme_test_command() -> None:
    commands = [b.strip() for b in blocks(ROOT / "README.md", "sh")]
    (command,) = [c for c in commands if "&& pytest" in c]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert "pip install -c requirements.lock -e '.[train]' && dragoman demo" in commands


def test_the_pages_of_architectures_are_one_book() -> None:
    folder = ROOT / "docs" / "architectures"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = [path for path in folder.glob("*.md") if path.name != "README.md"]
    assert len(pages) >= 10
    for path in pages:
        assert f"({path.name})" in index, path.name
        heads = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.M)
        parts = [head for head in heads if head not in ("Measured", "Add a position kind")]
        assert parts == ["Picture", "Symbols", "Formulas", "Shapes", "What it costs", "Where it fails", "Try it"], path
