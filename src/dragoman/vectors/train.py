"""Word vectors from a text: word2vec (Mikolov et al. 2013a, b), trained by gensim.

`loss.py` has the mathematics.  Frequent words are passed over at random (threshold 1e-3), the window is drawn from 1 to
`window` at every place, 5 negatives a pair come from unigram^0.75, and the rate falls in a line from 0.025 to 0.0001.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

from dragoman.errors import DataError, UsageError, nearest
from dragoman.extras import extra_package
from dragoman.vectors.word_vectors import WordVectors

__all__ = ["Kind", "train_vectors", "words_of"]

Kind = Literal["skipgram", "cbow"]

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_LONGEST = 10_000
"""Words; gensim passes over the rest of a longer text without a word, so we part it first."""


def words_of(text: str) -> list[str]:
    """The words of a text in small letters: letters and digits, with ' and - inside; everything else parts words."""
    return _WORD.findall(text.replace("’", "'").lower())


def train_vectors(
    texts: Iterable[str],
    kind: Kind = "skipgram",
    *,
    size: int = 100,
    window: int = 5,
    min_count: int = 5,
    epochs: int = 5,
    seed: int = 1,
    workers: int = 1,
    log: Callable[[str], None] | None = None,
) -> WordVectors:
    """Vectors of `size` numbers for every word that occurs `min_count` times, the most frequent word first.

    texts: lines, sentences or paragraphs (no window reaches from one into the next), read once and kept in memory at
    8 bytes a word.  workers: threads; with 1 the same text, settings and seed give the same vectors.  log: is told
    about each epoch.  Raises UsageError on settings that cannot be and without gensim, DataError on too little text.
    """
    _check(texts, kind, {"size": size, "window": window, "min_count": min_count, "epochs": epochs, "workers": workers})
    word2vec = _library()
    parts, counts = _read(texts)
    _check_counts(counts, min_count)
    total = counts.total()
    model = word2vec(
        vector_size=size,
        window=window,
        min_count=min_count,
        sg=int(kind == "skipgram"),
        negative=5,
        sample=1e-3,
        alpha=0.025,
        min_alpha=0.0001,
        seed=seed,
        workers=workers,
        batch_words=max(1, min(_LONGEST, total // 100)),  # the rate falls a step a batch: also in a short text, a line
    )
    model.build_vocab_from_freq(counts, corpus_count=len(parts))
    model.train(_Passes(parts, epochs, log), total_words=total, epochs=epochs)
    return WordVectors(model.wv.index_to_key, model.wv.vectors)


class _Passes:
    """The texts, over and over; after each pass `log` is told."""

    def __init__(self, parts: list[list[str]], epochs: int, log: Callable[[str], None] | None) -> None:
        self.parts = parts
        self.epochs = epochs
        self.log = log
        self.done = 0

    def __iter__(self) -> Iterator[list[str]]:
        yield from self.parts
        self.done += 1
        if self.log is not None:
            self.log(f"epoch {self.done} of {self.epochs}")


def _read(texts: Iterable[str]) -> tuple[list[list[str]], Counter[str]]:
    """The words of the texts, each word one object however often it stands there, and how often it does."""
    one: dict[str, str] = {}
    parts: list[list[str]] = []
    counts: Counter[str] = Counter()
    for text in texts:
        words = [one.setdefault(word, word) for word in words_of(text)]
        counts.update(words)
        parts.extend(words[i : i + _LONGEST] for i in range(0, len(words), _LONGEST))
    return parts, counts


def _library() -> Any:
    return extra_package("gensim.models", "vectors", "training word vectors").Word2Vec


def _check(texts: Iterable[str], kind: str, settings: dict[str, int]) -> None:
    problems = [f"{name} = {value}: accepted is 1 or more" for name, value in settings.items() if value < 1]
    if kind not in get_args(Kind):
        problems.append(f"kind = {kind!r}{nearest(kind, get_args(Kind))}: accepted: {', '.join(get_args(Kind))}")
    if isinstance(texts, str):
        problems.append("texts is one text; give several, such as its lines")
    if problems:
        raise UsageError("; ".join(problems))


def _check_counts(counts: Counter[str], min_count: int) -> None:
    if not counts:
        raise DataError("the text has no words; a word is letters and digits")
    ((word, most),) = counts.most_common(1)
    if most < min_count:
        raise DataError(
            f"no word of the text occurs min_count = {min_count} times (the most frequent, {word!r}, {most} of "
            f"{counts.total():,}); give more text, or lower min_count"
        )
