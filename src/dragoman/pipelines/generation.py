"""Text generation: continuations of prompts by a language model, and the probability of given texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.pipelines.pipeline import Pipeline, check_sequence, check_text, stream_windows
from dragoman.tokenizers import EOS, Tokenizer

if TYPE_CHECKING:
    import torch

    from dragoman.config import Config
    from dragoman.data.profile import TrainingProfile
    from dragoman.decoding.backend import DecodingBackend
    from dragoman.models.seq2seq import LanguageModel

_PROMPTS_PER_BATCH = 32
_MAX_TOKENS = 9_999
"""With the end of the text, the largest `max_extra` of `SearchSettings`."""


@dataclass(frozen=True)
class Continuation:
    """text: the prompt and its continuation.  ended: the model generated the end of the text before `max_tokens`.

    log_prob: sum of natural log-probabilities, those of the prompt included, in the precision of the search (int8 by
    default on a CPU).
    """

    prompt: str
    text: str
    log_prob: float
    ended: bool

    to_json = asdict


@dataclass(frozen=True)
class TextScore:
    """Sum of the natural log-probabilities of a text of `tokens` tokens and `characters` characters.

    The end of a text, if the model predicts it, counts as one token and as one character (its line end).
    """

    log_prob: float
    tokens: int
    characters: int

    @property
    def perplexity(self) -> float:
        """exp(-mean log-probability per token)."""
        return math.exp(-self.log_prob / max(1, self.tokens))

    @property
    def bits_per_character(self) -> float:
        return -self.log_prob / math.log(2) / max(1, self.characters)


class TextGenerator(Pipeline):
    """A language model with its tokenizer: `TextGenerator.load("runs/shakespeare").generate(["ROMEO:"])`.

    max_tokens: the longest sequence seen in training.  ends: whether the training texts had an end (lines, paragraphs)
    or were one stream.
    """

    _data_kind = "text"

    def __init__(
        self,
        model: LanguageModel | DecodingBackend,
        tokenizer: Tokenizer,
        max_tokens: int,
        ends: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(model, tokenizer, SearchSettings(sample=True, beam=1), device)
        self.max_tokens = max_tokens
        self.ends = ends

    @classmethod
    def _build(
        cls, backend: DecodingBackend, tokenizer: Tokenizer, config: Config, profile: TrainingProfile | None
    ) -> Self:
        ends = config.data.kind == "text" and config.data.form != "stream"
        return cls(backend, tokenizer, config.data.max_tokens, ends)

    def generate(self, prompts: Iterable[str], *, max_tokens: int = 200, **settings: Any) -> list[Continuation]:
        """Return one continuation per prompt ("" = an unconditional text), in order.

        max_tokens: maximum number of new tokens.  settings: those of `SearchSettings`; sampling by default, with
        `sample=False` beam search (`beam=1` = greedy).  Raises UsageError.
        """
        return list(self.stream(prompts, max_tokens=max_tokens, **settings))

    def stream(
        self, prompts: Iterable[str], *, max_tokens: int = 200, window: int = 2000, **settings: Any
    ) -> Iterator[Continuation]:
        """Generate lazily: read `window` prompts, continue them and yield the continuations in order."""
        resolved = self.search_settings(max_tokens, **settings)
        return stream_windows(prompts, window, check_text, lambda some: self._generate(some, resolved))

    def search_settings(self, max_tokens: int, **settings: Any) -> SearchSettings:
        """Return the settings of a search that appends at most `max_tokens` tokens."""
        if not isinstance(max_tokens, Integral) or not 1 <= max_tokens <= _MAX_TOKENS:
            raise UsageError(f"max_tokens = {max_tokens!r:.40}; accepted: 1 to {_MAX_TOKENS:,}")
        if settings.get("nbest", 1) != 1:
            raise UsageError(f"nbest = {settings['nbest']}; accepted: 1, one continuation per prompt")
        # The limit includes the end of the text.
        return SearchSettings.of(self.settings, **{"max_extra": max_tokens + 1, **settings})

    def continuation(self, prompt: str, prefix: list[int], found: Hypothesis) -> Continuation:
        """Return the continuation for a hypothesis that starts with the ids of the prompt, `prefix`."""
        # Not the rest alone, of which the tokenizers of some imported models drop the first space.
        start, whole = self.tokenizer.decode_target(prefix), self.tokenizer.decode_target(found.tokens)
        if whole.startswith(start):
            text = prompt + whole[len(start) :]
        else:
            text = prompt + self.tokenizer.decode_target(found.tokens[len(prefix) :])
        return Continuation(prompt, text, found.log_prob, not found.truncated)

    def _generate(self, prompts: list[str], settings: SearchSettings) -> list[Continuation]:
        prefixes = [self.tokenizer.encode_target(prompt)[:-1] for prompt in prompts]
        results = self.backend.search([[]] * len(prompts), prefixes, settings, _PROMPTS_PER_BATCH)
        return list(map(self.continuation, prompts, prefixes, [nbest[0] for nbest in results]))

    def score(self, texts: Iterable[str]) -> list[TextScore]:
        """Return the log-probability of each text; one longer than `max_tokens` is scored in blocks.

        Computed in float32, unless the generator was loaded with `quantize="int8"` or "bf16".
        """
        check_sequence(texts)
        return [self._score(check_text(text, f"text {number}")) for number, text in enumerate(texts, start=1)]

    def _score(self, text: str) -> TextScore:
        ids = self.tokenizer.encode_target(text)[: None if self.ends else -1]
        blocks = [ids[begin : begin + self.max_tokens] for begin in range(0, len(ids), self.max_tokens)]
        # A target must end with EOS; the log-probability of one that the text does not have is dropped.
        targets = [block if block[-1] == EOS else [*block, EOS] for block in blocks]
        rows = self.backend.scorer.score([([], target) for target in targets], self.max_tokens)
        log_prob = math.fsum(sum(row[: len(block)]) for block, row in zip(blocks, rows, strict=True))
        return TextScore(log_prob, len(ids), len(text) + self.ends)
