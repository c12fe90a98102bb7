"""What the native engine computes for the golden models, exactly; as a program, in a process of its own.

    python native_results.py FOLDER [--block-torch]

FOLDER holds copies of the golden models, because the engine packs the weights beside them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODELS = ("model_v1", "language_v1", "dialogue_v1", "lstm_v1", "tagger_v1")
LINES = ["one two three", "", "nine zero seven seven. four five", "six", "three one four one five nine two six"]
TARGETS = ["trois deux un", "nul", "sept sept nul neuf", "sies", "sies deux neuf"]
HTML = "<p>one <b>two</b> three <i>four</i></p>"


class _Blocker:
    """Finds no torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def block_torch() -> None:
    sys.meta_path.insert(0, _Blocker())  # type: ignore[arg-type]


def results(folder: Path) -> dict[str, Any]:
    """Texts, scores and weights as Python writes them exactly, and the sha256 of the packed models."""
    from dragoman import Chat, TextGenerator, Translator
    from dragoman.cli.describe import describe
    from dragoman.markup import translate_html

    found: dict[str, Any] = {}
    for quantize in ("auto", "none"):
        translator = Translator.load(folder / "model_v1", quantize=quantize, threads=1)
        found[quantize] = {
            "description": translator.description,
            "translations": [dataclasses.asdict(t) for t in translator.translate(LINES, beam=4, nbest=2)],
            "terms": [t.text for t in translator.translate(LINES, glossary={"two": "neuf"})],
            "html": translate_html(translator, [HTML]),
            "scores": [[s.log_prob, s.token_log_probs] for s in translator.score(LINES, TARGETS)],
            "weights": [a.weights.tolist() for a in translator.align(LINES, TARGETS)],
        }
    generator = TextGenerator.load(folder / "language_v1")
    found["continued"] = [c.to_json() for c in generator.generate(["one", ""], sample=False, max_tokens=12)]
    found["text scores"] = [[s.log_prob, s.tokens] for s in generator.score(LINES)]
    found["chat"] = Chat.load(folder / "dialogue_v1").description
    found["info"] = [without_path(describe(folder / name)) for name in MODELS]
    found["packed"] = packed(folder)
    return found


def without_path(description: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in description.items() if key not in ("folder", "bytes", "engine")}


def packed(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*/packed/*.bin"))
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main(arguments: Sequence[str]) -> None:
    if "--block-torch" in arguments:
        block_torch()
    print(json.dumps(results(Path(arguments[0])) | {"torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main(sys.argv[1:])
