"""Writes the golden model of the current format version: run once a format version, by hand, and never again.

    python tests/golden/write_golden.py

`model_v<format>/` is a model folder as `dragoman train` writes it (no training files), `expected_v<format>.json`
what it answered on the day it was written.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

SOURCES = ["one two three", "nine zero seven seven", "", "six", "four five eight one two"]


def main() -> None:
    import sentencepiece as spm

    from dragoman.model_folder import FORMAT_VERSION, load_model, save_model, unique_tensors
    from dragoman.training.trainer import train
    from dragoman.translate import Translator
    from small_run import small_config, write_corpus

    # The tables of the usual normalization alone are 240 kB, which nothing here is about.
    plain = functools.partial(spm.SentencePieceTrainer.train, normalization_rule_name="identity")
    spm.SentencePieceTrainer.train = plain
    folder = HERE / f"model_v{FORMAT_VERSION}"
    if folder.exists():
        sys.exit(f"{folder} exists: a golden model is never written again")
    with tempfile.TemporaryDirectory() as place:
        data = write_corpus(Path(place) / "data")
        config = small_config(
            data, "train.budget=900 steps", "train.validate_every=450 steps", "model.position.kind=rotary",
            "model.order=pre", "model.norm.kind=rms", "model.gated=true", "model.activation=silu",
        )  # fmt: skip
        train(config, Path(place) / "run")
        model, tokenizer, config = load_model(Path(place) / "run" / "last")
        config = config.model_copy(update={"data": config.data.model_copy(update={"root": "data"})})
        save_model(folder, config, tokenizer, unique_tensors(model), {"step": 900, "scores": {}})
    shutil.rmtree(folder.with_name(f".{folder.name}.unfinished"), ignore_errors=True)
    translator = Translator.load(folder, engine="plain")
    rows = [
        {"source": t.source, "text": t.text, "score": t.score, "tokens": t.tokens}
        for t in translator.translate(SOURCES, beam=3)
    ]
    scores = [s.log_prob for s in translator.score(["one two", "nine"], ["deux un", "neuf"])]
    expected = {"translations": rows, "scores": scores}
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (HERE / f"expected_v{FORMAT_VERSION}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
