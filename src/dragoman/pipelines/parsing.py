"""Sentences in, constituency trees out, with a model that was trained on data of kind "trees"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dragoman.data.batching import batches_within, collate_source
from dragoman.data.readers.trees import Tree, delinearize, penn_word
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.pytorch.generate import generate
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model

__all__ = ["Parse", "Parser"]

_BATCH_TOKENS = 4000  # padded source tokens times beams


class Parse(NamedTuple):
    """The tree of a sentence; whole: the model wrote just that, while what is no tree over the words gets mended."""

    tree: Tree
    whole: bool


class Parser:
    """A model that writes linearized trees: `Parser.load("runs/parsing").parse(["A dog runs ."])`.

    search: any object with the attributes of `SearchSettings`.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        search: Any = SearchSettings(),  # noqa: B008 (frozen)
        device: str | torch.device = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        self.tokenizer = tokenizer
        self.settings = SearchSettings.of(search)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Parser:
        """The parser of a run folder or of one model folder in it.

        Raises ModelFolderError, and UsageError where the model has learned something else.
        """
        from dragoman.models.model_folder import (  # here, so that parsing does not load the trainer
            load_network,
            wrong_model,
        )

        model, vocabulary, config = load_network(path)
        if config.data.kind != "trees" or not isinstance(model, Model) or not isinstance(vocabulary, Tokenizer):
            raise wrong_model(path, config, "writes no trees")
        return cls(model, vocabulary, config.search, device)

    def parse(self, sentences: Iterable[str | Sequence[str]], **overrides: Any) -> list[Parse]:
        """A tree a sentence, in order; a sentence is its words, or a text with spaces between them.

        Round brackets among the words become -LRB- and -RRB-, as in treebanks; a sentence without words has a tree
        without parts.  What is no tree over the words is mended (see `delinearize`); parts of speech are not told.
        overrides: search settings by name.  Raises UsageError.
        """
        if isinstance(sentences, str):
            raise UsageError(f"one text was given ({sentences[:40]!r}) where sentences are expected: give [text]")
        split = [sentence.split() if isinstance(sentence, str) else sentence for sentence in sentences]
        words = [[penn_word(word) for word in own] for own in split]
        rows = self.linearized(words, **overrides)
        return [Parse(*delinearize(row, own)) for row, own in zip(rows, words, strict=True)]

    def linearized(self, sentences: Sequence[Sequence[str]], **overrides: Any) -> list[str]:
        """What the model writes for each sentence, given as its words."""
        settings = SearchSettings.of(self.settings, **overrides)
        sources = [self.tokenizer.encode_source(" ".join(words)) for words in sentences]
        rows = [""] * len(sources)
        stepper = ModelStepper(self.model)
        for places in batches_within([len(ids) * settings.beam for ids in sources], _BATCH_TOKENS):
            src, mask = collate_source([sources[i] for i in places])
            mask = None if mask is None else mask.to(self.device)
            for place, found in zip(places, generate(stepper, src.to(self.device), mask, settings), strict=True):
                rows[place] = self.tokenizer.decode_target(found[0].tokens)
        return rows
