"""Marian's files: all reasons in one message, no partial output, and only clear errors for damaged files."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.errors import UsageError
from dragoman.formats.importing.marian_items import SETTINGS, read_items, read_shortlist
from imported_checks import refusal
from marian_files import binary, items_of, lexical_shortlist, marian_model


def test_every_reason_is_in_one_message(tmp_path: Path) -> None:
    source = marian_model(
        tmp_path / "source", **{"transformer-preprocess": "d", "dec-cell": "gru", "enc-depth": 0, "right-left": True}
    )
    (source / "vocab.spm").write_bytes(b"no model")
    message = refusal(source)
    for reason in (
        "dec-cell = 'gru'; accepted: 'ssru'", "enc-depth = 0; accepted: an integer", "right-left = True; accepted",
        "'d' 'dan' ''; accepted: '' 'dan' ''", "vocab.spm: cannot be read by sentencepiece",
    ):  # fmt: skip
        assert reason in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enc-depth": 3}, "missing tensors: encoder_l3_self_Wq"),
        ({"enc-depth": 1}, "unused tensors: encoder_l2_"),
        ({"transformer-dim-ffn": 21}, "decoder_l1_ffn_W1: shape (20, 24), the settings"),
        ({"dim-vocabs": [61, 61]}, "but dim-vocabs of the model has 61"),
        ({"dim-vocabs": 61}, "dim-vocabs = 61; accepted: the sizes of two vocabularies"),
        ({"transformer-decoder-autoreg": "average-attention"}, "accepted: 'self-attention', 'rnn'"),
        ({"transformer-heads": 5}, "a multiple of transformer-heads = 5"),
        ({"type": "s2s"}, "type = 's2s'; accepted: 'transformer'"),
        ({"transformer-tied-layers": [1, 1, 2]}, "transformer-tied-layers = [1, 1, 2]; accepted: []"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(marian_model(tmp_path / "source", **changes))


def test_files_that_are_missing_or_too_many(tmp_path: Path) -> None:
    source = marian_model(tmp_path / "source")
    (source / "vocab.spm").rename(source / "other.txt")
    assert "the vocabularies of source and target are not known" in refusal(source)
    (source / "second.npz").write_bytes((source / "model.npz").read_bytes())
    assert "several models; import one of these files" in refusal(source)
    (tmp_path / "empty").mkdir()
    accepted = "no config.json; accepted: a folder in the layout of Hugging Face, CTranslate2 or eole, Marian's files"
    assert accepted in refusal(tmp_path / "empty")


def test_a_model_without_settings(tmp_path: Path) -> None:
    source = marian_model(tmp_path / "source")
    np.savez(source / "model.npz", Wemb=np.zeros((2, 2), np.float32))
    assert "no item special:model.yml" in refusal(source)


def test_yaml_creates_no_objects(tmp_path: Path) -> None:
    source, attack = marian_model(tmp_path / "source"), tmp_path / "executed"
    arrays = dict(np.load(source / "model.npz"))
    text = f"type: !!python/object/apply:os.mkdir ['{attack}']\n"
    arrays[SETTINGS] = np.frombuffer(text.encode(), np.int8)
    np.savez(source / "model.npz", **arrays)
    assert "not valid YAML" in refusal(source) and not attack.exists()


def test_npz_objects_and_wrong_headers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", a=np.array([{"a": 1}], object))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    for name, content in (
        ("huge", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header),
        ("code", b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"__import__('os').abc"),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            archive.writestr("a.npy", content)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"\0" * 10_000_000)
    for name, reason in (("objects", "accepted: numbers"), ("huge", "bytes for shape"), ("code", "damaged"),
                         ("bomb", "times the size of the file")):  # fmt: skip
        with pytest.raises(UsageError, match=reason):
            read_items(tmp_path / f"{name}.npz")


# ------------------------------------------------------------------------------------------------------- binary files


def small_items() -> list[tuple[str, int, tuple[int, ...], bytes]]:
    tensors = {
        "Wemb": np.ones((3, 2), np.float32),
        "l1_W1": np.ones((2, 4), np.float32),
        "l1_b1": np.ones((1, 4), np.float32),
    }
    return items_of(tensors, {"type": "transformer"}, 8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda b: b[:-1], "truncated: special:model.yml needs"),
        (lambda b: b[:8] + struct.pack("<Q", 2**60) + b[16:], "items; accepted"),
        (lambda b: b[:16] + struct.pack("<Q", 2**63) + b[24:], "a name of"),
        (lambda b: b[:24] + struct.pack("<Q", 0x1801) + b[32:], "packed matrices of FBGEMM"),
        (lambda b: b[:32] + struct.pack("<Q", 2**62) + b[40:], "dimensions; accepted"),
        (lambda b: b[:40] + struct.pack("<Q", 2**64 - 1) + b[48:], "truncated: Wemb needs"),
        (lambda b: b[:40] + struct.pack("<Q", 5) + b[48:], "5 bytes; shape (3, 2) needs 10"),
        (lambda b: b.replace(struct.pack("<2i", 3, 2), struct.pack("<2i", -3, -2), 1), "shape (-3, -2)"),
        (lambda b: b.replace(b"Wemb\0", b"Wem\0\0", 1), "is not a name"),
    ],
)
def test_damaged_binary_files(change: Callable[[bytes], bytes], reason: str, tmp_path: Path) -> None:
    content = binary(small_items())
    (tmp_path / "model.bin").write_bytes(content)
    assert read_items(tmp_path / "model.bin")["l1_W1"].shape == (2, 4)
    (tmp_path / "model.bin").write_bytes(change(content))
    with pytest.raises(UsageError) as caught:
        read_items(tmp_path / "model.bin")
    assert reason in str(caught.value)


def test_2000_damaged_files_give_clear_errors(tmp_path: Path) -> None:
    archive = io.BytesIO()
    np.savez(archive, a=np.ones((3, 2), np.float32), b=np.ones(4, np.int8))
    lists = lexical_shortlist([[3], [4, 2], [], [2], [3, 4]], 2)
    order = [-1, 1, -1, 0, 2, 3, 4]
    refused, path = 0, tmp_path / "file"
    for seed in range(2000):
        rng = random.Random(seed)
        kind = seed % 3
        content = bytearray((binary(small_items()), archive.getvalue(), lists)[kind])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            match rng.randrange(4):
                case 0:
                    content[at] ^= 1 << rng.randrange(8)
                case 1:
                    content[at : at + 8] = struct.pack("<q", rng.choice([-1, 0, 1, 2**31, 2**62, 7]))
                case 2:
                    del content[at:]
                    content += b"\0" * rng.randint(1, 9)
                case _:
                    content[at:at] = rng.randbytes(rng.randint(1, 40))
        path.write_bytes(content)
        try:
            if kind == 2:
                read_shortlist(path, order, order, True, "0" * 64)
            else:
                read_items(path)
        except UsageError as error:
            refused += 1
            assert str(error).startswith(f"{path}: ") and len(str(error)) < 1000
    assert 1000 < refused < 2000


def test_the_shortlist_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lex.bin"
    path.write_bytes(lexical_shortlist([[3], [4, 2], [], [2], [3, 9]], 2))
    order = [-1, 1, -1, 0, 2, 3, 4]
    with pytest.raises(UsageError, match="an id of 9, but the target has 5 tokens"):
        read_shortlist(path, order, order, True, "0" * 64)
    with pytest.raises(UsageError, match="not those of 6 source tokens"):
        read_shortlist(path, [*order, 5], order, True, "0" * 64)
