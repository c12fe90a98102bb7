"""A language model at work: it goes on where a prompt ends, and says how surprising a text is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.decoding.backend import DecodingBackend, torch_backend, torch_backend_of
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.io.lines import has_lone_surrogate

if TYPE_CHECKING:
    import torch

    from dragoman.decoding.loader import EngineChoice, Quantize
    from dragoman.models.decoder_only import DecoderOnly

__all__ = ["Continuation", "TextGenerator", "TextScore"]

_PROMPTS_AT_ONCE = 32


@dataclass(frozen=True)
class Continuation:
    """text: prompt and what follows.  log_prob: sum of natural log-probabilities, those of the prompt included, in the
    precision that generated the text (int8 by default on a CPU).

    ended: the model came to an end by itself, before `max_tokens`.
    """

    prompt: str
    text: str
    log_prob: float
    ended: bool

    def to_json(self) -> dict[str, Any]:
        """The same as a plain dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class TextScore:
    """How probable a text is: sum of natural log-probabilities over `tokens` tokens, and its `characters`.

    Where texts have an end, it counts as a token and, as the line end that it stands for, as a character.
    """

    log_prob: float
    tokens: int
    characters: int

    @property
    def perplexity(self) -> float:
        """exp(- mean log-probability of a token)."""
        return math.exp(-self.log_prob / max(1, self.tokens))

    @property
    def bits_per_character(self) -> float:
        return -self.log_prob / math.log(2) / max(1, self.characters)


class TextGenerator:
    """A language model and its tokenizer: `TextGenerator.load("runs/shakespeare").generate(["ROMEO:"])`.

    max_tokens: the longest sequence the model was trained on.
    """

    def __init__(
        self,
        model: DecoderOnly | DecodingBackend,
        tokenizer: Tokenizer,
        max_tokens: int,
        ends: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        """ends: whether the texts it learned from had an end (lines, paragraphs), or were one stream."""
        self.backend = model if isinstance(model, DecodingBackend) else torch_backend(model, device)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.ends = ends

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | torch.device = "cpu",
        *,
        quantize: Quantize = "auto",
        engine: EngineChoice = "auto",
        threads: int | None = None,
    ) -> TextGenerator:
        """The language model of a run folder or of one model folder in it; engine and the rest as `Translator.load`.

        Raises ModelFolderError, and UsageError where it is another kind of model.
        """
        from dragoman.decoding.loader import load_searcher

        backend, vocabulary, config = load_searcher(
            path, "text", "is no language model", device, quantize, engine, threads
        )
        ends = config.data.kind == "text" and config.data.form != "stream"
        return cls(backend, vocabulary, config.data.max_tokens, ends)

    @property
    def description(self) -> str:
        """Which path writes, in which precision, and why."""
        return self.backend.description

    @property
    def model(self) -> DecoderOnly:
        """The model as PyTorch has it.

        Whoever asks for it means to look into it or to change it: from then on it does the work, not the engine.
        """
        from dragoman.models.decoder_only import DecoderOnly

        self.backend = plain = torch_backend_of(self.backend)
        assert isinstance(plain.model, DecoderOnly)
        return plain.model

    @property
    def device(self) -> torch.device | str:
        """Where the work is done."""
        return self.backend.device

    def generate(self, prompts: Sequence[str], *, max_tokens: int = 200, **settings: Any) -> list[Continuation]:
        """One continuation a prompt ("" = from nothing), in order.

        max_tokens: new tokens at most.  settings: those of `SearchSettings`; sampling unless `sample=False` (then
        `beam` counts, and 1 is greedy).  Raises UsageError.
        """
        if isinstance(prompts, str):
            raise UsageError(f"one prompt was given ({prompts[:40]!r}) where prompts are expected: put it in a list")
        for number, prompt in enumerate(prompts, start=1):
            if has_lone_surrogate(prompt):
                raise UsageError(f"prompt {number} holds what is no character; give it in UTF-8")
        if max_tokens < 1:
            raise UsageError(f"max_tokens = {max_tokens}: must be at least 1")
        # The search counts the end of a text too.
        asked = SearchSettings.of(SearchSettings(sample=True, beam=1), **{"max_extra": max_tokens + 1, **settings})
        found: list[Continuation] = []
        for begin in range(0, len(prompts), _PROMPTS_AT_ONCE):
            some = prompts[begin : begin + _PROMPTS_AT_ONCE]
            prefixes = [self.tokenizer.encode_target(prompt)[:-1] for prompt in some]
            searched = self.backend.search([[]] * len(some), prefixes, asked, _PROMPTS_AT_ONCE)
            for prompt, prefix, (first, *_) in zip(some, prefixes, searched, strict=True):
                text = prompt + self.tokenizer.decode_target(first.tokens[len(prefix) :])
                found.append(Continuation(prompt, text, first.log_prob, not first.truncated))
        return found

    def surprise(self, text: str) -> TextScore:
        """How probable the model finds a text; one that is longer than `max_tokens` is cut into parts.

        Computed in float32, unless the generator was loaded with `quantize="int8"` or "bf16".
        """
        ids = self.tokenizer.encode_target(text)
        if not self.ends:
            ids = ids[:-1]
        blocks = list(_blocks(ids, self.max_tokens))
        # A target has an end; where the text has none there, its log-probability is left out.
        ended = [block if block[-1] == EOS else [*block, EOS] for block in blocks]
        scored = self.backend.scorer.score([([], block) for block in ended], self.max_tokens)
        log_prob = math.fsum(sum(row[: len(block)]) for block, row in zip(blocks, scored, strict=True))
        return TextScore(log_prob, len(ids), len(text) + self.ends)


def _blocks(ids: list[int], size: int) -> Iterator[list[int]]:
    yield from (ids[begin : begin + size] for begin in range(0, len(ids), size))
