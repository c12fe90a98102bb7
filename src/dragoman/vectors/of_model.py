"""The word vectors inside a trained model: the first matrix that its source goes through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.data.vocabulary import LabelVocabulary
from dragoman.errors import UsageError
from dragoman.models.model_folder import load_network
from dragoman.nn.layers import Embedding

__all__ = ["read_embedding"]


def read_embedding(path: str | Path) -> tuple[list[str], NDArray[np.float32]]:
    """Pieces (V) and their vectors (V, D) of a model or run folder; padding, unknown, begin and end are left out.

    Raises ModelFolderError where there is no model, UsageError where its input is not words.
    """
    network, vocabulary, _ = load_network(path)
    tokenizer = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    embedding = next((module for module in network.modules() if isinstance(module, Embedding)), None)
    if embedding is None or not isinstance(tokenizer, Tokenizer):
        raise UsageError(f"{path}: this model reads no words, so it has no word vectors; name one that reads text")
    pieces = [tokenizer.source_piece(token) for token in range(EOS + 1, tokenizer.source_size)]
    return pieces, embedding.weight.detach()[EOS + 1 :].float().numpy()
