"""Word vectors: training, neighbours and analogies, evaluation, plots."""

from __future__ import annotations

from dragoman.vectors.train import train_vectors
from dragoman.vectors.word_vectors import WordVectors

__all__ = ["WordVectors", "train_vectors"]
