"""From pairs of sentences to the shortlist of a model, which says what it will cost before anybody uses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Config
from dragoman.data.corpus import CorpusSpec, FilterStats, PairFilter, corpus_spec, read_pairs
from dragoman.data.store import drop_reason
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.shortlist import SHORTLIST, AlignedWords, Shortlist
from dragoman.errors import DataError, UsageError
from dragoman.io.writing import write_file
from dragoman.models.model_folder import find_model, read_config, read_meta
from dragoman.pipelines.translation import Translator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Learned", "covered", "learn_shortlist"]

TokenPair = tuple[list[int], list[int]]
"""Source and target ids, both with their end."""

AlignedPair = tuple[list[int], list[int], "NDArray[np.float32]"]
"""The same, and how much each target token looked at each source token (T, S)."""

_CELLS, _PAIRS = 1 << 22, 2000
"""Of a window: source times target tokens, and pairs, that are aligned at once."""
_ASIDE, _MOST_ASIDE = 20, 1000
"""Every so many pairs, and at most so many, are kept aside to measure what lists of the others cover."""
_BATCH_TOKENS = 4000
_TOLD_EVERY = 50_000
_MOST_WORDS = 65_535
"""Of `best` and `frequent`: more than shortens anything, and far from the end of the file's numbers (four bytes)."""


@dataclass(frozen=True)
class Learned:
    """What was learned, and what it is worth.

    path, size: the file and its bytes.  pairs: how many were aligned.  words: that a sentence may use, on average, of
    `vocabulary`.  share: of the reference's tokens, those among them, measured on `aside` pairs by lists of the others.
    """

    path: Path
    size: int
    pairs: int
    words: float
    vocabulary: int
    share: float
    aside: int

    def lines(self) -> list[str]:
        """For a person."""
        return [
            f"learned from {self.pairs:,} pairs: {self.path} ({self.size / 1e6:.1f} MB)",
            f"a sentence may use {self.words:,.0f} of {self.vocabulary:,} words, {100 * self.share:.2f} % of the "
            f"reference's tokens among them (measured on {self.aside:,} pairs that were kept aside meanwhile)",
        ]


def learn_shortlist(
    model: str | Path,
    source: Path | None = None,
    target: Path | None = None,
    best: int = 50,
    frequent: int = 100,
    log: Callable[[str], None] = lambda text: None,
) -> Learned:
    """Align pairs by the model's own attention, and write which target words go with which source words beside it.

    source, target: text, line by line; by default what the model was trained on.  best: target words that a source word
    brings along.  frequent: target words that every sentence may use.  Both are at most 65,535.  log: is given lines
    about the progress.  Raises UsageError, DataError and ModelFolderError; what was there before stays.
    """
    _check(source, target, best, frequent)
    folder = find_model(model)
    config = read_config(folder)
    translator = Translator.load(folder)
    log(translator.description)
    specs = _corpora(model, config, source, target)
    tokenizer, weights = translator.tokenizer, read_meta(folder)["sha256"]["model.safetensors"]
    words = AlignedWords(tokenizer.source_size, tokenizer.target_size)
    pairs = 0
    aside: list[AlignedPair] = []
    for some in _aligned(translator.backend, _tokens(config, specs, tokenizer, log)):
        for pair in some:
            if pairs % _ASIDE == 0 and len(aside) < _MOST_ASIDE:
                aside.append(pair)
            else:
                words.add(*pair)
            pairs += 1
        if pairs % _TOLD_EVERY < len(some):
            log(f"aligned {pairs:,} pairs")
    mean, share = covered(words.shortlist(best, frequent, weights), [(src, tgt) for src, tgt, _ in aside])
    for pair in aside:
        words.add(*pair)
    content = words.shortlist(best, frequent, weights).to_bytes()
    write_file(folder / SHORTLIST, content)
    return Learned(folder / SHORTLIST, len(content), pairs, mean, tokenizer.target_size, share, len(aside))


def covered(shortlist: Shortlist, pairs: Iterable[TokenPair]) -> tuple[float, float]:
    """How many words a sentence may use, on average, and the share of the targets' tokens among them, without ends."""
    sizes, found, tokens = [], 0, 0
    for source, target in pairs:
        words = set(shortlist.of(source))
        sizes.append(len(words))
        found += sum(word in words for word in target[:-1])
        tokens += len(target) - 1
    return sum(sizes) / max(1, len(sizes)), found / max(1, tokens)


def _check(source: Path | None, target: Path | None, best: int, frequent: int) -> None:
    problems = []
    for name, value, least in (("best", best, 1), ("frequent", frequent, 0)):
        if value < least:
            problems.append(f"{name} = {value}: must be at least {least}")
        if value > _MOST_WORDS:
            problems.append(f"{name} = {value}: must be at most {_MOST_WORDS}")
    if (source is None) != (target is None):
        problems.append(f"source = {source}, target = {target}: give both files, or neither for the training data")
    if problems:
        raise UsageError("\n".join(["this shortlist cannot be learned:", *(f"  - {p}" for p in problems)]))


def _corpora(model: str | Path, config: Config, source: Path | None, target: Path | None) -> list[CorpusSpec]:
    if source is not None:
        return [CorpusSpec(source, target)]
    try:
        specs = [corpus_spec(config, corpus) for corpus in config.parallel.train]
        files = [path for spec in specs for path in (spec.source, spec.target, spec.path) if path is not None]
        missing = [str(path) for path in files if not path.is_file()]
    except UsageError as error:  # a variable in a path, and it is not set here
        missing = [str(error)]
    if missing:
        raise DataError(
            f"{model}: what it was trained on is not here ({'; '.join(missing)}); name text like it, line i of one the "
            "translation of line i of the other: --source FILE --target FILE"
        )
    return specs


def _tokens(
    config: Config, specs: Sequence[CorpusSpec], tokenizer: Tokenizer, log: Callable[[str], None]
) -> Iterator[TokenPair]:
    """The pairs that training would keep, and an account of all others."""
    rules = config.parallel.filter
    keep = PairFilter(rules)
    for pair in keep(itertools.chain.from_iterable(map(read_pairs, specs))):
        ids = tokenizer.encode_source(pair.source), tokenizer.encode_target(pair.target)
        reason = drop_reason(ids, rules.max_tokens)
        if not reason:
            yield ids
            continue
        keep.stats.drop_kept(reason)
    if not keep.stats.kept:
        raise DataError(f"nothing to learn from in {', '.join(spec.name for spec in specs)}: {_told(keep.stats)}")
    log(_told(keep.stats))


def _told(account: FilterStats) -> str:
    account.check()
    return f"data: {account}"


def _aligned(backend: DecodingBackend, pairs: Iterator[TokenPair]) -> Iterator[list[AlignedPair]]:
    """A window at a time."""
    for window in _windows(pairs):
        weights = backend.align(window, _BATCH_TOKENS)
        yield [(src, tgt, own) for (src, tgt), own in zip(window, weights, strict=True)]


def _windows(pairs: Iterator[TokenPair]) -> Iterator[list[TokenPair]]:
    window: list[TokenPair] = []
    cells = 0
    for pair in pairs:
        window.append(pair)
        cells += len(pair[0]) * len(pair[1])
        if len(window) >= _PAIRS or cells >= _CELLS:
            yield window
            window, cells = [], 0
    if window:
        yield window
