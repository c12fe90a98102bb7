"""A vocabulary of bytes: ids, spans and text, also of invalid UTF-8; its file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dragoman.errors import ModelFolderError
from dragoman.tokenizers import EOS, UNK, Tokenizer
from dragoman.tokenizers.pieces import BYTES_FILE, BytePieces

FIRST = EOS + 1
SENTINEL = FIRST + 256
LINES = ["a b", "", "é日\N{GRINNING FACE}", "\0\t\x7f ", "x<extra_id_1>é <extra_id_0>", "<extra_id_3> <extra_id_x>"]


def in_bytes(sentinels: int = 3, unused: int = 2) -> Tokenizer:
    return Tokenizer(BytePieces(sentinels, unused).file())


def test_each_byte_is_a_token_and_sentinels_are_one() -> None:
    tokenizer = in_bytes()
    assert (tokenizer.source_size, tokenizer.target_size, tokenizer.shared) == (FIRST + 261, FIRST + 261, True)
    assert tokenizer.encode_source("aé") == [FIRST + 0x61, FIRST + 0xC3, FIRST + 0xA9, EOS]
    assert tokenizer.encode_target("<extra_id_2>a<extra_id_0>")[:-1] == [SENTINEL + 2, FIRST + 0x61, SENTINEL]
    assert len(tokenizer.encode_source("<extra_id_3>")) == 13  # there are 3 only
    assert tokenizer.encode_pairs([("a", "b")]) == [([FIRST + 0x61], [FIRST + 0x62])]
    pieces = [tokenizer.source_piece(i) for i in tokenizer.encode_source("a é<extra_id_1>")]
    assert pieces == ["a", "▁", "<0xC3>", "<0xA9>", "<extra_id_1>", "</s>"]
    assert tokenizer.target_ids(pieces[:-1]) == tokenizer.encode_target("a é<extra_id_1>")[:-1]
    assert len({tokenizer.source_piece(i) for i in range(tokenizer.source_size)}) == tokenizer.source_size
    assert tokenizer.sample_sources(["a"], 0.5, random.Random(1)) == [[FIRST + 0x61]]


@pytest.mark.parametrize("line", LINES)
def test_text_is_decoded_again_with_spans(line: str) -> None:
    tokenizer = in_bytes()
    ids = tokenizer.encode_source(line)[:-1]
    spans = tokenizer.source_spans(line)
    assert len(spans) == len(ids) and "".join(line[a:b] for a, b in spans) == line
    text = line.replace("<extra_id_1>", "").replace("<extra_id_0>", "")
    assert tokenizer.decode_target(ids) == tokenizer.decode_source(ids) == text
    assert "".join(text[a:b] for a, b in tokenizer.target_spans(ids)) == text


def test_invalid_bytes_are_decoded_to_nothing() -> None:
    """As by `bytes.decode` with errors="ignore", for all sequences of random bytes, whole and cut."""
    tokenizer, rng = in_bytes(), random.Random(1)
    for _ in range(300):
        content = bytes(rng.choice([rng.randrange(256), *"aé日".encode()]) for _ in range(rng.randrange(9)))
        ids = [FIRST + byte for byte in content]
        text = content.decode("utf-8", "ignore")
        assert tokenizer.decode_target(ids) == text
        spans = tokenizer.target_spans(ids)
        assert len(spans) == len(ids) and "".join(text[a:b] for a, b in spans) == text
    assert tokenizer.decode_target([FIRST + 0xE6, UNK, SENTINEL, FIRST + 0x97, FIRST + 0xA5]) == "日"


def test_the_file_is_loaded_again(tmp_path: Path) -> None:
    for name, content in in_bytes().files().items():
        (tmp_path / name).write_bytes(content)
    assert [path.name for path in tmp_path.iterdir()] == [BYTES_FILE]
    again = Tokenizer.load(tmp_path)
    assert again.models == in_bytes().models and Tokenizer(*again.models).target_size == FIRST + 261


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b'{"bytes"', b'{"bytes": 255, "sentinels": 1, "unused": 0}', b'{"bytes": 256, "sentinels": 1}',
        b'{"bytes": 256, "sentinels": -1, "unused": 0}', b'{"bytes": 256, "sentinels": 1e9, "unused": 0}',
        b'{"bytes": ' + b"[" * 100_000, json.dumps({"bytes": 256, "sentinels": True, "unused": 0}).encode(),
    ],
)  # fmt: skip
def test_damaged_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / BYTES_FILE).write_bytes(content)
    with pytest.raises(ModelFolderError, match=r"bytes\.json"):
        Tokenizer.load(tmp_path)
