"""Imports of what an installation may lack: packages of its extras, wings of Dragoman, plug-ins.

The core trains and translates; a wing is anything else.  The core imports no wing by name and works without it: wings
are folders, found here and in the table of commands (`cli/__init__.py`).

PyTorch belongs to the extra `train`.  Modules import it at their top, because most of them compute with it; code that
works without it imports such a module inside of `needs_torch`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from dragoman.errors import UsageError

WINGS = {
    "adapt": ("adapt",), "advice": ("advice",), "bulk": ("bulk",),
    "documents": ("documents", "markup"),
    "formats": ("formats",),
    "interpret": ("interpret", "pages", "evaluation/compare"),
    "serve": ("serve",),
    "tune": ("tune",),
    "vectors": ("vectors",),
}  # fmt: skip
"""Wing -> its packages and modules.  The first is a package that shows whether the wing is installed."""
_NEEDS = {"adapt": ("advice", "formats"), "serve": ("documents", "interpret"), "vectors": ("interpret",)}


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


@contextmanager
def ray_cluster(what: str, log_level: int) -> Iterator[tuple[Any, bool]]:
    """Connect to the Ray cluster at RAY_ADDRESS, or to one on this machine that ends with the context.

    Yield the package, and whether the cluster was started here.  what: as in `extra_package`.
    """
    ray = extra_package("ray", "scale", what)
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, logging_level=log_level, log_to_driver=False)
    try:
        yield ray, started_here
    finally:
        if started_here:
            ray.shutdown()


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


class TorchMissing(UsageError):
    """PyTorch is not installed."""


@contextmanager
def needs_torch(what: str) -> Iterator[None]:
    """Convert the ImportError of a missing PyTorch into TorchMissing.  what: the feature that needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise TorchMissing(
            f"{what} needs PyTorch, which is not installed; install it with: pip install 'dragoman[train]'"
        ) from None


def missing_wing(module: str, what: str) -> UsageError | None:
    """Return an error if `module` belongs to a wing that is not installed, or that needs one which is not.

    what: the feature that needs it.
    """
    root, _, rest = module.partition(".")
    package = rest.partition(".")[0] if root == "dragoman" else ""
    its_wing = next((name for name, paths in WINGS.items() if package in paths), None)
    for name in () if its_wing is None else (its_wing, *_NEEDS.get(its_wing, ())):
        if importlib.util.find_spec(f"dragoman.{WINGS[name][0]}") is None:
            return UsageError(
                f"{what} needs the part {name!r} of Dragoman (dragoman/{WINGS[name][0]}), which is not installed; "
                "install the whole package with: pip install dragoman"
            )
    return None


def wing(module: str, what: str) -> Any:
    """Import and return a module of a wing.  what: the feature that needs it.  Raises UsageError (`missing_wing`)."""
    if error := missing_wing(module, what):
        raise error
    return importlib.import_module(module)


@functools.cache
def plug_ins(group: str) -> dict[str, str]:
    """Return the entry points `dragoman.<group>` of other packages: name -> "module:attribute", or "module"."""
    from importlib.metadata import entry_points  # slow, and needed only for what Dragoman itself does not have

    return {point.name: point.value for point in entry_points(group=f"dragoman.{group}")}


@functools.cache
def load_plug_ins() -> bool:
    """Import the modules of the entry points `dragoman.plugins`, which register kinds; return whether there are any."""
    modules = plug_ins("plugins").values()
    for module in modules:
        importlib.import_module(module)
    return bool(modules)


class Displayed:
    """Base class of results that a notebook displays as HTML (`interpret/notebook.py`)."""

    def _repr_html_(self) -> str | None:
        module = "dragoman.interpret.notebook"
        return None if missing_wing(module, "") else importlib.import_module(module).to_html(self)


class Unavailable:
    """Placeholder for a public name whose module needs a missing package; any use raises the error."""

    def __init__(self, error: UsageError) -> None:
        self._message = str(error)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UsageError(self._message)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else UsageError(self._message)
