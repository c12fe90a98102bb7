"""Changes to a checkpoint that a test imports, and the message if the import refuses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

from dragoman.errors import DragomanError, UsageError
from dragoman.formats.importing.importer import import_model


def set_values(folder: Path, file: str = "config.json", **values: Any) -> None:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | values))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def refusal(folder: Path, error: type[DragomanError] = UsageError) -> str:
    """The message of a refused import, which leaves nothing behind."""
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(error) as caught:
        import_model(folder, folder.parent / "model")
    assert sorted(path.name for path in folder.parent.iterdir()) == before
    return str(caught.value)
