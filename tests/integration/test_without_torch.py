"""Without PyTorch: the same results bit for bit, packed on the spot, and one clear message for what needs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import docx
import pytest

from dragoman.decoding.native.library import load_native, unavailable_reason
from native_results import MODELS, results

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SOURCE = ROOT / "src"
BLOCKED = "import native_results; native_results.block_torch()\n"
COMMAND = f"{BLOCKED}from dragoman.cli import main; main()"
INSTALL = "pip install 'dragoman[train]'"
VERSIONS = ("3.11", "3.12", "3.13")

native = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")


def copies(folder: Path) -> Path:
    """Copies of the golden models, not yet packed."""
    for name in MODELS:
        shutil.copytree(TESTS / "golden" / name, folder / name, ignore=shutil.ignore_patterns("packed"))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copies(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of this process, which has PyTorch."""
    found = results(copies(tmp_path_factory.mktemp("expected")))
    assert "torch" in sys.modules  # `dragoman info` compares the weights of an LSTM by building it
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def run(code: str, *arguments: object, input_: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in a process whose search path has the package and these tests."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(),
        input=input_,
        capture_output=True,
        text=True,
        timeout=300,
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS))), "PYTHONWARNINGS": "error"}


def dragoman(*arguments: object, input_: str = "") -> str:
    """Return the standard output of a command that succeeds in a process without PyTorch."""
    done = run(COMMAND, *arguments, input_=input_)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------------------- what works


@native
def test_the_same_bits_packed_on_the_spot(models: Path, expected: dict[str, Any]) -> None:
    """Translations, n-best lists, glossaries, HTML, scores, alignments, descriptions and the packed files."""
    done = run("import sys, native_results; native_results.main(sys.argv[1:])", models, "--block-torch")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("torch") is False
    assert found == expected


@native
def test_the_commands(models: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    model, lines = models / "model_v1", tmp_path / "lines.txt"
    lines.write_text("one two three\nsix\n")
    texts = [t["text"] for t in expected["auto"]["translations"]]

    assert dragoman("translate", model, input_="one two three\n").strip() == texts[0]
    assert dragoman("translate", model, "--device", "auto", "--input", lines).splitlines()[0] == texts[0]
    html = "<p>one <b>two</b> three <i>four</i></p>"
    assert dragoman("translate", model, "--format", "html", input_=html).strip() == expected["auto"]["html"][0]
    out = tmp_path / "bulk"
    (tmp_path / "in").mkdir()
    shutil.copy(lines, tmp_path / "in")
    dragoman("translate", model, "--input", tmp_path / "in", "--output", out)
    assert (out / "lines.txt").read_text().splitlines()[0] == texts[0]
    document = docx.Document()
    document.add_paragraph("one two three")
    document.save(str(tmp_path / "a.docx"))
    dragoman("translate", model, "--input", tmp_path / "a.docx", "--output", tmp_path / "b.docx")
    assert [paragraph.text for paragraph in docx.Document(str(tmp_path / "b.docx")).paragraphs] == texts[:1]
    (tmp_path / "source").write_text("one two three\n")
    (tmp_path / "target").write_text("trois deux un\n")
    scored = dragoman("score", model, "--source", tmp_path / "source", "--target", tmp_path / "target")
    assert scored.split("\t")[0] == f"{expected['none']['scores'][0][0]:.6f}"
    evaluated = dragoman("evaluate", model, "--source", tmp_path / "source", "--reference", tmp_path / "target")
    assert "chrF2 100.00" in evaluated
    assert json.loads(dragoman("info", model, "--json"))["engine"] == "native"
    assert dragoman("generate", models / "language_v1", "--greedy", "--prompt", "one").startswith("one")
    assert "budget" in dragoman("config", "train")


@native
@pytest.mark.parametrize("option", ["--viewer", "--no-viewer"])
def test_the_server(option: str, models: Path, expected: dict[str, Any]) -> None:
    pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'dragoman[serve]'")
    command = [sys.executable, "-c", COMMAND, "serve", models / "model_v1", "--port", "0", option]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        if option == "--viewer":
            assert line.startswith("without the viewer, which needs PyTorch") and INSTALL in line
            line = server.stderr.readline()
        body = json.dumps({"q": "one two three", "source": "en", "target": "xx"}).encode()
        request = urllib.request.Request(f"{line.split()[0]}/translate", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                assert json.load(answer)["translatedText"] == expected["auto"]["translations"][0]["text"]
        finally:
            server.terminate()


# ---------------------------------------------------------------------------------------------------- what needs it


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["train", "{config}"], "'dragoman train' needs PyTorch"),
        (["demo", "--out", "{out}"], "'dragoman demo' needs PyTorch"),
        (["average", "{models}/model_v1"], "'dragoman average' needs PyTorch"),
        (["explain", "{models}/model_v1", "one", "--out", "{out}"], "'dragoman explain' needs PyTorch"),
        (["label", "{models}/tagger_v1"], "'dragoman label' needs PyTorch"),
        (["serve", "{models}/language_v1", "--port", "0"], "serving a language model needs PyTorch"),
        (["translate", "{models}/lstm_v1"], "its architecture is lstm; supported: transformer and decoder_only; the "),
        (["translate", "{models}/model_v1", "--engine", "pytorch"], "the PyTorch backend needs PyTorch"),
        (["translate", "{models}/model_v1", "--device", "cuda"], "device 'cuda' needs PyTorch"),
        pytest.param(["translate", "{models}/model_v1", "--sample"], "sampling needs PyTorch", marks=native),
        pytest.param(["translate", "{models}/model_v1", "{models}/model_v1"], "an ensemble needs", marks=native),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_features_that_need_pytorch_name_the_installation_command(
    arguments: list[str], what: str, models: Path, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[data]\ntrain = [{ source = "a", target = "b" }]\n')
    filled = [text.format(models=models, config=config, out=tmp_path / "out") for text in arguments]
    done = run(COMMAND, *filled, input_="one\n")
    assert done.returncode == 2 and not done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("dragoman: ")]
    assert what in line and line.endswith(f"needs PyTorch, which is not installed; install it with: {INSTALL}")
    assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()


def test_public_names_can_be_imported_and_say_what_they_need_when_they_are_used() -> None:
    code = f"""{BLOCKED}
from dragoman import Chat, Labeller, Translator, build_model, load_config, record, train
from dragoman.errors import UsageError
for use in (train, build_model, record, lambda: Labeller.load("x")):
    try:
        use()
    except UsageError as error:
        print(error)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    names = ("train", "build_model", "record", "Labeller")
    message = "needs PyTorch, which is not installed; install it with:"
    assert done.stdout.splitlines() == [f"dragoman.{name} {message} {INSTALL}" for name in names]


@native
def test_calls_that_fall_back_to_pytorch_say_so(models: Path) -> None:
    code = f"""{BLOCKED}
import sys
from dragoman import Translator
from dragoman.errors import UsageError
translator = Translator.load(sys.argv[1])
for use in (
    lambda: translator.translate(["one"], max_extra=5000),
    lambda: list(translator.stream_tokens("one")),
    lambda: translator.translate(["one"], sample=True),
    translator.to_torch,
):
    try:
        use()
    except UsageError as error:
        print(error)
"""
    done = run(code, models / "model_v1")
    assert done.returncode == 0, done.stderr
    features = [line.removesuffix(f" needs PyTorch, which is not installed; install it with: {INSTALL}")
                for line in done.stdout.splitlines()]  # fmt: skip
    assert features == [
        "decoding of texts that may exceed the 1,024 positions of the native engine",
        "translating or generating step by step",
        "sampling",
        "the PyTorch backend",
    ]


def test_another_missing_module_keeps_its_error() -> None:
    """A bug in an import must not be reported as a missing PyTorch."""
    code = "import sys; sys.modules['safetensors'] = None; sys.modules['tensorboard'] = None\n"
    code += "from dragoman.extras import needs_torch\nwith needs_torch('this'):\n    import torchvision_of_nobody"
    done = run(code)
    assert done.returncode == 1 and "ModuleNotFoundError: No module named 'torchvision_of_nobody'" in done.stderr


@pytest.mark.parametrize(
    ("package", "use", "what"),
    [
        ("tensorboard", "from dragoman.io.run_log import _Events; _Events(None, str, None)", "training"),
        ("num2words", "import dragoman.data.spelled_numbers", "the built-in corpus"),
        ("matplotlib", "from dragoman.pages.charts import drawing\nwith drawing('a'): pass", "drawing charts"),
    ],
)
def test_other_packages_of_the_extra(package: str, use: str, what: str) -> None:
    done = run(f"import sys; sys.modules[{package!r}] = None\n{use}")
    assert f"{what} needs {package}, which cannot be imported" in done.stderr and INSTALL in done.stderr


# -------------------------------------------------------------------------------------------------- real environments


def interpreter(version: str) -> Path | None:
    """An interpreter of a version of Python on the search path or in a folder of pyenv."""
    named = [shutil.which(f"python{version}")]
    found = [Path(path) for path in named if path]
    found += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3"))
    for path in found:
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=300)
        if done.returncode == 0 and done.stdout.strip() == version:
            return path
    return None


@native
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_an_environment_without_pytorch(version: str, tmp_path: Path, expected: dict[str, Any]) -> None:
    """Install the package with the extra `serve` in a new environment, and compare its results with this process."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} with venv on this machine")
    sources = tmp_path / "sources"
    shutil.copytree(SOURCE, sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, sources)
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    python = tmp_path / "venv" / "bin" / "python"
    # The C++ libraries are those of the sources, which fit every Python; a compiler would take minutes.
    environment = os.environ | {"CC": "/nowhere/cc", "CXX": "/nowhere/c++", "PYTHONWARNINGS": "ignore"}
    environment = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "-c", "requirements.lock", "-e", ".[serve]"]
    done = subprocess.run(install, cwd=sources, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]

    code = "import importlib.metadata as m; print(sorted(d.name for d in m.distributions()))"
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert not {"torch", "matplotlib", "tensorboard"} & set(json.loads(done.stdout.replace("'", '"')))
    with tempfile.TemporaryDirectory() as folder:
        script = [python, "-W", "error", TESTS / "native_results.py", copies(Path(folder, "models"))]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("torch") is False
    assert found == expected
