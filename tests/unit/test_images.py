"""Images: from bytes and fractions to numbers from -1 to 1, a split that is always the same, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.data.readers.images import LabelledImages, as_images, load_digits, read_images, split_off
from dragoman.errors import DataError, UsageError

SIX = np.random.default_rng(5).integers(0, 256, (6, 4, 3), dtype=np.uint8)
NAMES = np.array(["a", "b", "a", "c", "b", "a"])


def test_bytes_and_fractions_say_the_same() -> None:
    images = as_images(SIX, "here")
    assert images.shape == (6, 4, 3, 1) and images.dtype == np.float32
    np.testing.assert_allclose(images, as_images(SIX / 255, "here"), atol=1e-6)
    assert as_images(np.array([[[0, 255]]], dtype=np.uint8), "here").ravel().tolist() == [-1, 1]
    assert as_images(np.zeros((2, 5, 4, 3)), "here").shape == (2, 5, 4, 3)


def test_a_file_comes_back(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=SIX, labels=NAMES)
    found = read_images(tmp_path / "a.npz")
    np.testing.assert_array_equal(found.images, as_images(SIX, "here"))
    assert found.labels.tolist() == NAMES.tolist()
    np.savez(tmp_path / "b.npz", images=SIX, labels=np.arange(6))
    other = read_images(tmp_path / "b.npz")
    assert other.labels.tolist() == ["0", "1", "2", "3", "4", "5"]
    assert found.content() != other.content() == read_images(tmp_path / "b.npz").content()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([np.zeros((2, 2)), np.zeros((3, 2))], "here: the images differ in size"),
        (np.zeros((4, 4)), r"here: images of shape \(4, 4\); accepted: \(n, height, width\)"),
        (np.zeros((0, 4, 4)), r"here: images of shape \(0, 4, 4\)"),
        (np.zeros((2, 4, 4), dtype=np.int64), "here: images of int64"),
        (np.full((2, 4, 4), 16.0), "here: pixels from 16 to 16"),
        (np.full((2, 4, 4), np.nan), "here: pixels from nan to nan"),
    ],
)
def test_invalid_rows_of_images_are_refused(array: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_images(array, "here")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    ragged = np.empty(2, dtype=object)
    ragged[0], ragged[1] = np.zeros((2, 2)), np.zeros((3, 2))
    for arrays, message in (
        ({"images": SIX}, r"a\.npz: no labels \(it has images\); accepted: an \.npz file"),
        ({"x": SIX}, r"no images and no labels \(it has x\)"),
        ({"images": SIX, "labels": NAMES[:5]}, r"6 images but labels of shape \(5,\)"),
        ({"images": ragged, "labels": NAMES[:2]}, r"cannot be read: images that differ in size"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=message):
            read_images(path)
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(DataError, match=r"a\.npz: not an \.npz file"):
        read_images(path)


def test_the_share_is_always_the_same() -> None:
    data = LabelledImages(np.arange(50, dtype=np.float32).reshape(50, 1, 1, 1), np.arange(50).astype(str))
    rest, drawn = split_off(data, 0.2)
    assert len(rest.labels) == 40 and len(drawn.labels) == 10
    assert sorted([*rest.labels, *drawn.labels], key=int) == data.labels.tolist()
    assert drawn.labels.tolist() == [str(int(x)) for x in drawn.images.ravel()]
    assert drawn.labels.tolist() == split_off(data, 0.2)[1].labels.tolist() != data.labels[-10:].tolist()


def test_without_scikit_learn_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "sklearn" or name.startswith("sklearn.")] or ["sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'dragoman\[vision\]'"):
        load_digits()


def test_digits() -> None:
    pytest.importorskip("sklearn")
    digits = load_digits()
    assert digits.images.shape == (1797, 8, 8, 1) and sorted(set(digits.labels)) == list("0123456789")
    assert (digits.images.min(), digits.images.max()) == (-1, 1)
