"""P9: imported checkpoints of T5, mT5 and ByT5 compute the same as `transformers`, text in and text out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.data.batching import collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.importer import Imported, _plan, import_model
from dragoman.formats.importing.reference import TransformersRuntime
from dragoman.models.seq2seq import Model
from dragoman.models.transformer import Transformer
from dragoman.nn.attention import SelfAttention
from dragoman.nn.layers import DecoderLayer, EncoderLayer
from dragoman.tokenizers import BOS, PAD, Tokenizer
from every_kind import covering
from imported_checks import check_native_engine, loaded, random_targets
from t5_checkpoints import CONFIGURATIONS, LINES, t5_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use


@pytest.fixture(scope="module", params=covering(CONFIGURATIONS, {"v1.0, one layer, wide heads", "mt5", "byt5"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Imported]:
    """The folder of a checkpoint, and what was imported from it."""
    folder = tmp_path_factory.mktemp("t5")
    check = folder / "lines.txt"
    check.write_text("\n".join(line for line in LINES * 2 if line))
    source = t5_checkpoint(folder / "checkpoint", request.param)
    return source, import_model(source, folder / "model", check)


def both(imported: tuple[Path, Imported]) -> tuple[TransformersRuntime, Model, Tokenizer]:
    source, found = imported
    network, tokenizer = loaded(found.folder)
    bias = network.output.bias
    assert isinstance(bias, Tensor)
    return TransformersRuntime(source, _plan(Checkpoint(source))[1].vocabulary, bias.detach()), network, tokenizer


class ExactNorm(torch.nn.Module):
    """Their norm computes the mean square in float32, which would be the largest difference in float64."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def make_exact(model: Any, ours: Model) -> None:
    """Remove what float32 rounds: their norms, and the products of weights and factors in our folder."""
    assert isinstance(ours, Transformer)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("LayerNorm"):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, ExactNorm(module))
    if getattr(model.config, "scale_decoder_outputs", False):
        model.decoder.final_layer_norm.weight.data = ours.decoder.final_norm.weight.data * model.config.d_model**0.5
    for stack, own in ((model.encoder, ours.encoder), (model.decoder, ours.decoder)):
        for block, layer in zip(stack.block, own.layers, strict=True):
            assert isinstance(layer, EncoderLayer | DecoderLayer) and isinstance(layer.self_attn, SelfAttention)
            root, rows = math.sqrt(model.config.d_kv), model.config.d_kv * model.config.num_heads
            block.layer[0].SelfAttention.q.weight.data = layer.self_attn.qkv.weight.data[:rows] / root
            if isinstance(layer, DecoderLayer):
                block.layer[1].EncDecAttention.q.weight.data = layer.cross_attn.q.weight.data / root


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_equal(imported: tuple[Path, Imported], dtype: torch.dtype, tolerance: float) -> None:
    runtime, network, tokenizer = both(imported)
    runtime.model.to(dtype)
    network.to(dtype)
    if dtype == torch.float64:
        make_exact(runtime.model, network)
    for line, target in zip(LINES, random_targets(tokenizer, len(LINES)), strict=True):
        source = tokenizer.encode_source(line)
        theirs = runtime.logits(source, target)
        with torch.no_grad():
            ours = network(torch.tensor([source]), None, torch.tensor([[BOS, *target]]))[0]
        assert (ours[:, PAD] < -50).all() and theirs[:, BOS].abs().max() < 50
        difference = (ours - theirs)[:, [BOS, *range(1, tokenizer.target_size)]].abs().max()
        assert difference < tolerance * max(1.0, float(ours[:, 1:].abs().max()))


def test_the_report_counts_no_difference(imported: tuple[Path, Imported]) -> None:
    """Greedy search, and the four targets of a given length that beam search of width 4 finds."""
    _, found = imported
    assert found.parity.largest < 1e-4 and found.parity.width == 4
    assert found.parity.greedy.same == found.parity.cases and found.parity.beam.same >= 0.9 * found.parity.cases
    assert found.parity.beam.different == 0 and found.parity.cases >= 18
    assert found.tokenizer.met and found.tokenizer.lines > 15


def test_text_becomes_the_same_ids_and_the_same_text(imported: tuple[Path, Imported]) -> None:
    """Compared with the package directly, not through the import's own comparison."""
    from transformers import AutoTokenizer

    source, found = imported
    _, tokenizer = loaded(found.folder)
    order = _plan(Checkpoint(source))[1].vocabulary.source
    theirs = AutoTokenizer.from_pretrained(source)
    for line in [*LINES, "ein Hund läuft", "zwei 漢字 hunde ", "<extra_id_3>a<extra_id_0>"]:
        ids = tokenizer.encode_source(line)
        assert [order[i] for i in ids] == theirs(line).input_ids and ids == tokenizer.encode_target(line)
        assert tokenizer.decode_target(ids) == theirs.decode([order[i] for i in ids], skip_special_tokens=True)
        spans = tokenizer.source_spans(line)
        assert len(spans) == len(ids) - 1 and all(a <= b <= len(line) for a, b in spans)


def test_the_native_engine_agrees(imported: tuple[Path, Imported]) -> None:
    check_native_engine(imported[1].folder, [line[:20] for line in LINES], 1e-3)


@pytest.mark.parametrize("kind", ["v1.1", "byt5, one layer"])
def test_greedy_text_is_that_of_generate(kind: str, tmp_path: Path) -> None:
    """As a user would call `generate`, but without the padding token, which our search never writes."""
    import transformers

    source = t5_checkpoint(tmp_path / "checkpoint", kind)
    check = tmp_path / "lines.txt"
    check.write_text("\n".join(line for line in LINES if line))
    _, network, ours = both((source, import_model(source, tmp_path / "model", check)))
    package: Any = transformers
    model = package.T5ForConditionalGeneration.from_pretrained(source)
    tokenizer = package.AutoTokenizer.from_pretrained(source)
    lines = [line for line in LINES if line]
    src, mask = collate_source([ours.encode_source(line) for line in lines])
    settings = SearchSettings(beam=1, alpha=0, max_extra=2)
    for line, (one,) in zip(lines, generate(ModelStepper(network), src, mask, settings), strict=True):
        inputs = tokenizer(line, return_tensors="pt")
        limit = max(1, len(one.tokens))
        row = model.generate(**inputs, max_new_tokens=limit, do_sample=False, bad_words_ids=[[0]])
        assert ours.decode_target(one.tokens) == tokenizer.decode(row[0], skip_special_tokens=True)
