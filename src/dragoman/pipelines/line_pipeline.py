"""The input of a translator: a line, its direction, and the parts that are searched separately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.data.literals import has_words
from dragoman.data.segment import split_text
from dragoman.data.sentences import list_prefix, split_sentences
from dragoman.errors import UsageError, clip
from dragoman.pipelines.parts import Part, SplitLine, clean, valid
from dragoman.pipelines.pipeline import Pipeline
from dragoman.tokenizers import EOS, Tokenizer

if TYPE_CHECKING:
    from dragoman.data.profile import TrainingProfile

__all__ = ["Languages", "LinePipeline"]

Languages = tuple[str | None, str | None]
"""Codes of source and target language, None for those of the model."""


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
