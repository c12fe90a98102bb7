"""The case of an image: by its number in the validation data, from a file, or from an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.config import ImageData, VisionConfig
from dragoman.data.readers.images import HELD_OUT, LabelledImages, as_images, named_images, read_images, split_off
from dragoman.errors import DataError, UsageError
from dragoman.interpret.explain.cases import Case, LoadedModel, Side, label_batch, label_case
from dragoman.models.vision import patches
from dragoman.pages.packing import packed

Pixels = NDArray[np.float32]


def read_image_case(loaded: LoadedModel, source: Any, target: str | None) -> Case:
    """Return the case of an image.

    source: a number of the validation images, a `.npy` file with one image, a `.npz` file with `images` (append :NUMBER
    if it has several), or an array (height, width[, channels]).  Raises UsageError and DataError for anything else, and
    for an image of another size than that of the model.
    """
    config = loaded[2]
    assert isinstance(config.model, VisionConfig) and isinstance(config.data, ImageData)
    image, name, label = _read(source, config.data)
    size, channels, patch = config.model.image_size, config.model.channels, config.model.patch
    if image.shape != (size, size, channels):
        height, width, found = image.shape
        raise UsageError(
            f"{name}: {height} x {width} pixels with {found} channels; accepted by this model: {size} x {size} with "
            f"{channels} channels. Scale or crop the image"
        )
    across = size // patch
    pieces = ["<class>", *(f"{row + 1},{column + 1}" for row in range(across) for column in range(across))]
    side = Side(pieces, [[index] for index in range(len(pieces))])
    src = patches(torch.from_numpy(image[None]), patch).contiguous()
    given = None if target is None else [target.strip()]
    pixels = {"across": across, "label": label, "pixels": packed(torch.from_numpy(_shown(image, config.data)))}
    return label_case(loaded, "image", name, side, label_batch(src, [1]), given, image=pixels)


def _read(source: Any, data: ImageData) -> tuple[Pixels, str, str | None]:
    """Return the normalized image (height, width, channels), its name, and its label if known."""
    if isinstance(source, np.ndarray):
        return as_images(source[None], "the image", data.pixels)[0], "an image", None
    text = str(source).strip()
    if text.isdecimal():
        return _select(_validation(data), int(text), "the validation images")
    name, _, number = text.rpartition(":") if text.rpartition(":")[2].isdecimal() else (text, "", "")
    path = Path(name)
    if path.suffix not in (".npy", ".npz"):
        raise UsageError(
            f"invalid image {text!r}; accepted: a number (of the validation images), a .npy file with one image, or a "
            ".npz file with images (FILE.npz:NUMBER if it has several)"
        )
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give a .npy or .npz file, or the number of an image")
    if path.suffix == ".npy":
        return as_images(_array(path)[None], str(path), data.pixels)[0], path.name, None
    images = read_images(path, data.pixels)
    count = len(images.labels)
    if not number and count > 1:
        raise UsageError(f"{path}: {count} images; select one: {path}:0 ... {path}:{count - 1}")
    return _select(images, int(number or 0), path.name)


def _shown(image: Pixels, data: ImageData) -> Pixels:
    """Return the values of the pixels, from 0 to 1."""
    mean, std = (np.asarray(values, dtype=np.float32) for values in (data.pixels.mean, data.pixels.std))
    return cast(Pixels, (image * std + mean).clip(0, 1))


def _select(images: LabelledImages, number: int, name: str) -> tuple[Pixels, str, str | None]:
    if number >= len(images.labels):
        raise UsageError(f"image {number} of {name} does not exist; accepted: 0 to {len(images.labels) - 1}")
    return cast(Pixels, images.images[number]), f"image {number} of {name}", str(images.labels[number])


def _validation(data: ImageData) -> LabelledImages:
    """Return the images that training uses for validation."""
    if data.valid is not None:
        return named_images(data.valid, data)[1]
    if data.train is None and data.dataset is None:
        raise UsageError("an imported model has no validation images; specify a .npy or .npz file")
    return split_off(named_images(data.train, data)[1], HELD_OUT)[1]


def _array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read: {error}; accepted: an array with one image, written by numpy.save"
        ) from None
    return array
