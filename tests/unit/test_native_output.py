"""Steps of the native engine: the output layer for extreme and equal logits and wide beams, and SSRU decoders."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from dragoman.data.batching import collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.native.stepper import EngineStepper
from dragoman.errors import DragomanError
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS
from every_kind import TRANSLATORS, built

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB = 1500
SOURCE = [5, 6, 7, EOS]


def model_with_output(change: str) -> Model:
    """A model in float64 with other output weights: the logits then grow or fall with the token, or are equal."""
    shape = {"encoder_layers": 1, "decoder_layers": 1, "tie": "none"}
    model = built(TRANSLATORS["paper"] | shape, VOCAB).double()
    weight = model.get_parameter("output.weight")
    with torch.no_grad():
        steps = torch.arange(VOCAB, dtype=torch.float64)[:, None]
        if change == "equal":
            weight[:] = weight[:1]
        elif change != "large":
            weight[:] = weight[:1] * steps * (1 if change == "rising" else -1)
        weight *= {"small": 1e-6, "large": 300.0}.get(change, 1.0)
    return model


def log_probs_of(stepper: EngineStepper | ModelStepper) -> torch.Tensor:
    source, mask = collate_source([SOURCE])
    state = stepper.start(source, mask, 1, 5)
    return stepper.step(torch.tensor([2]), state)[0].double()


@pytest.mark.parametrize("change", ["large", "rising", "falling", "equal", "small"])
def test_log_probs_are_those_of_float64(change: str, tmp_path: Path) -> None:
    """The logits differ by thousands, more than a float32 sum of exponentials without a reference can hold."""
    model = model_with_output(change)
    with torch.no_grad():
        theirs = log_probs_of(ModelStepper(model))
    ours = log_probs_of(EngineStepper(Engine(pack(model.float(), tmp_path / "p", "float32"))))
    if change in ("large", "rising", "falling"):
        assert theirs.min() < -200
    rounding = 5e-7 * theirs.abs().max().item()  # of the largest logit
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5 + rounding)


@pytest.mark.parametrize("change", ["large", "rising", "falling", "equal", "small"])
@pytest.mark.parametrize("beam", [1, 4, 20])
def test_a_search_does_not_depend_on_threads(change: str, beam: int, tmp_path: Path) -> None:
    """Twenty beams need more best tokens than a vector has lanes."""
    model = model_with_output(change)
    engine = Engine(pack(model.float(), tmp_path / "p", "float32"))
    settings = SearchSettings(beam=beam, nbest=beam, max_extra=0)
    found = [engine.search([SOURCE], [4], settings, threads=threads) for threads in (1, 2, 3, 7)]
    assert all(other == found[0] for other in found[1:])
    if change not in ("equal", "small"):  # torch.topk does not define the order of equal values
        theirs = generate(ModelStepper(model.double()), *collate_source([SOURCE]), settings)[0]
        assert found[0][0][0].tokens == theirs[0].tokens
        assert found[0][0][0].log_prob == pytest.approx(theirs[0].log_prob, rel=1e-4, abs=1e-4)


SSRU_VOCAB, BEAMS = 29, 3
SSRU_FIELD = 8 + 20 * 4 + 3 * 4
"""Offset of the field in the header: after the magic bytes, twenty integers and three floats."""


@pytest.mark.parametrize("kind", ["ssru", "ssru pre-norm"])
def test_reordered_rows_continue_from_their_own_cells(kind: str, tmp_path: Path) -> None:
    """Every step selects rows, with copies and dropped ones, as a search does."""
    model = built(TRANSLATORS[kind], SSRU_VOCAB)
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
        tokens = torch.randint(4, SSRU_VOCAB, (2 * BEAMS,), generator=generator)


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        *(("ssru", 1, value, "the header holds invalid sizes") for value in (-1, 2, 1 << 30)),
        ("paper", 0, 1, "found a matrix of"),  # zero is the padding of older files
    ],
)
def test_a_wrong_field_of_the_ssru_is_refused(kind: str, field: int, value: int, expected: str, tmp_path: Path) -> None:
    path = pack(built(TRANSLATORS[kind], SSRU_VOCAB).float(), tmp_path / "packed", "int8", max_positions=40)
    content = bytearray(path.read_bytes())
    assert struct.unpack_from("<i", content, SSRU_FIELD) == (field,)
    struct.pack_into("<i", content, SSRU_FIELD, value)
    path.write_bytes(content)
    with pytest.raises(DragomanError, match=expected):
        Engine(path)
