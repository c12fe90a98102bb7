"""The word vectors of a trained model: its source embedding."""

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
    """Return the tokens (V) of a model or run folder and their vectors (V, D), without the special tokens.

    Raises ModelFolderError if there is no model, UsageError if its input is not text.
    """
    network, vocabulary, _ = load_network(path)
    tokenizer = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    embedding = next((module for module in network.modules() if isinstance(module, Embedding)), None)
    if embedding is None or not isinstance(tokenizer, Tokenizer):
        raise UsageError(f"{path}: the input of this model is not text, so it has no word vectors; use another model")
    tokens = [tokenizer.source_piece(token) for token in range(EOS + 1, tokenizer.source_size)]
    return tokens, embedding.weight.detach()[EOS + 1 :].float().numpy()
