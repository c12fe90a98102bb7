"""The sum of gradients over processes, computed while the backward pass is still running.

PyTorch's DistributedDataParallel changes the content of its buckets after the first step, and with it the order in
which more than two processes add their gradients; a resumed run then ends with other bits than an uninterrupted one.
Here a bucket always contains the same parameters.  The result is the sum, not the mean, because the loss is divided by
the number of target tokens of all processes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET_BYTES = 4 << 20  # large enough for the bandwidth, small enough to overlap with the backward pass


class _Bucket:
    """Parameters whose gradients are summed in one operation."""

    def __init__(self) -> None:
        self.parameters: list[nn.Parameter] = []
        self.missing = 0  # gradients that the backward pass has not computed yet
        self.flat: Tensor | None = None  # the gradients, while they are summed
        self.has_gradient: list[bool] = []  # of each parameter
        self.work: dist.Work | None = None

    def start(self) -> None:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.flat = torch.cat([part.flatten() for part in parts])
        self.has_gradient = [p.grad is not None for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None  # frees the memory
        self.work = dist.all_reduce(self.flat, async_op=True)

    def finish(self) -> None:
        assert self.work is not None and self.flat is not None
        self.work.wait()
        parts = self.flat.split([p.numel() for p in self.parameters])
        for parameter, part, has_gradient in zip(self.parameters, parts, self.has_gradient, strict=True):
            if has_gradient:
                parameter.grad = part.view_as(parameter)
        self.flat = self.work = None


class GradientSum:
    """Context in which a backward pass ends with the sums of the gradients over all processes.

    Every process runs one backward pass of the same model in the context; outside of it, gradients stay local.  In all
    processes, the same parameters must have gradients.  If the pass fails, the context can be entered again, without a
    pass, when the gradients have been computed outside of it: it continues with the sums that had not begun.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], bucket_bytes: int = _BUCKET_BYTES) -> None:
        """parameters: in the order of the forward pass, so that their gradients become known in reverse order."""
        self._buckets: list[_Bucket] = []
        self._active, self._next = False, 0
        self._failed = False
        size = bucket_bytes
        for parameter in reversed([p for p in parameters if p.requires_grad]):
            if size >= bucket_bytes or parameter.dtype != self._buckets[-1].parameters[0].dtype:
                self._buckets.append(_Bucket())
                size = 0
            bucket = self._buckets[-1]
            bucket.parameters.append(parameter)
            size += parameter.nbytes
            parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._computed(bucket))

    def __enter__(self) -> None:
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        self._active, self._next = True, self._next if self._failed else 0

    def _computed(self, bucket: _Bucket) -> None:
        """Count a gradient, and start the buckets that are complete, in the same order in every process."""
        if not self._active:
            return
        bucket.missing -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._buckets[self._next].start()
            self._next += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._active, self._failed = False, True
        if kind is not None:
            return
        while self._next < len(self._buckets):
            self._buckets[self._next].start()
            self._next += 1
        for bucket in self._buckets:
            bucket.finish()
        self._failed = False
