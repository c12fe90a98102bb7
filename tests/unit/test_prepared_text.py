"""Prepared text of language models: the ids of the files, read in verified blocks."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dragoman.config import TokenizerConfig
from dragoman.data.store import text as text_module
from dragoman.data.store.text import PreparedText, prepare_text, read_stream
from dragoman.errors import DataError
from small_run import Listener, write_lines

CONFIG = TokenizerConfig(vocab_size=300)


def lines(count: int = 300) -> list[str]:
    rng = random.Random(4)
    words = ["one", "two", "three", "  four", "five.", "seven"]
    return [" ".join(rng.choices(words, k=rng.randrange(8))) if i % 5 else "" for i in range(count)]


def prepare(folder: Path, form: str = "stream", joins_lines: bool = False) -> tuple[PreparedText, Listener]:
    listener = Listener()
    paths = [folder / "a.txt", folder / "b.txt"]
    return prepare_text(CONFIG, paths, form, folder / "cache", listener, joins_lines=joins_lines), listener


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(text_module, "_BLOCK", 50)
    monkeypatch.setattr(text_module, "_CACHED", 2)
    write_lines(tmp_path / "a.txt", lines())
    write_lines(tmp_path / "b.txt", lines(40))
    return tmp_path


@pytest.mark.parametrize(
    ("form", "joins_lines"), [("stream", False), ("lines", False), ("paragraphs", False), ("paragraphs", True)]
)
def test_the_ids_are_those_in_memory(folder: Path, form: str, joins_lines: bool) -> None:
    """The plain twin: all ids in an array."""
    for expected_log in ("learning the vocabulary", "reading the training data"):
        text, listener = prepare(folder, form, joins_lines)
        assert listener.phases[-1] == expected_log or "encoding" in listener.phases[-1]

        def encode(line: str, text: PreparedText = text) -> list[int]:
            return text.tokenizer.encode_target(line.replace("\n", " ") if joins_lines else line)[:-1]

        plain = read_stream([folder / "a.txt", folder / "b.txt"], form, encode)
        assert text.stream.characters == plain.characters and len(text.stream.ids) == len(plain.ids) > 500
        assert np.array_equal(text.stream.bounds, plain.bounds)
        for offset in (0, 7):
            spans = text.stream.spans(60, offset)
            assert np.array_equal(spans, plain.spans(60, offset))
            assert [text.stream.window(span) for span in spans] == [plain.window(span) for span in spans]
    assert "reused" in listener.text
    if not joins_lines and form == "stream":
        everything = text.tokenizer.decode_target(text.stream.ids[0 : len(text.stream.ids)].tolist())
        assert everything == (folder / "a.txt").read_text() + (folder / "b.txt").read_text()


def test_only_the_blocks_of_a_window_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(folder)
    monkeypatch.setattr(text_module, "VERIFIED", 0)
    text, _ = prepare(folder)
    ids = text.stream.ids
    assert isinstance(ids, text_module.StoredIds) and not ids._block.cache_info().misses
    text.stream.window(np.array([120, 160]))
    assert ids._block.cache_info().misses == 2
    text.stream.window(np.array([0, 50]))
    assert ids._block.cache_info().currsize == 2, "the memory is bounded"


@pytest.mark.parametrize("name", ["ids", "bounds", "tokenizer.model", "store.json"])
@pytest.mark.parametrize("large", [False, True])
def test_damage_is_noticed_and_the_text_prepared_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    text, _ = prepare(folder)
    before = [text.stream.window(span) for span in text.stream.spans(60)]
    (file,) = folder.glob(f"cache/*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    if large:
        monkeypatch.setattr(text_module, "VERIFIED", 0)
        if name == "ids":
            damaged, _ = prepare(folder)
            with pytest.raises(DataError, match=r"was changed or is damaged\. Run the command again"):
                list(map(damaged.stream.window, damaged.stream.spans(60)))
    again, listener = prepare(folder)
    assert "prepared data is damaged and will be rebuilt" in listener.said[0]
    assert [again.stream.window(span) for span in again.stream.spans(60)] == before
    assert "reused" in prepare(folder)[1].text


def test_what_changes_the_ids_is_prepared_again(folder: Path) -> None:
    first = prepare(folder)[0].data_hash
    prepare(folder, "lines")
    write_lines(folder / "b.txt", lines(41))
    assert prepare(folder)[0].data_hash != first
    assert len(list((folder / "cache").glob("*/ids"))) == 3


def test_blank_text_is_refused(folder: Path) -> None:
    write_lines(folder / "a.txt", ["", " "])
    write_lines(folder / "b.txt", [])
    with pytest.raises(DataError, match=r"nothing to train on in .*a\.txt, .*b\.txt: all lines are blank"):
        prepare(folder)
    assert not list((folder / "cache").iterdir())
