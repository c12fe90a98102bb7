"""The models of recipes in every program of an export: the same tokens on 200 lines, greedy and with beam 4."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dragoman.config import parse_config
from dragoman.formats.export import export
from dragoman.training.trainer import train
from small_run import digit_pairs, small_document, write_corpus, write_lines

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SIZES = {"d_model": 24, "d_ff": 32, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1}
RECIPE_NAMES = ("multi30k", "multi30k-tiny", "norms/post-layer")
PACKAGES = {"ctranslate2": ["ctranslate2"], "huggingface": ["transformers"], "onnx": ["onnx", "onnxruntime"]}


@pytest.fixture(scope="module", params=RECIPE_NAMES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The name of a recipe, a trained model with its layers in small sizes, and 200 lines."""
    folder = tmp_path_factory.mktemp("recipe")
    document = small_document(write_corpus(folder / "data", train=600))
    document["model"] = tomllib.loads((RECIPES / f"{request.param}.toml").read_text())["model"] | SIZES
    document["train"] |= {"budget": "120 steps", "validate_every": "120 steps", "batch_tokens": 600, "threads": 1}
    document["search"] = {"beam": 4, "max_extra": 6}
    train(parse_config(document), folder / "run")
    lines = [source for source, _ in digit_pairs(200, seed=11, longest=9)]
    return request.param, folder / "run", write_lines(folder / "lines.txt", lines)


@pytest.mark.filterwarnings("ignore")  # of the packages, about their own use
@pytest.mark.parametrize("name", PACKAGES)
def test_200_lines(name: str, trained: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, run, lines = trained
    for package in PACKAGES[name]:
        pytest.importorskip(package, reason="needs: pip install 'dragoman[formats]'")
    report = export(run, tmp_path / "out", name, check=lines).parity
    assert (report.cases, report.width) == (200, 4) and report.largest < 1e-4
    assert report.greedy.different == report.beam.different == 0
    assert report.greedy.same >= 198 and report.beam.same >= 195, "the rest are ties"
