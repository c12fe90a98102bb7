"""Optional import of pyarrow, and what readers of its tables share."""

from __future__ import annotations

from typing import Any

from dragoman.extras import extra_package


def arrow(name: str = "pyarrow") -> Any:
    """Import and return a module of pyarrow.  Raises UsageError if it is not installed."""
    return extra_package(name, "scale", "Parquet")


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of pyarrow for files that are damaged or cannot be read."""
    return (arrow().ArrowException, OSError, UnicodeDecodeError)


def is_text(kind: Any) -> bool:
    """Return whether a type of pyarrow is that of text, possibly encoded as a dictionary."""
    types = arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
