"""Imports of packages that belong to an optional extra of the installation.

PyTorch belongs to the extra `train`.  Modules import it at their top, because most of them compute with it; code that
works without it imports such a module inside of `needs_torch`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from dragoman.errors import UsageError

__all__ = ["Unavailable", "extra_package", "has_torch", "lazy_names", "missing_torch", "needs_torch"]


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


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it."""
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` of a package that imports its names on first use, because some need PyTorch.

    homes: the names of each module, separated by spaces.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def resolve(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return sorted(modules), resolve


def missing_torch(error: ImportError, what: str) -> UsageError | None:
    """Return an error with the command that installs PyTorch, or None if `error` has another cause.

    what: the feature that needs it.
    """
    if (error.name or "").partition(".")[0] != "torch":
        return None
    return UsageError(f"{what} needs PyTorch, which is not installed; install it with: pip install 'dragoman[train]'")


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Convert the ImportError of a missing PyTorch into UsageError (`missing_torch`)."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = missing_torch(error, what)
        if message is None:
            raise
        raise message from None


class Unavailable:
    """Placeholder for a public name whose module needs a missing package; any use raises the error."""

    def __init__(self, error: UsageError) -> None:
        self._message = str(error)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UsageError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else UsageError(self._message)
