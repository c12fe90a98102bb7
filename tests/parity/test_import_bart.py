"""P9: imported BART, mBART, M2M-100 and NLLB checkpoints compute the same as `transformers`, for each direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bart_checkpoints import CONFIGURATIONS, LINES, bart_checkpoint
from dragoman import Translator
from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.importer import Imported, _plan, import_model
from dragoman.formats.importing.reference import TransformersRuntime
from dragoman.interpret.explain.explain import explain, write_explanation
from dragoman.models.seq2seq import Model
from dragoman.nn.record import record
from dragoman.tokenizers import BOS, Tokenizer
from every_kind import covering
from imported_checks import check_native_engine, random_targets
from imported_checks import loaded as both
from small_run import Cli

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use


@pytest.fixture(scope="module", params=covering(CONFIGURATIONS, {"bart odd", "mbart-50", "m2m odd", "nllb"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Imported]:
    """The folder of a checkpoint, and what was imported from it."""
    folder = tmp_path_factory.mktemp("bart")
    (folder / "lines.txt").write_text("\n".join(LINES * 2))
    source = bart_checkpoint(folder / "checkpoint", request.param)
    return source, import_model(source, folder / "model", folder / "lines.txt")


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder imported from an mBART-50 whose default target is German."""
    folder = tmp_path_factory.mktemp("mbart")
    return import_model(bart_checkpoint(folder / "checkpoint", "mbart-50"), folder / "model").folder


def loaded(found: Imported) -> tuple[Model, Tokenizer]:
    network, tokenizer = both(found.folder)
    return network, tokenizer.some_direction


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_equal(imported: tuple[Path, Imported], dtype: torch.dtype, tolerance: float) -> None:
    source, found = imported
    network, tokenizer = loaded(found)
    bias = network.output.bias
    assert isinstance(bias, torch.Tensor)
    runtime = TransformersRuntime(source, _plan(Checkpoint(source))[1].vocabulary, bias.detach())
    runtime.model.to(dtype)
    network.to(dtype)
    for line, row in zip(LINES, random_targets(tokenizer, len(LINES)), strict=True):
        target = [*tokenizer.target_start, *row]
        ids = tokenizer.encode_source(line)
        theirs = runtime.logits(ids, target)
        with torch.no_grad():
            ours = network(torch.tensor([ids]), None, torch.tensor([[BOS, *target]]))[0]
        assert (ours[:, runtime.added] < -50).all()
        kept = [token for token in range(tokenizer.target_size) if token not in runtime.added]
        assert (ours - theirs)[:, kept].abs().max() < tolerance


def test_the_report_counts_no_difference(imported: tuple[Path, Imported]) -> None:
    """Greedy search, beam search, and the tokens of each language."""
    parity, tokenizer = imported[1].parity, imported[1].tokenizer
    assert parity.largest < 1e-4 and parity.cases == 16
    assert parity.greedy.same == parity.cases and parity.beam.different == 0
    assert tokenizer.met and tokenizer.lines > 40


def test_every_language_has_the_ids_of_transformers(imported: tuple[Path, Imported]) -> None:
    """Compared with the package directly, not through the import's own comparison."""
    from transformers import AutoTokenizer

    source, found = imported
    tokenizer = Tokenizer.load(found.folder)
    vocabulary = _plan(Checkpoint(source))[1].vocabulary
    theirs: Any = AutoTokenizer.from_pretrained(source)
    for code in tokenizer.languages[0][:6] or [None]:
        if code is not None:
            theirs.src_lang = theirs.tgt_lang = code
        ours = tokenizer.between(code, code if tokenizer.target_is_required else None)
        for line in LINES[:2]:
            assert [vocabulary.source[i] for i in ours.encode_source(line)] == theirs(line).input_ids
        if tokenizer.target_is_required:
            forced = theirs.convert_tokens_to_ids(code if "m2m" not in str(type(theirs)) else f"__{code}__")
            assert [vocabulary.target[i] for i in ours.target_start] == [forced]
        assert ours.decode_target(ours.encode_target("a dog")) == "a dog"


def test_the_native_engine_agrees(imported: tuple[Path, Imported]) -> None:
    found = imported[1]
    tokenizer = Tokenizer.load(found.folder)
    given: dict[str, Any] = {}
    if tokenizer.languages[0]:
        given["source_language"] = tokenizer.languages[0][0]
    if tokenizer.target_is_required:
        given["target_language"] = tokenizer.languages[1][-1]
    check_native_engine(found.folder, LINES, **given)


# ----------------------------------------------------------------------------------------------------------- directions


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


def test_an_imported_mbart_can_be_explained_and_recorded(multilingual: Path, tmp_path: Path) -> None:
    page = write_explanation(tmp_path / "page.html", explain(multilingual, ">>zh_CN<< a dog runs"))
    assert page.stat().st_size > 10_000
    network, tokenizer = both(multilingual)
    ids = tokenizer.between("en_XX", "zh_CN").encode_source("a dog")
    with record(network, "encoder.embedding_norm.normed") as seen, torch.no_grad():
        network(torch.tensor([ids]), None, torch.tensor([[BOS]]))
    assert seen.joined("encoder.embedding_norm.normed").shape == (1, len(ids), 24)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_every_reason_is_in_one_message(tmp_path: Path) -> None:
    folder = bart_checkpoint(tmp_path / "checkpoint", "mbart-50")
    settings = json.loads((folder / "config.json").read_text())
    changes = {"activation_function": "quick_gelu", "normalize_before": False, "pad_token_id": 7}
    (folder / "config.json").write_text(json.dumps(settings | changes))
    (folder / "sentencepiece.bpe.model").write_bytes(b"damaged")
    with pytest.raises(UsageError) as caught:
        import_model(folder, tmp_path / "model")
    for reason in ("'quick_gelu'; accepted: 'relu'", "normalize_before = False", "pad_token_id = 7; accepted: 1",
                   "cannot be read by sentencepiece"):  # fmt: skip
        assert reason in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = bart_checkpoint(tmp_path / "checkpoint", "nllb")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": 20}))
    with pytest.raises(UsageError, match=r"vocab_size of config\.json is 20"):
        import_model(folder, tmp_path / "model")
