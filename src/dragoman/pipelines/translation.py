"""Translation: one output per input line, in order; nothing is truncated without a flag.

Letters: S source length, T target length.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from dragoman.data.segment import join_parts, split_text
from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.retry import StreamWithRetry, has_unusual_length, search_with_retry
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError, clip
from dragoman.pipelines.pipeline import Pipeline, check_positive, check_sequence, check_text, stream_windows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dragoman.config import Config
    from dragoman.decoding.backend import DecodingBackend
    from dragoman.models.seq2seq import Model

__all__ = ["Alignment", "Alternative", "PartialTranslation", "TargetScore", "Translation", "Translator"]

Prefix = str | Sequence[str] | None
"""The beginning of translations: one for all lines, or one per line."""


@dataclass(frozen=True)
class Alternative:
    """An entry of the n-best list; the numbers are those of `Translation`."""

    text: str
    score: float
    log_prob: float


@dataclass(frozen=True)
class Translation:
    """One translated line.

    log_prob: sum of natural log-probabilities, ends of sentence included, in the precision of the search (int8 by
    default on a CPU; `Translator.score` uses float32).  score: log_prob / length penalty; the sum over the parts of a
    line that was split.  tokens: subwords of the target, with one end of sentence per part; token_log_probs: one per
    token.  nbest: best first, this translation included.  flags, in this order: `empty_source` (nothing to translate),
    `split` (longer than the model accepts, translated in parts), `truncated` (reached the maximum length), `length`
    (much shorter or longer than the source), `repetition` (the output repeated itself; retried with
    `no_repeat_ngram=3`).
    """

    source: str
    text: str
    score: float
    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]
    flags: tuple[str, ...]
    nbest: list[Alternative]

    to_json = asdict


@dataclass(frozen=True)
class PartialTranslation:
    """An unfinished translation: the best text so far, and the beginning of it that will not change."""

    text: str
    stable: str


@dataclass(frozen=True)
class TargetScore:
    """The score of a given target: log_prob is the sum of token_log_probs, one per token, end of sentence included."""

    log_prob: float
    tokens: list[str]
    token_log_probs: list[float]


@dataclass(frozen=True)
class Alignment:
    """Subwords of both sides, ends of sentence included; weights (T, S): attention of target tokens to the source."""

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]


@dataclass
class Part:
    """The unit of a search: a line, or a part of a long line.  ids: source tokens with EOS; found: n-best list."""

    text: str
    ids: list[int]
    prefix: list[int]
    found: list[Hypothesis] = field(default_factory=list)
    repeated: bool = False


class Translator(Pipeline):
    """A translation model with its tokenizer: `Translator.load("runs/en-de").translate(["A dog runs."])`.

    model: a PyTorch model, or a backend.  search: any object with the attributes of `SearchSettings`.  max_source:
    longest source in tokens, end of sentence included; longer lines are split.
    """

    _kind, _lack = "parallel", "does not translate"

    def __init__(
        self,
        model: Model | DecodingBackend,
        tokenizer: Tokenizer,
        search: Any = SearchSettings(),  # noqa: B008 (frozen)
        max_source: int = 250,
        device: str | torch.device = "cpu",
    ) -> None:
        if max_source < 2:
            raise UsageError(f"max_source = {max_source}; accepted: at least 2 (one token and the end of sentence)")
        super().__init__(model, tokenizer, search, device)
        self.max_source = max_source

    @classmethod
    def _build(cls, backend: DecodingBackend, tokenizer: Tokenizer, config: Config) -> Self:
        return cls(backend, tokenizer, config.search, config.data.max_tokens)

    def translate(
        self, texts: Iterable[str], *, batch_tokens: int = 4000, prefix: Prefix = None, **overrides: Any
    ) -> list[Translation]:
        """Return one translation per text, in order; "\\n" inside a text counts as a space.

        batch_tokens: padded source tokens times beams per batch.  prefix: the beginning of each translation, one for
        all texts or one per text.  overrides: search settings by name.  Raises UsageError.
        """
        return list(self.stream(texts, batch_tokens=batch_tokens, prefix=prefix, **overrides))

    def stream(
        self,
        lines: Iterable[str],
        *,
        batch_tokens: int = 4000,
        prefix: Prefix = None,
        window: int = 2000,
        **overrides: Any,
    ) -> Iterator[Translation]:
        """Translate lazily: read `window` lines, sort them by length, translate them and yield them in order."""
        check_sequence(lines)
        check_positive(batch_tokens=batch_tokens)
        settings = SearchSettings.of(self.settings, **overrides)
        return stream_windows(
            _with_prefixes(lines, prefix),
            window,
            lambda pair, name: (check_text(pair[0], name, allow_surrogates=True), pair[1]),
            lambda pairs: self._translate(pairs, settings, batch_tokens),
            lambda pair: len(pair[0]),
        )

    def stream_tokens(self, text: str, *, prefix: str = "", **overrides: Any) -> Iterator[PartialTranslation]:
        """Yield one partial translation per step of the search; the last one has the text of `translate`.

        Greedy search and sampling only append tokens; beam search may replace those after `stable`.  Output that
        repeats itself is searched a second time (see `Translation.flags`).  Raises UsageError.
        """
        settings = SearchSettings.of(self.settings, **{"nbest": 1, **overrides})
        parts = self.split(text, prefix)
        targets: list[str] = []
        for part in parts:
            search = StreamWithRetry(functools.partial(self.backend.stream, part.ids, part.prefix), part.ids, settings)
            for step, last in search:
                if not last:
                    sources = [part.text for part in parts[: len(targets) + 1]]
                    ids = step.tokens, step.tokens[: step.stable]
                    yield PartialTranslation(*(join_parts(sources, [*targets, self._decode(i)]) for i in ids))
            part.found, part.repeated = [search.result], search.repeated
            targets.append(self._decode(search.result.tokens))
        complete = self.join(text, parts).text
        yield PartialTranslation(complete, complete)

    def _decode(self, ids: Sequence[int]) -> str:
        return _one_line(self.tokenizer.decode_target(ids))

    def score(self, sources: Iterable[str], targets: Iterable[str], *, batch_tokens: int = 4000) -> list[TargetScore]:
        """Return the log-probability of each target given its source; no text is split or truncated.

        Computed in float32, unless the translator was loaded with `quantize="int8"` or "bf16"; a translator in int8
        loads the float32 weights at the first call.  batch_tokens: padded source and target tokens per batch.  Raises
        UsageError if the numbers of texts differ.
        """
        pairs = self._pairs(sources, targets)
        scored = zip(pairs, self.backend.scorer.score(pairs, batch_tokens), strict=True)
        return [
            TargetScore(sum(log_probs), [self.tokenizer.target_piece(i) for i in ids], log_probs)
            for (_, ids), log_probs in scored
        ]

    def align(self, sources: Iterable[str], targets: Iterable[str], *, batch_tokens: int = 4000) -> list[Alignment]:
        """Return the cross-attention between each target and its source.

        batch_tokens: padded source and target tokens per batch.  Raises UsageError if the numbers of texts differ, or
        if the model has no cross-attention.
        """
        pairs = self._pairs(sources, targets)
        piece, target_piece = self.tokenizer.source_piece, self.tokenizer.target_piece
        return [
            Alignment([piece(i) for i in src], [target_piece(i) for i in tgt], weights)
            for (src, tgt), weights in zip(pairs, self.backend.align(pairs, batch_tokens), strict=True)
        ]

    def _pairs(self, sources: Iterable[str], targets: Iterable[str]) -> list[tuple[list[int], list[int]]]:
        check_sequence(sources)
        check_sequence(targets)
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} sources but {len(targets)} targets; give one target per source")
        encode_source, encode_target = self.tokenizer.encode_source, self.tokenizer.encode_target
        source_ids = [encode_source(_clean(text, f"source {number}")) for number, text in enumerate(sources, start=1)]
        target_ids = [encode_target(_clean(text, f"target {number}")) for number, text in enumerate(targets, start=1)]
        return list(zip(source_ids, target_ids, strict=True))

    def _translate(
        self, lines: Sequence[tuple[str, str]], settings: SearchSettings, batch_tokens: int
    ) -> list[Translation]:
        parts_of = [self.split(line, prefix) for line, prefix in lines]
        parts = list(itertools.chain.from_iterable(parts_of))

        def search(indices: Sequence[int], settings: SearchSettings) -> list[list[Hypothesis]]:
            ids, prefixes = [parts[i].ids for i in indices], [parts[i].prefix for i in indices]
            return self.backend.search(ids, prefixes, settings, batch_tokens)

        results = search_with_retry(search, [part.ids for part in parts], settings, lambda nbest: nbest[0].tokens)
        for part, found, repeated in zip(parts, *results, strict=True):
            part.found, part.repeated = found, repeated
        return [self.join(line, parts) for (line, _), parts in zip(lines, parts_of, strict=True)]

    def split(self, line: str, prefix: str = "") -> list[Part]:
        """Return the line, or the parts into which a long line is split; no parts if there is nothing to translate.

        prefix: the beginning of the translation.  Raises UsageError if it is longer than a source may be.
        """
        encode = functools.cache(self.tokenizer.encode_source)  # the split has already encoded the parts it returns
        text = _clean(line, "text")
        texts = split_text(text, self.max_source, lambda part: len(encode(part))) if text.strip() else []
        parts = [Part(part, ids, []) for part in texts if len(ids := encode(part)) > 1]
        if parts and prefix:
            parts[0].prefix = self.tokenizer.encode_target(_clean(prefix, "prefix"))[:-1]
            if len(parts[0].prefix) > self.max_source:
                raise UsageError(
                    f"prefix {clip(prefix)!r}: {len(parts[0].prefix):,} tokens; accepted: at most {self.max_source:,}, "
                    "as for a source"
                )
        return parts

    def join(self, line: str, parts: Sequence[Part]) -> Translation:
        """Return the translation of a line from the hypotheses found for its parts."""
        if not parts:
            return Translation(line, "", 0.0, 0.0, [], [], ("empty_source",), [Alternative("", 0.0, 0.0)])
        sources = [part.text for part in parts]
        nbest = [
            Alternative(
                join_parts(sources, [self._decode(hypothesis.tokens) for hypothesis in hypotheses]),
                sum(hypothesis.score for hypothesis in hypotheses),
                sum(hypothesis.log_prob for hypothesis in hypotheses),
            )
            for hypotheses in zip(*(part.found for part in parts), strict=False)
        ]
        first = [part.found[0] for part in parts]
        return Translation(
            source=line,
            text=nbest[0].text,
            score=nbest[0].score,
            log_prob=nbest[0].log_prob,
            tokens=[self.tokenizer.target_piece(i) for hypothesis in first for i in [*hypothesis.tokens, EOS]],
            token_log_probs=[log_prob for hypothesis in first for log_prob in hypothesis.token_log_probs],
            flags=_flags(parts),
            nbest=nbest,
        )


def _flags(parts: Sequence[Part]) -> tuple[str, ...]:
    flags = {
        "split": len(parts) > 1,
        "truncated": any(part.found[0].truncated for part in parts),
        "length": any(has_unusual_length(len(part.ids) - 1, len(part.found[0].tokens)) for part in parts),
        "repetition": any(part.repeated for part in parts),
    }
    return tuple(name for name, present in flags.items() if present)


def _clean(text: str, name: str) -> str:
    """Return the text on one line, with lone surrogates replaced by "?"."""
    check_text(text, name, allow_surrogates=True)
    return _one_line(text).encode("utf-8", "replace").decode("utf-8")


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")


def _with_prefixes(lines: Iterable[str], prefix: Prefix) -> Iterator[tuple[str, str]]:
    prefixes = prefix or ""
    if isinstance(prefixes, str):
        yield from ((line, prefixes) for line in lines)
        return
    if not isinstance(prefixes, Sequence):
        raise UsageError(f"prefix = {prefix!r:.40}; accepted: one text for all lines, or a list with one per line")
    for number, (line, own) in enumerate(itertools.zip_longest(lines, prefixes)):
        if line is None or own is None:
            count = f"{number} lines" if line is None else "more lines"
            raise UsageError(f"{len(prefixes)} prefixes but {count}; give one prefix per line, '' for none")
        yield line, own
