"""A search as a stream of events: per step the new tokens, their alternatives and their attention weights.

Events are plain dictionaries, in this order:

    {"event": "start", "parts": n}                     n = 0: nothing to translate
    {"event": "part", "part": i, "source": pieces}     the source of the part; empty for a language model
    {"event": "tokens", "part": i, "from": k, "tokens": [...], "settled": true or false, "text": text of the part}
    {"event": "again", "part": i}                      the output repeated itself; searched without repeated 3-grams
    {"event": "done", "text", "score", "log_prob", "flags", "seconds"}

A "tokens" event keeps the first k tokens of its part and replaces the others: greedy search and sampling append one
token per event, beam search sends what changed in the best unfinished hypothesis, which is settled at the end only.

Letters: K rows of the search, L layers, H heads, S attended positions, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.pytorch.stream import PartialHypothesis, stream_tokens
from dragoman.decoding.retry import stream_with_retry
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.nn.record import Recording, record, tap_names
from dragoman.nn.state import DecodeState
from dragoman.pages.packing import as_bytes, packed
from dragoman.pipelines.generation import TextGenerator
from dragoman.pipelines.translation import Translator

__all__ = ["Event", "RecordingStepper", "stream_continuation", "stream_translation"]

Event = dict[str, Any]

_ALTERNATIVES = 5
_NOTHING = PartialHypothesis([], [], [], stable=0)


@dataclass(frozen=True)
class StepRecord:
    """One step: ids and log-probabilities (K, 5) of the most probable tokens; attention (K, L, H, S) as bytes."""

    tokens: Tensor
    log_probs: Tensor
    weights: Tensor | None


class RecordingStepper:
    """A stepper that keeps a `StepRecord` of each step.

    attention: which attention is recorded, if the model has it.  lock: held while the model computes, because
    recordings from two threads would mix.  It is free between steps, so that several searches can alternate.
    """

    def __init__(
        self,
        model: Model,
        attention: Literal["cross_attn", "self_attn"],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.model = model.eval()
        self.inner = ModelStepper(model)
        self.lock = lock or nullcontext()
        self.pattern = f"*{attention}.weights" if any(attention in name for name in tap_names(model)) else None
        self.records: list[StepRecord] = []

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> DecodeState:
        with self.lock:
            return self.inner.start(src, src_mask, beams, max_len)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(self.lock)
            recording = stack.enter_context(record(self.model, self.pattern)) if self.pattern else Recording()
            log_probs = self.inner.step(tokens, state)
        top = log_probs.topk(min(_ALTERNATIVES, log_probs.size(1)), dim=1)
        self.records.append(StepRecord(top.indices, top.values, _weights(recording)))
        return log_probs


def _weights(recording: Recording) -> Tensor | None:
    """Return the weights of one step (K, L, H, S), or None: linear attention with a cache computes none."""
    layers = []
    for calls in recording.values():
        for weights in calls:  # (K, H, 1, S), or with the beams as queries (1, H, K, S)
            layers.append(weights[0].transpose(0, 1) if weights.size(0) == 1 else weights[:, :, -1])
    return as_bytes(torch.stack(layers, dim=1)) if layers else None  # bytes: every step is kept until the end


def stream_translation(
    translator: Translator, text: str, lock: AbstractContextManager[Any] | None = None, **overrides: Any
) -> Iterator[Event]:
    """Yield the events of one translation; text, score and flags equal `translator.translate([text], **overrides)`.

    The parts of a long text are searched one by one (as with `batch_tokens=1`).  Raises UsageError.
    """
    settings = SearchSettings.of(translator.settings, **{"nbest": 1, **overrides})
    started = time.perf_counter()
    stepper = RecordingStepper(translator.model, "cross_attn", lock)
    parts = translator.split(text)
    yield {"event": "start", "parts": len(parts)}
    for index, part in enumerate(parts):
        yield {"event": "part", "part": index, "source": [translator.tokenizer.source_piece(i) for i in part.ids]}
        search = _Search(stepper, torch.tensor([part.ids], device=translator.device), translator.tokenizer, index)
        kept, part.repeated = yield from stream_with_retry(search.run, part.ids, settings, lambda found: found.tokens)
        if kept is not search.results[-1]:  # the second search did no better: show the first result again
            yield search.first_result
        part.found = [kept]
    joined = translator.join(text, parts)
    yield _done(joined.text, joined.score, joined.log_prob, joined.flags, started)


def stream_continuation(
    generator: TextGenerator,
    prompt: str,
    lock: AbstractContextManager[Any] | None = None,
    *,
    max_tokens: int = 200,
    **settings: Any,
) -> Iterator[Event]:
    """Yield the events of one continuation; text and log-probability equal `generator.generate([prompt], ...)`.

    The tokens of the prompt come first and are `given`; the flag `truncated` means that the text did not end within
    max_tokens.  Raises UsageError, also for a prompt longer than the training sequences.
    """
    resolved = generator.search_settings(max_tokens, **settings)
    started = time.perf_counter()
    stepper = RecordingStepper(generator.model, "self_attn", lock)
    prefix = generator.tokenizer.encode_target(prompt)[:-1]
    if len(prefix) > generator.max_tokens:
        raise UsageError(
            f"the prompt has {len(prefix):,} tokens; accepted: at most {generator.max_tokens:,}, the longest sequence "
            "seen in training; give a shorter prompt"
        )
    yield {"event": "start", "parts": 1}
    yield {"event": "part", "part": 0, "source": []}
    src = torch.zeros(1, 0, dtype=torch.long, device=generator.device)
    found = yield from _Search(stepper, src, generator.tokenizer, 0, prefix).run(resolved)
    text = generator.continuation(prompt, prefix, found).text
    yield _done(text, None, found.log_prob, ("truncated",) if found.truncated else (), started)


def _done(text: str, score: float | None, log_prob: float, flags: Sequence[str], started: float) -> Event:
    seconds = round(time.perf_counter() - started, 3)
    return {
        "event": "done", "text": text, "score": score, "log_prob": log_prob, "flags": list(flags), "seconds": seconds,
    }  # fmt: skip


class _Search:
    """The first and perhaps the second search of one part, as events."""

    def __init__(
        self, stepper: RecordingStepper, src: Tensor, tokenizer: Tokenizer, part: int, prefix: Sequence[int] = ()
    ) -> None:
        self.stepper, self.src, self.tokenizer, self.part, self.prefix = stepper, src, tokenizer, part, prefix
        self.results: list[Hypothesis] = []
        self.shown = _NOTHING

    def run(self, settings: SearchSettings) -> Generator[Event, None, Hypothesis]:
        if self.results:
            self.first_result = self._tokens(self.shown, 0, True)  # while its records are there
            yield {"event": "again", "part": self.part}
        self.stepper.records = []
        self.shown = _NOTHING
        steps = stream_tokens(self.stepper, self.src, settings, self.prefix or None)
        found: Hypothesis | None = None
        settled = settings.sample or settings.beam == 1
        while found is None:
            try:
                hypothesis = next(steps)
            except StopIteration as stop:
                found, hypothesis = stop.value
                settled = True
            unchanged = _common(self.shown.tokens, hypothesis.tokens)
            self.shown = hypothesis
            yield self._tokens(hypothesis, unchanged, settled)
        self.results.append(found)
        return found

    def _tokens(self, hypothesis: PartialHypothesis, first: int, settled: bool) -> Event:
        """Return the event with the tokens from index `first`."""
        return {
            "event": "tokens",
            "part": self.part,
            "from": first,
            "tokens": [self._token(hypothesis, index) for index in range(first, len(hypothesis.tokens))],
            "settled": settled,
            "text": self.tokenizer.decode_target(hypothesis.tokens),
        }

    def _token(self, hypothesis: PartialHypothesis, index: int) -> Event:
        token, row, step = hypothesis.tokens[index], hypothesis.rows[index], self.stepper.records[index]
        top, piece = step.tokens[row].tolist(), self.tokenizer.target_piece
        return {
            "piece": piece(token),
            "log_prob": hypothesis.token_log_probs[index],
            "rank": top.index(token) + 1 if token in top else None,
            "given": index < len(self.prefix),
            "alternatives": [[piece(i), p] for i, p in zip(top, step.log_probs[row].tolist(), strict=True)],
            "attention": None if step.weights is None else packed(step.weights[row]),
        }


def _common(shown: Sequence[int], tokens: Sequence[int]) -> int:
    """Return the number of leading tokens that both have."""
    return next(
        (i for i, (a, b) in enumerate(zip(shown, tokens, strict=False)) if a != b), min(len(shown), len(tokens))
    )
