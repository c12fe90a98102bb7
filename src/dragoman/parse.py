"""Sentences in, constituency trees out, with a model that was trained on data of kind "trees"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from dragoman.data.batching import collate_source
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.trees import Tree, delinearize
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.search.generate import generate
from dragoman.search.settings import SearchSettings
from dragoman.search.stepper import ModelStepper

__all__ = ["Parser"]

_TOGETHER = 64


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
        self.model = model.to(self.device)
        self.tokenizer = tokenizer
        self.settings = SearchSettings.of(search)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Parser:
        """The parser of a run folder or of one model folder in it.

        Raises ModelFolderError, and UsageError where the model has learned something else.
        """
        from dragoman.model_folder import load_model, read_config  # here, so that parsing does not load the trainer

        kind = read_config(path).data.kind
        if kind != "trees":
            raise UsageError(f'{path}: a model that learned from data of kind "{kind}"; a parser learns from "trees"')
        model, tokenizer, config = load_model(path)
        return cls(model, tokenizer, config.search, device)

    def parse(self, sentences: Iterable[str | Sequence[str]], **overrides: Any) -> list[Tree]:
        """A tree a sentence, in order; a sentence is its words, or a text with spaces between them.

        What the model writes is mended where it is no tree over the words (see `delinearize`); parts of speech it does
        not write.  overrides: search settings by name.  Raises UsageError for a sentence without words.
        """
        if isinstance(sentences, str):
            raise UsageError(f"one text was given ({sentences[:40]!r}) where sentences are expected: give [text]")
        words = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in sentences]
        if [] in words:
            raise UsageError(f"sentence {words.index([]) + 1} has no words: leave it out")
        rows = self.linearized(words, **overrides)
        return [delinearize(row, own)[0] for row, own in zip(rows, words, strict=True)]

    def linearized(self, sentences: Sequence[Sequence[str]], **overrides: Any) -> list[str]:
        """What the model writes for each sentence, given as its words."""
        settings = SearchSettings.of(self.settings, **overrides)
        sources = [self.tokenizer.encode_source(" ".join(words)) for words in sentences]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        rows = [""] * len(sources)
        stepper, training = ModelStepper(self.model), self.model.training
        self.model.eval()
        for begin in range(0, len(order), _TOGETHER):
            places = order[begin : begin + _TOGETHER]
            src, mask = collate_source([sources[i] for i in places])
            mask = None if mask is None else mask.to(self.device)
            for place, found in zip(places, generate(stepper, src.to(self.device), mask, settings), strict=True):
                rows[place] = self.tokenizer.decode_target(found[0].tokens)
        self.model.train(training)
        return rows
