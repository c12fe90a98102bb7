"""A vocabulary of bytes, as ByT5 has it (Xue et al. 2022): each byte of the UTF-8 text is a token.

The file `bytes.json` of a model folder takes the place of a sentencepiece model.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence

from dragoman.tokenizers.ids import EOS, SPECIAL_NAMES, UNK
from dragoman.tokenizers.pieces import SPACE, Pieces, Spans, joined_spans, parse_object, sentinel_parts

BYTES_FILE = "bytes.json"
_FIRST = EOS + 1
"""Id of byte 0."""
_MAX_SIZE = 1 << 24


def is_bytes_file(content: bytes) -> bool:
    """Return whether a tokenizer is a `bytes.json`; serialized sentencepiece models start with other bytes."""
    return content.startswith(b'{"bytes"')


class BytePieces(Pieces):
    """Bytes after the special ids, then sentinels (`<extra_id_0>`, single tokens of a text), then unused ids.

    Special tokens, sentinels, unused ids and bytes that are not valid UTF-8 are decoded to nothing, as `transformers`
    does.
    """

    def __init__(self, sentinels: int, unused: int = 0) -> None:
        self._sentinels, self._unused = sentinels, unused
        names = [chr(b) if 0x20 < b < 0x7F else f"<0x{b:02X}>" for b in range(256)]
        names[0x20] = SPACE
        others = [f"<extra_id_{i}>" for i in range(sentinels)] + [f"<unused_{i}>" for i in range(unused)]
        self._names = [*SPECIAL_NAMES, *names, *others]
        self._ids = {name: token for token, name in enumerate(self._names) if token >= _FIRST}

    @classmethod
    def parse(cls, content: bytes) -> BytePieces:
        """Read the file.  Raises ValueError."""
        fields = parse_object(content)
        keys = ("bytes", "sentinels", "unused")
        if sorted(fields) != sorted(keys) or fields["bytes"] != 256:
            raise ValueError(f"not an object with {', '.join(keys)}, of which bytes is 256")
        numbers = [fields[key] for key in keys[1:]]
        if not all(type(number) is int and 0 <= number <= _MAX_SIZE for number in numbers):
            raise ValueError(f"sentinels and unused are not numbers from 0 to {_MAX_SIZE:,}")
        return cls(*numbers)

    def file(self) -> bytes:
        return json.dumps({"bytes": 256, "sentinels": self._sentinels, "unused": self._unused}).encode()

    @property
    def size(self) -> int:
        return len(self._names)

    def piece(self, token: int) -> str:
        """Return a character of ASCII, "▁" for a space, or `<0xE4>` for another byte."""
        return self._names[token]

    def piece_ids(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, UNK) for piece in pieces]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for _, part, is_sentinel in sentinel_parts(text, self._ids):
            ids += [self._ids[part]] if is_sentinel else [_FIRST + byte for byte in _utf8(part)]
        return ids

    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        spans: Spans = []
        for start, part, is_sentinel in sentinel_parts(text, self._ids):
            if is_sentinel:
                spans.append((start, start + len(part)))
                continue
            for index, character in enumerate(part, start=start):
                spans += [(index, index)] * (len(_utf8(character)) - 1) + [(index, index + 1)]
        return self.encode(text), spans

    def decode_with_spans(self, ids: Sequence[int]) -> tuple[str, Spans]:
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        parts = [decoder.decode(bytes([token - _FIRST])) if _FIRST <= token < _FIRST + 256 else "" for token in ids]
        return "".join(parts), joined_spans(parts)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
