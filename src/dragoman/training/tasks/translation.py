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
from dragoman.data.store import build_store
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DataError
from dragoman.evaluation.metrics import bleu_tokenizer, corpus_scores
from dragoman.models.seq2seq import Model, Network
from dragoman.pipelines.translation import Translator
from dragoman.training.tasks.task import Score, Task
from dragoman.training.validate import mean_loss

__all__ = ["TranslationTask", "Validation"]


class TranslationTask(Task):
    """Sentences and their translations."""

    def __init__(self, config: Config, prepared: Path, log: Callable[[str], None]) -> None:
        specs = [corpus_spec(config, corpus) for corpus in config.parallel.train]
        self.store = build_store(config, specs, prepared, log)
        self.tokenizer = self.store.tokenizer
        self.log = log
        super().__init__(config, self.tokenizer, self.store.text_hash)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return plan_batches(self.store, self.config.train.batch_tokens, self.config.train.seed, epoch)

    def read(self, numbers: NDArray[np.int64], epoch: int, place: int) -> Batch:
        seed = (self.config.train.seed * 1_000_003 + epoch) * 1_000_003 + place
        return read_batch(self.store, numbers, self.tokenizer, self.config.tokenizer.sampling, seed)

    def tokens(self) -> int:
        src, tgt = self.store.lengths()
        return sum(int(src[numbers].sum() + tgt[numbers].sum()) for numbers in self.epoch(0))

    def validation(self) -> Score | None:
        valid = self.config.parallel.valid
        if valid is None:
            return None
        return Validation(self.config, corpus_spec(self.config, valid), self.tokenizer, self.log)


class Validation:
    """The validation pairs, ready to be scored again and again."""

    def __init__(self, config: Config, spec: CorpusSpec, tokenizer: Tokenizer, log: Callable[[str], None]) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.pairs = [(p.source, p.target) for p in read_pairs(spec)]
        if not self.pairs:
            raise DataError(
                f"data.valid: {spec.source or spec.path} is empty; give some pairs, or leave data.valid out"
            )
        language = config.parallel.target_language
        self.tokenize = bleu_tokenizer(language)
        if self.tokenize != "13a":
            log(f"data.valid: BLEU with sacreBLEU's tokenizer {self.tokenize}, for target_language = {language!r}")
        limit = config.data.max_tokens
        encoded = [(tokenizer.encode_source(s), tokenizer.encode_target(t)) for s, t in self.pairs]
        short = [e for e in encoded if max(map(len, e)) <= limit]
        if not short:
            raise DataError(f"data.valid: all {len(encoded):,} pairs are longer than max_tokens = {limit}; raise it")
        if left_out := len(encoded) - len(short):
            log(f"data.valid: {left_out:,} pairs are longer than max_tokens = {limit} and do not count in valid_loss")
        short.sort(key=lambda e: (len(e[1]), len(e[0])))
        self._batches = [collate(short[i : i + 64]) for i in range(0, len(short), 64)]

    def __call__(self, network: Network) -> dict[str, Any]:
        """valid_loss (nats a token, not smoothed), perplexity; and of the first train.validate_sentences pairs, decoded
        greedily, bleu, chrf, exact_match (percent).
        """
        assert isinstance(network, Model)  # the configuration has seen to it
        network.eval()
        row = mean_loss(network, self._batches)
        pairs = self.pairs[: self.config.train.validate_sentences]
        references = [target for _, target in pairs]
        limit = self.config.data.max_tokens
        translator = Translator(network, self.tokenizer, self.config.search, limit, network.device)
        texts = [t.text for t in translator.translate([source for source, _ in pairs], beam=1)]
        network.train()
        exact = sum(a == b for a, b in zip(texts, references, strict=True))
        return row | corpus_scores(texts, references, self.tokenize) | {"exact_match": 100 * exact / len(references)}
