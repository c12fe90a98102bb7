"""A checkpoint of the Hugging Face Hub, which the package `huggingface_hub` downloads into its cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError, UsageError
from dragoman.extras import extra_package

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "*.txt")
_PICKLES = ("*.bin",)
"""Weights of models without safetensors; a repository often has both."""
_OTHERS = ("*/*",)
"""Subfolders, with weights for other programs."""


def is_hub_name(source: Path) -> bool:
    """Return whether a source does not exist here, but has the form of a name on the Hub, `NAMESPACE/NAME`."""
    return not source.exists() and _NAME.fullmatch(source.as_posix()) is not None


def hub_package() -> Any:
    """Import and return `huggingface_hub`.  Raises UsageError if it is not installed."""
    return extra_package("huggingface_hub", "formats", "a download from the Hugging Face Hub")


def download(name: str) -> Path:
    """Return the folder of a model of the Hub, in the cache, to which missing files are downloaded.

    Raises UsageError if there is no such model, and DragomanError if it cannot be downloaded.
    """
    hub, errors = hub_package(), extra_package("huggingface_hub.errors", "formats", "a download")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=_FILES, ignore_patterns=_OTHERS))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=_FILES + _PICKLES, ignore_patterns=_OTHERS))
    except errors.RepositoryNotFoundError as error:  # also of private and gated models
        raise UsageError(
            f"{name}: no such folder, and no model of the Hugging Face Hub that you may read; check the name; for "
            f"private and gated models, log in first: hf auth login ({_reason(error)})"
        ) from error
    except Exception as error:  # any: of the network, of its client, of the disk
        raise DragomanError(
            f"{name}: no such folder, and the model of the Hugging Face Hub cannot be downloaded ({_reason(error)}); "
            f"without a network, import a folder from a machine that has one: hf download {name} --local-dir FOLDER"
        ) from error
    return folder


def _reason(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())[:250].rstrip(".")
