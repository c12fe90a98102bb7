"""Labels for words and for texts, predicted by an encoder."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.config import Config, EncoderOnlyConfig, LabelledData, RecurrentEncoderConfig, TaggedData
from dragoman.data.readers.labelled import read_labelled, read_tagged, tagged_row, text_source
from dragoman.errors import DataError
from dragoman.io.reading import hash_files
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import EOS, PAD, LabelVocabulary, learn_tokenizer
from dragoman.training.tasks.task import Row, RowTask, Score, refuse_empty
from dragoman.training.validation import label_scores

Text = Any
"""A text: a string, or a tuple of words."""


class _LabelTask(RowTask):
    """Labelled texts, without those that are longer than data.max_tokens."""

    unit: str

    def __init__(
        self,
        config: Config,
        data: TaggedData | LabelledData,
        reporter: Reporter,
        vocabulary: LabelVocabulary | None = None,
    ) -> None:
        """vocabulary: with a tokenizer; default: learned from the texts."""
        self.data, self.reporter = data, reporter
        paths = data.train_paths()
        examples = [example for path in paths for example in self._examples(path)]
        refuse_empty(len(examples), paths, "the files are empty")
        if vocabulary is None:
            lines = [text if isinstance(text, str) else " ".join(text) for text, _, _ in examples]
            tokenizer = learn_tokenizer(config.tokenizer, lines, log=reporter.warn)
            vocabulary = LabelVocabulary(sorted({label for _, labels, _ in examples for label in labels}), tokenizer)
        assert vocabulary.tokenizer is not None
        self.tokenizer, self.labels = vocabulary.tokenizer, vocabulary
        super().__init__(config, self.labels, hash_files(paths))
        rows = [
            (text, self._row(text, [self.labels.number(label, f"data.train, line {line:,}") for label in names]))
            for text, names, line in examples
        ]
        kept = [(text, row) for text, row in rows if self._fits(row)]
        counts = f"read {len(rows):,} {self.unit} = kept {len(kept):,}"
        if len(kept) < len(rows):
            counts += f" + too_many_tokens {len(rows) - len(kept):,}"
        if not kept:
            raise DataError(f"nothing to train on: {counts}; increase data.max_tokens (now {data.max_tokens})")
        reporter.log(f"data: {counts}; {len(self.labels.labels):,} labels")
        self._texts, self._rows = [text for text, _ in kept], [row for _, row in kept]
        self.lengths = np.array([len(ids) + len(labels) for ids, labels in self._rows], dtype=np.int64)

    @abstractmethod
    def _examples(self, path: Path) -> Iterable[tuple[Text, Sequence[str], int]]:
        """Return text, labels and line number of every example of a file."""

    @abstractmethod
    def _row(self, text: Text, labels: list[int], rng: random.Random | None = None) -> Row:
        """Return the row of a text in its usual segmentation, or in one drawn with `rng`."""

    def _fits(self, row: Row) -> bool:
        return len(row[0]) <= self.data.max_tokens

    def rows(self, indices: list[int], key: tuple[int, int, int]) -> list[Row]:
        """Return rows, segmented at random if tokenizer.sampling is set, unless that would exceed data.max_tokens."""
        rows = [self._rows[i] for i in indices]
        if self.config.tokenizer.sampling == 0:
            return rows
        rng = random.Random(repr(key))
        labels = [[label for label in row[1] if label != PAD] for row in rows]
        drawn = [self._row(self._texts[i], tags, rng) for i, tags in zip(indices, labels, strict=True)]
        return [new if self._fits(new) else row for new, row in zip(drawn, rows, strict=True)]

    def tokens(self) -> int:
        return sum(len(ids) + sum(label != PAD for label in labels) for ids, labels in self._rows)

    def validation(self) -> Score | None:
        path = self.data.valid_path()
        if path is None:
            return None
        rows = [
            self._row(text, [self.labels.number(label, f"{path}, line {line:,}") for label in labels])
            for text, labels, line in self._examples(path)
        ]
        kept = [row for row in rows if self._fits(row)]
        if dropped := len(rows) - len(kept):
            self.reporter.log(
                f"data.valid: {dropped:,} {self.unit} exceed max_tokens = {self.data.max_tokens} and are left out"
            )
        return partial(label_scores, batches=self.valid_batches(kept, path))


class TaggingTask(_LabelTask):
    """A tag per word of a sentence, predicted at the first subword of the word."""

    unit = "sentences"
    data: TaggedData

    @cached_property
    def _subwords(self) -> Callable[[str], list[int]]:
        return cache(self.tokenizer.encode_word)

    def _examples(self, path: Path) -> Iterable[tuple[Text, Sequence[str], int]]:
        return read_tagged(path, self.data.column)

    def _row(self, text: Text, labels: list[int], rng: random.Random | None = None) -> Row:
        if rng is None:
            return tagged_row([self._subwords(word) for word in text], labels)
        return tagged_row(self.tokenizer.sample_sources(text, self.config.tokenizer.sampling, rng), labels)


class ClassTask(_LabelTask):
    """A label per text."""

    unit = "texts"

    def _examples(self, path: Path) -> Iterable[tuple[Text, Sequence[str], int]]:
        return ((text, (label,), line) for label, text, line in read_labelled(path))

    def _row(self, text: Text, labels: list[int], rng: random.Random | None = None) -> Row:
        assert isinstance(self.config.model, EncoderOnlyConfig | RecurrentEncoderConfig)  # checked by the configuration
        if rng is None:
            ids = self.tokenizer.encode_source(text)
        else:
            ids = [*self.tokenizer.sample_sources([text], self.config.tokenizer.sampling, rng)[0], EOS]
        return text_source(ids, self.config.model.pooling), labels
