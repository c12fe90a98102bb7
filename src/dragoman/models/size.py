"""How much memory a model needs, known before any of it is allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from dragoman.config import ModelConfig
from dragoman.errors import UsageError
from dragoman.models.build import assemble

__all__ = ["available_memory", "check_memory", "count_parameters"]

_LAYERS = ("encoder_layers", "decoder_layers", "n_layers")
_BYTES = 4  # of a float32


def count_parameters(config: ModelConfig, src_vocab: int, tgt_vocab: int, *, shared: bool = True) -> int:
    """The parameters of a model, shared ones counted once; nothing is allocated.

    The layers of a stack are alike, so two are built of each at most, however many the configuration has.
    """
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
    copies: int = 1,
    device: torch.device | None = None,
) -> None:
    """Raise `UsageError` where a model does not fit into the memory that is available.

    copies: float32 numbers per parameter; 1 to use a model, 4 to train it with Adam (weight, gradient, two moments).
    """
    device = device or torch.device("cpu")
    try:
        parameters = count_parameters(config, src_vocab, tgt_vocab, shared=shared)
    except (RuntimeError, OverflowError, TypeError):  # a size that does not fit into 64 bits
        raise UsageError(f"the model has more parameters than can be addressed; {_advice(config)}") from None
    available, needed = available_memory(device), parameters * _BYTES * copies
    if available is not None and needed > available:
        what = "its weights" if copies == 1 else "weights, gradients and the state of the optimizer"
        raise UsageError(
            f"the model has {parameters:,} parameters: {what} need {needed / 1e9:,.1f} GB, and "
            f"{available / 1e9:,.1f} GB of memory are available ({device.type}); {_advice(config)}"
        )


def _advice(config: ModelConfig) -> str:
    names = [name for name in ("d_model", "d_ff", *_LAYERS) if hasattr(config, name)]
    sizes = ", ".join(f"model.{name} = {getattr(config, name):,}" for name in names)
    return f"lower the sizes ({sizes}) or tokenizer.vocab_size, or use a machine with more memory"


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device now; None where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    limits = [limit for limit in (_system_memory(), _cgroup_memory(Path("/sys/fs/cgroup"))) if limit is not None]
    return min(limits, default=None)


def _system_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Free memory and what the kernel can free, with swap; without /proc all memory that the machine has."""
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
    """What the limit of a container leaves; the page cache, which can be freed, does not count."""
    try:
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + sum(int(rows.get(f"{kind}_file", 0)) for kind in ("active", "inactive")))
    except (OSError, ValueError):
        return None
