"""The input of a translator: a line, its direction, the parts that are searched separately, and their joining."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman.data.literals import has_words
from dragoman.data.sentences import join_parts, list_prefix, split_sentences, split_text
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.retry import Fault
from dragoman.errors import UsageError, clip
from dragoman.pipelines.pipeline import Pipeline, check_text
from dragoman.tokenizers import EOS, Tokenizer

if TYPE_CHECKING:
    from dragoman.data.profile import TrainingProfile

Prefix = str | Sequence[str] | None
"""Beginning of the translations: one text for all lines, or one per line."""
Languages = tuple[str | None, str | None]
"""Codes of source and target language, None for those of the model."""


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


class LinePipeline(Pipeline):
    """Base class of `Translator`: what precedes the search.

    max_source: longest source in tokens.  profile: statistics of the training data.  languages: of the data.
    """

    max_source: int
    profile: TrainingProfile | None
    languages: Languages

    @property
    def splits_sentences(self) -> bool:
        """Whether lines are split into sentences by default, because the model was trained on single sentences."""
        return self.profile is not None and self.profile.single_sentences

    def split(
        self, text: str, prefix: str = "", sentences: bool | None = None, languages: Languages = (None, None)
    ) -> SplitLine:
        """Return the parts of a text; see `split` of `translate` for `sentences`.

        prefix: the beginning of the translation.  languages: of source and target.  Raises UsageError if the prefix is
        longer than the longest source.
        """
        sentences = self.splits_sentences if sentences is None else sentences
        tokenizer, tag, text = self._directed(valid(text, "text"), languages)
        parts = self._sentences(text, tokenizer) if sentences else self._parts(clean(text, "text"), tokenizer)
        line = SplitLine(text, parts, sentences, tag)
        start = tokenizer.target_start if isinstance(tokenizer, Tokenizer) else []
        for part in line.searched if start else ():
            part.prefix = start
        if prefix and line.searched:
            first = line.searched[0]
            first.prefix = tokenizer.encode_target(clean(prefix, "prefix"))[:-1]
            if len(first.prefix) > self.max_source:
                raise UsageError(
                    f"prefix {clip(prefix)!r}: {len(first.prefix):,} tokens; accepted: at most {self.max_source:,}, "
                    "as for a source"
                )
        return line

    def _directed(self, text: str, languages: Languages) -> tuple[Tokenizer, str, str]:
        """Return the tokenizer of a text, a tag of its target language, and the text after the tag."""
        if isinstance(self.tokenizer, Tokenizer):
            return self.tokenizer.directed(text, *languages)
        return self.tokenizer, "", text

    def _check_languages(self, source: str | None, target: str | None) -> Languages:
        """Raise UsageError for languages that the model lacks, before any text is read."""
        if (source, target) != (None, None):
            self.tokenizer.some_direction.between(source, target)
        return source, target

    def _sentences(self, text: str, tokenizer: Tokenizer) -> list[Part]:
        """Return the parts of all sentences.  List marks and sentences without words are copied."""
        sentences = split_sentences(text, self.languages[0]) if text.strip() else []
        numbers = len(sentences) == 1 and self.profile is not None and self.profile.translates_wordless
        parts: list[Part] = []
        for number, sentence in enumerate(sentences):
            mark = list_prefix(sentence)
            body = sentence[len(mark) :]
            is_text = has_words(body) or (numbers and any(map(str.isalnum, body)))
            found = self._parts(body, tokenizer, number, strip=True) if is_text else []
            if found and mark:
                found[0].text, found[0].mark = mark + found[0].text, mark.lstrip()
            parts += found or [Part(sentence, [], number)]
        return parts

    def _parts(self, text: str, tokenizer: Tokenizer, sentence: int = 0, strip: bool = False) -> list[Part]:
        """Return a text, or the parts of a text that is too long; blank text has none.

        strip: translate the parts without the whitespace around them.
        """

        encoded: dict[str, list[int]] = {}  # the split has already encoded the parts it returns

        def encode(part: str) -> list[int]:
            ids = encoded.get(part)
            if ids is None:
                ids = encoded[part] = tokenizer.encode_source(part.strip() if strip else part)
            return ids

        texts = split_text(text, self.max_source, lambda part: len(encode(part))) if text.strip() else []
        least = tokenizer.frame_size if isinstance(tokenizer, Tokenizer) else 1
        found = [Part(part, encode(part), sentence) for part in texts]
        return [part for part in found if len(part.ids) > least and part.ids != [EOS]]
