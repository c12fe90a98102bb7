"""Checks of imported models that hold of every family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import Translator
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.errors import DragomanError
from dragoman.formats.export import export
from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, Tokenizer
from small_run import write_lines


def loaded(folder: Path) -> tuple[Model, Tokenizer]:
    """The network and the tokenizer of a model folder."""
    network, tokenizer, _ = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    return network, tokenizer


def random_targets(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(EOS + 1, tokenizer.target_size, (3 + i,), generator=generator).tolist() for i in range(count)]


def cases(tokenizer: Tokenizer, lines: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """The ids of each line, and a random target."""
    rng = np.random.default_rng(3)
    return [(tokenizer.encode_source(line), rng.integers(4, tokenizer.target_size, 9).tolist()) for line in lines]


def logits(folder: Path, dtype: torch.dtype, source: list[int], target: list[int]) -> np.ndarray:
    """Logits (T, V) of the tokens after BOS and those of the target."""
    network = loaded(folder)[0].to(dtype)
    with torch.no_grad():
        found: np.ndarray = network(torch.tensor([source]), None, torch.tensor([[BOS, *target]]))[0].numpy()
    return found


def imported_toolkit(source: Path, family: str, lines: Sequence[str]) -> Path:
    """The folder of a model that was imported from a toolkit, after a comparison without differences."""
    done = import_model(source, source.parent / "model", write_lines(source.parent / "lines.txt", lines))
    assert done.family == family and done.parity.met and done.tokenizer and done.tokenizer.met
    assert done.parity.greedy.same == len(lines)  # type: ignore[attr-defined]
    assert done.parity.beam.different == 0  # type: ignore[attr-defined]
    return done.folder


def check_native_engine(folder: Path, lines: Sequence[str], tolerance: float = 1e-4, **options: Any) -> None:
    """Both backends translate the lines alike, by greedy search and by beam search."""
    if load_native() is None:
        pytest.skip(f"no native engine: {unavailable_reason()}")
    engine, reference = (Translator.load(folder, engine=name, quantize="none") for name in ("native", "pytorch"))
    for width in (1, 4):
        ours, theirs = (list(each.translate(lines, beam=width, **options)) for each in (engine, reference))
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=tolerance)


def check_wrong_weight(
    model: Path, format: str, place: tuple[Any, str], weight: str, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export whose tensors, as returned by the function at `place`, have one wrong matrix writes no folder."""
    original, out = getattr(*place), model.parent / "out"

    def wrong(*args: Any) -> Any:
        tensors = original(*args)
        return tensors | {weight: tensors[weight] * 1.05}

    monkeypatch.setattr(*place, wrong)
    with pytest.raises(DragomanError, match="parity not met, nothing was written"):
        export(model, out, format, check=lines)
    assert not out.exists()
