"""Prompts of language models that translate: sources within a template, and translations that end with their line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from dragoman.errors import UsageError
from dragoman.tokenizers.json_pieces import JsonPieces
from dragoman.tokenizers.pieces import BOS, EOS
from dragoman.tokenizers.tokenizer import Tokenizer

_NAMES = """
af Afrikaans ar Arabic be Belarusian bg Bulgarian bn Bengali bs Bosnian ca Catalan cs Czech cy Welsh da Danish de German
el Greek en English es Spanish et Estonian eu Basque fa Persian fi Finnish fr French ga Irish gl Galician gu Gujarati
he Hebrew hi Hindi hr Croatian hu Hungarian hy Armenian id Indonesian is Icelandic it Italian ja Japanese ka Georgian
kk Kazakh km Khmer kn Kannada ko Korean lt Lithuanian lv Latvian mk Macedonian ml Malayalam mn Mongolian mr Marathi
ms Malay my Burmese nb Norwegian ne Nepali nl Dutch no Norwegian pa Punjabi pl Polish pt Portuguese ro Romanian
ru Russian sk Slovak sl Slovenian sq Albanian sr Serbian sv Swedish sw Swahili ta Tamil te Telugu th Thai tr Turkish
uk Ukrainian ur Urdu uz Uzbek vi Vietnamese zh Chinese
""".split()
LANGUAGE_NAMES = dict(zip(_NAMES[::2], _NAMES[1::2], strict=True))
"""Code of a language -> its English name."""


def language_name(code: str) -> str:
    """Return the English name of a language, with or without a region; what is not a known code is a name itself."""
    return LANGUAGE_NAMES.get(code) or LANGUAGE_NAMES.get(code.partition("-")[0], code)


class Prompt(Protocol):
    """`data.prompt` of a configuration."""

    @property
    def template(self) -> str: ...
    @property
    def source_language(self) -> str: ...
    @property
    def target_language(self) -> str: ...


class PromptTokenizer(Tokenizer):
    """The tokenizer of a language model that translates; an encoded source is a whole prompt, without BOS.

    A translation is one line: `decode_target` ends at the first line break.  Names of special tokens in the template,
    such as `<|im_start|>`, are these tokens; in a source they are text, with a space after their first character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self.__dict__.update(tokenizer.__dict__)
        self._between = {}
        self._languages = prompt.source_language, prompt.target_language
        self._template = prompt.template
        self._special: list[str] = []
        self._prompts = self._source
        if isinstance(self._source, JsonPieces):
            self._special = [name for name in self._source.special_names if name in prompt.template]
            self._prompts = self._source.with_special() if self._special else self._source
        self._breaks: dict[int, bool] = {}

    def _prompt(self, source: str) -> str:
        for name in self._special:
            source = source.replace(name, f"{name[0]} {name[1:]}")
        source = source.replace("\n", " ")
        before, after = (self._named(part) for part in self._template.split("{source}"))
        return before + self.known_text(source) + after

    def _named(self, text: str) -> str:
        source, target = map(language_name, self._languages)
        return text.replace("{source_language}", source).replace("{target_language}", target)

    def encode_source(self, text: str) -> list[int]:
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self._prompts.encode_batch(list(map(self._prompt, texts)))
        return [ids[1:] if ids[:1] == [BOS] else ids for ids in rows]  # every search begins with BOS

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of a translation as they follow a prompt."""
        end = self._named(self._template.partition("{source}")[2])
        before = self._prompts.encode(end)
        ids = self._prompts.encode(end + (" " if end[-1:].strip() and text else "") + text)
        return [*(ids[len(before) :] if ids[: len(before)] == before else self._target.encode(text)), EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        return super().decode_target(ids).partition("\n")[0].strip()

    def decode_targets(self, rows: Iterable[Sequence[int]]) -> list[str]:
        return [text.partition("\n")[0].strip() for text in super().decode_targets(rows)]

    def line_of(self, ids: Sequence[int]) -> tuple[int, bool]:
        """Return how many ids are the first line, and whether the last one is its line break, too, as "." with it is.

        All ids are, if there is no line break.
        """
        for position, token in enumerate(ids):
            if token not in self._breaks:
                self._breaks[token] = "\n" in self._target.decode([token])
            if self._breaks[token]:
                has_text = bool(self._target.decode([token]).partition("\n")[0].strip())
                return position + has_text, has_text
        return len(ids), False

    @cached_property
    def _frame(self) -> int:
        return len(self.encode_source("a")) - 1

    @property
    def frame_size(self) -> int:
        return self._frame

    @property
    def sources_end(self) -> bool:
        return False

    @property
    def default_languages(self) -> tuple[str | None, str | None]:
        return self._languages

    def tagged(self, tag: str | None) -> Tokenizer:
        if tag is None:
            return self
        raise UsageError(f"tag = {tag!r}: a model that translates by a prompt has no tags; write it into the template")

    def between(self, source: str | None, target: str | None) -> Tokenizer:
        """Return the tokenizer of a direction.  Raises UsageError if the template does not name the languages."""
        languages = source or self._languages[0], target or self._languages[1]
        if languages == self._languages:
            return self
        names = "{source_language}", "{target_language}"
        fixed = [
            name.strip("{}")
            for name, new, own in zip(names, languages, self._languages, strict=True)
            if new != own and name not in self._template
        ]
        if fixed:
            raise UsageError(
                f"{', '.join(fixed)}: the prompt of this model has one direction, {' to '.join(self._languages)}; omit "
                f"the languages, or import the model with {' and '.join(f'{{{name}}}' for name in fixed)} in --prompt"
            )
        found = self._between.get(languages)
        if found is None:
            found = self._between[languages] = PromptTokenizer.__new__(PromptTokenizer)
            found.__dict__.update(self.__dict__, _languages=languages, _between={})
            found.__dict__.pop("_frame", None)
        return found
