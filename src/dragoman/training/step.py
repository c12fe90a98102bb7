"""One update of a model: gradients, clipping, optimizer and moving average."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig
from dragoman.data.batching import Batch
from dragoman.data.tokenizer import PAD
from dragoman.models.model_folder import unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Stack
from dragoman.nn.dropout import seed_dropout
from dragoman.nn.positions import Positions
from dragoman.training.checkpoint import read_training
from dragoman.training.distributed import DistributedContext
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.optim import Progress, build_optimizer
from dragoman.training.run import TrainingRun
from dragoman.training.validation import swapped_weights

__all__ = ["TrainingStep"]


class TrainingStep:
    """A model with its optimizer and, if train.ema is set, the moving average of its weights."""

    def __init__(self, config: TrainConfig, model: Network, context: DistributedContext) -> None:
        self.config, self.context = config, context
        self.model = self._placed(model)
        for module in self.model.modules():
            if isinstance(module, Stack):
                module.recomputes = config.gradient_checkpointing
        self.optimizer = build_optimizer(config.optimizer, self.model)
        self.ema: dict[str, Tensor] | None = None
        if config.ema:
            self.ema = {name: p.clone() for name, p in unique_tensors(self.model).items()}

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
        head = TokenLoss(batch.tgt_out, self.config.label_smoothing)
        bf16 = self.config.precision == "bf16"
        with torch.autocast(self.context.device.type, dtype=torch.bfloat16, enabled=bf16):
            loss: Loss = self.model(batch.src, batch.src_mask, batch.tgt_in, head)
        if self.context.size == 1:
            return loss
        # All processes sum the same gradients, but positions are not used where all texts have one token.
        positions = [
            p.sum() for module in self.model.modules() if isinstance(module, Positions) for p in module.parameters()
        ]
        return replace(loss, smoothed=loss.smoothed + 0 * torch.stack(positions).sum()) if positions else loss

    def backward(self, batches: Sequence[Batch], step: int, scale: float) -> float:
        """Compute the gradient of scale * loss, summed over these batches and those of the other processes.

        step: number of the step, from 0.  Dropout depends on it and on the number of the batch in the step, which is
        i * size + r for batch i of process r: a step is the same with any number of processes.  Returns the negative
        log-likelihood of these batches in nats.
        """
        self.optimizer.zero_grad()
        nll = 0.0
        passes = self._passes(len(batches))
        for i in range(passes):
            batch = batches[i] if i < len(batches) else _without_targets(batches[0])
            seed_dropout(self.config.seed, step, i * self.context.size + self.context.rank)
            with self._summing(is_last=i == passes - 1):
                loss = self.forward(batch)
                finite = 1 + 0 * loss.nll  # NaN if the loss is not finite: then all processes skip the step
                (loss.smoothed * finite * scale).backward()
            nll += float(loss.nll)
        return nll

    def update(self, step: int, rate: float) -> bool:
        """Change the weights by the gradients; return False, and change nothing, if a gradient is not finite.

        step: number of updates, including this one.  rate: learning rate.
        """
        norm = self._norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not bool(torch.isfinite(norm)):
            return False
        if self.config.clip_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.ema is not None:
            # A lower decay during the first steps, so that the initial weights are forgotten sooner.
            decay = min(self.config.ema, (1 + step) / (10 + step))
            for name, parameter in unique_tensors(self.model).items():
                self.ema[name].lerp_(parameter, 1 - decay)
        return True

    def trial(self, batch: Batch, step: int) -> None:
        """Compute and discard the gradients of a batch, to measure the speed of training."""
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # running statistics of BatchNorm
        seed_dropout(self.config.seed, step, 0)
        self.forward(batch).smoothed.backward()
        self.optimizer.zero_grad()
        for buffer, value in kept:
            buffer.copy_(value)

    def resume(self, run: TrainingRun) -> Progress:
        """Load the newest checkpoint of a run, in all processes, and return its progress."""
        progress = self.context.on_main(
            lambda: run.resume(lambda folder: read_training(folder, self.model, self.optimizer, self.ema))
        )
        self._copy_from_main()
        return progress

    def save(self, run: TrainingRun, progress: Progress, scores: dict[str, Any], validated: bool) -> None:
        """Write a checkpoint, as `TrainingRun.save`; called by all processes."""
        if self.context.is_main:
            run.save(self.model, self.optimizer, progress, self.ema, scores, validated)

    @contextmanager
    def evaluated(self) -> Generator[Network, None, None]:
        """Yield, in the main process, the model with the weights that are saved; called by all processes."""
        with swapped_weights(self.model, self.ema):
            yield self.model

    @contextmanager
    def with_weights(self, weights: Mapping[str, Tensor]) -> Generator[Network, None, None]:
        """Yield the model with other weights; called by the main process."""
        with swapped_weights(self.model, weights):
            yield self.model

    def _copy_from_main(self) -> None:
        """Copy weights, moving average and optimizer state from the main process."""
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


def _without_targets(batch: Batch) -> Batch:
    """Return a batch that adds nothing to the gradient, for a process that has fewer batches than the others."""
    return replace(batch, src_tokens=0, tgt_tokens=0, tgt_out=torch.full_like(batch.tgt_out, PAD))
