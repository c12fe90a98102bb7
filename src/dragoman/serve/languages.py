"""Language codes of clients and of models, and texts of several languages in one request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from babel import Locale

from dragoman.data.language_identifier import identified
from dragoman.pipelines.glossary import Glossary
from dragoman.pipelines.translated import Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.direction import Direction
from dragoman.serve.directions import Directions
from dragoman.serve.requests import BadRequest
from dragoman.serve.sentences import Report

__all__ = ["Options", "english_name", "identify", "model_code", "public_code", "route_of", "translate_texts"]

_ALIASES = {"zh": "zh-Hans", "zt": "zh-Hant", "pb": "pt-BR"}
"""Codes of languages that are written in two ways."""

_REPORTED = 8
"""Texts with markup that are translated together, and then reported."""

_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Options:
    """What a request asks for, except its texts."""

    target: Any
    client: str
    alternatives: int = 0
    glossary: Glossary | None = None
    split: bool | None = None
    markup: Callable[..., list[str]] | None = None
    """`translate_html` or `translate_xml`, with its options."""

    def settings(self, last: Direction) -> dict[str, Any]:
        """Return the arguments of a translation; last: the model that writes the result."""
        settings: dict[str, Any] = {"glossary": self.glossary, "split": self.split}
        if self.alternatives:
            count = self.alternatives + 1
            settings |= {"nbest": count, "beam": max(last.beam, count)}
        return settings


def public_code(code: str) -> str:
    """Return the code of a language in answers."""
    return _ALIASES.get(code, code)


def english_name(code: str) -> str:
    """Return the English name of a language, or the code if it has none."""
    names = Locale("en").languages
    return str(names.get(public_code(code).replace("-", "_"), names.get(code, code)))


def model_code(directions: Directions, code: Any) -> str:
    """Return the code that the models use for a code of a client; the code itself if it is unknown.

    Case is ignored, and a variant such as en-GB is found as its language.
    """
    text = str(code)
    known = directions.languages
    if text in known:
        return text
    same = {public_code(language).lower(): language for language in known} | {own.lower(): own for own in known}
    wanted = _ALIASES.get(text.lower(), text).lower()
    return same.get(wanted) or same.get(wanted.partition("-")[0]) or text


def identify(directions: Directions, text: str) -> list[tuple[str, float]]:
    """Return the source languages of the server with their probabilities, most probable first; tags are ignored."""
    return identified(_TAG.sub(" ", text), directions.sources)


def route_of(directions: Directions, source: str, target: Any) -> list[Direction]:
    """Return the models from a source language to the target of a request; [] if they are the same language.

    Raises BadRequest.
    """
    known = model_code(directions, target)
    if known not in directions.languages:
        raise BadRequest(f"{str(target)[:40]} is not supported")
    if known == source:
        return []
    route = directions.route(source, known)
    if not route:
        reached = ", ".join(map(public_code, directions.targets(source))) or "none"
        what = f"{str(target)[:40]} is not available as a target language from {source}"
        raise BadRequest(f"{what}; accepted: {reached}")
    return route


async def translate_texts(
    directions: Directions,
    texts: Sequence[str],
    languages: Sequence[str],
    options: Options,
    report: Report | None = None,
) -> list[Translation]:
    """Translate texts, one language after the other; a text in the target language is returned as it is.

    languages: of each text, as the models call them.  report: receives each sentence, and each text with markup, as
    soon as it is translated.
    """
    routes = {language: route_of(directions, language, options.target) for language in dict.fromkeys(languages)}
    if len(routes) == 1:
        return await _translate(directions, texts, routes[languages[0]], options, report)
    results: dict[int, Translation] = {}
    for language, route in routes.items():
        indices = [i for i, own in enumerate(languages) if own == language]
        reported = None if report is None else _renumbered(report, indices)
        found = await _translate(directions, [texts[i] for i in indices], route, options, reported)
        results.update(zip(indices, found, strict=True))
    return [results[i] for i in range(len(texts))]


async def _translate(
    directions: Directions,
    texts: Sequence[str],
    route: Sequence[Direction],
    options: Options,
    report: Report | None,
) -> list[Translation]:
    """Translate texts of one language; route: the models, none for the target language itself."""
    if not route:
        for i, text in enumerate(texts):
            if report is not None and text:
                report(i, text)
        return [_copy(text, text) for text in texts]
    if options.markup is not None:
        marked = _Marked(options, route[-1].target, report)
        written = await directions.run(route, marked.translate, list(texts), sum(map(len, texts)), options.client)
        return [*map(_copy, texts, written)]
    settings = options.settings(route[-1])
    return (await directions.translate(route, texts, options.client, report, **settings))[-1]


def _renumbered(report: Report, indices: Sequence[int]) -> Report:
    return lambda i, text: report(indices[i], text)


class _Marked:
    """Translates texts with markup in a thread of `Directions.run`.  target: the language of the results.

    report: called on the event loop that creates the object.
    """

    def __init__(self, options: Options, target: str, report: Report | None) -> None:
        assert options.markup is not None
        self._markup, self._options, self._target, self._report = options.markup, options, target, report
        self._loop = asyncio.get_running_loop()

    def translate(self, translator: Translator, texts: list[str]) -> list[str]:
        is_last = translator.languages[1] == self._target
        settings = {"glossary": self._options.glossary if is_last else None, "split": self._options.split}
        if self._report is None or not is_last:
            return self._markup(translator, texts, **settings)
        found: list[str] = []
        for start in range(0, len(texts), _REPORTED):
            found += self._markup(translator, texts[start : start + _REPORTED], **settings)
            for i in range(start, len(found)):
                if found[i]:
                    self._loop.call_soon_threadsafe(self._report, i, found[i])
        return found


def _copy(source: str, text: str) -> Translation:
    """Return a translation of which only the text is known."""
    return Translation(source, text, 0.0, 0.0, [], [], (), [])
