"""A vocabulary of bytes, as ByT5 has it (Xue et al. 2022): each byte of the UTF-8 text is a token.

The file `bytes.json` of a model folder takes the place of a sentencepiece model.
"""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from dragoman.data.ids import EOS, SPECIAL_NAMES, UNK, SpecialIds
from dragoman.data.sentinels import sentinel_parts

__all__ = ["BYTES_FILE", "BytePieces", "is_bytes_file"]

BYTES_FILE = "bytes.json"
_FIRST = EOS + 1
"""Id of byte 0."""
_MAX_SIZE = 1 << 24


def is_bytes_file(content: bytes) -> bool:
    """Return whether a tokenizer is a `bytes.json`; serialized sentencepiece models start with other bytes."""
    return content.startswith(b'{"bytes"')


class BytePieces(SpecialIds):
    """Bytes after the special ids, then sentinels (`<extra_id_0>`, single tokens of a text), then unused ids.

    The methods are those of `SentencePieceProcessor` that `Tokenizer` uses.  Special tokens, sentinels, unused ids and
    bytes that are not valid UTF-8 are decoded to nothing, as `transformers` does.
    """

    def __init__(self, sentinels: int, unused: int = 0) -> None:
        self._sentinels, self._unused = sentinels, unused
        names = [chr(b) if 0x20 < b < 0x7F else f"<0x{b:02X}>" for b in range(256)]
        names[0x20] = "\N{LOWER ONE EIGHTH BLOCK}"  # as sentencepiece writes a space
        others = [f"<extra_id_{i}>" for i in range(sentinels)] + [f"<unused_{i}>" for i in range(unused)]
        self._names = [*SPECIAL_NAMES, *names, *others]
        self._ids = {name: token for token, name in enumerate(self._names) if token >= _FIRST}

    @classmethod
    def parse(cls, content: bytes) -> BytePieces:
        """Read the file.  Raises ValueError."""
        try:
            fields = json.loads(content)
        except RecursionError:
            raise ValueError("brackets nested too deeply") from None
        keys = ("bytes", "sentinels", "unused")
        if not isinstance(fields, dict) or sorted(fields) != sorted(keys) or fields["bytes"] != 256:
            raise ValueError(f"not an object with {', '.join(keys)}, of which bytes is 256")
        numbers = [fields[key] for key in keys[1:]]
        if not all(type(number) is int and 0 <= number <= _MAX_SIZE for number in numbers):
            raise ValueError(f"sentinels and unused are not numbers from 0 to {_MAX_SIZE:,}")
        return cls(*numbers)

    def file(self) -> bytes:
        return json.dumps({"bytes": 256, "sentinels": self._sentinels, "unused": self._unused}).encode()

    def get_piece_size(self) -> int:
        return len(self._names)

    def id_to_piece(self, token: int) -> str:
        """Return a character of ASCII, "▁" for a space, or `<0xE4>` for another byte."""
        return self._names[token]

    def piece_to_id(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids.get(piece, UNK) for piece in pieces]

    def encode(self, text: str | Sequence[str], return_type: Literal["offset_mapping"] | None = None) -> Any:
        """Return the ids of a text, or of each of several; or, for "offset_mapping", ids and spans of a text."""
        if not isinstance(text, str):
            return [self.encode(each) for each in text]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, part, is_sentinel in sentinel_parts(text, self._ids):
            if is_sentinel:
                ids.append(self._ids[part])
                spans.append((start, start + len(part)))
                continue
            ids += [_FIRST + byte for byte in part.encode("utf-8", "surrogatepass")]
            if return_type is not None:
                for index, character in enumerate(part, start=start):
                    count = len(character.encode("utf-8", "surrogatepass"))
                    spans += [(index, index)] * (count - 1) + [(index, index + 1)]
        return ids if return_type is None else {"ids": ids, "offsets": spans}

    def draw(self, text: str, rate: float, rng: random.Random) -> list[int]:
        """Return the ids of a text, which has one segmentation only."""
        ids: list[int] = self.encode(text)
        return ids

    def decode(self, ids: Sequence[int], return_type: Literal["offset_mapping"] | None = None) -> Any:
        """Return the text of ids; or, for "offset_mapping", text and spans."""
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        parts = [decoder.decode(bytes([token - _FIRST])) if _FIRST <= token < _FIRST + 256 else "" for token in ids]
        if return_type is None:
            return "".join(parts)
        end, offsets = 0, []
        for part in parts:
            offsets.append((end, end + len(part)))
            end += len(part)
        return {"text": "".join(parts), "offsets": offsets}
