"""The packages of the extra `scale`: they are asked for only where a table or a cluster is."""

from __future__ import annotations

import importlib
from typing import Any

from dragoman.errors import UsageError

__all__ = ["scale_package"]


def scale_package(name: str) -> Any:
    """The module `name` of ray or pyarrow.  Raises UsageError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name.partition('.')[0]} is not installed ({error}); it comes with: pip install 'dragoman[scale]'"
        ) from None
