"""Tokenizers of one direction, from a source to a target language, of a multilingual model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from dragoman.errors import UsageError
from dragoman.tokenizers.ids import EOS
from dragoman.tokenizers.templates import TEXT, UNKNOWN_TAG, SurroundingTokens, Templates, shown, split_tag


class Directed:
    """The part of a `Tokenizer` that knows the languages of the model."""

    def __init__(self, templates: bytes | None, tags: Mapping[str, int], sizes: tuple[int, int]) -> None:
        """templates: a `Templates` file.  tags: ids of the tags of OPUS-MT.  sizes: of both vocabularies.

        Raises ValueError for a damaged file.
        """
        self._templates = Templates.of_tags(tags) if tags else Templates((TEXT, EOS), (TEXT, EOS), optional=True)
        if templates is not None:
            self._templates = Templates.parse(templates, sizes)
        self._control = frozenset(self._templates.control)
        self._named: SurroundingTokens | None = None
        self._between: dict[tuple[str | None, str | None], Self] = {}

    @property
    def languages(self) -> tuple[list[str], list[str]]:
        """Languages that a call can name: of the source and of the target; [] for a side that has only one."""
        source, target = self._templates.languages
        return list(source), list(target)

    @property
    def default_languages(self) -> tuple[str | None, str | None]:
        return self._templates.default

    @property
    def target_is_required(self) -> bool:
        """Whether a call must name the target language, unless there is a default."""
        return bool(self._templates.languages[1]) and not self._templates.optional

    @property
    def some_direction(self) -> Self:
        """The tokenizer of the default direction, or of the first one, for texts of any language."""
        sides = zip(self._templates.default, self._templates.languages, strict=True)
        source, target = (code or next(iter(codes), None) for code, codes in sides)
        return self.between(source, target if self.target_is_required else None)

    def between(self, source: str | None, target: str | None) -> Self:
        """Return the tokenizer of a direction; None stands for the default.

        Raises UsageError, with the languages of the model, for one that it lacks or that has no default.
        """
        if not any(self._templates.languages):
            languages = {"source_language": source, "target_language": target}
            if names := [f"{name} = {code!r}" for name, code in languages.items() if code is not None]:
                raise UsageError(f"{', '.join(names)}: this model has one direction; omit the languages")
            return self
        tokenizer = self._between.get((source, target))
        if tokenizer is None:
            tokenizer = copy.copy(self)
            tokenizer._named = self._templates.direction(source, target)
            defaults = self._templates.default
            tokenizer._templates = replace(self._templates, default=(source or defaults[0], target or defaults[1]))
            tokenizer._between = {}
            self._between[source, target] = tokenizer
        return tokenizer

    def directed(self, text: str, source: str | None = None, target: str | None = None) -> tuple[Self, str, str]:
        """Return the tokenizer of a text that may start with a tag `>>xx<<`, its target language; the tag; the rest.

        source, target: languages of texts without a tag.  Raises UsageError as `between` does, and for a tag that names
        no language, unless it is one of OPUS-MT, for which other tags are text.
        """
        known = self._templates.languages[1]
        tag, code, rest = split_tag(text, known) if known else ("", "", text)
        if known and not tag and not self._templates.optional and (unknown := UNKNOWN_TAG.match(text)):
            raise UsageError(f"tag {unknown[0]!r}: not a target language of this model; accepted: {shown(known)}")
        return self.between(source, code or target), tag, rest

    @property
    def _direction(self) -> SurroundingTokens:
        if self._named is None:
            self._named = self._templates.direction(None, None)
        return self._named

    @property
    def frame_size(self) -> int:
        """Number of tokens around the text of an encoded source."""
        return sum(map(len, self._direction.source))

    @property
    def sources_end(self) -> bool:
        """Whether encoded sources contain the end of sentence."""
        return self._templates.source[-1] != TEXT

    @property
    def target_start(self) -> list[int]:
        """Tokens with which every target starts."""
        return list(self._direction.target)
