"""JSON: the values that are texts are translated; keys, numbers and formatting stay byte for byte."""

from __future__ import annotations

import json
import re

from dragoman.documents.encoding import decode_text
from dragoman.documents.marks import translate_messages
from dragoman.documents.segments import DocumentTranslator, is_identifier
from dragoman.errors import DataError

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?')


def translate_json(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate the string values of a JSON document; identifiers such as "en_US" are kept.  Raises DataError.

    Non-ASCII characters are written as \\u escapes if the source has escapes and no such characters.
    """
    text, encode = decode_text(data)
    _check(text)
    ascii_only = text.isascii() and "\\u" in text
    values = [match for match in _STRING.finditer(text) if not match[1]]
    decoded = [json.loads(match[0]) for match in values]
    chosen = [i for i, value in enumerate(decoded) if not is_identifier(value)]
    translated = translate_messages(translator, [decoded[i] for i in chosen])
    parts: list[str] = []
    end = 0
    for index, value in zip(chosen, translated, strict=True):
        match = values[index]
        if value != decoded[index]:
            parts += [text[end : match.start()], json.dumps(value, ensure_ascii=ascii_only)]
            end = match.end()
    return encode("".join([*parts, text[end:]]))


def _check(text: str) -> None:
    try:
        json.loads(text)
    except RecursionError:
        raise DataError("not JSON: brackets nested too deeply. Repair the file.") from None
    except ValueError as error:
        raise DataError(f"not JSON: {error}. Repair the file.") from None
