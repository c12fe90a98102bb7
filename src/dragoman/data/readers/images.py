"""Labelled images: scikit-learn's handwritten digits, or `.npz` files."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ImageData, PixelConfig, resolve_path
from dragoman.errors import DataError
from dragoman.extras import extra_package

HELD_OUT = 0.2
"""The share of images that training uses for validation if `data.valid` is not set."""

_PIXELS = PixelConfig()
_ACCEPTED_ARRAY = "accepted: (n, height, width) or (n, height, width, channels) of uint8 (0 to 255) or floats (0 to 1)"
_ACCEPTED_FILE = 'accepted: an .npz file with two numeric arrays, "images" and "labels", as written by numpy.savez'


class LabelledImages(NamedTuple):
    """images: (n, height, width, channels), normalized float32.  labels: (n,), strings."""

    images: NDArray[np.float32]
    labels: NDArray[np.str_]

    def content(self) -> str:
        """Return a hash of images and labels as 16 hexadecimal digits."""
        digest = hashlib.blake2b(self.images.tobytes(), digest_size=8)
        digest.update("\0".join(self.labels.tolist()).encode())
        return digest.hexdigest()


def as_images(array: Any, where: str, pixels: PixelConfig = _PIXELS) -> NDArray[np.float32]:
    """Convert images to float32 (n, height, width, channels), by default from -1 to 1.

    array: (n, height, width) or (n, height, width, channels), bytes from 0 to 255 or floats from 0 to 1.  pixels:
    normalization.  Raises DataError naming `where` for anything else.
    """
    try:
        images = np.asarray(array)
    except ValueError:
        raise DataError(f"{where}: the images differ in size; scale or crop them to one. {_ACCEPTED_ARRAY}") from None
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(f"{where}: images of shape {images.shape}; {_ACCEPTED_ARRAY}")
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / 255
    elif not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{where}: images of {images.dtype}; {_ACCEPTED_ARRAY}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # also true for NaN
        raise DataError(f"{where}: pixels from {low:g} to {high:g}; {_ACCEPTED_ARRAY}")
    images = images if images.ndim == 4 else images[..., None]
    count = max(len(pixels.mean), len(pixels.std))
    if count > 1 and images.shape[-1] != count:
        raise DataError(f"{where}: images with {images.shape[-1]} channels; this model accepts {count} channels")
    mean, std = (np.asarray(values, dtype=images.dtype) for values in (pixels.mean, pixels.std))
    return np.ascontiguousarray((images - mean) / std, dtype=np.float32)


def read_images(path: Path, pixels: PixelConfig = _PIXELS) -> LabelledImages:
    """Read `images` (see `as_images`) and `labels` (n,) from an `.npz` file.  Raises DataError for anything else."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not an .npz file, or truncated; {_ACCEPTED_FILE}")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ("images", "labels") if name not in file]
            if missing:
                raise DataError(
                    f"{path}: no {' and no '.join(missing)} (it has {', '.join(file) or 'no arrays'}); {_ACCEPTED_FILE}"
                )
            images, labels = file["images"], file["labels"]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # numpy stores images of different sizes as a pickle, which is never read.
        reason = "images that differ in size, or objects" if "pickle" in str(error).lower() else str(error)
        raise DataError(f"{path}: cannot be read: {reason}; {_ACCEPTED_FILE}") from None
    return _labelled(as_images(images, str(path), pixels), labels, str(path))


def load_digits(pixels: PixelConfig = _PIXELS) -> LabelledImages:
    """Return 1,797 handwritten digits of 8 x 8 pixels (scikit-learn's copy of the test set of UCI).

    Raises UsageError if scikit-learn is not installed.
    """
    digits = extra_package("sklearn.datasets", "vision", 'data.dataset = "digits"').load_digits()
    return _labelled(as_images(digits.images / 16, "digits", pixels), digits.target, "digits")


def _labelled(images: NDArray[np.float32], labels: NDArray[Any], where: str) -> LabelledImages:
    if labels.shape != images.shape[:1]:
        raise DataError(f"{where}: {len(images)} images but labels of shape {labels.shape}; give one label per image")
    return LabelledImages(images, labels.astype(str))


def named_images(path: str | None, data: ImageData) -> tuple[str, LabelledImages]:
    """Return the name of a data set and its images; None is scikit-learn's digits."""
    if path is None:
        return "digits", load_digits(data.pixels)
    file = resolve_path(path, data.root)
    return str(file), read_images(file, data.pixels)


def split_off(data: LabelledImages, share: float) -> tuple[LabelledImages, LabelledImages]:
    """Return a random split with a fixed seed: all but `share` of the images, and the others."""
    order = np.random.default_rng(0).permutation(len(data.labels))
    cut = round(len(order) * (1 - share))
    rest, drawn = (LabelledImages(data.images[i], data.labels[i]) for i in map(np.sort, (order[:cut], order[cut:])))
    return rest, drawn
