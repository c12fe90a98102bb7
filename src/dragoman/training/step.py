"""One update of a model: forward and backward pass of each batch, clipping, optimizer and moving average.

A loss or gradient that is not finite changes no weight: `add_gradient` turns such a loss into NaN gradients, and
`update` skips the step.  `StepResults` in progress.py counts skipped steps, and ends training after
`train.max_bad_steps` in a row.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig
from dragoman.data.batching import Batch
from dragoman.models.model_folder import unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Stack
from dragoman.nn.fast.dropout import seed_dropout
from dragoman.nn.layers import BatchNorm
from dragoman.nn.lora import without_adapters
from dragoman.nn.positions import Positions
from dragoman.training.checkpoint import read_training
from dragoman.training.distributed import DistributedContext
from dragoman.training.loss import Loss, LossScale, TokenLoss, check_float16
from dragoman.training.memory import BatchPart, Gradients, accumulate, without_targets
from dragoman.training.optim import build_optimizer, state_size
from dragoman.training.progress import Progress
from dragoman.training.regularization import PairedLoss, cut, pass_weights, regularize, twice
from dragoman.training.run import TrainingRun


class TrainingStep:
    """A model with its optimizer and, if train.ema is set, the moving average of its weights.

    loss_scale: for float16 only.  reads: whether every step waits for the device and reads its result; otherwise, the
    results are tensors, and a step with a gradient that is not finite is skipped on the device.  communicates: whether
    every pass needs the other processes; then a batch that does not fit into the memory is not split.  padded: whether
    the loss is computed for the padding, too, so that all shapes are those of the batch.
    """

    communicates = False
    padded = False

    def __init__(self, config: TrainConfig, model: Network, context: DistributedContext) -> None:
        self.config, self.context = config, context
        self.model = self._placed(model)
        for module in self.model.modules():
            if isinstance(module, Stack):
                module.recomputes = config.gradient_checkpointing
        regularize(self.model, config.regularizer)
        self.pass_weights, self.cut = pass_weights(config.regularizer), config.regularizer.cut
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.ema: dict[str, Tensor] | None = None
        if config.ema:
            self.ema = {name: p.clone() for name, p in unique_tensors(self.model).items()}
        self.loss_scale = None
        if config.precision == "fp16":
            check_float16(self.model)
            self.loss_scale = LossScale(context.device)
        self.reads = self.communicates or context.device.type != "cuda" or not self.optimizer.can_skip

    def _placed(self, model: Network) -> Network:
        """Return the model on the device, ready for `_summing`."""
        model = model.to(self.context.device)
        self.context.register(model)
        return model

    def _passes(self, batches: int) -> int:
        """Return the number of passes of a step with this number of batches in this process."""
        return batches

    def _summing(self, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a pass, in which gradients are summed; is_last: whether it is the last of the step."""
        return self.context.summing_gradients() if is_last else nullcontext()

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of the gradients of the whole model."""
        return nn.utils.get_total_norm(gradients)

    def forward(self, batch: Batch) -> Loss:
        count = None if self.reads or self.padded else batch.tgt_tokens
        smoothing = self.config.label_smoothing
        inputs, head = batch, TokenLoss(batch.tgt_out, smoothing, count, self.padded)
        if self.pass_weights is not None:
            inputs = twice(batch, self.config.regularizer)
            head = PairedLoss(batch.tgt_out, smoothing, self.pass_weights, count, self.padded)
        elif self.cut:
            inputs = cut(batch, self.cut)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.config.precision)
        with torch.autocast(self.context.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss: Loss = self.model(inputs.src, inputs.src_mask, inputs.tgt_in, head)
        if self.context.size == 1:
            return loss
        # All processes sum the same gradients, but positions are not used where all texts have one token.
        schemes = (module for module in self.model.modules() if isinstance(module, Positions))
        positions = [p.sum() for scheme in schemes for p in scheme.parameters()]
        return replace(loss, smoothed=loss.smoothed + 0 * torch.stack(positions).sum()) if positions else loss

    def prepared(self, batch: Batch) -> Batch:
        """Return a batch as `run` needs it; called by the thread that reads batches."""
        return batch

    def placed(self, batch: Batch) -> Batch:
        """Return a prepared batch where `run` reads it."""
        return batch.to(self.context.device)

    def run(self, batches: Sequence[Batch], step: int, scale: float, rate: float) -> tuple[Gradients, bool | Tensor]:
        """Update the weights once by placed batches; return the result of `backward` and that of `update`.

        step: number of the step, from 0.
        """
        gradients = self.backward(batches, step, scale)
        return gradients, self.update(step + 1, rate)

    def backward(self, batches: Sequence[Batch], step: int, scale: float | Tensor) -> Gradients:
        """Compute the gradient of scale * loss, summed over these batches and those of the other processes.

        step: number of the step, from 0.  Dropout depends on it and on the number of the batch in the step, which is
        i * size + r for batch i of process r: a step is the same with any number of processes.  In float16, the
        gradient is multiplied by the loss scale, too.  If no row of the batches fits into the memory, the gradient is
        NaN, so that all processes skip the step.
        """
        self.optimizer.zero_grad()
        passes = range(self._passes(len(batches)))
        batches = [batches[i] if i < len(batches) else without_targets(batches[0]) for i in passes]
        statistics = self._statistics()

        def compute(part: BatchPart) -> float | Tensor:
            seed_dropout(self.config.seed, step, part.number * self.context.size + self.context.rank, *part.key)
            nll = self.add_gradient(part.batch, scale)
            return float(nll) if self.reads else nll.double()

        def restart() -> None:
            self.optimizer.zero_grad()
            _restore(statistics)

        def fill() -> None:
            for parameter in self.model.parameters():
                if parameter.requires_grad:  # of the others, no step would remove it
                    parameter.grad = torch.full_like(parameter, torch.nan)

        return accumulate(batches, compute, restart, fill, self._summing, not self.communicates)

    def add_gradient(self, batch: Batch, scale: float | Tensor) -> Tensor:
        """Add the gradient of scale * loss of a batch; return its negative log-likelihood."""
        loss = self.forward(batch)
        finite = 1 + 0 * loss.nll  # NaN if the loss is not finite: then all processes skip the step
        factor = scale if self.loss_scale is None else scale * self.loss_scale.scale
        (loss.smoothed * finite * factor).backward()
        return loss.nll

    def update(self, step: int, rate: float | Tensor) -> bool | Tensor:
        """Change the weights by the gradients; return False, and change nothing, if a gradient is not finite.

        step: number of updates, including this one.  rate: learning rate.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if self.loss_scale is not None:
            self.loss_scale.unscale(gradients)
        norm = self._norm(gradients)
        finite = torch.isfinite(norm)
        if self.loss_scale is not None:
            self.loss_scale.update(finite)
        if self.reads and not bool(finite):
            return False
        if self.config.clip_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if not self.reads:
            self.optimizer.found_inf = 1 - finite.float()
        self.optimizer.step()
        if self.ema is not None:
            weight = self.average_weight(step)
            if not self.reads:
                weight = weight * finite.float()
            for name, parameter in unique_tensors(self.model).items():
                self.ema[name].lerp_(parameter, weight)
        return True if self.reads else finite

    def average_weight(self, step: int) -> float | Tensor:
        """Return the weight of the model of a step, from 1, in the moving average."""
        # A lower decay during the first steps, so that the initial weights are forgotten sooner.
        return 1 - min(self.config.ema, (1 + step) / (10 + step))

    def lora_summary(self) -> str:
        """Return a sentence about the parameters that adapters train, and the memory that they save."""
        sizes = {True: 0, False: 0}
        for parameter in self.model.parameters():
            sizes[parameter.requires_grad] += parameter.nbytes
        trained, frozen = sizes[True], sizes[False]
        copies = 2 + state_size(self.config.optimizer)  # weights, gradients, optimizer
        return (
            f"train.lora: {trained // 4:,} parameters are trained, {frozen // 4:,} are frozen; weights, gradients and "
            f"optimizer need {(frozen + copies * trained) / 1e6:,.1f} MB instead of {copies * frozen / 1e6:,.1f} MB"
        )

    def trial(self, batch: Batch, step: int) -> None:
        """Compute and discard the gradients of a batch, to measure the speed and memory of training."""
        kept = self._statistics()
        seed_dropout(self.config.seed, step, 0)
        try:
            self.forward(batch).smoothed.backward()
        finally:
            self.optimizer.zero_grad()
            _restore(kept)

    def _statistics(self) -> list[tuple[Tensor, Tensor]]:
        """Return the running statistics of batch normalization, and copies of them."""
        norms = [module for module in self.model.modules() if isinstance(module, BatchNorm)]
        return [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]

    def resume(self, run: TrainingRun) -> Progress:
        """Load the newest checkpoint of a run, in all processes, and return its progress."""
        progress = self.context.on_main(
            lambda: run.resume(lambda folder: read_training(folder, self.model, self.optimizer, self.ema))
        )
        parameters, state = dict(self.model.named_parameters()), self.optimizer.state
        tensors = [*unique_tensors(self.model).values(), *(self.ema or {}).values()]
        own = {
            name: {key: value.to("meta") for key, value in state[p].items()}
            for name, p in parameters.items()
            if p in state
        }
        for name, values in self.context.on_main(lambda: own).items():
            parameter = parameters[name]
            if not self.context.is_main:
                state[parameter] = {k: torch.empty_like(v, device=parameter.device) for k, v in values.items()}
            tensors += [state[parameter][key] for key in sorted(values)]
        self.context.copy_from_main(tensors)
        return progress

    def save(self, run: TrainingRun, progress: Progress, scores: dict[str, Any], validated: bool) -> None:
        """Write a checkpoint, as `TrainingRun.save`; called by all processes."""
        if self.context.is_main:
            run.save(self.model, self.optimizer, progress, self.ema, scores, validated)

    @contextmanager
    def evaluated(self) -> Generator[Network, None, None]:
        """Yield, in the main process, the model that is saved, with its adapters unmerged; called by all processes."""
        with swapped_weights(self.model, self.ema):
            yield self.model

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Generator[Network, None, None]:
        """Yield the model with other weights, as they are saved; called by the main process."""
        with swapped_weights(self.model, without_adapters(self.model, weights)):
            yield self.model


@contextmanager
def swapped_weights(model: Network, weights: Mapping[str, Tensor] | None) -> Generator[None, None, None]:
    """Exchange the tensors of the model with `weights` of the same dtype, and back afterwards; None: no change."""
    _exchange(model, weights or {})
    try:
        yield
    finally:
        _exchange(model, weights or {})


def _exchange(model: Network, weights: Mapping[str, Tensor]) -> None:
    current = unique_tensors(model)
    for name, other in weights.items():
        if current[name].data_ptr() != other.data_ptr():
            before = current[name].clone()
            current[name].copy_(other)
            other.copy_(before)


def _restore(kept: Sequence[tuple[Tensor, Tensor]]) -> None:
    for buffer, value in kept:
        buffer.copy_(value)
