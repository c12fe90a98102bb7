"""Parts of a line, which are searched separately, and the joining of their translations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.data.segment import join_parts
from dragoman.decoding.hypothesis import Hypothesis, Ids
from dragoman.decoding.phrases import Phrases
from dragoman.decoding.retry import Fault, searches_with_retry
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError
from dragoman.pipelines.glossary import Glossary
from dragoman.pipelines.pipeline import check_text
from dragoman.pipelines.translated import SearchCall
from dragoman.tokenizers import Tokenizer

__all__ = ["Part", "Prefix", "SplitLine", "clean", "one_line", "search_parts", "valid", "with_prefixes"]

Prefix = str | Sequence[str] | None
"""Beginning of the translations: one text for all lines, or one per line."""


@dataclass
class Part:
    """Input of one search: a line, a sentence, or a part of a long sentence.

    text: source, with its list mark and the whitespace around it.  ids: source tokens with EOS; none if the text is
    copied.  sentence: index in the line.  mark: list mark, which is copied and not translated, such as "- ".  terms:
    glossary entries that occur in the text.  found: n-best list.
    """

    text: str
    ids: list[int]
    sentence: int = 0
    mark: str = ""
    prefix: list[int] = field(default_factory=list)
    terms: list[tuple[str, str]] = field(default_factory=list)
    found: list[Hypothesis] = field(default_factory=list)
    fault: Fault = ""


@dataclass(frozen=True)
class SplitLine:
    """A line and its parts; blank lines have none.

    keep_space: whether the translation keeps the whitespace.  tag: of the target language, before the text.
    """

    text: str
    parts: list[Part]
    keep_space: bool
    tag: str = ""

    @property
    def searched(self) -> list[Part]:
        """The parts that are translated and not copied."""
        return [part for part in self.parts if part.ids]

    def join(self, targets: Sequence[str]) -> str:
        """Return the translation of the line, or its beginning if `targets` are the translations of the first parts."""
        joined = join_parts([part.text for part in self.parts[: len(targets)]], targets, keep_space=self.keep_space)
        if not self.keep_space or not joined:
            return joined
        body = self.text.strip()
        start = self.text.index(body)
        return self.text[:start] + joined + (self.text[start + len(body) :] if len(targets) == len(self.parts) else "")


def search_parts(
    parts: Sequence[Part],
    settings: SearchSettings,
    glossary: Glossary | None,
    tokenizer: Tokenizer,
    has_no_text: Callable[[Ids], bool],
) -> Generator[SearchCall, list[list[Hypothesis]], None]:
    """Yield the searches of parts, be sent their results, and set `terms`, `found` and `fault` of each part.

    A second search follows for empty output and repetitions.  has_no_text: whether target tokens decode to blank text.
    """
    phrases: list[Phrases | None] = [None] * len(parts)
    if glossary is not None:
        for i, part in enumerate(parts):
            part.terms = glossary.entries_in(part.text)
            phrases[i] = glossary.phrases(part.terms, tokenizer)
    steps: Generator[Any, Any, Any] = searches_with_retry(
        [part.ids for part in parts], settings, lambda nbest: nbest[0].tokens, has_no_text
    )
    try:
        indices, settings_of_step = next(steps)
        while True:
            ids, prefixes = [parts[i].ids for i in indices], [parts[i].prefix for i in indices]
            own = [phrases[i] for i in indices] if any(phrases) else None
            indices, settings_of_step = steps.send((yield SearchCall(ids, prefixes, settings_of_step, own)))
    except StopIteration as stop:
        results = stop.value
    for part, found, fault in zip(parts, *results, strict=True):
        part.found, part.fault = found, fault


def clean(text: str, name: str) -> str:
    """Return the text on one line, with lone surrogates replaced by "?".  Raises UsageError if it is not a str."""
    return one_line(valid(text, name))


def valid(text: str, name: str) -> str:
    """Return the text with lone surrogates replaced by "?".  Raises UsageError if it is not a str."""
    return check_text(text, name, allow_surrogates=True).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    """Return the text with line ends replaced by spaces."""
    return text.replace("\n", " ").replace("\r", " ")


def with_prefixes(lines: Iterable[str], prefix: Prefix) -> Iterator[tuple[str, str]]:
    """Yield each line with its prefix, "" for none.  Raises UsageError if there is not one prefix per line."""
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
