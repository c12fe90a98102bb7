"""Language models that translate by a prompt: equal to `transformers`, and used like encoder-decoder models."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.config import parse_config
from dragoman.decoding.search_types import Hypothesis
from dragoman.documents import translate_document
from dragoman.errors import ConfigError, UsageError
from dragoman.formats.importing.importer import import_model
from dragoman.pipelines.translation import Translator
from dragoman.serve.app import create_application
from dragoman.tokenizers import EOS
from dragoman.tokenizers.prompts import PromptTokenizer
from imported_checks import set_values
from served_models import configured
from small_run import write_lines
from transformers_checkpoints import language_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use
PLAIN = "Translate {source_language} to {target_language}:\n{source_language}: {source}\n{target_language}:"
TEXTS = ["A dog runs.", "two people sit on a bench", "x", "Don't run across the field, and sit on it!"]
EXTRA = 12
MODELS = {
    "llama": f"user</s>\n{PLAIN}", "llama, biases, bytes": PLAIN, "qwen2": f"user<|endoftext|>\n{PLAIN}",
    "gpt2": PLAIN,
}  # fmt: skip
"""Checkpoint -> template, some with the name of a special token."""


def prompted(folder: Path, name: str, template: str) -> tuple[Path, Path]:
    """A checkpoint with random weights, and the model that was imported from it to translate German to English."""
    sizes = {"n_positions": 256} if name == "gpt2" else {}
    source = language_checkpoint(folder / "checkpoint", name, **sizes)
    set_values(source, **({} if name == "gpt2" else {"max_position_embeddings": 256}))
    prompt = {"template": template, "source_language": "de", "target_language": "en"}
    import_model(source, folder / "model", prompt=prompt)
    return source, folder / "model"


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    name = request.param
    return *prompted(tmp_path_factory.mktemp("prompted"), name, MODELS[name]), MODELS[name]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompted(tmp_path_factory.mktemp("model"), "llama, biases, bytes", PLAIN)[1]


def prompt_of(text: str, template: str = PLAIN) -> str:
    return template.format(source=text, source_language="German", target_language="English")


def test_greedy_translations_are_the_continuations_of_generate(both: tuple[Path, Path, str]) -> None:
    """The same prompt gives the same tokens, with the log-probabilities of `transformers`."""
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    source, folder, template = both
    theirs: Any = AutoModelForCausalLM.from_pretrained(source)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(source)
    translator = Translator.load(folder, engine="pytorch")
    assert isinstance(translator.tokenizer, PromptTokenizer)
    ids, found = translator.tokenizer.encode_sources(TEXTS), translator.translate(TEXTS, beam=1, max_extra=EXTRA)
    for text, own, translation in zip(TEXTS, ids, found, strict=True):
        prompt = [tokenizer.bos_token_id, *tokenizer(prompt_of(text, template), add_special_tokens=False).input_ids]
        limit = len(own) - translator.settings.frame + EXTRA  # of the source, without the template
        row = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(row), "do_sample": False, "pad_token_id": 0}
        shown = theirs.generate(row, max_new_tokens=limit - 1, **options)[0, len(prompt) :]
        assert len(prompt) == len(own) + 1
        continuation = tokenizer.decode(shown, skip_special_tokens=True).partition("\n")[0].strip()
        if "repetition" not in translation.flags and "empty" not in translation.flags:
            assert translation.text == continuation
            with torch.no_grad():
                log_probs = theirs(torch.tensor([[*prompt, *shown]])).logits[0, len(prompt) - 1 :].log_softmax(-1)
            expected = [log_probs[i, token].item() for i, token in enumerate(shown.tolist())]
            count = min(len(expected), len(translation.token_log_probs))
            assert translation.token_log_probs[:count] == pytest.approx(expected[:count], abs=1e-4)
    assert any("truncated" not in each.flags for each in found) or any(len(each.tokens) > EXTRA for each in found)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_batch_equals_single_sentences(both: tuple[Path, Path, str], quantize: Any) -> None:
    """With the native engine to the bit, and in float32 equal to PyTorch."""
    native = Translator.load(both[1], engine="native", quantize=quantize)
    for beam in (1, 3):
        options: dict[str, Any] = {"beam": beam, "nbest": min(beam, 2), "max_extra": EXTRA}
        batch = native.translate(TEXTS, **options)
        assert batch == [native.translate([text], **options)[0] for text in TEXTS]
        if quantize == "none":
            reference = Translator.load(both[1], engine="pytorch")
            expected = reference.translate(TEXTS, **options)
            alone = [reference.translate([text], **options)[0] for text in TEXTS]
            for found in (batch, alone):
                for one, other in zip(found, expected, strict=True):
                    assert (one.text, one.flags) == (other.text, other.flags)
                    assert one.score == pytest.approx(other.score, abs=1e-4)
                    assert [each.text for each in one.nbest] == [each.text for each in other.nbest]


@pytest.mark.parametrize("engine", ["native", "pytorch"])
def test_scores_are_those_of_the_continuation(model: Path, engine: Any) -> None:
    translator = Translator.load(model, engine=engine, quantize="none")
    found = translator.translate(TEXTS, beam=3, max_extra=EXTRA)
    ids = translator.tokenizer.encode_sources(TEXTS)
    targets = [[*translator.tokenizer.target_ids(one.tokens[:-1]), EOS] for one in found]
    scored = translator.backend.score(list(zip(ids, targets, strict=True)), 400)
    for one, log_probs in zip(found, scored, strict=True):
        assert one.log_prob == pytest.approx(math.fsum(log_probs), abs=1e-4)
    *_, streamed = translator.stream_tokens(TEXTS[0], beam=3, max_extra=EXTRA)
    assert streamed.text == found[0].text
    drawn = [translator.translate(TEXTS[:2], sample=True, beam=1, seed=5, max_extra=EXTRA) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert translator.translate(["a dog"], prefix="the bench", max_extra=EXTRA)[0].text.startswith("the bench")
    assert "field" in translator.translate(["a dog"], glossary={"dog": "field"}, max_extra=EXTRA)[0].text


def test_a_translation_ends_with_its_line(model: Path) -> None:
    translator = Translator.load(model, engine="pytorch")
    tokenizer = translator.tokenizer
    first, rest = (tokenizer.encode_target(text)[:-1] for text in ("the dog", "runs"))
    ids = [*first, *tokenizer.encode_target("\n")[:-1], *rest]
    found = Hypothesis(ids, -9.0, -9.0, [-1.0] * len(ids) + [-0.5], True)
    (line,) = translator._line(translator.settings)([found])
    assert tokenizer.decode_target(ids) == tokenizer.decode_target(line.tokens) == "the dog"
    assert not line.truncated and line.token_log_probs == [-1.0] * (len(line.tokens) + 1)
    assert line.log_prob == -1.0 * len(line.token_log_probs) and len(line.tokens) < len(ids)


def test_special_tokens_of_a_source_are_text(tmp_path: Path) -> None:
    _, folder = prompted(tmp_path, "llama", "</s>{source}</s>\n")
    tokenizer = Translator.load(folder, engine="pytorch").tokenizer
    assert [row.count(EOS) for row in tokenizer.encode_sources(["a dog", "a </s> dog"])] == [2, 2]


def test_directions_documents_and_the_server(model: Path) -> None:
    translator = Translator.load(model)
    french = translator.translate(TEXTS, source_language="fr", max_extra=EXTRA)
    assert french == Translator.load(model).translate(TEXTS, source_language="fr", max_extra=EXTRA)
    assert translator.tokenizer.between("fr", None).encode_source("a") != translator.tokenizer.encode_source("a")
    offline = [translation.text for translation in translator.translate(TEXTS)]
    served, _ = create_application(configured([model], viewer=False), print)
    with TestClient(served, base_url="http://127.0.0.1") as client:
        answers = [client.post("/translate", json={"q": q, "source": "de", "target": "en"}) for q in (TEXTS, TEXTS[0])]
    assert [answer.json()["translatedText"] for answer in answers] == [offline, offline[0]]
    for name, text in {"a.md": f"# {TEXTS[0]}\n\n{TEXTS[1]}\n", "a.srt": f"1\n00:00:01,000 --> 00:00:02,000\n{TEXTS[0]}\n"}.items():
        source = model.parent / name
        source.write_text(text)
        translate_document(translator, source, model.parent / f"out-{name}")
        found = (model.parent / f"out-{name}").read_text()
        assert offline[0] in found and TEXTS[0] not in found


def test_what_needs_an_encoder_is_refused(model: Path) -> None:
    translator = Translator.load(model)
    with pytest.raises(UsageError, match="a model with an encoder"):
        translator.align(["a"], ["b"])
    with pytest.raises(UsageError, match="no tags; write it into the template"):
        translator.tag = "<bt>"
    with pytest.raises(UsageError, match="no shortlist|shortlist.bin"):
        Translator.load(model, shortlist=True)


TEMPLATES = {
    "no source": ["template contains {source} 0 times"],
    "{source} {source}": ["template contains {source} 2 times"],
    "{text} {source} {x}": ["{text}, {x}; accepted: {source}, {source_language}, {target_language}"],
    "{source_language} {y}": ["{source} 0 times", "{y}; accepted", "source_language is not set"],
}  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_all_problems_of_a_template_are_in_one_message(template: str, tmp_path: Path) -> None:
    document = {"data": {"kind": "text", "train": ["a"], "prompt": {"template": template}}, "model": {"architecture": "decoder_only"}}
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    assert all(problem in str(caught.value) for problem in TEMPLATES[template])
    source = language_checkpoint(tmp_path / "checkpoint", "llama")
    with pytest.raises(UsageError) as refused:
        import_model(source, tmp_path / "model", prompt={"template": template})
    assert all(problem in str(refused.value) for problem in TEMPLATES[template])
    assert not (tmp_path / "model").exists()


def test_other_models_and_wrong_options(tmp_path: Path) -> None:
    from transformers_checkpoints import marian_checkpoint

    with pytest.raises(UsageError) as caught:
        import_model(marian_checkpoint(tmp_path / "marian"), tmp_path / "model", prompt={"template": "x"})
    assert "a transformer for data of kind parallel" in str(caught.value) and "{source} 0 times" in str(caught.value)
    with pytest.raises(ConfigError, match="prompt"):
        parse_config({"data": {"train": [{"source": "a", "target": "b"}], "prompt": {"template": "{source}"}}})
    source = language_checkpoint(tmp_path / "checkpoint", "llama")
    run = CliRunner().invoke(app, ["import", str(source), str(tmp_path / "model"), "--from", "de"])
    assert isinstance(run.exception, UsageError) and "--prompt" in str(run.exception)
    short = import_model(source, tmp_path / "short", prompt={"template": PLAIN.replace("_language", "")[:9] + "{source}"})
    with pytest.raises(UsageError, match=r"data.max_tokens = 48; accepted: at least"):
        Translator.load(short.folder)
