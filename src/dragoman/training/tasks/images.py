"""Image classification (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import Config, ImageData, VisionConfig
from dragoman.data.batching import Batch
from dragoman.data.readers.images import HELD_OUT, LabelledImages, named_images, split_off
from dragoman.errors import DataError
from dragoman.io.run_log import Reporter
from dragoman.models.vision import patches
from dragoman.tokenizers import LabelVocabulary
from dragoman.training.tasks.task import Score, Task
from dragoman.training.validation import label_scores

_VALID_ROWS = 256


class ImageTask(Task):
    """A label per image.  Without data.valid, a fixed fifth of the images is held out for validation."""

    def __init__(
        self, config: Config, data: ImageData, reporter: Reporter, vocabulary: LabelVocabulary | None = None
    ) -> None:
        """vocabulary: default: the labels of the images."""
        assert isinstance(config.model, VisionConfig)  # checked by the configuration
        self.model = config.model
        where, images = named_images(data.train, data)
        content = images.content()
        if data.valid is None:
            valid_where, (images, held_out) = f"{where}, the held-out part", split_off(images, HELD_OUT)
            if not len(held_out.labels):
                raise DataError(f"{where}: {len(images.labels)} images are too few to hold out a fifth; set data.valid")
        else:
            valid_where, held_out = named_images(data.valid, data)
        reporter.log(f"data: {len(images.labels):,} images for training, {len(held_out.labels):,} for validation")
        values = self.model.channels * self.model.patch**2
        labels = vocabulary or LabelVocabulary(sorted(set(images.labels.tolist())), patch_numbers=values)
        super().__init__(config, labels, content)
        self.validates = True
        self._train = self._tensors(images, labels, where)
        self._valid = self._tensors(held_out, labels, valid_where)

    def _tensors(self, images: LabelledImages, labels: LabelVocabulary, where: str) -> tuple[Tensor, Tensor]:
        """Return patches (n, patches, values) and labels (n,)."""
        size, channels = self.model.image_size, self.model.channels
        height, width, found = images.images.shape[1:]
        if (height, width, found) != (size, size, channels):
            raise DataError(
                f"{where}: images of {height} x {width} pixels, {found} channels; the model accepts {size} x {size}, "
                f"{channels} channels; set model.image_size and model.channels, or resize the images"
            )
        ids = [labels.number(label, where) for label in images.labels.tolist()]
        return patches(torch.from_numpy(images.images), self.model.patch).contiguous(), torch.tensor(ids)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return self._buckets(np.full(len(self._train[1]), self.model.n_patches + 1, dtype=np.int64), epoch)

    def read(self, indices: NDArray[np.int64], epoch: int, batch: int) -> Batch:
        rows = torch.from_numpy(indices)
        return _batch(self._train[0][rows], self._train[1][rows])

    def tokens(self) -> int:
        return len(self._train[1]) * (self.model.n_patches + 1)

    def validation(self) -> Score | None:
        pairs = zip(*(part.split(_VALID_ROWS) for part in self._valid), strict=True)
        return partial(label_scores, batches=[_batch(src, labels) for src, labels in pairs])


def _batch(src: Tensor, labels: Tensor) -> Batch:
    """src (B, patches, values), labels (B,) -> a batch of one target per image."""
    return Batch(src, None, labels.new_zeros(len(labels), 0), labels[:, None], src.size(0) * src.size(1), len(labels))
