"""Language models: the next token of plain text (Radford et al. 2018), scored in nats a token and bits a character."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config, TextData
from dragoman.data.batching import Batch, collate, plan_buckets
from dragoman.data.files import files_hash, train_files, valid_file
from dragoman.data.readers.text_stream import TextStream, read_stream
from dragoman.data.tokenizer import learn_tokenizer
from dragoman.errors import DataError
from dragoman.io.lines import read_lines
from dragoman.models.seq2seq import Network
from dragoman.training.tasks.task import Score, Task
from dragoman.training.validate import mean_loss

__all__ = ["LanguageTask"]

_VALID_ROWS = 64


class LanguageTask(Task):
    """Windows of text; each begins with BOS, as every text does that a search writes, and has no source."""

    def __init__(self, config: Config, data: TextData, log: Callable[[str], None]) -> None:
        self.data = data
        paths = train_files(data)
        lines = [line for path in paths for line in read_lines(path)]
        if not any(map(str.strip, lines)):
            raise DataError(f"nothing to train on in {', '.join(map(str, paths))}: no line that is not blank")
        self.tokenizer = learn_tokenizer(config.tokenizer, lines, lossless=True)
        self.stream = self._read(paths)
        log(f"data: {self.stream.characters:,} characters, {len(self.stream.ids):,} tokens")
        self._cut: tuple[int, NDArray[np.int64]] = (-1, np.zeros((0, 2), dtype=np.int64))
        super().__init__(config, self.tokenizer, files_hash(paths))

    def _read(self, paths: Iterable[Path]) -> TextStream:
        return read_stream(paths, self.data.form, lambda text: self.tokenizer.encode_target(text)[:-1])

    def _spans(self, epoch: int) -> NDArray[np.int64]:
        """The windows of an epoch; those of a stream begin somewhere else each time."""
        if self._cut[0] != epoch:
            rng = np.random.default_rng((self.config.train.seed, epoch, 2))
            offset = int(rng.integers(self.data.max_tokens)) if self.data.form == "stream" else 0
            self._cut = (epoch, self.stream.spans(self.data.max_tokens, offset))
        return self._cut[1]

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        spans = self._spans(epoch)
        rng = np.random.default_rng((self.config.train.seed, epoch, 1))
        return plan_buckets(spans[:, 1] - spans[:, 0], self.config.train.batch_tokens, rng)

    def read(self, numbers: NDArray[np.int64], epoch: int, place: int) -> Batch:
        return _batch(self.stream, self._spans(epoch)[numbers])

    def tokens(self) -> int:
        return len(self.stream.ids)

    def validation(self) -> Score | None:
        path = valid_file(self.data)
        if path is None:
            return None
        stream = self._read([path])
        if not len(stream.ids):
            raise DataError(f"data.valid: {path} holds no text; give some, or leave data.valid out")
        return LanguageValidation(stream, self.data.max_tokens)


def _batch(stream: TextStream, spans: NDArray[np.int64]) -> Batch:
    """src (B, 0); tgt_in is tgt_out moved on by one, BOS in front."""
    return collate([([], stream.window(span)) for span in spans])


class LanguageValidation:
    """All of a text, window by window, ready to be scored again and again."""

    def __init__(self, stream: TextStream, block: int) -> None:
        spans = stream.spans(block)
        spans = spans[np.argsort(spans[:, 1] - spans[:, 0], kind="stable")]
        self._batches = [_batch(stream, spans[i : i + _VALID_ROWS]) for i in range(0, len(spans), _VALID_ROWS)]
        self._tokens_per_character = len(stream.ids) / stream.characters

    def __call__(self, network: Network) -> dict[str, Any]:
        """valid_loss (nats a token), perplexity, bits_per_character (of the text, line ends counted)."""
        network.eval()
        row = mean_loss(network, self._batches)
        network.train()
        return row | {"bits_per_character": row["valid_loss"] * self._tokens_per_character / math.log(2)}
