"""Text in, translations out: N in, N out, in order, and nothing cut without a flag.

Letters: B sentences, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.data.segment import join_parts, split_text
from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.retry import length_is_off, loops, without_loops
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError, clip

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dragoman.decoding.loader import EngineChoice, Quantize
    from dragoman.models.seq2seq import Model

__all__ = ["Alignment", "Alternative", "Part", "Partial", "Score", "Translation", "Translator"]

_WINDOW_CHARACTERS = 2_000_000


@dataclass(frozen=True)
class Alternative:
    """One of the n best; the numbers are those of `Translation`."""

    text: str
    score: float
    log_prob: float


@dataclass(frozen=True)
class Translation:
    """One translated line.

    log_prob: sum of natural log-probabilities, ends of sentence included, as the search computed them: in the precision
    that translated, so in int8 by default on a CPU (`Translator.score` returns those of float32).  score: log_prob /
    length penalty; the sum over the parts of a line that was split.  tokens: the target's pieces with the end of
    sentence (one a part); token_log_probs: one a token.  nbest: best first, this one included.  flags, in this order:
    `empty_source` (nothing to translate), `split` (longer than the model takes, translated in parts), `truncated`
    (reached the longest length allowed), `length` (much shorter or longer than the source), `repetition` (a loop,
    translated again without repeated 3-grams).
    """

    source: str
    text: str
    score: float
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]
    flags: tuple[str, ...]
    nbest: list[Alternative]

    def to_json(self) -> dict[str, Any]:
        """The same as plain lists and dictionaries."""
        return asdict(self)


@dataclass(frozen=True)
class Partial:
    """A translation that is being written: the best text so far, and the beginning of it that stays."""

    text: str
    stable: str


@dataclass(frozen=True)
class Score:
    """Teacher forcing: log_prob is the sum of token_log_probs, one a token, the end of sentence included."""

    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]


@dataclass(frozen=True)
class Alignment:
    """Pieces of source and target, both with their end; weights (T, S): how much each target piece looked where."""

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]


@dataclass
class Part:
    """What the model sees at once: a line or a part of it.  ids: source tokens with EOS; found: the n best."""

    text: str
    ids: list[int]
    prefix: list[int]
    found: list[Hypothesis] = field(default_factory=list)
    looped: bool = False


class Translator:
    """A model, its tokenizer and how to search: `Translator.load("runs/en-de").translate(["A dog runs."])`.

    model: the model, or a backend that has one.  search: any object with the attributes of `SearchSettings`.
    max_source: longest source in tokens, end of sentence included; longer lines are split.
    """

    def __init__(
        self,
        model: Model | DecodingBackend,
        tokenizer: Tokenizer,
        search: Any = SearchSettings(),  # noqa: B008 (frozen)
        max_source: int = 250,
        device: str | torch.device = "cpu",
    ) -> None:
        if max_source < 2:
            raise UsageError(f"max_source = {max_source}: must be at least 2, a token and the end of sentence")
        if not isinstance(model, DecodingBackend):
            from dragoman.decoding.pytorch.backend import TorchBackend  # here, so that the engine works without torch

            model = TorchBackend(model, device)
        self.backend: DecodingBackend = model
        self.tokenizer = tokenizer
        self.settings = SearchSettings.of(search)
        self.max_source = max_source

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path],
        device: str | torch.device = "cpu",
        *,
        quantize: Quantize = "auto",
        engine: EngineChoice = "auto",
        threads: int | None = None,
        shortlist: bool = False,
    ) -> Translator:
        """The translator of a run folder or of one model folder in it.

        engine: "native" is the native engine for the CPU, which packs the model once and keeps the result beside it;
        "auto" takes it where it can run the model; `about` says what was taken.  On a CUDA device, "auto" lets the GPU
        repeat recorded steps.  quantize: the weights, "int8" (what "auto" takes on a CPU), "bf16" (what it takes on a
        GPU that has it) or "none" = float32, with the plain path's results; `score` is in float32 with "auto" too.
        threads: the engine's, by default all cores.  shortlist: only words that go with the source's, as `dragoman
        shortlist` learned them.  Raises ModelFolderError, and UsageError where what is asked for cannot be.
        """
        from dragoman.decoding.loader import load_backend  # here, so that translating does not load the trainer

        backend, tokenizer, config = load_backend(
            path, "parallel", "does not translate", device, quantize, engine, threads, shortlist
        )
        return cls(backend, tokenizer, config.search, config.data.max_tokens)

    @property
    def description(self) -> str:
        """Which path translates, in which precision, and why."""
        return self.backend.description

    @property
    def model(self) -> Model:
        """The model as PyTorch has it.

        Whoever asks for it means to look into it or to change it: from then on it does the work, not the engine.
        """
        from dragoman.decoding.pytorch.backend import TorchBackend

        self.backend = plain = self.backend.to_torch()
        assert isinstance(plain, TorchBackend)
        return plain.model

    @property
    def device(self) -> torch.device | str:
        """Where the work is done."""
        return self.backend.device

    def translate(
        self,
        texts: Iterable[str],
        *,
        batch_tokens: int = 4000,
        prefix: str | Sequence[str] | None = None,
        **overrides: Any,
    ) -> list[Translation]:
        """One translation a text, in order; "\\n" inside a text counts as a space.

        batch_tokens: padded source tokens times beams in one batch.  prefix: how each translation must start, one for
        all or one a text.  overrides: search settings by name.  Raises UsageError.
        """
        return list(self.stream(texts, batch_tokens=batch_tokens, prefix=prefix, **overrides))

    def stream(
        self,
        lines: Iterable[str],
        *,
        batch_tokens: int = 4000,
        prefix: str | Sequence[str] | None = None,
        window: int = 2000,
        **overrides: Any,
    ) -> Iterator[Translation]:
        """As `translate`, but lazily: `window` lines are read, sorted by length, translated, and given out in order."""
        _require_texts(lines)
        settings = SearchSettings.of(self.settings, **overrides)
        for name, value in (("batch_tokens", batch_tokens), ("window", window)):
            if value < 1:
                raise UsageError(f"{name} = {value}: must be at least 1")
        pairs = _with_prefixes(lines, prefix)
        windows = _windows(pairs, window)
        return itertools.chain.from_iterable(self._window(some, settings, batch_tokens) for some in windows)

    def live(self, text: str, *, prefix: str = "", **overrides: Any) -> Iterator[Partial]:
        """One translation while it is written: a `Partial` each step, the last with the text of `translate`.

        Greedy search and sampling only ever add words; a beam may change its mind behind `stable`.  What goes in
        circles is searched once more (see `Translation.flags`).  Raises UsageError.
        """
        settings = SearchSettings.of(self.settings, **{"nbest": 1, **overrides})
        parts = self.parts(text, prefix)
        for place, part in enumerate(parts):
            part.found = [(yield from self._live_part(parts[:place], part, settings))]
            again = without_loops(settings)
            if loops(part.ids[:-1], part.found[0].tokens) and again is not None:
                second = yield from self._live_part(parts[:place], part, again)
                if not loops(part.ids[:-1], second.tokens):
                    part.found = [second]
        whole = self.translation(text, parts).text
        yield Partial(whole, whole)

    def _live_part(
        self, before: Sequence[Part], part: Part, settings: SearchSettings
    ) -> Generator[Partial, None, Hypothesis]:
        done = [other.found[0].tokens for other in before]
        watched = self.backend.stream(part.ids, part.prefix, settings)
        while True:
            try:
                path = next(watched)
            except StopIteration as stop:
                hypothesis: Hypothesis = stop.value[0]
                return hypothesis
            texts = [
                join_parts(
                    [other.text for other in [*before, part]],
                    [_one_line(self.tokenizer.decode_target(ids)) for ids in [*done, path.tokens[:count]]],
                )
                for count in (len(path.tokens), path.stable)
            ]
            yield Partial(*texts)

    def score(self, sources: Sequence[str], targets: Sequence[str], *, batch_tokens: int = 4000) -> list[Score]:
        """The log-probability of each target given its source, whole, whatever their lengths.

        Computed in float32, unless the translator was loaded with `quantize="int8"` or "bf16".  Where it translates in
        int8, the first call loads the float32 weights too.

        batch_tokens: padded source and target tokens in one batch.  Raises UsageError when the numbers differ.
        """
        pairs = self._pairs(sources, targets)
        scored = zip(pairs, self.backend.scorer.score(pairs, batch_tokens), strict=True)
        return [
            Score(sum(log_probs), [self.tokenizer.target_piece(i) for i in ids], log_probs)
            for (_, ids), log_probs in scored
        ]

    def align(self, sources: Sequence[str], targets: Sequence[str], *, batch_tokens: int = 4000) -> list[Alignment]:
        """Where each token of each target looked in its source, by the attention between them.

        batch_tokens: padded source and target tokens in one batch.  Raises UsageError when the numbers of texts differ,
        and for a model without such an attention.
        """
        pairs = self._pairs(sources, targets)
        piece, target_piece = self.tokenizer.source_piece, self.tokenizer.target_piece
        return [
            Alignment([piece(i) for i in src], [target_piece(i) for i in tgt], weights)
            for (src, tgt), weights in zip(pairs, self.backend.align(pairs, batch_tokens), strict=True)
        ]

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        _require_texts(sources)
        _require_texts(targets)
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} sources but {len(targets)} targets: give one target for each source")
        return [
            (self.tokenizer.encode_source(_clean(source)), self.tokenizer.encode_target(_clean(target)))
            for source, target in zip(sources, targets, strict=True)
        ]

    def _window(
        self, lines: Sequence[tuple[str, str]], settings: SearchSettings, batch_tokens: int
    ) -> list[Translation]:
        each = [self.parts(line, prefix) for line, prefix in lines]
        parts = [part for some in each for part in some]
        self._search(parts, settings, batch_tokens)
        looped = [part for part in parts if loops(part.ids[:-1], part.found[0].tokens)]
        self._again(looped, settings, batch_tokens)
        return [self.translation(line, some) for (line, _), some in zip(lines, each, strict=True)]

    def parts(self, line: str, prefix: str) -> list[Part]:
        """The line, or what it had to be split into; none where there is nothing to translate."""
        encode = self.tokenizer.encode_source
        text = _clean(line)
        split = split_text(text, self.max_source, lambda part: len(encode(part))) if text.strip() else []
        parts = [Part(part, ids, []) for part in split if len(ids := encode(part)) > 1]
        if parts and prefix:
            parts[0].prefix = self._prefix(prefix)
        return parts

    def _prefix(self, text: str) -> list[int]:
        ids = self.tokenizer.encode_target(_clean(text))[:-1]
        if len(ids) > self.max_source:
            raise UsageError(
                f"prefix {clip(text)!r}: it has {len(ids):,} tokens; accepted: at most {self.max_source:,}, as for a "
                "source"
            )
        return ids

    def _search(self, parts: Sequence[Part], settings: SearchSettings, batch_tokens: int) -> None:
        each = self.backend.search(
            [part.ids for part in parts], [part.prefix for part in parts], settings, batch_tokens
        )
        for part, found in zip(parts, each, strict=True):
            part.found = found

    def _again(self, looped: list[Part], settings: SearchSettings, batch_tokens: int) -> None:
        """Search once more without repeated 3-grams; what still loops keeps its first translation."""
        for part in looped:
            part.looped = True
        again = without_loops(settings)
        if not looped or again is None:
            return
        second = [Part(part.text, part.ids, part.prefix) for part in looped]
        self._search(second, again, batch_tokens)
        for part, other in zip(looped, second, strict=True):
            if not loops(part.ids[:-1], other.found[0].tokens):
                part.found = other.found

    def translation(self, line: str, parts: Sequence[Part]) -> Translation:
        """What was found for the parts of a line, as one."""
        if not parts:
            return Translation(line, "", 0.0, 0.0, [], [], ("empty_source",), [Alternative("", 0.0, 0.0)])
        ranks = range(min(len(part.found) for part in parts))
        nbest = [self._joined(parts, [part.found[rank] for part in parts]) for rank in ranks]
        first = [part.found[0] for part in parts]
        return Translation(
            source=line,
            text=nbest[0].text,
            score=nbest[0].score,
            log_prob=nbest[0].log_prob,
            tokens=[self.tokenizer.target_piece(i) for hypothesis in first for i in [*hypothesis.tokens, EOS]],
            token_log_probs=[log_prob for hypothesis in first for log_prob in hypothesis.token_log_probs],
            flags=_flags(parts, first),
            nbest=nbest,
        )

    def _joined(self, parts: Sequence[Part], chosen: Sequence[Hypothesis]) -> Alternative:
        texts = [_one_line(self.tokenizer.decode_target(hypothesis.tokens)) for hypothesis in chosen]
        return Alternative(
            join_parts([part.text for part in parts], texts),
            sum(hypothesis.score for hypothesis in chosen),
            sum(hypothesis.log_prob for hypothesis in chosen),
        )


def _flags(parts: Sequence[Part], chosen: Sequence[Hypothesis]) -> tuple[str, ...]:
    off = (length_is_off(len(p.ids) - 1, len(h.tokens)) for p, h in zip(parts, chosen, strict=True))
    signs = {
        "split": len(parts) > 1,
        "truncated": any(hypothesis.truncated for hypothesis in chosen),
        "length": any(off),
        "repetition": any(part.looped for part in parts),
    }
    return tuple(name for name, seen in signs.items() if seen)


def _require_texts(texts: Iterable[str]) -> None:
    if isinstance(texts, str):
        raise UsageError(f"one text was given ({texts[:40]!r}) where texts are expected: put it in a list, [text]")


def _require_text(text: object) -> None:
    if not isinstance(text, str):
        raise UsageError(f"where a text is expected stands {text!r:.40}, of type {type(text).__name__}; accepted: str")


def _clean(text: str) -> str:
    """Without line ends and without what is no character (half a surrogate pair)."""
    _require_text(text)
    return _one_line(text).encode("utf-8", "replace").decode("utf-8")


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _with_prefixes(lines: Iterable[str], prefix: str | Sequence[str] | None) -> Iterator[tuple[str, str]]:
    if prefix is None or isinstance(prefix, str):
        yield from ((line, prefix or "") for line in lines)
        return
    if not isinstance(prefix, Sequence):
        raise UsageError(f"prefix = {prefix!r:.40}: give one text for all, or a list with one a line")
    for number, (line, own) in enumerate(itertools.zip_longest(lines, prefix)):
        if line is None or own is None:
            count = f"{number} lines" if line is None else "more lines"
            raise UsageError(f"{len(prefix)} prefixes but {count}: give one prefix a line, '' for none")
        yield line, own


def _windows(pairs: Iterator[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    """At most `size` lines at a time, fewer where they are long."""
    window: list[tuple[str, str]] = []
    characters = 0
    for pair in pairs:
        _require_text(pair[0])
        window.append(pair)
        characters += len(pair[0])
        if len(window) >= size or characters >= _WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
