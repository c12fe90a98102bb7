"""Word vectors: trained on a text or taken from a model, asked for neighbours and analogies, measured and drawn."""

from __future__ import annotations

from dragoman.vectors.train import train_vectors
from dragoman.vectors.word_vectors import WordVectors

__all__ = ["WordVectors", "train_vectors"]
