"""A translator on the native engine: accepted options, the packed model, and agreement with the PyTorch backend.

The model is the golden one, whose weights are the same everywhere.  Where tokens are compared, the PyTorch backend runs
in float64, so that the result depends neither on the processor nor on the number of threads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.decoding import loader as loading
from dragoman.decoding.native.library import NativeLibrary, load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.errors import UsageError
from dragoman.interpret.ablation import measure_effect
from dragoman.models.seq2seq import Model
from dragoman.nn.record import record
from dragoman.pipelines.lines import Translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS
from near_ties import assert_same_search
from small_run import digit_pairs, trained

native = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")
SOURCES = [source for source, _ in digit_pairs(40, seed=11)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    golden = Path(__file__).parents[1] / "golden" / "model_v1"
    return shutil.copytree(golden, tmp_path_factory.mktemp("fast") / "model")


def exact(run: Path) -> Translator:
    """The PyTorch backend in float64."""
    translator = Translator.load(run, engine="pytorch")
    translator.model.double()
    return translator


def assert_same_as_plain(fast: list[Translation], run: Path, **settings: Any) -> None:
    """The same translations of the first SOURCES as by PyTorch."""
    plain = Translator.load(run, engine="pytorch")

    def translate(model: Model) -> list[Translation]:
        translator = Translator(model, plain.tokenizer, plain.settings, plain.max_source)
        return translator.translate(SOURCES[: len(fast)], **settings)

    def same(one: Translation, other: Translation) -> bool:
        return (one.tokens, one.flags) == (other.tokens, other.flags) and (
            [a.text for a in one.nbest] == [a.text for a in other.nbest]
            and one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
        )

    assert_same_search(fast, translate, plain.model, same)


@native
def test_scores_are_those_of_float32_unless_int8_is_requested(run: Path) -> None:
    sources, targets = SOURCES[:12], [target for _, target in digit_pairs(12, seed=12)]
    default = Translator.load(run, engine="native")
    plain = Translator.load(run, engine="pytorch").score(sources, targets)
    int8 = Translator.load(run, quantize="int8").score(sources, targets)
    for fast in (default, Translator.load(run, quantize="none", engine="native")):
        for one, other in zip(fast.score(sources, targets), plain, strict=True):
            assert one.tokens == other.tokens
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
    assert max(abs(a.log_prob - b.log_prob) for a, b in zip(int8, plain, strict=True)) > 1e-3
    assert "int8" in default.description, "translating is still done in int8"
    assert default.translate(SOURCES) == Translator.load(run, quantize="int8").translate(SOURCES)


@native
def test_a_score_is_of_the_loaded_checkpoint_though_the_run_went_on(tmp_path: Path) -> None:
    copy = trained(tmp_path)
    steps = sorted((path.name for path in (copy / "checkpoints").iterdir() if path.name.isdigit()), key=int)
    (copy / "best").write_text(f"checkpoints/{steps[0]}\n", encoding="utf-8")
    translator = Translator.load(copy)
    before = Translator.load(copy, quantize="none").score(["one two"], ["deux un"])
    (copy / "best").write_text(f"checkpoints/{steps[-1]}\n", encoding="utf-8")
    assert translator.score(["one two"], ["deux un"]) == before
    assert Translator.load(copy, quantize="none").score(["one two"], ["deux un"]) != before


@native
def test_the_effect_of_no_change_is_none(run: Path) -> None:
    references = [target for _, target in digit_pairs(40, seed=11)]
    found = measure_effect(
        Translator.load(run), {"decoder.layers.0.cross_attn.heads": lambda heads: heads}, SOURCES, references
    )
    assert found.loss.before == found.loss.after
    assert found.changed == () and found.before == found.after


@native
def test_drawn_with_the_same_seed_it_is_the_same_draw(run: Path) -> None:
    settings: dict[str, Any] = {"sample": True, "nbest": 3, "temperature": 1.3, "seed": 4}
    fast = Translator.load(run, quantize="none", engine="native").translate(SOURCES[:12], **settings)
    assert_same_as_plain(fast, run, **settings)


@native
def test_int8_costs_little(run: Path) -> None:
    plain = exact(run).translate(SOURCES)
    fast = Translator.load(run, quantize="int8").translate(SOURCES)
    same = sum(one.text == other.text for one, other in zip(fast, plain, strict=True))
    assert same >= 0.9 * len(SOURCES)


@native
def test_invalid_text_is_named(run: Path) -> None:
    translator = Translator.load(run, quantize="none")
    with pytest.raises(UsageError, match="prefix = 3"):
        translator.translate(["one"], prefix=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="of type list"):
        list(translator.stream_tokens(["one"]))  # type: ignore[arg-type]


@native
def test_beyond_the_packed_positions_the_plain_path_takes_over(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = Translator.load(run, quantize="none", engine="native")
    translator.settings = SearchSettings(beam=2, max_extra=1020)
    short, long = translator.translate([SOURCES[0], " ".join(SOURCES[:3])], max_extra=1014)
    plain = exact(run).translate([short.source, long.source], beam=2, max_extra=1014)
    assert [short.tokens, long.tokens] == [t.tokens for t in plain]
    assert [record.getMessage()[:50] for record in caplog.records] == [
        "texts that may exceed the 1,024 positions of the n"
    ]
    translator.translate([long.source], max_extra=1014)
    assert len(caplog.records) == 1


@native
def test_a_folder_that_cannot_be_written_is_no_hindrance(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Translator.load(run, quantize="int8")
    (run / "packed" / "int8.json").unlink()

    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    translator = Translator.load(run, quantize="int8", engine="native")
    assert translator.translate(SOURCES[:1])[0].text
    assert not (run / "packed" / "int8.json").exists()


@native
def test_an_idle_server_does_without_large_modules(run: Path) -> None:
    """NumPy takes an eighth of the memory of a server with a small model, all others together a twentieth."""
    Translator.load(run)
    program = f"""
import sys
import dragoman.serve.app
from dragoman import Translator
from dragoman.serve.models import Direction
from dragoman.serve.directions import Directions
from dragoman.serve.uvicorn_server import server_config
from dragoman.serve.app import create_server
server_config(create_server(Directions([Direction(Translator.load({str(run)!r}), "model")]))).load()
unused = {{"numpy", "torch", "sqlite3", "zstandard", "websockets", "dragoman.documents", "dragoman.markup"}}
assert not unused & set(sys.modules), unused & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "int4"}, ["quantize = 'int4'", "auto, int8, bf16, none"]),
        ({"engine": "faster", "threads": 0}, ["engine = 'faster'", "threads = 0"]),
        ({"engine": "pytorch", "quantize": "int8"}, ["the PyTorch backend supports float32 only"]),
        ({"engine": "native", "device": "cuda"}, ["supports the CPU, not cuda"]),
    ],
)
def test_unavailable_options_are_reported(run: Path, options: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Translator.load(run, **options)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)


def test_bfloat16_is_not_packed_where_it_cannot_be_multiplied(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = NativeLibrary("avx2", SimpleNamespace(dragoman_supports_bfloat16=lambda: 0))  # type: ignore[arg-type]
    monkeypatch.setattr(loading, "load_native", lambda: without)
    with pytest.raises(UsageError, match="does not support bfloat16 multiplication"):
        Translator.load(run, quantize="bf16")
    assert not list(run.rglob("bfloat16*"))


@native
def test_the_engine_step_by_step_is_the_plain_stepper(run: Path, tmp_path: Path) -> None:
    from dragoman.decoding.native.engine import Engine
    from dragoman.decoding.native.stepper import EngineStepper

    model = exact(run).model.eval()
    engine = Engine(pack(model, tmp_path / "packed.bin", "float32"))
    src = torch.tensor([[5, 6, 7, EOS], [8, EOS, 0, 0]])
    mask = src != 0
    for settings in (SearchSettings(beam=4, nbest=3), SearchSettings(beam=1), SearchSettings(sample=True, nbest=2)):
        ours = generate(EngineStepper(engine, 2), src, mask, settings)
        theirs = generate(ModelStepper(model), src, mask, settings)
        assert [[h.tokens for h in some] for some in ours] == [[h.tokens for h in some] for some in theirs]
    with pytest.raises(UsageError, match="length"):
        EngineStepper(engine).start(src, mask, 1, 10**6)


@native
@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 3}, {"sample": True}])
def test_stream_tokens_on_the_native_engine(run: Path, settings: dict[str, int]) -> None:
    plain, fast = exact(run), Translator.load(run, quantize="none", engine="native")
    for source in SOURCES[:5]:
        assert list(fast.stream_tokens(source, **settings)) == list(plain.stream_tokens(source, **settings))


@native
def test_alignments_on_the_engine(run: Path) -> None:
    targets = [target for _, target in digit_pairs(9, seed=12)]
    plain = exact(run).align(SOURCES[:9], targets)
    for threads in (1, 2):
        fast = Translator.load(run, quantize="none", engine="native", threads=threads).align(SOURCES[:9], targets)
        for one, other in zip(fast, plain, strict=True):
            assert (one.source, one.target) == (other.source, other.target)
            assert one.weights.shape == (len(one.target), len(one.source))
            assert one.weights == pytest.approx(other.weights, abs=1e-5)
            assert one.weights.sum(1) == pytest.approx(1.0, abs=1e-5)


@native
def test_the_model_is_there_after_to_torch_only(run: Path) -> None:
    translator = Translator.load(run, quantize="none", engine="native")
    before = translator.translate(SOURCES[:3])
    with pytest.raises(UsageError, match=r"the backend is native engine .*; call to_torch\(\) first"):
        _ = translator.model
    assert translator.description.startswith("native engine")
    with record(translator.to_torch().model, "decoder.layers.*.cross_attn.weights") as seen:
        after = translator.translate(SOURCES[:3])
    assert translator.description.startswith("PyTorch backend") and len(seen) == 1
    assert [t.tokens for t in after] == [t.tokens for t in before]
