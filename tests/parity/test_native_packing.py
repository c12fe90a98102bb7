"""Packed models: the bytes that version 3 of the format always had, from weights read without PyTorch.

The packer reads a configuration and NumPy arrays.  Its twin in PyTorch is the model that is trained: names and shapes
of weights, position tables and rounding are compared with it, and the bytes with recorded digests.  Those of version 2
were recorded when the packer still read PyTorch models; those of version 3 after its files had been compared with
those of version 2: equal but for two fields of the header, and the table of tied embeddings, which is missing.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.config import DecoderOnlyConfig, TransformerConfig
from dragoman.decoding.native.library import Precision
from dragoman.decoding.native.pack import _bfloat16, native_unsupported_reasons, pack, pack_weights, weight_shapes
from dragoman.io.weights import load_arrays
from dragoman.models.build import assemble, build_model
from dragoman.models.model_folder import unique_tensors
from dragoman.nn.position_tables import alibi_biases, sinusoid_table, t5_biases
from dragoman.nn.positions import T5, Alibi, sinusoids
from every_kind import LANGUAGE_MODELS, TRANSLATORS, model_config

BLOCK = {"architecture": "transformer", "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1}
WIDE: dict[str, dict[str, Any]] = {
    "wide": BLOCK | {"d_model": 512, "n_heads": 8},
    "wide rotary": BLOCK | {"d_model": 1024, "n_heads": 16, "position": {"kind": "rotary"}, "tie": "none"},
    "wide t5": BLOCK | {"d_model": 64, "n_heads": 8, "position": {"kind": "t5"}},
    "six heads": BLOCK | {"d_model": 48, "n_heads": 6, "position": {"kind": "alibi"}, "tie": "target"},
}
KINDS = {
    name: document
    for name, document in (TRANSLATORS | LANGUAGE_MODELS | WIDE).items()
    if not native_unsupported_reasons(model_config(document))
}
PRECISIONS: Sequence[Precision] = ("float32", "int8", "bfloat16")
DIGESTS = {
    "paper": "83ddc407b18ea7f7", "pre-norm": "bf4dc2ef254a5986", "modern": "826667538b99aa4d",
    "multi-query": "9ddd3a95468c37d8", "grouped-query": "4bf26032169e0e64", "small keys": "68815ecd87c06c89",
    "large keys": "58f28d4c67ee2ce2", "wide values": "7e246b599c575567", "normalized embeddings": "cc5f6329fa52d1e4",
    "normalized embeddings pre-norm": "b1839b4699a9a703", "narrow values": "96caeee2c0b5112b",
    "t5 family": "693655a2a7fd5486", "no positions": "d5fd65ae44a5b1a7", "learned": "d187fee94780e1e1",
    "t5": "9eaded1e2e5d244c", "alibi": "93dc12b6ac87763f", "ssru": "d0dc7a0c16c1face",
    "ssru pre-norm": "1230c532e508742c", "decoder only": "e65a1c3f4d809a7b", "wide": "4a88477823274bcc",
    "wide rotary": "ef822b7777786503", "wide t5": "4ead13f4b3b8d4d8", "six heads": "cd53a44470bc8d43",
    "unscaled": "581135cdb05b5bc5", "output bias": "f64d5371e98f0901", "gemma 3": "f9c9c97e59831e22",
}  # fmt: skip
"""Of the three precisions with up to 1,024 positions."""


def invented(shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Weights that depend on their names and on no random generator."""

    def values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        numbers = np.arange(int(np.prod(shape)), dtype=np.int64) * 7919 + zlib.crc32(name.encode())
        return ((numbers % 2003 - 1001).astype(np.float32) / np.float32(997)).reshape(shape)

    return {name: values(name, shape) for name, shape in shapes.items()}


def packable(name: str) -> TransformerConfig | DecoderOnlyConfig:
    config = model_config(KINDS[name])
    assert isinstance(config, TransformerConfig | DecoderOnlyConfig)
    return config


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_of_every_kind_are_those_of_earlier_versions(name: str, tmp_path: Path) -> None:
    config = packable(name)
    weights = invented(weight_shapes(config, 83, 83, shared=True))
    digest = hashlib.sha256()
    for precision in PRECISIONS:
        digest.update(pack_weights(config, weights, tmp_path / "packed", precision).read_bytes())
    assert digest.hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_weights_have_the_names_and_shapes_of_the_model(name: str, shared: bool) -> None:
    config = packable(name)
    source, target = (71, 71) if isinstance(config, DecoderOnlyConfig) or shared else (71, 83)
    with torch.device("meta"):
        built = unique_tensors(assemble(config, source, target, shared=shared))
    shapes = weight_shapes(config, source, target, shared=shared)
    assert shapes == {tensor: tuple(value.shape) for tensor, value in built.items()}


@pytest.mark.parametrize("name", ["paper", "modern", "wide rotary", "learned"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_file_gives_the_same_bytes_as_the_model_that_pytorch_loads(
    name: str, stored: torch.dtype, tmp_path: Path
) -> None:
    import safetensors.torch

    model = build_model(packable(name), 83, 79, shared=False, seed=5)
    tensors = {key: tensor.to(stored) for key, tensor in unique_tensors(model).items()}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with torch.no_grad():
        for key, tensor in tensors.items():
            model.get_parameter(key).copy_(tensor)
    arrays: dict[str, NDArray[Any]] = load_arrays(tmp_path / "model.safetensors")
    for precision in PRECISIONS:
        ours = pack_weights(packable(name), arrays, tmp_path / "ours", precision, 90).read_bytes()
        assert ours == pack(model, tmp_path / "theirs", precision, 90).read_bytes()


@pytest.mark.parametrize("d_model", [2, 6, 48, 70, 100, 256, 512, 1000, 1024])
@pytest.mark.parametrize("full_range", [False, True])
def test_sinusoids_have_the_bits_of_the_model(d_model: int, full_range: bool) -> None:
    expected = sinusoids(torch.arange(1024), d_model, full_range).float().numpy()
    assert sinusoid_table(1024, d_model, full_range).tobytes() == expected.tobytes()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(4, 3), (8, 12), (32, 128), (32, 20), (64, 256), (128, 1000)])
def test_t5_biases_have_the_bits_of_the_model(buckets: int, furthest: int, bidirectional: bool) -> None:
    scheme, count = T5(3, buckets, furthest, bidirectional), 700
    bias = scheme.static_bias(torch.tensor([count - 1]), torch.arange(2 * count - 1))
    assert bias is not None
    found = t5_biases(scheme.table.detach().numpy(), np.arange(1 - count, count), furthest, bidirectional)
    assert np.array_equal(found, bias[:, 0].detach().numpy())


@pytest.mark.parametrize("heads", [1, 6, 8])
def test_alibi_biases_have_the_bits_of_the_model(heads: int) -> None:
    bias = Alibi(heads).static_bias(torch.tensor([99]), torch.arange(199))
    assert bias is not None
    assert alibi_biases(heads, np.arange(-99, 100)).tobytes() == bias[:, 0].contiguous().numpy().tobytes()


def test_bfloat16_is_rounded_to_even() -> None:
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 1 << 32, 100_000, dtype=np.uint32)
    halves = (bits & 0xFFFF0000) | 0x8000  # in the middle of two bfloat16
    values = np.concatenate([bits, halves]).view(np.float32)
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(_bfloat16(values).view(np.int16), expected)
