"""int8 and bfloat16 on the native engine against an emulation of the same arithmetic in PyTorch.

Sums of int8 products are exact, so both agree to float32 rounding as long as each activation is quantized to the same
value.  An activation within 1e-6 of the middle between two values may be rounded differently, which causes a fraction
of the quantization error.  Therefore most log-probabilities must agree to 1e-5, and all of them must be much closer to
the emulation than to float32.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dragoman.decoding import SearchSettings
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import NativeLibrary, Precision, load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built
from native_builds import BUILDS

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB = 83
LANGUAGE_MODEL = {
    "architecture": "decoder_only", "d_model": 24, "d_ff": 40, "n_heads": 2, "n_layers": 2, "dropout": 0.0,
    "order": "pre", "position": {"kind": "rotary"}, "norm": {"kind": "rms"},
}  # fmt: skip
KINDS = {
    name: TRANSLATORS[name]
    for name in ("paper", "pre-norm", "modern", "multi-query", "grouped-query", "alibi", "ssru", "wide values")
}
KINDS |= {"decoder-only": LANGUAGE_MODEL, "untied": TRANSLATORS["modern"] | {"tie": "none"}}
KINDS["wide network"] = TRANSLATORS["modern"] | {"d_ff": 300}  # more inputs than a chunk of the AVX2 kernel
Pairs = list[tuple[list[int], list[int]]]


def model_of(kind: str) -> Model:
    return built(KINDS[kind], VOCAB).float()


def pairs_for(kind: str) -> Pairs:
    """Sources and targets with the end of sentence; a language model has no sources."""
    generator = torch.Generator().manual_seed(3)
    lengths = [1, 9, 4, 17, 2, 6, 11, 3, 23, 5]
    targets = [[*torch.randint(4, VOCAB, (n,), generator=generator).tolist(), EOS] for n in lengths]
    return [([] if kind == "decoder-only" else target, target) for target in targets]


# ------------------------------------------------------------------------------------------------------- the emulation


def int8_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers and a scale per output, the largest magnitude / 127."""
    scales = weight.float().abs().amax(1) / 127
    return (weight.float() / torch.where(scales > 0, scales, 1)[:, None]).round(), scales


def int8_product(x: Tensor, weight: Tensor) -> Tensor:
    """A scale per output of the weights and per row of the activations, each the largest magnitude / 127."""
    (q, scales), rows = int8_weights(weight), x.float()
    largest = rows.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127 / largest, 0)
    # One rounding after the multiplication and the addition of 128, as of a fused multiply-add.
    whole = (rows.double() * inverse.double() + 128).float().round().double() - 128
    return (whole @ q.double().T) * (scales * (largest / 127)).double()


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int8": int8_product,
    "bfloat16": lambda x, weight: x.float().bfloat16().double() @ weight.float().bfloat16().double().T,
}


class Quantized(TorchFunctionMode):
    """Replaces the product of linear layers.

    Embeddings that are the rows of the output matrix (tied) have its precision; others are float16 with int8.
    """

    def __init__(self, precision: Precision, output: Tensor) -> None:
        super().__init__()
        self.precision, self.output = precision, output

    def embeddings(self, weight: Tensor) -> Tensor:
        if weight is not self.output:
            return weight.half().double() if self.precision == "int8" else weight
        if self.precision == "bfloat16":
            return weight.bfloat16().double()
        q, scales = int8_weights(weight)
        return (q * scales[:, None]).double()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            y = PRODUCTS[self.precision](args[0], args[1])
            bias = args[2] if len(args) > 2 else None
            return y if bias is None else y + bias
        if func is F.embedding:
            return func(args[0], self.embeddings(args[1]), *args[2:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def half_keys_and_values(model: Model) -> Iterator[None]:
    taps = [tap for name, tap in model.named_modules() if name.endswith(("attn.keys", "attn.values"))]
    hooks = [tap.register_forward_hook(lambda tap, given, out: out.half().double()) for tap in taps]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def emulated(kind: str, precision: Precision) -> list[float]:
    """Log-probabilities of all target tokens, with float64 for everything that is not quantized."""
    model = model_of(kind).double()
    with Quantized(precision, model.get_parameter("output.weight")):
        if precision != "int8":
            return flat(TorchBackend(model).score(pairs_for(kind), 10**9))
        with half_keys_and_values(model):
            return flat(TorchBackend(model).score(pairs_for(kind), 10**9))


def by_engine(kind: str, precision: Precision, folder: Path) -> list[float]:
    engine = Engine(pack(model_of(kind), folder / precision, precision, max_positions=90))
    sources, targets = zip(*pairs_for(kind), strict=True)
    begins = [target[:-1] for target in targets]
    settings = SearchSettings(beam=1, max_extra=0)
    found = engine.search(sources, [len(target) for target in targets], settings, begins)
    return flat([some[0].token_log_probs for some in found])


def flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [number for row in rows for number in row]


def gaps(first: list[float], second: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(first, second, strict=True)]


# ------------------------------------------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("native_build", BUILDS, indirect=True)
@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_arithmetic_of_quantization(
    kind: str, precision: Precision, native_build: NativeLibrary, tmp_path: Path
) -> None:
    if precision == "bfloat16" and not native_build.supports_bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    ours, expected = by_engine(kind, precision, tmp_path), emulated(kind, precision)
    error = gaps(expected, by_engine(kind, "float32", tmp_path))

    assert statistics.median(error) > 1e-3  # otherwise the comparison would be meaningless
    assert statistics.median(gaps(ours, expected)) < 1e-5
    assert statistics.mean(gaps(ours, expected)) < 0.1 * statistics.mean(error)


def packed_output(model: Model, path: Path) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]]:
    """Return weights, scales and compensation of the output matrix, the last one of the file."""
    content = pack(model, path, "int8", max_positions=90).read_bytes()
    outputs, inputs = -(-VOCAB // 64) * 64, 64
    sizes = [outputs * inputs, outputs * 4, outputs * 4]
    q, scales, compensation = (
        np.frombuffer(content[-end:][:size], kind)
        for end, size, kind in zip((sum(sizes), sum(sizes[1:]), sizes[2]), sizes, (np.int8, "<f4", "<i4"), strict=True)
    )
    q = q.reshape(outputs // 64, inputs // 4, 64, 4).transpose(0, 2, 1, 3).reshape(outputs, inputs)
    return q, scales, compensation


@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_packed_weights_are_the_nearest(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    weight = model.get_parameter("output.weight").detach().numpy()
    q, scales, compensation = packed_output(model, tmp_path / "p")

    assert np.array_equal(scales[:VOCAB], np.abs(weight).max(1) / np.float32(127))
    stored = q[:VOCAB, : weight.shape[1]] * scales[:VOCAB, None]
    assert (np.abs(stored - weight) <= 0.5001 * scales[:VOCAB, None]).all()
    assert np.abs(q[:VOCAB]).max(1).tolist() == [127] * VOCAB
    assert np.array_equal(compensation, 128 * q.sum(1, dtype=np.int32))
    assert not q[VOCAB:].any() and not q[:, weight.shape[1] :].any()


def test_packed_weights_of_which_the_scale_is_inexact_are_at_most_127(tmp_path: Path) -> None:
    """The AVX2 kernel changes the signs of weights, which -128 has no room for."""
    model = model_of("paper")
    with torch.no_grad():
        model.get_parameter("output.weight")[5:9] = torch.tensor([-1e-43, -2e-43, -2.7e-43, 1.5e-43])[:, None]

    q, _, _ = packed_output(model, tmp_path / "p")

    assert np.abs(q[5:9].astype(int)).max() == 127
    assert (np.sign(q[5:9, 0]) == [-1, -1, -1, 1]).all()
