"""What the engine's precisions cost on real text."""

from __future__ import annotations

from pathlib import Path

import pytest
import sacrebleu

from dragoman.config import load_config
from dragoman.fast.native import load_native, missing
from dragoman.training.trainer import train
from dragoman.translate import Translator

RECIPE = Path(__file__).parents[2] / "recipes" / "multi30k.toml"


@pytest.mark.slow
@pytest.mark.skipif(load_native() is None, reason=f"no native engine: {missing()}")
def test_int8_costs_at_most_a_fifth_of_a_bleu(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_DATA", str(data_root))
    train(load_config(RECIPE, ["train.budget=1000 steps", "train.validate_every=500 steps"]), tmp_path / "run")
    sources, references = (
        (data_root / "multi30k" / f"test2016.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")
    )
    texts = {
        (engine, quantize): [
            t.text for t in Translator.load(tmp_path / "run", engine=engine, quantize=quantize).translate(sources)
        ]
        for engine, quantize in (("plain", "none"), ("fast", "none"), ("fast", "int8"))
    }
    bleu = {key: sacrebleu.corpus_bleu(some, [references]).score for key, some in texts.items()}
    assert texts["fast", "none"] == texts["plain", "none"]
    assert bleu["plain", "none"] > 15
    assert bleu["fast", "int8"] > bleu["plain", "none"] - 0.2
