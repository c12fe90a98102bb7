"""A translation as it comes about: one event a token, with what the model saw and what else it might have said.

Events are plain dictionaries, in this order:

    {"event": "start", "parts": n}                     n = 0 where there is nothing to translate
    {"event": "part", "part": i, "source": pieces}     what the model reads now; none without a source
    {"event": "tokens", "part": i, "from": k, "tokens": [...], "settled": true or false, "text": so far}
    {"event": "again", "part": i}                      it went in circles: searched anew, without repeated 3-grams
    {"event": "done", "text", "score", "log_prob", "flags", "seconds"}

Of the tokens of a part the first k stay, and the others are replaced.  Without a beam that is one new token each time;
with one it is what has changed in the best hypothesis that goes on, which is not settled before the end.

Letters: K rows that are searched, L layers, H heads, S positions that can be looked at, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.hypothesis import Hypothesis, PartialHypothesis
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.pytorch.stream import stream_tokens
from dragoman.decoding.retry import loops, without_loops
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.nn.record import Recording, record, tap_names
from dragoman.nn.state import DecodeState
from dragoman.pages.packing import as_bytes, packed
from dragoman.pipelines.generation import TextGenerator
from dragoman.pipelines.translation import Translator

__all__ = ["Event", "Observed", "continue_live", "translate_live"]

Event = dict[str, Any]
_Told = Generator[Event, None, tuple[Hypothesis, Callable[[], Event]]]
"""Events of one search; its return value: what was found, and an event that tells all of it once more."""

_ALTERNATIVES = 5


@dataclass(frozen=True)
class Sight:
    """One step: the likeliest tokens of each row (K, 5), and its weights (K, L, H, S) as bytes, None without any."""

    likeliest: Tensor
    log_probs: Tensor
    weights: Tensor | None


class Observed:
    """A stepper that remembers what each step showed.

    looks: which attention is recorded, if the model has it.  lock: held while the model computes, because what is
    recorded from two threads at once would mix.  Between two steps nothing is held: texts can be written in turn.
    """

    def __init__(
        self, model: Model, looks: Literal["cross_attn", "self_attn"], lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self.model = model.eval()
        self.inner = ModelStepper(model)
        self.lock = lock or nullcontext()
        self.pattern = f"*{looks}.weights" if any(looks in name for name in tap_names(model)) else None
        self.sights: list[Sight] = []

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> DecodeState:
        with self.lock:
            return self.inner.start(src, src_mask, beams, max_len)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(self.lock)
            seen = stack.enter_context(record(self.model, self.pattern)) if self.pattern else Recording()
            log_probs = self.inner.step(tokens, state)
        top = log_probs.topk(min(_ALTERNATIVES, log_probs.size(1)), dim=1)
        self.sights.append(Sight(top.indices, top.values, _weights(seen)))
        return log_probs


def _weights(seen: Recording) -> Tensor | None:
    """What one step recorded -> (K, L, H, S); linear attention with a cache keeps sums, and no weights."""
    layers = []
    for calls in seen.values():
        for weights in calls:  # (K, H, 1, S), or with the beams as queries (1, H, K, S)
            layers.append(weights[0].transpose(0, 1) if weights.size(0) == 1 else weights[:, :, -1])
    return as_bytes(torch.stack(layers, dim=1)) if layers else None  # all steps are kept to the end


# ------------------------------------------------------------------------------------------------------ whole texts


def translate_live(
    translator: Translator, text: str, lock: AbstractContextManager[Any] | None = None, **overrides: Any
) -> Iterator[Event]:
    """The events of one translation; text, score and flags are those of `translator.translate([text], **overrides)`.

    A text that has to be split is searched part by part (as with `batch_tokens=1`).  Raises UsageError.
    """
    settings = SearchSettings.of(translator.settings, **{"nbest": 1, **overrides})
    began = time.perf_counter()
    observed = Observed(translator.model, "cross_attn", lock)
    parts = translator.parts(text, "")
    yield {"event": "start", "parts": len(parts)}
    tell_again: list[Callable[[], Event]] = []
    for place, part in enumerate(parts):
        yield {"event": "part", "part": place, "source": [translator.tokenizer.source_piece(i) for i in part.ids]}
        src = torch.tensor([part.ids], device=translator.device)
        found, told = yield from _search(observed, src, settings, translator.tokenizer, place)
        part.found = [found]
        tell_again.append(told)
    # As `Translator` does: what goes in circles is searched once more, and stays where that does no better.
    again = without_loops(settings)
    for place, part in enumerate(parts):
        part.looped = loops(part.ids[:-1], part.found[0].tokens)
        if not part.looped or again is None:
            continue
        yield {"event": "again", "part": place}
        src = torch.tensor([part.ids], device=translator.device)
        found, _ = yield from _search(observed, src, again, translator.tokenizer, place)
        if loops(part.ids[:-1], found.tokens):
            yield tell_again[place]()
        else:
            part.found = [found]
    whole = translator.translation(text, parts)
    yield _done(whole.text, whole.score, whole.log_prob, whole.flags, began)


def continue_live(
    generator: TextGenerator,
    prompt: str,
    lock: AbstractContextManager[Any] | None = None,
    *,
    max_tokens: int = 200,
    **settings: Any,
) -> Iterator[Event]:
    """The events of one continuation; text and log-probability are those of `generator.generate([prompt], ...)`.

    The prompt's own tokens come first and are `given`; `truncated` is among the flags where the model had not come to
    an end after max_tokens.  Raises UsageError, also for a prompt longer than what the model has learned from.
    """
    if max_tokens < 1:
        raise UsageError(f"max_tokens = {max_tokens}: must be at least 1")
    asked = SearchSettings.of(SearchSettings(sample=True, beam=1), **{"max_extra": max_tokens + 1, **settings})
    began = time.perf_counter()
    observed = Observed(generator.model, "self_attn", lock)
    prefix = generator.tokenizer.encode_target(prompt)[:-1]
    if len(prefix) > generator.max_tokens:
        raise UsageError(
            f"a beginning of {len(prefix):,} tokens, and the model has learned from at most "
            f"{generator.max_tokens:,} at once: begin with a shorter one"
        )
    yield {"event": "start", "parts": 1}
    yield {"event": "part", "part": 0, "source": []}
    nothing = torch.zeros(1, 0, dtype=torch.long, device=generator.device)
    found, _ = yield from _search(observed, nothing, asked, generator.tokenizer, 0, prefix)
    text = prompt + generator.tokenizer.decode_target(found.tokens[len(prefix) :])
    yield _done(text, None, found.log_prob, ("truncated",) if found.truncated else (), began)


def _done(text: str, score: float | None, log_prob: float, flags: Sequence[str], began: float) -> Event:
    seconds = round(time.perf_counter() - began, 3)
    return {
        "event": "done", "text": text, "score": score, "log_prob": log_prob, "flags": list(flags), "seconds": seconds,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- one search


def _search(
    observed: Observed,
    src: Tensor,
    settings: SearchSettings,
    tokenizer: Tokenizer,
    part: int,
    prefix: Sequence[int] | None = None,
) -> _Told:
    observed.sights = []
    tell = _Teller(observed.sights, tokenizer, part, len(prefix or ()))
    watched = stream_tokens(observed, src, settings, prefix)
    one_row = settings.sample or settings.beam == 1
    while True:
        try:
            path = next(watched)
        except StopIteration as end:
            found, path = end.value
            yield tell.changes(path, settled=True)
            return found, partial(tell.event, path, 0, True)
        yield tell.changes(path, settled=one_row)


@dataclass
class _Teller:
    """Makes events of paths.  given: how many tokens of a target were not the model's choice."""

    sights: list[Sight]
    tokenizer: Tokenizer
    part: int
    given: int
    told: list[int] = field(default_factory=list)

    def changes(self, path: PartialHypothesis, settled: bool) -> Event:
        """What is new since the last call."""
        pairs = enumerate(zip(self.told, path.tokens, strict=False))
        same = next((i for i, (old, new) in pairs if old != new), min(len(self.told), len(path.tokens)))
        self.told = path.tokens
        return self.event(path, same, settled)

    def event(self, path: PartialHypothesis, first: int, settled: bool) -> Event:
        return {
            "event": "tokens",
            "part": self.part,
            "from": first,
            "tokens": [self._token(path, place) for place in range(first, len(path.tokens))],
            "settled": settled,
            "text": self.tokenizer.decode_target(path.tokens),
        }

    def _token(self, path: PartialHypothesis, place: int) -> Event:
        token, row, sight = path.tokens[place], path.rows[place], self.sights[place]
        likeliest = sight.likeliest[row].tolist()
        return {
            "piece": self.tokenizer.target_piece(token),
            "log_prob": path.token_log_probs[place],
            "rank": likeliest.index(token) + 1 if token in likeliest else None,
            "given": place < self.given,
            "alternatives": [
                [self.tokenizer.target_piece(i), log_prob]
                for i, log_prob in zip(likeliest, sight.log_probs[row].tolist(), strict=True)
            ],
            "attention": None if sight.weights is None else packed(sight.weights[row]),
        }
