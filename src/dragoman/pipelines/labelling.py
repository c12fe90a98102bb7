"""Labels for words, texts and images, with models that learned from data of kind "tagged", "labelled" or "images"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, EncoderOnlyConfig, VisionConfig
from dragoman.data.batching import batches_within, collate_source
from dragoman.data.readers.images import as_images
from dragoman.data.readers.labelled import text_source
from dragoman.data.readers.tagged import tagged_row
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import LabelVocabulary
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Network
from dragoman.models.vision import patches

__all__ = ["Labelled", "Labeller"]


@dataclass(frozen=True)
class Labelled:
    """labels: one for each of `words`, or a single one for a text or an image, where `words` is empty.

    probabilities: of the labels, as many.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        """The label of a text or an image."""
        (label,) = self.labels
        return label

    def __str__(self) -> str:
        """`word/TAG word/TAG`, or the label."""
        if not self.words:
            return " ".join(self.labels)
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.labels, strict=True))

    def to_json(self) -> dict[str, Any]:
        """The same as plain lists and dictionaries."""
        return asdict(self)


class Labeller:
    """A model that gives labels: `Labeller.load("runs/tagging").label(["A dog runs ."])`."""

    def __init__(
        self, network: Network, vocabulary: LabelVocabulary, config: Config, device: str | torch.device = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.vocabulary = vocabulary
        self.config = config

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Labeller:
        """The labeller of a run folder or of one model folder in it.

        Raises ModelFolderError, and UsageError where the model gives no labels.
        """
        from dragoman.models.model_folder import (  # here, so that labelling does not load the trainer
            load_network,
            wrong_model,
        )

        network, vocabulary, config = load_network(path)
        if not isinstance(vocabulary, LabelVocabulary):
            raise wrong_model(path, config, "gives no labels")
        return cls(network, vocabulary, config, device)

    def label(self, inputs: Any, *, batch_tokens: int = 4000) -> list[Labelled]:
        """The labels of each input, in order; nothing is cut, however long.

        inputs: sentences, each as its words or as a text with spaces between them (tagged); texts (labelled); an array
        of images (n, height, width[, channels]) as `data.images.as_images` takes them (images).  batch_tokens: padded
        tokens in one batch.  Raises UsageError and DataError for anything else.
        """
        if self.config.data.kind == "images":
            return self._images(inputs, batch_tokens)
        if isinstance(inputs, str):
            raise UsageError(f"one text was given ({inputs[:40]!r}) where texts are expected: put it in a list, [text]")
        if self.config.data.kind == "tagged":
            return self._words([text.split() if isinstance(text, str) else list(text) for text in inputs], batch_tokens)
        return self._texts(list(inputs), batch_tokens)

    def _words(self, sentences: list[list[str]], batch_tokens: int) -> list[Labelled]:
        rows = [tagged_row([self._tokenizer.encode_word(w) for w in words], [1] * len(words)) for words in sentences]
        found = self._probs([ids for ids, _ in rows], batch_tokens)
        first = [torch.tensor(marks).nonzero().squeeze(1) for _, marks in rows]
        return [self._labelled(w, probs[at]) for w, probs, at in zip(sentences, found, first, strict=True)]

    def _texts(self, texts: list[str], batch_tokens: int) -> list[Labelled]:
        assert isinstance(self.config.model, EncoderOnlyConfig)
        pooling, encode = self.config.model.pooling, self._tokenizer.encode_source
        sources = [text_source(encode(text.replace("\n", " ").strip()), pooling) for text in texts]
        return [self._labelled((), probs) for probs in self._probs(sources, batch_tokens)]

    def _images(self, array: Any, batch_tokens: int) -> list[Labelled]:
        assert isinstance(self.config.model, VisionConfig)
        images = torch.from_numpy(as_images(array, "images"))
        together = max(1, batch_tokens // self.config.model.n_patches)
        found: list[Labelled] = []
        for some in images.split(together):
            probs = self._run(patches(some, self.config.model.patch).contiguous(), None)
            found += [self._labelled((), row) for row in probs]
        return found

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self.vocabulary.tokenizer is not None
        return self.vocabulary.tokenizer

    def _probs(self, sources: list[list[int]], batch_tokens: int) -> list[Tensor]:
        """Probabilities (T, labels) of each source, T = 1 where a text has one label."""
        found: list[Tensor] = [torch.empty(0)] * len(sources)
        for places in batches_within([len(ids) for ids in sources], batch_tokens):
            src, mask = collate_source([sources[i] for i in places])
            for place, probs in zip(places, self._run(src, mask), strict=True):
                found[place] = probs
        return found

    def _run(self, src: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, labels); the output for "no label" is left out."""
        mask = None if mask is None else mask.to(self.device)
        nothing = torch.zeros(src.size(0), 0, dtype=torch.long, device=self.device)
        with torch.no_grad():
            logits = self.network(src.to(self.device), mask, nothing)
        return torch.softmax(logits[..., 1:].float(), dim=-1).cpu()

    def _labelled(self, words: Iterable[str], probs: Tensor) -> Labelled:
        """probs: (labels to give, labels there are)."""
        best, numbers = probs.max(dim=-1)
        names = tuple(self.vocabulary.label(number + 1) for number in numbers.tolist())
        return Labelled(tuple(words), names, tuple(best.tolist()))
