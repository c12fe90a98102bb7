"""P9: imported translation models compute the same as `transformers`, text in and text out.

MarianMT, BART, mBART, M2M-100, SMaLL-100, NLLB, T5, mT5, ByT5 and MADLAD-400.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sentencepiece
import torch
from torch import Tensor

from dragoman import Translator
from dragoman.data.batching import collate_source
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import TransformersRuntime
from dragoman.formats.importing.importer import Imported, _plan, import_model
from dragoman.models.seq2seq import Model
from dragoman.models.transformer import Transformer
from dragoman.nn.attention import SelfAttention
from dragoman.nn.layers import DecoderLayer, EncoderLayer
from dragoman.tokenizers import BOS, UNK, Tokenizer
from every_kind import covering
from imported_checks import loaded, random_targets, set_values
from small_run import Cli, write_lines
from transformers_checkpoints import (
    BART_LINES,
    BARTS,
    MARIAN_LINES,
    MARIANS,
    T5_LINES,
    T5S,
    bart_checkpoint,
    marian_checkpoint,
    t5_checkpoint,
)

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use
WRITE = {"marian": marian_checkpoint, "bart": bart_checkpoint, "t5": t5_checkpoint}
LINES = {"marian": MARIAN_LINES, "bart": BART_LINES, "t5": T5_LINES}
CASES = [(family, name) for family, names in (("marian", MARIANS), ("bart", BARTS), ("t5", T5S)) for name in names]
MAIN = {
    ("marian", "two vocabularies"), ("bart", "bart odd"), ("bart", "mbart-50"), ("bart", "nllb"),
    ("t5", "v1.0, one layer, wide heads"), ("t5", "mt5"), ("t5", "madlad"),
}  # fmt: skip


class Case(NamedTuple):
    """A checkpoint, what was imported from it, and lines of text."""

    family: str
    source: Path
    done: Imported
    lines: list[str]

    def both(self) -> tuple[TransformersRuntime, Model, Tokenizer]:
        network, tokenizer = loaded(self.done.folder)
        bias = network.output.bias
        assert isinstance(bias, Tensor)
        vocabulary = _plan(Checkpoint(self.source))[1].vocabulary
        return TransformersRuntime(self.source, vocabulary, bias.detach()), network, tokenizer


def imported_case(folder: Path, family: str, name: str) -> Case:
    source = WRITE[family](folder / "checkpoint", name)
    check = write_lines(folder / "lines.txt", [line for line in LINES[family] * 2 if line])
    return Case(
        family, source, import_model(source, folder / "model", None if name == "untied" else check), LINES[family]
    )


@pytest.fixture(scope="module", params=covering(CASES, MAIN), ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return imported_case(tmp_path_factory.mktemp("translator"), *request.param)


# -------------------------------------------------------------------------------------------------------------- results


class ExactNorm(torch.nn.Module):
    """The norm of T5 computes the mean square in float32, which would be the largest difference in float64."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def make_t5_exact(model: Any, ours: Model) -> None:
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


def make_marian_exact(model: Any) -> None:
    """Set their position table in float64; `transformers` stores it in float32, which would be the largest error."""
    for stack in (model.model.encoder, model.model.decoder):
        count, d_model = stack.embed_positions.weight.shape
        angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        stack.embed_positions.weight.data = torch.from_numpy(table)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_equal(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    runtime, network, tokenizer = case.both()
    tokenizer = tokenizer.some_direction
    runtime.model.to(dtype)
    network.to(dtype)
    if dtype == torch.float64 and case.family == "marian":
        make_marian_exact(runtime.model)
    if dtype == torch.float64 and case.family == "t5":
        make_t5_exact(runtime.model, network)
    never = [*runtime.added, *([BOS] if runtime.excluded else [])]
    kept = [token for token in range(tokenizer.target_size) if token not in never]
    for line, row in zip(case.lines, random_targets(tokenizer, len(case.lines)), strict=True):
        source, target = tokenizer.encode_source(line), [*tokenizer.target_start, *row]
        theirs = runtime.logits(source, target)
        with torch.no_grad():
            ours = network(torch.tensor([source]), None, torch.tensor([[BOS, *target]]))[0]
        assert (ours[:, never] < -50).all() and (theirs[:, kept] > -50).all()
        scale = max(1.0, float(ours[:, kept].abs().max())) if case.family == "t5" else 1.0
        assert (ours - theirs)[:, kept].abs().max() < tolerance * scale


def test_text_becomes_the_same_ids_and_the_same_text(case: Case) -> None:
    """For each language; compared with the package directly, not through the import's own comparison."""
    from transformers import AutoTokenizer

    vocabulary = _plan(Checkpoint(case.source))[1].vocabulary
    if vocabulary.source[UNK] == 0:
        pytest.skip("T5Tokenizer has 2 as <unk>")
    tokenizer, theirs = loaded(case.done.folder)[1], AutoTokenizer.from_pretrained(case.source)
    others = {"marian": [">>deu<<"], "t5": ["<extra_id_3>a<extra_id_0>"]}.get(case.family, [])
    for code in tokenizer.languages[0][:6] or [None]:
        if code is not None:
            theirs.src_lang = theirs.tgt_lang = code
        ours = tokenizer.between(code, code if tokenizer.target_is_required else None)
        for line in [*case.lines, "ein Hund läuft", "zwei 漢字 hunde", *others] if code is None else case.lines[:2]:
            ids, target = ours.encode_source(line), ours.encode_target(line)
            assert [vocabulary.source[i] for i in ids] == theirs(line).input_ids
            if code is None:
                assert [vocabulary.target[i] for i in target] == theirs(text_target=line).input_ids
                text = theirs.decode([vocabulary.target[i] for i in target], skip_special_tokens=True)
                assert ours.decode_target(target) == text
            spans = ours.source_spans(line)
            assert len(spans) <= len(ids) and all(a <= b <= len(line) for a, b in spans)
        if tokenizer.target_is_required:
            forced = theirs.convert_tokens_to_ids(code if "m2m" not in str(type(theirs)) else f"__{code}__")
            assert [vocabulary.target[i] for i in ours.target_start] == [forced]
        if case.family != "marian":  # of which some pieces are not listed
            assert ours.decode_target(ours.encode_target("a dog")) == "a dog"


@pytest.mark.parametrize(
    "kind",
    [("marian", "tied"), ("marian", "two vocabularies"), ("t5", "v1.1"), ("t5", "byt5, one layer")],
    ids="-".join,
)
def test_greedy_text_is_that_of_generate(kind: tuple[str, str], tmp_path: Path) -> None:
    """As a user would call `generate`, but without the padding token, which our search never writes."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    case = imported_case(tmp_path, *kind)
    runtime, network, ours = case.both()
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(case.source)
    theirs = AutoTokenizer.from_pretrained(case.source)
    lines = [line for line in case.lines if line]
    src, mask = collate_source([ours.encode_source(line) for line in lines])
    settings = SearchSettings(beam=1, alpha=0, max_extra=2)
    for line, (one,) in zip(lines, generate(ModelStepper(network), src, mask, settings), strict=True):
        limit = max(1, len(one.tokens))
        never = [[runtime.pad]] if case.family == "t5" else model.generation_config.bad_words_ids
        row = model.generate(
            **theirs(line, return_tensors="pt"), max_new_tokens=limit, do_sample=False, num_beams=1, bad_words_ids=never
        )
        assert [runtime.target[token] for token in one.tokens] == row[0, 1 : 1 + len(one.tokens)].tolist()
        assert ours.decode_target(one.tokens) == theirs.decode(row[0, : 1 + limit], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["m2m", "madlad"])
def test_ids_that_transformers_does_not_make(name: str, tmp_path: Path) -> None:
    """SMaLL-100 has the target language before the source alone; `<unk>`, which begins targets of MADLAD-400, is 0."""
    from transformers import AutoModelForSeq2SeqLM, M2M100Tokenizer

    source = WRITE["t5" if name == "madlad" else "bart"](tmp_path / "checkpoint", name)
    lines = write_lines(tmp_path / "lines.txt", [*(line for line in BART_LINES if line), "<2sl> a dog"])
    if name == "m2m":
        theirs = M2M100Tokenizer.from_pretrained(source)
        set_values(source, "tokenizer_config.json", tokenizer_class="SMALL100Tokenizer", tgt_lang=None)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(source)
    done = import_model(source, tmp_path / "model", lines)
    assert done.met and done.tokenizer is not None and done.tokenizer.lines > (100 if name == "m2m" else 30)
    network, tokenizer = loaded(done.folder)
    order, found = _plan(Checkpoint(source))[1].vocabulary.source, set()
    for code in ("de", "sl"):
        if name == "m2m":
            ours, text = tokenizer.between(None, code), "a dog runs"
            ids = [theirs.get_lang_id(code), *theirs(text, add_special_tokens=False).input_ids, 2]
        else:
            ours, text = tokenizer, f"<2{code}> a dog runs"
            ids = [*sentencepiece.SentencePieceProcessor(model_file=str(source / "spiece.model")).encode(text), 2]
        assert ours.target_start == [] and [order[token] for token in ours.encode_source(text)] == ids
        row = model.generate(torch.tensor([ids]), num_beams=1, max_new_tokens=9, bad_words_ids=[[1]])[0].tolist()
        src, mask = collate_source([ours.encode_source(text)])
        ((one,),) = generate(ModelStepper(network), src, mask, SearchSettings(beam=1, alpha=0, max_extra=5))
        assert row[0] == (2 if name == "m2m" else 0)
        assert [order[token] for token in one.tokens][:9] == [token for token in row[1:] if token != 2]
        found.add(tuple(one.tokens))
    assert len(found) == 2


@pytest.mark.parametrize("options", [{"safetensors": False}, {"kind": "bpe"}])
def test_pytorch_files_and_bpe_give_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    source = marian_checkpoint(tmp_path / "checkpoint", "one layer, unscaled", **options)
    found = import_model(source, tmp_path / "model")
    assert found.parity.met and found.tokenizer.met


# ----------------------------------------------------------------------------------------------------------- directions


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder imported from an mBART-50 whose default target is German."""
    folder = tmp_path_factory.mktemp("mbart")
    return import_model(bart_checkpoint(folder / "checkpoint", "mbart-50"), folder / "model").folder


def test_languages_of_a_call_and_of_a_line(multilingual: Path) -> None:
    translator = Translator.load(multilingual, engine="pytorch", quantize="none")
    line = "a dog runs across a field"
    given = {code: translator.translate([line], source_language="en_XX", target_language=code)[0].tokens[0]
             for code in ("de_DE", "sl_SI")}  # fmt: skip
    assert given == {"de_DE": "<de_DE>", "sl_SI": "<sl_SI>"}
    (tagged,) = translator.translate([f">>sl_SI<< {line}"], source_language="en_XX")
    (named,) = translator.translate([line], source_language="en_XX", target_language="sl_SI")
    assert (tagged.text, tagged.score, tagged.source) == (named.text, named.score, f">>sl_SI<< {line}")
    (default,) = translator.translate([line], source_language="en_XX")
    assert default.tokens[0] == "<de_DE>" and "sl_SI" not in tagged.text
    (score,) = translator.score([line], [named.text], source_language="en_XX", target_language="sl_SI")
    assert score.tokens[0] == "<sl_SI>"
    last = list(translator.stream_tokens(line, source_language="en_XX", target_language="sl_SI"))[-1]
    assert last.text == named.text


def test_languages_on_the_command_line(multilingual: Path, cli: Cli) -> None:
    line = b"a dog runs across a field\n"
    code, named, _ = cli("translate", multilingual, "--from", "en_XX", "--to", "sl_SI", "--jsonl", stdin=line)
    _, tagged, _ = cli("translate", multilingual, "--from", "en_XX", "--jsonl", stdin=b">>sl_SI<< " + line)
    assert code == 0 and json.loads(named)["text"] == json.loads(tagged)["text"]
    code, _, err = cli("translate", multilingual, "--from", "en_XX", "--to", "xx", stdin=line)
    assert code == 2 and "accepted: de_DE, en_XX, sl_SI, zh_CN" in err


def test_unknown_languages_are_refused_with_a_list(multilingual: Path) -> None:
    translator = Translator.load(multilingual, engine="pytorch", quantize="none")
    with pytest.raises(UsageError) as caught:
        translator.translate(["a dog"], source_language="en", target_language="xx")
    assert str(caught.value).count("accepted: de_DE, en_XX, sl_SI, zh_CN") == 2
    with pytest.raises(UsageError, match=r">>xx_XX<<.*accepted: de_DE"):
        translator.translate([">>xx_XX<< a dog"], source_language="en_XX")
