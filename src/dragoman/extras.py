"""Packages that come with an extra of the installation: imported where they are needed, and asked for by name."""

from __future__ import annotations

import importlib
from typing import Any

from dragoman.errors import UsageError

__all__ = ["extra_package"]


def extra_package(name: str, extra: str, what: str) -> Any:
    """The module `name` of the extra `extra`; what: that needs it.  Raises UsageError where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{what} needs {name.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it with: pip install 'dragoman[{extra}]'"
        ) from None
