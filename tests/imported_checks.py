"""Checks of imported models that hold of every family, damages to checkpoints, and attacks by pickles."""

from __future__ import annotations

import builtins
import functools
import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from dragoman.errors import DragomanError, UsageError
from dragoman.formats.export import export
from dragoman.formats.importing import importer, name_tables
from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, Tokenizer
from small_run import digit_pairs, write_lines


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


def round_trip(model: Path, format: str, largest: float) -> Path:
    """Export a model to `there`, compare six lines, and import that as `back`; returns the folder of all three."""
    folder = model.parent
    lines = write_lines(folder / "lines.txt", [source for source, _ in digit_pairs(6, seed=8)])
    done = export(model, folder / "there", format, check=lines)
    assert done.met and done.parity.largest < largest and done.parity.greedy.same == 6
    assert done.tokenizer is not None and done.tokenizer.lines > 15
    import_model(folder / "there", folder / "back", check=lines)
    return folder


def check_damaged_conversion(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that writes one matrix wrong is refused."""
    convert = name_tables.converted

    def damaged(*arguments: Any) -> dict[str, Tensor]:
        tensors = convert(*arguments)
        next(tensor for name, tensor in tensors.items() if name.endswith("layers.0.ffn.inner.weight")).mul_(1.01)
        return tensors

    monkeypatch.setattr(importer, "converted", damaged)
    assert "parity not met, nothing was written" in refusal(checkpoint, DragomanError)


# ------------------------------------------------------------------------------------------------------------- damages


def set_values(folder: Path, file: str = "config.json", **values: Any) -> None:
    content = json.loads((folder / file).read_text())
    for key, value in values.items():  # those of a model of text and images are in "text_config"
        is_of_text = key in content.get("text_config", {}) and key != "model_type"
        (content["text_config"] if is_of_text else content)[key] = value
    (folder / file).write_text(json.dumps(content))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def refusal(source: Path, error: type[DragomanError] = UsageError) -> str:
    """The message of a refused import of a folder or a file in it, which leaves nothing behind."""
    folder = source if source.is_dir() else source.parent
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(error) as caught:
        import_model(source, folder.parent / "model")
    assert sorted(path.name for path in folder.parent.iterdir()) == before
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------- attacks


class Attack:
    """refused: regular expression of the name that the unpickler refuses."""

    def __init__(self, payload: Any, refused: str) -> None:
        self.payload, self.refused = payload, refused

    def pickle(self, protocol: int) -> bytes:
        return pickle.dumps({"model": self.payload}, protocol=protocol)

    def succeed(self, content: bytes) -> None:
        pickle.loads(content)


class _Call:
    """Unpickled, it calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Attack]] = {
    "mkdir": lambda path: Attack(_Call(os.mkdir, str(path)), r"posix\.mkdir"),
    "system": lambda path: Attack(_Call(os.system, f"mkdir {path}"), r"posix\.system"),
    "eval": lambda path: Attack(_Call(builtins.eval, f"__import__('os').mkdir({str(path)!r})"), r"builtins\.eval"),
    "exec": lambda path: Attack(_Call(builtins.exec, f"import os; os.mkdir({str(path)!r})"), r"builtins\.exec"),
    "getattr": lambda path: Attack(_Call(builtins.getattr, _Call(os.mkdir, str(path)), "x", 1), r"builtins\.getattr"),
    "partial": lambda path: Attack(_Call(functools.partial(os.mkdir, str(path))), r"functools\.partial"),
}  # fmt: skip
"""By name, an attack that creates a path."""
