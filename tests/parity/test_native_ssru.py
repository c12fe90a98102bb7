"""Steps of an SSRU decoder in the native engine: reordered rows, reused slots, and damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.native.stepper import EngineStepper
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.errors import DragomanError
from dragoman.tokenizers import BOS, EOS
from every_kind import TRANSLATORS, built

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB, BEAMS = 29, 3
SSRU_FIELD = 8 + 20 * 4 + 3 * 4
"""Offset of the field in the header: after the magic bytes, twenty integers and three floats."""


@pytest.mark.parametrize("kind", ["ssru", "ssru pre-norm"])
def test_reordered_rows_continue_from_their_own_cells(kind: str, tmp_path: Path) -> None:
    """Every step selects rows, with copies and dropped ones, as a search does."""
    model = built(TRANSLATORS[kind], VOCAB)
    generator = torch.Generator().manual_seed(1)
    src = torch.tensor([[5, 9, 7, EOS], [8, 4, EOS, 0]])
    engine = Engine(pack(model.float(), tmp_path / "packed", "float32", max_positions=40))
    ours, reference = EngineStepper(engine, 2), ModelStepper(model.double())
    states = [stepper.start(src, src != 0, BEAMS, 20) for stepper in (ours, reference)]
    tokens = torch.full((2 * BEAMS,), BOS)
    for _ in range(12):
        got, want = ours.step(tokens, states[0]), reference.step(tokens, states[1])  # type: ignore[arg-type]
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=2e-4)
        parents = torch.randint(0, BEAMS, (2, BEAMS), generator=generator) + torch.tensor([[0], [BEAMS]])
        for state in states:
            state.select(parents.flatten())
        tokens = torch.randint(4, VOCAB, (2 * BEAMS,), generator=generator)


@pytest.mark.parametrize("value", [-1, 2, 1 << 30])
def test_an_invalid_field_of_the_header_is_refused(value: int, tmp_path: Path) -> None:
    path = pack(built(TRANSLATORS["ssru"], VOCAB).float(), tmp_path / "packed", "int8", max_positions=40)
    content = bytearray(path.read_bytes())
    assert struct.unpack_from("<i", content, SSRU_FIELD) == (1,)
    struct.pack_into("<i", content, SSRU_FIELD, value)
    path.write_bytes(content)
    with pytest.raises(DragomanError, match="the header holds invalid sizes"):
        Engine(path)


def test_a_file_of_an_attention_model_is_not_read_as_one_with_an_ssru(tmp_path: Path) -> None:
    path = pack(built(TRANSLATORS["paper"], VOCAB).float(), tmp_path / "packed", "int8", max_positions=40)
    content = bytearray(path.read_bytes())
    assert struct.unpack_from("<i", content, SSRU_FIELD) == (0,), "zero, as the padding of older files"
    struct.pack_into("<i", content, SSRU_FIELD, 1)
    path.write_bytes(content)
    with pytest.raises(DragomanError, match="found a matrix of"):
        Engine(path)
