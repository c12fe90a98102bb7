"""Word vectors: training, neighbours and analogies, evaluation, plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.vectors.train import train_vectors as train_vectors
    from dragoman.vectors.word_vectors import WordVectors as WordVectors

__all__ = ["WordVectors", "train_vectors"]


def __getattr__(name: str) -> Any:
    # On first use, so that `dragoman --help`, which imports this package, imports no NumPy.
    if name not in __all__:
        raise AttributeError(f"module 'dragoman.vectors' has no attribute {name!r}")
    from dragoman.vectors import train, word_vectors

    return getattr(train if name == "train_vectors" else word_vectors, name)
