"""The memory that a model needs, computed before any of it is allocated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import ModelConfig
from dragoman.errors import UsageError

if TYPE_CHECKING:
    import torch

_LAYERS = ("encoder_layers", "decoder_layers", "n_layers")
_FLOAT32_BYTES = 4


def count_parameters(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True) -> int:
    """Return the number of parameters of a model, with shared ones counted once, without allocating memory.

    The layers of a stack have the same size, so models of at most two layers per stack are built and extrapolated.
    """
    import torch

    from dragoman.models.build import assemble

    layers = {name: int(getattr(config, name)) for name in _LAYERS if hasattr(config, name)}
    shallow = config.model_copy(update=dict.fromkeys(layers, 1))

    def count(sample: ModelConfig) -> int:
        with torch.device("meta"):
            return assemble(sample, src_vocab, tgt_vocab, shared=shared).parameter_count()

    total = once = count(shallow)
    for name, number in layers.items():
        if number > 1:
            total += (number - 1) * (count(shallow.model_copy(update={name: 2})) - once)
    return total


def check_memory(
    config: ModelConfig,
    src_vocab: int,
    tgt_vocab: int,
    *,
    shared: bool = True,
    copies: float = 1,
    device: torch.device | None = None,
) -> None:
    """Raise UsageError if a model does not fit into the available memory.

    copies: float32 values per parameter; 1 for inference, 4 for training with Adam (weight, gradient, two moments),
    2 or 3 with SGD (weight, gradient, with momentum a moving sum); divided by the number of processes that share them.
    """
    try:
        parameters = count_parameters(config, src_vocab, tgt_vocab, shared=shared)
    except (RuntimeError, OverflowError, TypeError):  # a size beyond 64 bits
        raise UsageError(f"the model has more parameters than can be addressed; {_advice(config)}") from None
    check_capacity(config, parameters, copies, device)


def check_capacity(config: ModelConfig, parameters: int, copies: float = 1, device: torch.device | None = None) -> None:
    """As `check_memory`, for a model of a known number of parameters."""
    available, needed = available_memory(device), parameters * _FLOAT32_BYTES * copies
    if available is not None and needed > available:
        what = "its weights" if copies == 1 else "weights, gradients and the state of the optimizer"
        raise UsageError(
            f"the model has {parameters:,} parameters: {what} need {needed / 1e9:,.1f} GB, and "
            f"{available / 1e9:,.1f} GB of memory are available ({device.type if device else 'cpu'}); {_advice(config)}"
        )


def _advice(config: ModelConfig) -> str:
    names = [name for name in ("d_model", "d_ff", *_LAYERS) if hasattr(config, name)]
    sizes = ", ".join(f"model.{name} = {getattr(config, name):,}" for name in names)
    return f"reduce the sizes ({sizes}) or tokenizer.vocab_size, or use a machine with more memory"


def available_memory(device: torch.device | None = None) -> int | None:
    """Return the number of bytes that can be allocated on a device (default: CPU) now, or None if unknown."""
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    if device is not None and device.type != "cpu":
        return None
    limits = [limit for limit in (_system_memory(), _cgroup_memory(Path("/sys/fs/cgroup"))) if limit is not None]
    return min(limits, default=None)


def _system_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return available memory plus free swap, or without /proc the total memory."""
    try:
        rows = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return sum(int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, LookupError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def _cgroup_memory(folder: Path) -> int | None:
    """Return the memory left within a container's limit; page cache counts as free, because it can be reclaimed."""
    try:
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + sum(int(rows.get(f"{kind}_file", 0)) for kind in ("active", "inactive")))
    except (OSError, ValueError):
        return None
