"""P9: imported MarianMT checkpoints compute the same as `transformers`, text in and text out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.data.batching import collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.importer import Imported, _plan, import_model
from dragoman.formats.importing.reference import TransformersRuntime
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer
from every_kind import covering
from imported_checks import check_native_engine, loaded, random_targets
from marian_checkpoints import CONFIGURATIONS, LINES, marian_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use


@pytest.fixture(scope="module", params=covering(CONFIGURATIONS, {"two vocabularies"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Imported]:
    """The folder of a checkpoint, and what was imported from it."""
    folder = tmp_path_factory.mktemp("marian")
    check = folder / "lines.txt"
    check.write_text("\n".join(line for line in LINES * 3 if line))
    source = marian_checkpoint(folder / "checkpoint", request.param)
    return source, import_model(source, folder / "model", None if request.param == "untied" else check)


def both(imported: tuple[Path, Imported]) -> tuple[TransformersRuntime, Model, Tokenizer]:
    source, found = imported
    network, tokenizer = loaded(found.folder)
    bias = network.output.bias
    assert isinstance(bias, torch.Tensor)
    return TransformersRuntime(source, _plan(Checkpoint(source))[1].vocabulary, bias.detach()), network, tokenizer


def exact_positions(runtime: TransformersRuntime) -> None:
    """Their table in float64; `transformers` stores it in float32, which would be the largest difference."""
    for stack in (runtime.model.model.encoder, runtime.model.model.decoder):
        count, d_model = stack.embed_positions.weight.shape
        angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        stack.embed_positions.weight.data = torch.from_numpy(table)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_equal(imported: tuple[Path, Imported], dtype: torch.dtype, tolerance: float) -> None:
    runtime, network, tokenizer = both(imported)
    runtime.model.to(dtype)
    network.to(dtype)
    if dtype == torch.float64:
        exact_positions(runtime)
    for line, target in zip(LINES, random_targets(tokenizer, len(LINES)), strict=True):
        source = tokenizer.encode_source(line)
        theirs = runtime.logits(source, target)
        with torch.no_grad():
            ours = network(torch.tensor([source]), None, torch.tensor([[BOS, *target]]))[0]
        never = [PAD, BOS] if runtime.excluded else [PAD]
        assert (ours[:, never] < -50).all()
        kept = [token for token in range(tokenizer.target_size) if token not in never]
        assert (ours - theirs)[:, kept].abs().max() < tolerance


def test_the_report_counts_no_difference(imported: tuple[Path, Imported]) -> None:
    """Greedy search, and the four targets of a given length that beam search of width 4 finds."""
    _, found = imported
    assert found.parity.largest < 1e-4 and found.parity.width == 4
    assert found.parity.greedy.same == found.parity.cases and found.parity.beam.same >= 0.95 * found.parity.cases
    assert found.parity.beam.different == 0 and found.parity.cases >= 20
    assert found.tokenizer.met and found.tokenizer.lines > 15


def test_text_becomes_the_same_ids_and_the_same_text(imported: tuple[Path, Imported]) -> None:
    """Compared with the package directly, not through the import's own comparison."""
    from transformers import AutoTokenizer

    source, found = imported
    _, tokenizer = loaded(found.folder)
    vocabulary = _plan(Checkpoint(source))[1].vocabulary
    theirs = AutoTokenizer.from_pretrained(source)
    lines = [*LINES, "ein Hund läuft", ">>deu<<", "zwei 漢字 hunde"]
    for line in lines:
        assert [vocabulary.source[i] for i in tokenizer.encode_source(line)] == theirs(line).input_ids
        ids = tokenizer.encode_target(line)
        assert [vocabulary.target[i] for i in ids] == theirs(text_target=line).input_ids
        decoded = theirs.decode([vocabulary.target[i] for i in ids], skip_special_tokens=True)
        assert tokenizer.decode_target(ids) == decoded
    assert any(1 in tokenizer.encode_source(line) for line in lines)  # unknown pieces occur


def test_the_native_engine_agrees(imported: tuple[Path, Imported]) -> None:
    check_native_engine(imported[1].folder, LINES)


def test_greedy_text_is_that_of_generate(imported: tuple[Path, Imported]) -> None:
    """With the settings of the checkpoint, as a user would call `generate`."""
    from transformers import AutoTokenizer, MarianMTModel

    source, _ = imported
    _, network, ours = both(imported)
    model: Any = MarianMTModel.from_pretrained(source)
    theirs = AutoTokenizer.from_pretrained(source)
    generated = model.generate(**theirs(LINES, return_tensors="pt", padding=True), num_beams=1)
    src, mask = collate_source([ours.encode_source(line) for line in LINES])
    found = generate(ModelStepper(network), src, mask, SearchSettings(beam=1, alpha=0))
    vocabulary = _plan(Checkpoint(source))[1].vocabulary
    for (one,), row in zip(found, generated[:, 1:].tolist(), strict=True):
        tokens = [vocabulary.target[token] for token in [*one.tokens, EOS]]
        assert tokens[:50] == row[: len(tokens[:50])]  # the limits of both are beyond 50 tokens
        text = theirs.decode([vocabulary.target[token] for token in one.tokens], skip_special_tokens=True)
        assert ours.decode_target(one.tokens) == text


@pytest.mark.parametrize("options", [{"safetensors": False}, {"kind": "bpe"}])
def test_pytorch_files_and_bpe_give_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    source = marian_checkpoint(tmp_path / "checkpoint", "one layer, unscaled", **options)
    found = import_model(source, tmp_path / "model")
    assert found.parity.met and found.tokenizer.met
