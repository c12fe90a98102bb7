"""A shortlist from learning to translating: the command, both paths, bulk, and what is told when it cannot be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.decoding.loader import load_shortlist
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.shortlist import SHORTLIST
from dragoman.errors import DragomanError
from dragoman.models.model_folder import find_model, read_meta
from dragoman.pipelines.translation import Translator
from dragoman.training.run import average_run
from dragoman.training.shortlist import learn_shortlist
from dragoman.training.trainer import train
from small_run import Cli, digit_pairs, small_config, trained, write_corpus, write_lines

native = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")
SOURCES = [source for source, _ in digit_pairs(30, seed=11)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps and two checkpoints, without a shortlist."""
    return trained(tmp_path_factory.mktemp("shortlist"), "train.budget=12 steps", "train.keep=2")


@pytest.fixture(scope="module")
def listed(run: Path) -> Path:
    """The same with one that leaves words out."""
    learn_shortlist(run, best=3, frequent=4)
    return run


def test_the_command_trains_and_reports_the_accuracy(cli: Cli, run: Path) -> None:
    code, out, err = cli("shortlist", run, "--best", "4", "--frequent", "5")
    lines = out.decode().splitlines()

    assert code == 0 and "data: read 240 = kept 240" in err
    assert lines[0].startswith(f"learned from 240 pairs: {find_model(run) / SHORTLIST}")
    assert "of 56 tokens" in lines[1] and "measured on 12 held-out pairs" in lines[1]
    content = (find_model(run) / SHORTLIST).read_bytes()
    corpus = run.parent / "data" / "train"
    again = cli(
        "shortlist", run, "--best", "4", "--frequent", "5", "--source", f"{corpus}.src", "--target", f"{corpus}.tgt"
    )
    assert (again[0], again[1]) == (0, out) and (find_model(run) / SHORTLIST).read_bytes() == content


def test_data_are_found_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained with a relative data.root; the command starts at another directory."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    write_corpus(Path("data"))
    train(small_config(Path("data"), "train.budget=12 steps"), Path("run"))
    expected = read_meta(average_run(Path("run"), 2))["scores"]
    monkeypatch.chdir(tmp_path / "there")
    assert read_meta(average_run(Path("../run"), 2))["scores"] == expected and expected["valid_loss"] > 0
    assert learn_shortlist(Path("../run"), best=3, frequent=4).pairs == 240


def test_a_shortlist_that_excludes_needed_tokens_is_warned_about(cli: Cli, run: Path) -> None:
    """The vocabulary has 56 tokens: 40 frequent ones nearly suffice, one per source token does not."""
    code, _, err = cli("shortlist", run, "--best", "1", "--frequent", "0")
    assert code == 0 and re.search(r"warning: only \d?\d\.\d % of the reference tokens are candidates", err)
    code, _, err = cli("shortlist", run, "--best", "20", "--frequent", "56")
    assert code == 0 and "warning" not in err


def test_held_out_pairs_are_trained_on_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn_shortlist(run)
    content = (find_model(run) / SHORTLIST).read_bytes()
    monkeypatch.setattr("dragoman.training.shortlist._HELD_OUT_EVERY", 1)

    assert learn_shortlist(run).held_out == 240
    assert (find_model(run) / SHORTLIST).read_bytes() == content


def test_lines_in_lines_out_and_only_words_of_the_list(cli: Cli, listed: Path, tmp_path: Path) -> None:
    lines = ["", *SOURCES[:4], "   ", "", SOURCES[4], "\u3000"]
    text = write_lines(tmp_path / "in.txt", lines)
    code, out, err = cli("translate", listed, "--shortlist", "--input", text)
    rows = out.decode().split("\n")

    assert code == 0 and "shortlist (3 per token and 6)" in err
    assert len(rows) == len(lines) + 1
    assert [bool(row.strip()) for row in rows[:-1]] == [bool(line.strip()) for line in lines]
    translator, shortlist = Translator.load(listed, shortlist=True), load_shortlist(listed)
    for translation in translator.translate(SOURCES, beam=4):
        words = {
            translator.tokenizer.target_piece(i)
            for i in shortlist.of(translator.split(translation.source).parts[0].ids)
        }
        assert set(translation.tokens) <= words and len(words) < 30


def test_never_by_default(listed: Path) -> None:
    with_it, without = Translator.load(listed, shortlist=True), Translator.load(listed)

    assert "shortlist" in with_it.description and "shortlist" not in without.description
    assert [t.score for t in with_it.translate(SOURCES)] != [t.score for t in without.translate(SOURCES)]
    targets = [target for _, target in digit_pairs(30, seed=12)]
    assert with_it.score(SOURCES, targets) == without.score(SOURCES, targets)  # of all words, list or not


@native
@pytest.mark.parametrize(
    "settings", [{"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True, "seed": 4}], ids=["greedy", "beam", "sample"]
)
def test_both_backends_give_the_same(listed: Path, settings: dict[str, int]) -> None:
    plain = Translator.load(listed, engine="pytorch", shortlist=True)
    fast = Translator.load(listed, engine="native", quantize="none", threads=2, shortlist=True)
    for one, other in zip(fast.translate(SOURCES, **settings), plain.translate(SOURCES, **settings), strict=True):
        assert (one.tokens, one.flags) == (other.tokens, other.flags)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
    alone = {"nbest": 1, **{k: v for k, v in settings.items() if k != "nbest"}}
    for source in SOURCES[:3]:
        partials = list(fast.stream_tokens(source, **alone))
        assert partials == list(plain.stream_tokens(source, **alone))
        assert partials[-1].text == fast.translate([source], **alone)[0].text


@native
def test_a_prefix_is_allowed_and_the_plain_path_has_the_list_too(listed: Path) -> None:
    fast = Translator.load(listed, engine="native", quantize="none", shortlist=True)
    prefix = "sies acht"  # of other words than the source's
    short = fast.translate(["one two"], prefix=prefix)
    assert short[0].text.startswith("sies acht")
    fast.backend.engine.positions = 2  # type: ignore[attr-defined]
    assert fast.translate(["one two"], prefix=prefix)[0].tokens == short[0].tokens  # beyond them
    assert "PyTorch backend" in fast.to_torch().description and "shortlist" in fast.description
    assert fast.translate(["one two"], prefix=prefix)[0].tokens == short[0].tokens


@native
def test_it_starts_without_torch(listed: Path) -> None:
    Translator.load(listed)
    program = f"""
import sys
from dragoman import Translator
assert Translator.load({str(listed)!r}, shortlist=True).translate(["one two"])[0].text
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_in_bulk_it_belongs_to_the_job(cli: Cli, listed: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "in" / "a.txt", SOURCES).parent
    job = ["translate", listed, "--shortlist", "--input", text, "--output", tmp_path / "out"]
    assert cli(*job)[0] == 0
    once = Translator.load(listed, shortlist=True).translate(SOURCES)
    assert (tmp_path / "out" / "a.txt").read_text(encoding="utf-8") == "".join(f"{t.text}\n" for t in once)
    code, _, err = cli(*[word for word in job if word != "--shortlist"])
    assert code == 2 and f"model: {SHORTLIST}" in err
    kept = (find_model(listed) / SHORTLIST).read_bytes()
    learn_shortlist(listed, best=5)
    code, _, err = cli(*job)
    (find_model(listed) / SHORTLIST).write_bytes(kept)
    assert code == 2 and f"model: {SHORTLIST}" in err


def test_impossible_values_are_reported(cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_model(run) / SHORTLIST
    content = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    code, _, err = cli("translate", run, "--shortlist", stdin=b"one\n")
    assert code == 2 and "no shortlist" in err and "dragoman shortlist" in err
    path.write_bytes(b"DRAGLIST and more")
    code, _, err = cli("translate", run, "--shortlist", stdin=b"one\n")
    assert code == 1 and "truncated or altered" in err and "create it again: dragoman shortlist" in err
    code, _, err = cli("shortlist", run, "--best", "0", "--frequent", "-1", "--source", "x")
    assert code == 2 and all(words in err for words in ("--best 0;", "--frequent -1;", "give both files"))
    code, _, err = cli("shortlist", run, "--best", "99999999999", "--frequent", "65536")
    assert code == 2 and "--best 99999999999; accepted: 1 to 65535" in err and "data: read" not in err
    assert "--frequent 65536; accepted: 0 to 65535" in err
    data = (run.parent / "data").rename(tmp_path / "elsewhere")
    try:
        code, _, err = cli("shortlist", run)
        assert code == 1 and "does not exist on this machine" in err and "--source FILE --target FILE" in err
    finally:
        data.rename(run.parent / "data")
    empty = write_lines(tmp_path / "empty", ["", "  "])
    with pytest.raises(DragomanError, match="no pairs to learn from"):
        learn_shortlist(run, empty, empty)
    assert path.read_bytes() == b"DRAGLIST and more"  # what was there before stays
    if content is not None:
        path.write_bytes(content)
