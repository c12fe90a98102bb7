"""Export a model folder to the format of another program, with a parity report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from dragoman._version import __version__
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.formats.ctranslate2 import (
    CTranslate2Runtime,
    Quantization,
    package,
    specification,
    unsupported,
    write_specification,
)
from dragoman.formats.parity import TOLERANCE, Parity, ParityCases, compare_models, parity_cases
from dragoman.formats.usage import usage_page
from dragoman.io.writing import atomic_folder, new_folder_problems, not_written
from dragoman.models.seq2seq import Model

__all__ = ["FORMATS", "Export", "export"]

FORMATS = ("ctranslate2",)


@dataclass(frozen=True)
class Export:
    """An exported model.

    parity: of the float32 weights, required.  quantized: of the int8 weights, for information; None for float32.
    """

    folder: Path
    quantization: Quantization
    parity: Parity
    quantized: Parity | None

    def lines(self) -> list[str]:
        size = sum(file.stat().st_size for file in self.folder.iterdir()) / 1e6
        rows = self.parity.lines()
        if self.quantized is not None:
            rows += ["effect of quantization:", *(f"  {line}" for line in self.quantized.lines())]
        return [*rows, f"written: {self.folder} ({self.quantization}, {size:.1f} MB; usage in README.md)"]


def export(
    model: str | Path,
    folder: str | Path,
    format: str = "ctranslate2",
    quantization: str = "float32",
    check: str | Path | None = None,
) -> Export:
    """Export the model of a run or model folder, and check that the other program computes the same (parity).

    format: "ctranslate2".  quantization: "float32" or "int8".  check: text of which the first 200 lines are compared;
    default: the validation or training text of the model if it is available, else random tokens.  Raises UsageError
    with all reasons for an unsupported request, and DragomanError without parity; then no folder is written.
    """
    from dragoman.models.model_folder import find_model, load_network, wrong_model

    folder = Path(folder)
    _check_request(folder, format, quantization)
    network, vocabulary, config = load_network(model)
    if not isinstance(network, Model) or not isinstance(vocabulary, Tokenizer):
        raise wrong_model(model, config, "generates no text")
    reasons = unsupported(config.model)
    if not any(name.endswith(".model") for name in vocabulary.files()):
        reasons.append("its tokenizer is not a sentencepiece model, which the script in the README needs")
    if reasons:
        raise UsageError("\n".join([f"{model}: CTranslate2 cannot run this model:", *(f"  - {r}" for r in reasons)]))
    cases = parity_cases(network, vocabulary, config, None if check is None else Path(check))
    try:
        with atomic_folder(folder) as unfinished:
            done = _write_model(network, vocabulary, config, unfinished, cast(Quantization, quantization), cases)
            _write_description(done, vocabulary, find_model(model))
    except OSError as error:
        raise DragomanError(not_written(folder, error)) from error
    return Export(folder, done.quantization, done.parity, done.quantized)


def _check_request(folder: Path, format: str, quantization: str) -> None:
    problems = []
    if format not in FORMATS:
        problems.append(f"format = {format!r}; accepted: {', '.join(FORMATS)}")
    if quantization not in get_args(Quantization):
        problems.append(f"quantization = {quantization!r}; accepted: {', '.join(get_args(Quantization))}")
    problems += new_folder_problems(folder)
    try:
        package()
    except UsageError as error:
        problems.append(str(error))
    if problems:
        raise UsageError("\n".join(["invalid export options:", *(f"  - {problem}" for problem in problems)]))


def _write_model(
    network: Model, tokenizer: Tokenizer, config: Config, folder: Path, quantization: Quantization, cases: ParityCases
) -> Export:
    source = [tokenizer.source_piece(i) for i in range(tokenizer.source_size)]
    target = [tokenizer.target_piece(i) for i in range(tokenizer.target_size)]
    width = max(2, config.search.beam)

    def report(precision: Quantization) -> Parity:
        write_specification(specification(network, config.model, source, target), folder, precision)
        return compare_models(network, CTranslate2Runtime(folder, precision, source, target), cases, width)

    parity = report("float32")
    if not parity.met:
        rows = "\n".join(f"  {line}" for line in parity.lines())
        raise DragomanError(
            f"parity not met, nothing was written; accepted: log-probability differences below {TOLERANCE:g} and no "
            f"different outputs. Please report this with the configuration of the model.\n{rows}"
        )
    return Export(folder, quantization, parity, None if quantization == "float32" else report(quantization))


def _write_description(done: Export, tokenizer: Tokenizer, model: Path) -> None:
    """Write the tokenizer files, the README, and the origin and parity report as JSON."""
    from dragoman.models.model_folder import read_meta

    facts: dict[str, Any] = {
        "format": "ctranslate2",
        "quantization": done.quantization,
        "dragoman": __version__,
        "ctranslate2": package().__version__,
        "model": read_meta(model)["sha256"]["model.safetensors"],
        "parity": asdict(done.parity),
        "quantized": None if done.quantized is None else asdict(done.quantized),
    }
    names = sorted(name for name in tokenizer.files() if name.endswith(".model"))  # source.model before target.model
    source = None if (done.folder / "vocabulary.json").exists() else names[0]
    files = tokenizer.files() | {
        "README.md": usage_page(source, names[-1], done.quantization).encode(),
        "export.json": json.dumps(facts, indent=1, ensure_ascii=False).encode(),
    }
    for name, content in files.items():
        (done.folder / name).write_bytes(content)
