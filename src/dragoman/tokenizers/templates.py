"""What surrounds the tokens of a text: the language of multilingual models, and fixed tokens such as BART's begin.

A template lists the tokens of an encoded text: that of an mBART-50 source, which starts with the token of its language,
is `[source, text, EOS]`; that of an OpenNMT source, which has no end, is `[text]`.  The names of languages become
tokens once the direction, source and target language, is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import UsageError, nearest
from dragoman.tokenizers.pieces import BOS, EOS, PAD, parse_object

LANGUAGES_FILE = "languages.json"
SOURCE, TARGET, TEXT = "source", "target", "text"
_MAX_SHOWN = 300
UNKNOWN_TAG = re.compile(r">>[\w.-]{2,20}<<")
_TAG = re.compile(r">>([\w.-]+)<<")


@dataclass(frozen=True)
class SurroundingTokens:
    """Tokens before and after the text of a source, and before the text of a target, which ends with EOS."""

    source: tuple[list[int], list[int]]
    target: list[int]


@dataclass(frozen=True)
class Templates:
    """The file `languages.json` of a model folder.

    source, target: the template of each side, of ids and the names "source" and "target" (the token of that language)
    and "text".  languages: of each side, code -> id; {} if no template names the side.  default: the direction of calls
    that name none.  control: ids without a text.  optional: whether a template without its language is used, as by
    OPUS-MT.
    """

    source: tuple[int | str, ...]
    target: tuple[int | str, ...]
    languages: tuple[dict[str, int], dict[str, int]] = ({}, {})
    default: tuple[str | None, str | None] = (None, None)
    control: tuple[int, ...] = ()
    optional: bool = False

    @classmethod
    def of_tags(cls, tags: Mapping[str, int]) -> Templates:
        """Return the templates of OPUS-MT, where a token at the start of the source names the target language."""
        return cls((TARGET, TEXT, EOS), (TEXT, EOS), ({}, dict(tags)), optional=True)

    @classmethod
    def parse(cls, content: bytes, sizes: tuple[int, int]) -> Templates:
        """Read the file of a tokenizer with `sizes` ids.  Raises ValueError with all problems."""
        try:
            fields = parse_object(content)
        except ValueError as error:
            raise ValueError(f"{LANGUAGES_FILE}: {error}") from None
        if problems := list(_problems(fields, sizes)):
            raise ValueError(f"{LANGUAGES_FILE}: {'; '.join(problems)}")
        languages, default = fields["languages"], fields["default"]
        return cls(
            tuple(fields[SOURCE]), tuple(fields[TARGET]), (languages[SOURCE], languages[TARGET]),
            (default[SOURCE], default[TARGET]), tuple(fields["control"]),
        )  # fmt: skip

    def file(self) -> bytes:
        sides = (SOURCE, TARGET)
        content = {
            SOURCE: self.source, TARGET: self.target, "languages": dict(zip(sides, self.languages, strict=True)),
            "default": dict(zip(sides, self.default, strict=True)), "control": self.control,
        }  # fmt: skip
        return json.dumps(content, ensure_ascii=False, indent=0).encode()

    def direction(self, source: str | None, target: str | None) -> SurroundingTokens:
        """Return the tokens of a direction; None stands for the default.  Raises UsageError with all problems."""
        named = {*self.source, *self.target}
        problems, tokens = [], {}
        sides = zip((SOURCE, TARGET), (source, target), self.languages, self.default, strict=True)
        for side, code, own, default in sides:
            code = default if code is None else code
            if code is None:
                if side in named and not self.optional:
                    problems.append(f"{side}_language = None; accepted: {shown(own)}")
            elif code in own:
                tokens[side] = [own[code]]
            elif own:
                problems.append(f"{side}_language = {code!r}{nearest(code, list(own))}; accepted: {shown(own)}")
        if problems:
            raise UsageError("this model translates between several languages: " + "; ".join(problems))
        before, after = self._around(self.source, tokens)
        return SurroundingTokens((before, after), self._around(self.target, tokens)[0])

    def _around(self, template: Sequence[int | str], tokens: Mapping[str, list[int]]) -> tuple[list[int], list[int]]:
        text = template.index(TEXT)
        before, after = (
            [token for entry in part for token in ([entry] if isinstance(entry, int) else tokens.get(entry, []))]
            for part in (template[:text], template[text + 1 :])
        )
        return before, after


NO_SOURCE_END = Templates((TEXT,), (TEXT, EOS))
"""Templates of models whose sources are the tokens of the text only."""


def split_tag(text: str, languages: Mapping[str, int]) -> tuple[str, str, str]:
    """Return the tag `>>xx<<` at the start of a text, its code, and the rest; "", "" and the text if there is none.

    languages: the known codes.
    """
    match = _TAG.match(text)
    if match is None or match[1] not in languages:
        return "", "", text
    return match[0], match[1], text[match.end() :]


def shown(codes: Mapping[str, int]) -> str:
    """Return the codes of languages, for a message."""
    return ", ".join(sorted(codes)[:_MAX_SHOWN]) or "none"


def _problems(fields: dict[str, Any], sizes: tuple[int, int]) -> Iterator[str]:
    size = min(sizes)

    def is_id(value: Any) -> bool:
        return type(value) is int and 0 <= value < size

    languages, default, control = fields.get("languages"), fields.get("default"), fields.get("control")
    for side in (SOURCE, TARGET):
        template, own = fields.get(side), languages.get(side) if isinstance(languages, dict) else None
        names = (SOURCE, TARGET, TEXT)
        if not isinstance(template, list) or not all(is_id(entry) or entry in names for entry in template):
            yield f"{side} is not a list of ids, {SOURCE!r}, {TARGET!r} and {TEXT!r}"
        elif template.count(TEXT) != 1 or {PAD, BOS} & set(template):
            yield f"{side} does not contain {TEXT!r} once, or special ids other than the end of sentence"
        elif side == SOURCE and template[-1] != TEXT and EOS not in template[template.index(TEXT) :]:
            yield f"{side} has tokens after {TEXT!r}, but no end of sentence"
        elif side == TARGET and (template[-2:] != [TEXT, EOS] or EOS in template[:-1]):
            yield f"{side} does not end with {TEXT!r} and the end of sentence"
        if not isinstance(own, dict) or not all(is_id(token) and token > EOS for token in own.values()):
            yield f"languages.{side} does not name ids from {EOS + 1} to {size - 1:,}"
        elif not isinstance(default, dict) or default.get(side) not in (None, *own):
            yield f"default.{side} is not one of its languages"
    if not isinstance(control, list) or not all(is_id(token) for token in control):
        yield "control is not a list of ids"
