"""An image ready to be looked into: by its number in the data, from a file, or as an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.config import ImageData, VisionConfig, resolve_path
from dragoman.data.readers.images import LabelledImages, as_images, load_digits, read_images, split_off
from dragoman.data.vocabulary import LabelVocabulary
from dragoman.errors import DataError, UsageError
from dragoman.interpret.explain.cases import Case, Loaded, Side, best_ids
from dragoman.models.vision import patches
from dragoman.pages.packing import packed

__all__ = ["read_image_case"]

_HELD_OUT = 0.2
"""The share of images that training keeps for validation where no other images are named (docs/tasks.md)."""


def read_image_case(loaded: Loaded, source: Any, target: str | None) -> Case:
    """The case of an image and a model of images.

    source: a number (of the images that training kept for validation), a `.npy` file of one image, a `.npz` file with
    `images` (FILE.npz:NUMBER where it holds several), or an array (height, width[, channels]).  Raises UsageError and
    DataError for anything else, and for an image of another size than the model takes.
    """
    network, vocabulary, config = loaded
    assert isinstance(vocabulary, LabelVocabulary) and isinstance(config.model, VisionConfig)
    assert isinstance(config.data, ImageData)
    image, where, label = _image(source, config.data)
    size, channels = config.model.image_size, config.model.channels
    if image.shape != (size, size, channels):
        height, width, found = image.shape
        raise UsageError(
            f"{where}: an image of {height} x {width} pixels, {found} channels, and the model takes {size} x {size}, "
            f"{channels} channels; scale or crop the image"
        )
    src = patches(torch.from_numpy(image[None]), config.model.patch).contiguous().to(network.device)
    forced = target is not None
    targets = best_ids(network, src, [0], 1) if target is None else [vocabulary.number(target.strip(), "target")]
    across = size // config.model.patch
    pieces = ["<class>", *(f"{row + 1},{column + 1}" for row in range(across) for column in range(across))]
    return Case(
        kind="image",
        source=where,
        text=vocabulary.label(targets[0]),
        src=src,
        tgt_in=torch.zeros(1, 0, dtype=torch.long, device=network.device),
        targets=targets,
        places=[0],
        sides={"source": Side.single(pieces)},
        word=vocabulary.label,
        never=1,
        forced=forced,
        image={"across": across, "label": label, "pixels": packed(torch.from_numpy((image + 1) / 2))},
    )


def _image(source: Any, data: ImageData) -> tuple[NDArray[np.float32], str, str | None]:
    """(height, width, channels) from -1 to 1, where it comes from, and its true label where that is known."""
    if isinstance(source, np.ndarray):
        return as_images(source[None], "the image")[0], "an image", None
    text = str(source).strip()
    if text.isdecimal():
        return _numbered(_validation(data), int(text), "the images kept for validation")
    name, _, number = text.rpartition(":") if text.rpartition(":")[2].isdecimal() else (text, "", "")
    path = Path(name)
    if path.suffix not in (".npy", ".npz"):
        raise UsageError(
            f"source = {text!r}: no image; accepted: a number (of the images kept for validation), a .npy file of one "
            "image, or a .npz file with images (FILE.npz:NUMBER where it holds several)"
        )
    if not path.is_file():
        raise UsageError(f"{path}: no such file; name a .npy or .npz file, or an image by its number")
    if path.suffix == ".npy":
        return as_images(_array(path)[None], str(path))[0], path.name, None
    images = read_images(path)
    if not number and len(images.labels) > 1:
        raise UsageError(f"{path}: {len(images.labels)} images; name one: {path}:0 ... {path}:{len(images.labels) - 1}")
    return _numbered(images, int(number or 0), path.name)


def _numbered(images: LabelledImages, number: int, where: str) -> tuple[NDArray[np.float32], str, str | None]:
    if number >= len(images.labels):
        raise UsageError(f"image {number} of {where}: there are {len(images.labels)}, numbered from 0")
    image = cast("NDArray[np.float32]", images.images[number])
    return image, f"image {number} of {where}", str(images.labels[number])


def _validation(data: ImageData) -> LabelledImages:
    """The images that training did not see, as `training.images.ImageTask` takes them."""
    if data.valid is not None:
        return read_images(resolve_path(data.valid, data.root))
    whole = load_digits() if data.train is None else read_images(resolve_path(data.train, data.root))
    return split_off(whole, _HELD_OUT)[1]


def _array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read: {error}; accepted: an array of one image, as numpy.save writes it"
        ) from None
    return array
