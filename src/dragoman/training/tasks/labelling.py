"""Labels for words and for texts, and masked words: an encoder and one target a place, or one a text."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import Config, EncoderOnlyConfig, LabelledData, MaskedData, TaggedData
from dragoman.data.batching import Batch, collate_source, plan_buckets
from dragoman.data.files import FileData, files_hash, train_files, valid_file
from dragoman.data.readers.labelled import read_labelled, text_source
from dragoman.data.readers.tagged import read_tagged, tagged_row
from dragoman.data.readers.text_stream import TextStream, read_paragraphs, read_stream
from dragoman.data.tokenizer import BOS, EOS, PAD, learn_tokenizer
from dragoman.data.vocabulary import LabelVocabulary
from dragoman.errors import DataError
from dragoman.models.seq2seq import Network
from dragoman.training.loss import cross_entropy
from dragoman.training.tasks.task import Score, Task

__all__ = ["ClassTask", "LabelValidation", "MaskedTask", "TaggingTask"]

Row = tuple[list[int], list[int]]
"""Source ids, and as many label ids, or one for all; PAD where none counts."""

_VALID_ROWS = 64


class _RowTask(Task):
    """What these tasks share: rows in batches of like length."""

    data: FileData
    widths: NDArray[np.int64]
    """Source + target places of each row."""

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng((self.config.train.seed, epoch, 1))
        return plan_buckets(self.widths, self.config.train.batch_tokens, rng)

    def read(self, numbers: NDArray[np.int64], epoch: int, place: int) -> Batch:
        return _batch(self.rows(numbers.tolist(), (self.config.train.seed, epoch, place)))

    def validation(self) -> Score | None:
        path = valid_file(self.data)
        if path is None:
            return None
        rows = self.valid_rows(path)
        if not rows:
            raise DataError(f"data.valid: {path} holds nothing to score; give some, or leave data.valid out")
        rows.sort(key=lambda row: len(row[0]))
        return LabelValidation([_batch(rows[i : i + _VALID_ROWS]) for i in range(0, len(rows), _VALID_ROWS)])

    def _fits(self, row: Row) -> bool:
        return len(row[0]) <= self.data.max_tokens

    @abstractmethod
    def rows(self, numbers: list[int], key: tuple[int, int, int]) -> list[Row]:
        """The rows of these numbers; what is random about them follows from `key`."""

    @abstractmethod
    def valid_rows(self, path: Path) -> list[Row]:
        """The rows of a file, the same each time."""


# -------------------------------------------------------------------------------------------------------------- tags


class TaggingTask(_RowTask):
    """A tag for each word of a sentence, on the word's first piece."""

    def __init__(self, config: Config, data: TaggedData, log: Callable[[str], None]) -> None:
        self.data, self.column, self.log = data, data.column, log
        paths = train_files(data)
        sentences = [sentence for path in paths for sentence in read_tagged(path, data.column)]
        _refuse_nothing(sentences, paths)
        self.tokenizer = learn_tokenizer(config.tokenizer, [" ".join(s.words) for s in sentences])
        labels = sorted({tag for sentence in sentences for tag in sentence.tags})
        self.labels = LabelVocabulary(labels, self.tokenizer)
        self._pieces: dict[str, list[int]] = {}
        found = [(s, [self.labels.numbers[tag] for tag in s.tags]) for s in sentences]
        short = [(s.words, tags) for s, tags in found if self._fits(self._row(s.words, tags))]
        _account(log, "sentences", len(found), len(short), data.max_tokens, len(labels))
        self.sentences = short
        self.widths = np.array([2 * len(self._row(*sentence)[0]) for sentence in short], dtype=np.int64)
        words = sum(len(tags) for _, tags in short)
        self._tokens = int(self.widths.sum()) // 2 + words
        super().__init__(config, self.labels, files_hash(paths))

    def _row(self, words: Sequence[str], tags: list[int]) -> Row:
        for word in words:
            if word not in self._pieces:
                self._pieces[word] = self.tokenizer.encode_word(word)
        return tagged_row([self._pieces[word] for word in words], tags)

    def rows(self, numbers: list[int], key: tuple[int, int, int]) -> list[Row]:
        """With tokenizer.sampling, words are cut anew each time, so that none is known as a whole only."""
        rate = self.config.tokenizer.sampling
        if rate == 0:
            return [self._row(*self.sentences[n]) for n in numbers]
        rng = random.Random(repr(key))
        chosen = [self.sentences[n] for n in numbers]
        drawn = [tagged_row(self.tokenizer.sample_sources(words, rate, rng), tags) for words, tags in chosen]
        return [row if self._fits(row) else self._row(*plain) for row, plain in zip(drawn, chosen, strict=True)]

    def tokens(self) -> int:
        return self._tokens

    def valid_rows(self, path: Path) -> list[Row]:
        rows = [
            self._row(words, [self.labels.number(tag, f"{path}, line {line:,}") for tag in tags])
            for words, tags, line in read_tagged(path, self.column)
        ]
        return _within(rows, self.data.max_tokens, self.log)


# ------------------------------------------------------------------------------------------------------ labelled texts


class ClassTask(_RowTask):
    """A label for each text."""

    def __init__(self, config: Config, data: LabelledData, log: Callable[[str], None]) -> None:
        assert isinstance(config.model, EncoderOnlyConfig)
        self.data, self.log, self.pooling = data, log, config.model.pooling
        paths = train_files(data)
        examples = [example for path in paths for example in read_labelled(path)]
        _refuse_nothing(examples, paths)
        self.tokenizer = learn_tokenizer(config.tokenizer, [example.text for example in examples])
        self.labels = LabelVocabulary(sorted({example.label for example in examples}), self.tokenizer)
        found = [(example.text, self._row(example.text, self.labels.numbers[example.label])) for example in examples]
        short = [(text, row) for text, row in found if self._fits(row)]
        self._texts, self._rows = [text for text, _ in short], [row for _, row in short]
        _account(log, "texts", len(found), len(short), data.max_tokens, len(self.labels.labels))
        self.widths = np.array([len(ids) + 1 for ids, _ in self._rows], dtype=np.int64)
        super().__init__(config, self.labels, files_hash(paths))

    def _row(self, text: str, label: int) -> Row:
        return text_source(self.tokenizer.encode_source(text), self.pooling), [label]

    def rows(self, numbers: list[int], key: tuple[int, int, int]) -> list[Row]:
        """With tokenizer.sampling, texts are cut anew each time."""
        rate, rows = self.config.tokenizer.sampling, [self._rows[n] for n in numbers]
        if rate == 0:
            return rows
        texts = self.tokenizer.sample_sources([self._texts[n] for n in numbers], rate, random.Random(repr(key)))
        drawn = [(text_source([*ids, EOS], self.pooling), row[1]) for ids, row in zip(texts, rows, strict=True)]
        return [new if self._fits(new) else row for new, row in zip(drawn, rows, strict=True)]

    def tokens(self) -> int:
        return int(self.widths.sum())

    def valid_rows(self, path: Path) -> list[Row]:
        rows = [
            self._row(text, self.labels.number(label, f"{path}, line {line:,}"))
            for label, text, line in read_labelled(path)
        ]
        return _within(rows, self.data.max_tokens, self.log)


# ------------------------------------------------------------------------------------------------------- masked words


class MaskedTask(_RowTask):
    """Words to be found again (Devlin et al. 2019, section 3.1), in paragraphs of text.

    Of the places asked for, 80 % show the mask (BOS, which no source has otherwise), 10 % another piece, 10 % the piece
    itself.
    """

    def __init__(self, config: Config, data: MaskedData, log: Callable[[str], None]) -> None:
        self.data, self.rate = data, data.rate
        paths = train_files(data)
        paragraphs = [text.replace("\n", " ") for path in paths for text in read_paragraphs(path)]
        _refuse_nothing(paragraphs, paths)
        self.tokenizer = learn_tokenizer(config.tokenizer, paragraphs)
        self.stream = self._read(paths)
        self.spans = self.stream.spans(data.max_tokens)
        words = _words(self.stream, self.spans)
        self.spans, words = self.spans[words > 0], words[words > 0]
        if not len(self.spans):
            raise DataError(f"nothing to train on in {', '.join(data.train)}: no paragraph has a word")
        log(f"data: {len(self.stream.bounds) - 1:,} paragraphs, {len(self.stream.ids):,} tokens")
        sizes = self.spans[:, 1] - self.spans[:, 0]
        self.widths = 2 * sizes
        self._tokens = int(sizes.sum() + np.maximum(1, np.round(data.rate * words)).sum())
        super().__init__(config, self.tokenizer, files_hash(paths))

    def _read(self, paths: Iterable[Path]) -> TextStream:
        return read_stream(paths, "paragraphs", lambda text: self.tokenizer.encode_source(text.replace("\n", " "))[:-1])

    def rows(self, numbers: list[int], key: tuple[int, int, int]) -> list[Row]:
        rng = np.random.default_rng((*key, 3))
        return [self._masked(self.stream.window(self.spans[n]), rng) for n in numbers]

    def _masked(self, ids: list[int], rng: np.random.Generator) -> Row:
        words = [place for place, token in enumerate(ids) if token != EOS]
        places = rng.choice(words, max(1, round(self.rate * len(words))), replace=False)
        source, targets = list(ids), [PAD] * len(ids)
        chance, other = rng.random(len(places)), rng.integers(EOS + 1, self.tokenizer.source_size, len(places))
        for place, draw, piece in zip(places.tolist(), chance.tolist(), other.tolist(), strict=True):
            targets[place] = ids[place]
            source[place] = BOS if draw < 0.8 else piece if draw < 0.9 else ids[place]
        return source, targets

    def tokens(self) -> int:
        return self._tokens

    def valid_rows(self, path: Path) -> list[Row]:
        """Whatever the seed of the run, the same places are asked for."""
        stream, rng = self._read([path]), np.random.default_rng(0)
        spans = stream.spans(self.data.max_tokens)
        return [self._masked(stream.window(span), rng) for span in spans[_words(stream, spans) > 0]]


def _words(stream: TextStream, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many ids of each window are more than the end of a paragraph, which stands last if at all."""
    ends: NDArray[np.int64] = (stream.ids[spans[:, 1] - 1] == EOS).astype(np.int64)
    return spans[:, 1] - spans[:, 0] - ends


# ------------------------------------------------------------------------------------------------------ batches, scores


def _batch(rows: list[Row]) -> Batch:
    """Rows of source ids and label ids -> a batch; labels lie in tgt_out, and nothing is told of them in tgt_in."""
    src, mask = collate_source([ids for ids, _ in rows])
    targets, _ = collate_source([labels for _, labels in rows])
    counted = int((targets != PAD).sum())
    return Batch(src, mask, targets.new_zeros(len(rows), 0), targets, sum(len(ids) for ids, _ in rows), counted)


class LabelValidation:
    """Batches with labels, ready to be scored again and again."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __call__(self, network: Network) -> dict[str, Any]:
        """valid_loss (nats a label, not smoothed), accuracy (percent of labels)."""
        network.eval()
        total, right, count = 0.0, 0, 0
        with torch.no_grad():
            for batch in self._batches:
                batch = batch.to(network.device)
                nll, hits, labels = network(batch.src, batch.src_mask, batch.tgt_in, AccuracyHead(batch.tgt_out))
                total, right, count = total + nll, right + hits, count + labels
        network.train()
        return {"valid_loss": total / count, "accuracy": 100 * right / count}


class AccuracyHead:
    """A `models.seq2seq.Head`: loss in nats, right answers and answers of a batch."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def __call__(self, hidden: Tensor, output: nn.Module) -> tuple[float, int, int]:
        targets = self.targets.flatten()  # (B*T,)
        rows = (targets != PAD).nonzero().squeeze(1)
        targets = targets[rows]
        logits = output(hidden.flatten(0, 1)[rows])  # (M, V)
        _, nll = cross_entropy(logits, targets, 0.0)
        best = logits[:, 1:].argmax(-1) + 1  # PAD is no answer
        return float(nll), int((best == targets).sum()), targets.numel()


# ------------------------------------------------------------------------------------------------- words to the user


def _refuse_nothing(found: Sequence[object], paths: list[Path]) -> None:
    if not found:
        raise DataError(f"nothing to train on in {', '.join(map(str, paths))}: the files are empty")


def _account(log: Callable[[str], None], what: str, read: int, kept: int, limit: int, labels: int) -> None:
    if not kept:
        raise DataError(f"nothing to train on: all {read:,} {what} are longer than data.max_tokens = {limit}; raise it")
    dropped = f" + too_many_tokens {read - kept:,}" if kept < read else ""
    log(f"data: read {read:,} {what} = kept {kept:,}{dropped}; {labels:,} labels")


def _within(rows: list[Row], limit: int, log: Callable[[str], None]) -> list[Row]:
    short = [row for row in rows if len(row[0]) <= limit]
    if len(short) < len(rows):
        log(f"data.valid: {len(rows) - len(short):,} are longer than data.max_tokens = {limit} and do not count")
    return short
