"""Translation: sentence pairs from a prepared store, validated by their loss and by decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.batching import Batch, EpochPlan, collate, read_batch, sampling_weights
from dragoman.data.corpus import CorpusSpec, corpus_spec, read_pairs
from dragoman.data.profile import TrainingProfile
from dragoman.data.store.build import build_store
from dragoman.errors import DataError
from dragoman.evaluation.metrics import bleu_tokenizer, corpus_scores
from dragoman.io.run_log import Reporter, Sample
from dragoman.models.seq2seq import Model, Network, evaluating
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import Tokenizer
from dragoman.training.tasks.task import Score, Task
from dragoman.training.validation import loss_scores


class TranslationTask(Task):
    """Parallel text: source sentences and their translations."""

    has_grid = True

    def __init__(self, config: Config, prepared: Path, reporter: Reporter, tokenizer: Tokenizer | None = None) -> None:
        """tokenizer: default: learned from the corpora."""
        specs = [corpus_spec(config, corpus) for corpus in config.parallel.train]
        self.store = build_store(config, specs, prepared, reporter, tokenizer=tokenizer)
        self.tokenizer = self.store.tokenizer
        self.reporter = reporter
        self._weights = sampling_weights(self.store.parts, config.parallel.temperature)
        self._planned: tuple[tuple[int, int, bool], EpochPlan] | None = None
        super().__init__(config, self.tokenizer, self.store.text_hash)

    @cached_property
    def profile(self) -> TrainingProfile:
        return TrainingProfile.cached(self.store, self.config.parallel.source_language)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return [batch for block in range(len(self._plan(epoch))) for batch in self.block(epoch, block)]

    def block_sizes(self, epoch: int) -> NDArray[np.int64]:
        return self._plan(epoch).sizes

    def block(self, epoch: int, block: int) -> list[NDArray[np.int64]]:
        return self._plan(epoch).batches(block)

    def _plan(self, epoch: int) -> EpochPlan:
        planned, key = self._planned, (epoch, self.batch_tokens, self.grid)  # two threads may plan
        if planned is None or planned[0] != key:
            seed = self.config.train.seed
            planned = key, EpochPlan(self.store, self._weights, self.batch_tokens, seed, epoch, self.grid)
            self._planned = planned
        return planned[1]

    def read(self, indices: NDArray[np.int64], epoch: int, batch: int) -> Batch:
        seed = (self.config.train.seed * 1_000_003 + epoch) * 1_000_003 + batch
        source, target = self.config.tokenizer.sides
        return read_batch(self.store, indices, self.tokenizer, (source.sampling, target.sampling), seed)

    def tokens(self) -> int:
        return round(float(np.dot(self.store.tokens(), self._weights)))

    def validation(self) -> Score | None:
        valid = self.config.parallel.valid
        if valid is None:
            return None
        return TranslationValidation(
            self.config, corpus_spec(self.config, valid), self.tokenizer, self.reporter, self.profile
        )


class TranslationValidation:
    """Scores a network on the validation pairs.

    Returns valid_loss (nats per token, not smoothed) and perplexity of all pairs, and bleu, chrf and exact_match
    (percent) of the first train.validate_sentences pairs, decoded greedily.
    profile: see `Translator.describe_data`.  sample: one of the translated pairs, None before the first validation.
    """

    def __init__(
        self,
        config: Config,
        spec: CorpusSpec,
        tokenizer: Tokenizer,
        reporter: Reporter,
        profile: TrainingProfile | None = None,
    ) -> None:
        self.config, self.tokenizer, self.profile = config, tokenizer, profile
        self.sample: Sample | None = None
        self._translator: Translator | None = None
        self.pairs = [(p.source, p.target) for p in read_pairs(spec, reporter.log)]
        if not self.pairs:
            raise DataError(
                f"data.valid: {spec.source or spec.path} contains no pairs; specify another file, or remove data.valid"
            )
        language = config.parallel.target_language
        self.tokenize = bleu_tokenizer(language)
        if self.tokenize != "13a":
            reporter.log(
                f"data.valid: BLEU with sacreBLEU's tokenizer {self.tokenize}, for target_language = {language!r}"
            )
        limit = config.data.max_tokens
        encoded = [(tokenizer.encode_source(s), tokenizer.encode_target(t)) for s, t in self.pairs]
        short = [e for e in encoded if max(map(len, e)) <= limit]
        if not short:
            raise DataError(f"data.valid: all {len(encoded):,} pairs exceed max_tokens = {limit}; increase it")
        if dropped := len(encoded) - len(short):
            reporter.log(f"data.valid: {dropped:,} pairs exceed max_tokens = {limit} and are left out of valid_loss")
        short.sort(key=lambda e: (len(e[1]), len(e[0])))
        self._batches = [collate(short[i : i + 64]) for i in range(0, len(short), 64)]

    def __call__(self, network: Network) -> dict[str, Any]:
        assert isinstance(network, Model)  # checked by the configuration
        with evaluating(network):
            return loss_scores(network, self._batches) | self._decoding_scores(network)

    def _decoding_scores(self, network: Model) -> dict[str, Any]:
        pairs = self.pairs[: self.config.train.validate_sentences]
        references = [target for _, target in pairs]
        translator = self._translator
        if translator is None or network.device.type != "cuda":  # a GPU's graphs read the weights where they are
            limit, data = self.config.data.max_tokens, self.config.parallel
            translator = Translator(network, self.tokenizer, self.config.search, limit, network.device)
            translator.describe_data(self.profile, (data.source_language, data.target_language))
            self._translator = translator
        texts = [t.text for t in translator.translate([source for source, _ in pairs], beam=1)]
        shown = sample_index([source for source, _ in pairs])
        self.sample = Sample(*pairs[shown], texts[shown])
        exact = sum(a == b for a, b in zip(texts, references, strict=True))
        return corpus_scores(texts, references, self.tokenize) | {"exact_match": 100 * exact / len(references)}


def sample_index(sources: Sequence[str]) -> int:
    """Return the index of the text of median length among the first 100: neither trivial nor too long to show."""
    first = range(min(100, len(sources)))
    return sorted(first, key=lambda i: (len(sources[i]), i))[len(first) // 2]
