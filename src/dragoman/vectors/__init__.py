"""Word vectors: training, neighbours and analogies, evaluation, plots."""

from typing import TYPE_CHECKING

from dragoman.extras import lazy_names

if TYPE_CHECKING:
    from dragoman.vectors.train import train_vectors as train_vectors
    from dragoman.vectors.word_vectors import WordVectors as WordVectors

# `dragoman --help` imports this package, but no NumPy.
__all__, __getattr__ = lazy_names(
    __name__, {"dragoman.vectors.train": "train_vectors", "dragoman.vectors.word_vectors": "WordVectors"}
)
