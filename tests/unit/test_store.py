"""The store: ids of the text, every pair counted, reused while its inputs are unchanged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.batching import EpochPlan
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.store.build import build_store
from dragoman.data.store.folder import content_hash, text_hash
from dragoman.data.store.reader import Store
from dragoman.errors import DataError
from dragoman.tokenizers import EOS
from small_run import Listener, digit_pairs, small_config, write_corpus, write_lines


def prepare(config: Config, cache: Path) -> tuple[Store, Listener]:
    listener = Listener()
    return build_store(config, [corpus_spec(config, c) for c in config.data.train], cache, listener), listener


def drawn(store: Store, epoch: int) -> NDArray[np.int64]:
    """Return the pairs of an epoch."""
    plan = EpochPlan(store, [weight for _, weight in store.parts], 500, 1, epoch)
    return np.concatenate([batch for block in range(len(plan)) for batch in plan.batches(block)])


def test_ids_and_text_are_those_of_the_files(tmp_path: Path) -> None:
    config = small_config(write_corpus(tmp_path, train=130))
    store, _ = prepare(config, tmp_path / "cache")
    assert len(store) == 130
    expected = digit_pairs(139)[:130]
    for number in (0, 57, 129):
        assert store.text(number) == expected[number]
        src, tgt = store.pair(number)
        assert src == store.tokenizer.encode_source(expected[number][0]) and src[-1] == EOS
        assert tgt == store.tokenizer.encode_target(expected[number][1]) and tgt[-1] == EOS
        lengths = store.lengths()
        assert (lengths[0][number], lengths[1][number]) == (len(src), len(tgt))


def test_characters_are_counted(tmp_path: Path) -> None:
    write_corpus(tmp_path, train=130)
    with (tmp_path / "train.src").open("a", encoding="utf-8") as file:
        file.write("one é two é three 字\n")
    with (tmp_path / "train.tgt").open("a", encoding="utf-8") as file:
        file.write("un deux trois 😀😀\n")
    store, _ = prepare(
        small_config(tmp_path, "tokenizer.byte_fallback=true", "tokenizer.vocab_size=300"), tmp_path / "c"
    )
    texts = ["".join(side) for side in zip(*map(store.text, range(len(store))), strict=True)]
    for at_least in (1, 2, 3):
        expected = ["".join(sorted(c for c, n in Counter(text).items() if n >= at_least)) for text in texts]
        assert list(store.alphabets(at_least)) == expected and ("字" in expected[0]) == (at_least == 1)


def test_the_filter_statistics_add_up_with_every_reason(tmp_path: Path) -> None:
    pairs = digit_pairs(100)
    longest = max(range(100), key=lambda i: len(pairs[i][0]))
    extra = [("", "nul"), ("one", "one"), pairs[3], pairs[4], ("one " * 30, "un"), pairs[longest]]
    write_lines(tmp_path / "train.src", [s for s, _ in pairs + extra])
    write_lines(tmp_path / "train.tgt", [t for _, t in pairs + extra])
    write_lines(tmp_path / "valid.src", ["one"])
    write_lines(tmp_path / "valid.tgt", ["un"])
    store, listener = prepare(small_config(tmp_path, "data.filter.max_tokens=12"), tmp_path / "cache")
    words = store.stats.replace(",", "").split()
    numbers = [int(word) for word in words if word.isdigit()]
    assert numbers[0] == 106 == sum(numbers[1:]), store.stats
    for reason in ("empty 1", "identical 1", "duplicate 3", "ratio 1", "too_many_tokens"):
        assert reason in store.stats
    assert numbers[1] == len(store) == sum(n for n, _ in store.parts)
    assert listener.said == [f"data: {store.stats}"]
    assert listener.phases == ["reading the training data", "learning the vocabulary", "encoding the training data"]
    assert max(map(max, store.lengths())) == 12, "a pair of exactly max_tokens is kept"


def test_a_line_end_inside_a_jsonl_text_shifts_nothing(tmp_path: Path) -> None:
    pairs = digit_pairs(90)
    rows = [{"en": s.replace(" ", "\n", 1) if i % 7 == 2 else s, "xx": t} for i, (s, t) in enumerate(pairs)]
    write_lines(tmp_path / "all.jsonl", [json.dumps(row) for row in rows])
    config = small_config(tmp_path)
    corpus = config.data.train[0].model_copy(
        update={"source": None, "target": None, "path": "all.jsonl", "source_key": "en", "target_key": "xx"}
    )
    config = config.model_copy(update={"data": config.data.model_copy(update={"train": (corpus,)})})
    store, _ = prepare(config, tmp_path / "cache")
    assert [store.text(i) for i in range(len(store))] == pairs


def test_reused_when_unchanged_and_rebuilt_otherwise(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=110)
    first, _ = prepare(small_config(data), tmp_path / "cache")
    second, listener = prepare(small_config(data, "tokenizer.sampling=0.2", "model.d_ff=99"), tmp_path / "cache")
    assert second.folder == first.folder and "reused" in listener.text
    assert second.warnings == []
    third, _ = prepare(small_config(data, "tokenizer.vocab_size=50"), tmp_path / "cache")
    (data / "train.src").write_bytes((data / "train.src").read_bytes().replace(b"nine", b"neun"))
    fourth, _ = prepare(small_config(data), tmp_path / "cache")
    assert len({first.folder, third.folder, fourth.folder}) == 3


def test_characters_that_become_unk_are_reported_at_every_start(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=110)
    config = small_config(data, "tokenizer.kind=char", "tokenizer.vocab_size=20")
    for note in ("", "reused: "):
        store, listener = prepare(config, tmp_path / "cache")
        (warning,) = store.warnings
        assert "characters" in warning
        assert listener.said[1:] == [f"warning: {warning}"] and note in listener.said[0]


def test_a_tokenizer_of_the_target_is_part_of_the_hash_unless_there_is_none() -> None:
    own = ("tokenizer.shared=false", "tokenizer.target.kind=bpe")
    cases = [(), own, (*own, "tokenizer.target.vocab_size=50"), (*own, "tokenizer.target.sampling=0.1")]
    hashes = [content_hash(small_config(Path(), *overrides), [], text="text") for overrides in cases]
    assert len(set(hashes)) == 3 and hashes[1] == hashes[3], "sampling happens when the store is read"


def test_moving_the_files_changes_nothing(tmp_path: Path) -> None:
    one, two = (small_config(write_corpus(tmp_path / name)) for name in ("here", "there"))
    hashes = {content_hash(c, [corpus_spec(c, x) for x in c.data.train]) for c in (one, two)}
    assert len(hashes) == 1


def test_an_unfinished_store_is_built_again(tmp_path: Path) -> None:
    config = small_config(write_corpus(tmp_path / "data"))
    store, _ = prepare(config, tmp_path / "cache")
    (store.folder / "store.json").unlink()
    (store.folder / "000-00000.ids").write_bytes(b"\0\0")
    again, listener = prepare(config, tmp_path / "cache")
    assert "reused" not in listener.text
    assert again.pair(11) == Store(again.folder).pair(11)
    assert len(again) == 240


def test_what_is_read_and_how_often_is_part_of_the_hash(tmp_path: Path) -> None:
    """Columns and weights change the store, although the files are the same."""
    (tmp_path / "all.tsv").write_text("one\tun\teins\n")
    specs = [
        CorpusSpec(path=tmp_path / "all.tsv", source_key=source, target_key=target, weight=weight)
        for source, target, weight in ((0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0), (0, 1, 2.0))
    ]
    assert len({text_hash([spec]) for spec in specs}) == 4
    assert text_hash(specs[:2]) != text_hash(specs[1::-1])
    (tmp_path / "all.tsv").write_text("one\tun\tzwei\n")
    assert text_hash(specs[:1]) == text_hash([CorpusSpec(path=tmp_path / "all.tsv")])


def test_a_fraction_of_a_corpus_is_rounded(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=99)
    config = small_config(data, "data.train.0.weight=1.26")
    store, _ = prepare(config, tmp_path / "cache")
    assert len(drawn(store, 1)) == 99 + 26  # 25.74


def test_weights_of_corpora(tmp_path: Path) -> None:
    pairs = digit_pairs(150)
    for name, some in (("a", pairs[:100]), ("b", pairs[100:])):
        write_lines(tmp_path / f"{name}.src", [s for s, _ in some])
        write_lines(tmp_path / f"{name}.tgt", [t for _, t in some])
    config = small_config(tmp_path)
    corpora = tuple(
        config.data.train[0].model_copy(update={"source": f"{n}.src", "target": f"{n}.tgt", "weight": w})
        for n, w in (("a", 0.25), ("b", 2.5))
    )
    config = config.model_copy(update={"data": config.data.model_copy(update={"train": corpora})})
    store, _ = prepare(config, tmp_path / "cache")
    times = np.bincount(drawn(store, 4), minlength=150)
    assert times[:100].sum() == 25 and times[:100].max() == 1
    assert times[100:].sum() == 125 and set(times[100:]) == {2, 3}
    assert not np.array_equal(np.sort(drawn(store, 4)), np.sort(drawn(store, 5)))


def test_the_smallest_weight_still_draws_a_pair(tmp_path: Path) -> None:
    """An epoch without a pair has no batch: training would end in an internal error."""
    store, _ = prepare(small_config(write_corpus(tmp_path / "data"), "data.train.0.weight=1e-4"), tmp_path / "cache")
    assert len(drawn(store, 4)) == 1


def test_an_empty_result_is_reported_with_the_filter_statistics(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=30)
    with pytest.raises(DataError, match=r"nothing to train on in .*: read 30 = kept 0 \+ too_many_tokens 30"):
        prepare(small_config(data, "data.filter.max_tokens=4", "tokenizer.vocab_size=40"), tmp_path / "cache")
    (data / "train.src").write_bytes(b"")
    (data / "train.tgt").write_bytes(b"")
    with pytest.raises(DataError, match=r"nothing to train on in .*train\.src.*read 0 = kept 0"):
        prepare(small_config(data), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*")), "nothing half-made stays"


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    """But nothing of a process that is still running, or of another machine."""
    config = small_config(write_corpus(tmp_path / "data"))
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    name = content_hash(config, [corpus_spec(config, c) for c in config.parallel.train])
    host = socket.gethostname()
    left = [f".{name}.{host}.{killed.pid}", f".{name}.{host}.{os.getppid()}", f".{name}.elsewhere.{killed.pid}"]
    for folder in left:
        (tmp_path / "cache" / f"{folder}.unfinished").mkdir(parents=True)
    prepare(config, tmp_path / "cache")
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(
        [name, *(f"{f}.unfinished" for f in left[1:])]
    )


def test_reading_and_encoding_tell_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.data.store.build._PROGRESS_EVERY", 100)
    config = small_config(write_corpus(tmp_path / "data"))
    _, listener = prepare(config, tmp_path / "cache")
    assert listener.details == [
        "100 pairs", "200 pairs", "240 of 240 pairs",
    ]  # fmt: skip
    _, again = prepare(config, tmp_path / "cache")
    assert again.phases == ["reading the training data"], "what is stored is not made again"
