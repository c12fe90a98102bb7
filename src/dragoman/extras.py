"""Imports of packages that belong to an optional extra of the installation."""

from __future__ import annotations

import importlib
from typing import Any

from dragoman.errors import UsageError

__all__ = ["extra_package"]


def extra_package(name: str, extra: str, what: str) -> Any:
    """Import and return the module `name` of the extra `extra`.

    what: the feature that needs it, for the message.  Raises UsageError if the module cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{what} needs {name.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it with: pip install 'dragoman[{extra}]'"
        ) from None
