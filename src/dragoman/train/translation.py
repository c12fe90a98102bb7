"""Translation as a task: pairs of sentences from a store, scored by loss and by real decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.batching import Batch, collate, plan_batches, read_batch
from dragoman.data.corpus import CorpusSpec, corpus_spec, read_pairs
from dragoman.data.store import build_store, text_hash
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DataError
from dragoman.evaluate import corpus_scores
from dragoman.models.seq2seq import Model, Network
from dragoman.train.task import Score, Task
from dragoman.train.validate import mean_loss
from dragoman.translate import Translation, Translator

__all__ = ["TranslationTask", "Validation"]


class TranslationTask(Task):
    """Sentences and their translations."""

    def __init__(self, config: Config, prepared: Path, say: Callable[[str], None]) -> None:
        specs = [corpus_spec(config, corpus) for corpus in config.parallel.train]
        self.store = build_store(config, specs, prepared, say)
        self.tokenizer = self.store.tokenizer
        self.say = say
        super().__init__(config, self.tokenizer, text_hash(specs))

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return plan_batches(self.store, self.config.train.batch_tokens, self.config.train.seed, epoch)

    def read(self, numbers: NDArray[np.int64], epoch: int, place: int) -> Batch:
        seed = (self.config.train.seed * 1_000_003 + epoch) * 1_000_003 + place
        return read_batch(self.store, numbers, self.tokenizer, self.config.tokenizer.sampling, seed)

    def tokens(self) -> int:
        src, tgt = self.store.lengths()
        return sum(int(src[numbers].sum() + tgt[numbers].sum()) for numbers in self.epoch(0))

    def validation(self) -> Score | None:
        if self.config.parallel.valid is None:
            return None
        validation = Validation(self.config, corpus_spec(self.config, self.config.parallel.valid), self.tokenizer)
        if validation.left_out:
            self.say(
                f"data.valid: {validation.left_out} pairs are longer than data.filter.max_tokens and do not count "
                "in the validation loss"
            )
        return validation


class Validation:
    """The validation pairs, ready to be scored again and again."""

    def __init__(self, config: Config, spec: CorpusSpec, tokenizer: Tokenizer) -> None:
        pairs = [(p.source, p.target) for p in read_pairs(spec)]
        if not pairs:
            raise DataError(
                f"data.valid: {spec.source or spec.path} is empty; give some pairs, or leave data.valid out"
            )
        self.config = config
        self.tokenizer = tokenizer
        self.pairs = pairs
        limit = config.data.max_tokens
        encoded = [(tokenizer.encode_source(s), tokenizer.encode_target(t)) for s, t in pairs]
        short = [e for e in encoded if max(map(len, e)) <= limit]
        self.left_out = len(encoded) - len(short)
        short.sort(key=lambda e: (len(e[1]), len(e[0])))
        self._batches = [collate(short[i : i + 64]) for i in range(0, len(short), 64)]

    def __call__(self, network: Network) -> dict[str, Any]:
        """valid_loss (nats a token, not smoothed), perplexity, bleu, chrf, exact_match (percent)."""
        assert isinstance(network, Model)  # the configuration has seen to it
        network.eval()
        row = mean_loss(network, self._batches)
        pairs = self.pairs[: self.config.train.validate_sentences]
        row |= self.compare(self.decode(network, [s for s, _ in pairs]), [t for _, t in pairs])
        network.train()
        return row

    def decode(self, model: Model, sources: list[str]) -> list[Translation]:
        """What the model says, greedily."""
        translator = Translator(model, self.tokenizer, self.config.search, self.config.data.max_tokens, model.device)
        return translator.translate(sources, beam=1)

    def compare(self, translations: list[Translation], references: list[str]) -> dict[str, Any]:
        """The scores of translations; another task of sequences to sequences has others."""
        texts = [t.text for t in translations]
        exact = sum(a == b for a, b in zip(texts, references, strict=True))
        return corpus_scores(texts, references) | {"exact_match": 100 * exact / len(references)}
