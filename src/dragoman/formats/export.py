"""A model folder of ours -> a folder for another program, written whole, with its report, or not at all."""

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
    CTranslate2,
    Quantization,
    package,
    specification,
    unsupported,
    write_specification,
)
from dragoman.formats.parity import Parity, ParityCases, compare, parity_cases
from dragoman.formats.usage import usage
from dragoman.io.writing import atomic_folder, not_written
from dragoman.models.seq2seq import Model

__all__ = ["FORMATS", "Export", "export"]

FORMATS = ("ctranslate2",)


@dataclass(frozen=True)
class Export:
    """What was written where.

    parity: of the weights in float32; it decides.  quantized: the same questions to the int8 weights, for information,
    None where the folder is float32.
    """

    folder: Path
    quantization: Quantization
    parity: Parity
    quantized: Parity | None

    def lines(self) -> list[str]:
        """The report, a fact a line."""
        size = sum(file.stat().st_size for file in self.folder.iterdir()) / 1e6
        rows = self.parity.lines()
        if self.quantized is not None:
            rows += ["what quantization changes:", *(f"  {line}" for line in self.quantized.lines())]
        return [*rows, f"written: {self.folder} ({self.quantization}, {size:.1f} MB; its README.md says how to use it)"]


def export(
    model: str | Path,
    folder: str | Path,
    format: str = "ctranslate2",
    quantization: str = "float32",
    check: str | Path | None = None,
) -> Export:
    """Write the model of a run or model folder for another program, and show that both say the same.

    format: "ctranslate2".  quantization: "float32" or "int8".  check: text whose first 200 lines both are asked about;
    default: the model's own validation or training text where it is at hand, else rows of random words.  Raises
    UsageError for a request that cannot be met (all reasons at once) and DragomanError without parity; there is no
    folder then.
    """
    from dragoman.models.model_folder import find_model, load_network, wrong_model

    folder = Path(folder)
    _check_request(folder, format, quantization)
    network, vocabulary, config = load_network(model)
    if not isinstance(network, Model) or not isinstance(vocabulary, Tokenizer):
        raise wrong_model(model, config, "writes no text")
    reasons = unsupported(config.model)
    if reasons:
        raise UsageError("\n".join([f"{model}: CTranslate2 cannot run this model:", *(f"  - {r}" for r in reasons)]))
    material = parity_cases(network, vocabulary, config, None if check is None else Path(check))
    try:
        with atomic_folder(folder) as unfinished:
            done = _write_and_compare(
                network, vocabulary, config, unfinished, cast(Quantization, quantization), material
            )
            _describe(done, vocabulary, find_model(model))
    except OSError as error:
        raise DragomanError(not_written(folder, error)) from error
    return Export(folder, done.quantization, done.parity, done.quantized)


def _check_request(folder: Path, format: str, quantization: str) -> None:
    problems = []
    if format not in FORMATS:
        problems.append(f"format {format!r}; accepted: {', '.join(FORMATS)}")
    if quantization not in get_args(Quantization):
        problems.append(f"quantization {quantization!r}; accepted: {', '.join(get_args(Quantization))}")
    if folder.exists():
        problems.append(f"{folder}: exists already; name a folder that does not")
    elif not folder.parent.is_dir():
        problems.append(f"{folder}: there is no folder {folder.parent}; make it first")
    try:
        package()
    except UsageError as error:
        problems.append(str(error))
    if problems:
        raise UsageError("\n".join(["this export cannot be made:", *(f"  - {problem}" for problem in problems)]))


def _write_and_compare(
    network: Model,
    tokenizer: Tokenizer,
    config: Config,
    folder: Path,
    quantization: Quantization,
    material: ParityCases,
) -> Export:
    source = [tokenizer.source_piece(i) for i in range(tokenizer.source_size)]
    target = [tokenizer.target_piece(i) for i in range(tokenizer.target_size)]
    width = max(2, config.search.beam)

    def report(precision: Quantization) -> Parity:
        write_specification(specification(network, config.model, source, target), folder, precision)
        return compare(network, CTranslate2(folder, precision, source, target), material, width)

    parity = report("float32")
    if not parity.met:
        rows = "\n".join(f"  {line}" for line in parity.lines())
        raise DragomanError(f"CTranslate2 does not say what this model says, so nothing was written:\n{rows}")
    return Export(folder, quantization, parity, None if quantization == "float32" else report(quantization))


def _describe(done: Export, tokenizer: Tokenizer, model: Path) -> None:
    """Beside the weights: the tokenizer's files, how to call the model, which model it was and what the report said."""
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
    names = sorted(tokenizer.files())  # source.model before target.model
    source = None if (done.folder / "vocabulary.json").exists() else names[0]
    files = tokenizer.files() | {
        "README.md": usage(source, names[-1], done.quantization).encode(),
        "export.json": json.dumps(facts, indent=1, ensure_ascii=False).encode(),
    }
    for name, content in files.items():
        (done.folder / name).write_bytes(content)
