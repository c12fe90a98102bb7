"""Language models of plain text: the next token (Radford et al. 2018), or masked tokens (Devlin et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config, MaskedData, TextData
from dragoman.data.batching import Batch, collate
from dragoman.data.store.text import TextStream, prepare_text, read_stream
from dragoman.io.run_log import Reporter
from dragoman.models.seq2seq import Network
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer
from dragoman.training.tasks.task import Row, RowTask, Score, refuse_empty
from dragoman.training.validation import label_scores, loss_scores


class LanguageTask(RowTask):
    """Windows of text without a source; each starts with BOS, as generated text does."""

    def __init__(
        self, config: Config, data: TextData, prepared: Path, reporter: Reporter, tokenizer: Tokenizer | None = None
    ) -> None:
        self.data = data
        text = prepare_text(config.tokenizer, data.train_paths(), data.form, prepared, reporter, tokenizer=tokenizer)
        self.tokenizer, self.stream = text.tokenizer, text.stream
        reporter.log(f"data: {self.stream.characters:,} characters, {len(self.stream.ids):,} tokens")
        self._cut: tuple[int, NDArray[np.int64]] = (-1, np.zeros((0, 2), dtype=np.int64))
        super().__init__(config, self.tokenizer, text.data_hash)

    def _read(self, paths: Iterable[Path]) -> TextStream:
        return read_stream(paths, self.data.form, lambda text: self.tokenizer.encode_target(text)[:-1])

    def _spans(self, epoch: int) -> NDArray[np.int64]:
        """Return the windows of an epoch; those of a stream start at another offset in each epoch."""
        cut = self._cut  # two threads may read
        if cut[0] != epoch:
            rng = np.random.default_rng((self.config.train.seed, epoch, 2))
            offset = int(rng.integers(self.data.max_tokens)) if self.data.form == "stream" else 0
            cut = self._cut = (epoch, self.stream.spans(self.data.max_tokens, offset))
        return cut[1]

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        spans = self._spans(epoch)
        return self._buckets(spans[:, 1] - spans[:, 0], epoch)

    def rows(self, indices: list[int], key: tuple[int, int, int]) -> list[Row]:
        return [([], self.stream.window(span)) for span in self._spans(key[1])[indices]]

    def collate(self, rows: list[Row]) -> Batch:
        """Return a batch with src (B, 0); tgt_in is tgt_out shifted by one, after BOS."""
        return collate(rows)

    def tokens(self) -> int:
        return len(self.stream.ids)

    def validation(self) -> Score | None:
        path = self.data.valid_path()
        if path is None:
            return None
        stream = self._read([path])
        rows: list[Row] = [([], stream.window(span)) for span in stream.spans(self.data.max_tokens)]
        batches = self.valid_batches(rows, path)
        tokens_per_character = len(stream.ids) / stream.characters  # line ends count

        def score(network: Network) -> dict[str, Any]:
            scores = loss_scores(network, batches)
            return scores | {"bits_per_character": scores["valid_loss"] * tokens_per_character / math.log(2)}

        return score


class MaskedTask(RowTask):
    """Paragraphs in which a part of the tokens, data.rate, is to be predicted.

    80 % of these tokens are replaced by the mask, `Tokenizer.mask`, 10 % by a random token, and 10 % are unchanged.
    """

    def __init__(
        self, config: Config, data: MaskedData, prepared: Path, reporter: Reporter, tokenizer: Tokenizer | None = None
    ) -> None:
        self.data = data
        paths = data.train_paths()
        text = prepare_text(
            config.tokenizer, paths, "paragraphs", prepared, reporter, joins_lines=True, tokenizer=tokenizer
        )
        self.tokenizer, self.stream = text.tokenizer, text.stream
        self.spans, words = self._windows(self.stream)
        refuse_empty(len(words), paths, "no paragraph contains a word")
        reporter.log(f"data: {len(self.stream.bounds) - 1:,} paragraphs, {len(self.stream.ids):,} tokens")
        sizes = self.spans[:, 1] - self.spans[:, 0]
        self.lengths = 2 * sizes
        self._tokens = int(sizes.sum() + np.maximum(1, np.round(data.rate * words)).sum())
        super().__init__(config, self.tokenizer, text.data_hash)

    def _read(self, paths: Iterable[Path]) -> TextStream:
        return read_stream(paths, "paragraphs", lambda text: self.tokenizer.encode_source(text.replace("\n", " "))[:-1])

    def _windows(self, stream: TextStream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the spans that contain words, and the number of ids in each without the EOS of its paragraph."""
        spans = stream.spans(self.data.max_tokens - len(self.tokenizer.masked_source([])))
        words = spans[:, 1] - spans[:, 0] - np.isin(spans[:, 1], stream.bounds)  # the last id of a text is EOS
        return spans[words > 0], words[words > 0]

    def rows(self, indices: list[int], key: tuple[int, int, int]) -> list[Row]:
        rng = np.random.default_rng((*key, 3))
        return [self._masked(self.stream.window(self.spans[i]), rng) for i in indices]

    def _masked(self, ids: list[int], rng: np.random.Generator) -> Row:
        ids = self.tokenizer.masked_source(ids)
        candidates = [i for i, token in enumerate(ids) if token not in (BOS, EOS)]
        indices = rng.choice(candidates, max(1, round(self.data.rate * len(candidates))), replace=False)
        source, targets = list(ids), [PAD] * len(ids)
        chance, random_ids = rng.random(len(indices)), rng.integers(EOS + 1, self.tokenizer.source_size, len(indices))
        for i, draw, random_id in zip(indices.tolist(), chance.tolist(), random_ids.tolist(), strict=True):
            targets[i] = ids[i]
            source[i] = self.tokenizer.mask if draw < 0.8 else random_id if draw < 0.9 else ids[i]
        return source, targets

    def tokens(self) -> int:
        return self._tokens

    def validation(self) -> Score | None:
        path = self.data.valid_path()
        if path is None:
            return None
        stream, rng = self._read([path]), np.random.default_rng(0)  # the same masks for every seed of the run
        rows = [self._masked(stream.window(span), rng) for span in self._windows(stream)[0]]
        return partial(label_scores, batches=self.valid_batches(rows, path))
