"""Images with a label each: scikit-learn's handwritten digits, or `.npz` files."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.extras import extra_package

__all__ = ["LabelledImages", "as_images", "load_digits", "read_images", "split_off"]


class LabelledImages(NamedTuple):
    """images: (n, height, width, channels), float32 from -1 to 1.  labels: n names."""

    images: NDArray[np.float32]
    labels: NDArray[np.str_]

    def content(self) -> str:
        """Images and labels as 16 hexadecimal digits."""
        digest = hashlib.blake2b(self.images.tobytes(), digest_size=8)
        digest.update("\0".join(self.labels.tolist()).encode())
        return digest.hexdigest()


def as_images(array: Any, where: str) -> NDArray[np.float32]:
    """(n, height, width) or (n, height, width, channels) -> float32 (n, height, width, channels), from -1 to 1.

    Accepted are bytes from 0 to 255 and fractions from 0 to 1.  Raises DataError naming `where` for anything else.
    """
    accepted = "accepted: (n, height, width) or (n, height, width, channels) of uint8 (0 to 255) or floats (0 to 1)"
    try:
        images = np.asarray(array)
    except ValueError:
        raise DataError(f"{where}: the images differ in size; scale or crop them to one. {accepted}") from None
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(f"{where}: images of shape {images.shape}; {accepted}")
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / 255
    elif not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{where}: images of {images.dtype}; {accepted}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # NaN too
        raise DataError(f"{where}: pixels from {low:g} to {high:g}; {accepted}")
    images = images if images.ndim == 4 else images[..., None]
    return np.ascontiguousarray(images * 2 - 1, dtype=np.float32)


def read_images(path: Path) -> LabelledImages:
    """A `.npz` file with `images`, see `as_images`, and `labels` (n,).  Raises DataError for anything else."""
    accepted = 'accepted: an .npz file with "images" and "labels", one array of numbers each, as numpy.savez writes it'
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not an .npz file, or cut; {accepted}")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ("images", "labels") if name not in file]
            if missing:
                raise DataError(
                    f"{path}: no {' and no '.join(missing)} (it holds {', '.join(file) or 'nothing'}); {accepted}"
                )
            images, labels = file["images"], file["labels"]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # numpy stores what differs in size as a pickle, and no pickle is ever read.
        reason = "images that differ in size, or objects" if "pickle" in str(error).lower() else str(error)
        raise DataError(f"{path}: cannot be read: {reason}; {accepted}") from None
    return _labelled(as_images(images, str(path)), labels, str(path))


def load_digits() -> LabelledImages:
    """1,797 handwritten digits of 8 x 8 pixels (scikit-learn's copy of UCI's test set).

    Raises UsageError where scikit-learn is not installed.
    """
    digits = extra_package("sklearn.datasets", "vision", 'data.dataset = "digits"').load_digits()
    return _labelled(as_images(digits.images / 16, "digits"), digits.target, "digits")


def _labelled(images: NDArray[np.float32], labels: NDArray[Any], where: str) -> LabelledImages:
    if labels.shape != images.shape[:1]:
        raise DataError(f"{where}: {len(images)} images and labels of shape {labels.shape}; give one label an image")
    return LabelledImages(images, labels.astype(str))


def split_off(data: LabelledImages, share: float) -> tuple[LabelledImages, LabelledImages]:
    """All but a share, and that share, drawn by chance and always the same."""
    order = np.random.default_rng(0).permutation(len(data.labels))
    cut = round(len(order) * (1 - share))
    rest, drawn = np.sort(order[:cut]), np.sort(order[cut:])
    return (
        LabelledImages(data.images[rest], data.labels[rest]),
        LabelledImages(data.images[drawn], data.labels[drawn]),
    )
