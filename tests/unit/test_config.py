"""The configuration document: what is read, what is refused and how, and that what is written is read back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import Config, Duration, dump_toml, load_config, parse_config, resolve_path
from dragoman.errors import ConfigError, UsageError
from small_run import small_config, small_document

ROOT = Path("somewhere")


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        small_config(ROOT, *overrides)
    assert caught.value.exit_code == 2
    return caught.value.problems


def duration(text: str) -> Duration:
    return small_config(ROOT, f'train.budget="{text}"').train.budget


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("20 min", 1200.0, "seconds"),
        ("1.5 h", 5400.0, "seconds"),
        ("45 s", 45.0, "seconds"),
        ("8000 steps", 8000.0, "steps"),
        ("12k steps", 12_000.0, "steps"),
        ("1 epoch", 1.0, "epochs"),
        ("0.25 epochs", 0.25, "epochs"),
        ("50M tokens", 5e7, "tokens"),
        ("1.2345678G tokens", 1_234_567_800.0, "tokens"),
        ("1234567 steps", 1_234_567.0, "steps"),
        ("2h", 7200.0, "seconds"),
    ],
)
def test_durations_are_read_and_read_back(text: str, amount: float, unit: str) -> None:
    found = duration(text)
    assert (found.amount, found.unit) == (amount, unit)
    assert duration(str(found)) == found


@pytest.mark.parametrize("text", ["soon", "10", "5 apples", "-3 steps", "0 steps", "steps", "", "1e3 steps"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    (problem,) = problems(f'train.budget="{text}"')
    assert problem.startswith("train.budget = ") and ("20 min" in problem or "more than nothing" in problem)


def test_every_problem_is_told_at_once_with_the_nearest_name() -> None:
    found = problems(
        "model.d_modle=64",
        "train.seed=minus one",
        "model.position.kind=rotory",
        "train.metric=blue",
        "search.beam=0",
        "bad",
    )
    text = "\n".join(found)
    assert len(found) == 6
    assert "model.d_modle: no such key (did you mean 'd_model'?); accepted here: architecture, d_model" in text
    assert "train.seed = 'minus one'" in text and "must be a whole number" in text
    assert "no kind 'rotory' (did you mean 'rotary'?); accepted: none, sinusoidal, learned" in text
    assert "train.metric = 'blue' (did you mean 'bleu'?)" in text
    assert "search.beam = 0" in text
    assert "'bad': an override is written key=value" in text


def test_a_key_of_another_kind_is_refused() -> None:
    (problem,) = problems("model.position.kind=sinusoidal", "model.position.base=500.0")
    assert problem == "model.position.base: no such key; accepted here: kind"


def test_a_section_without_its_kind_says_which_there_are() -> None:
    assert problems("train.optimizer.beta2=0.9") == ["train.optimizer.kind: missing; accepted: adam, adamw"]


def test_sizes_that_do_not_fit_are_refused_with_those_that_do() -> None:
    (problem,) = problems("model.d_model=20", "model.n_heads=3")
    assert "d_model 20 is not a multiple of n_heads 3; n_heads may be [1, 2, 4, 5, 10, 20]" in problem
    (problem,) = problems("model.d_model=18", "model.n_heads=6", "model.position.kind=rotary")
    assert "head size 3 must be even" in problem
    (problem,) = problems("model.position.kind=rotary", "model.position.fraction=0.1")
    assert "head size 0 (fraction 0.1 of 8) must be even and at least 2" in problem
    (problem,) = problems("model.n_kv_heads=3")
    assert "n_heads 2 is not a multiple of n_kv_heads 3; n_kv_heads may be [1, 2]" in problem
    (problem,) = problems("model.attention.kind=linear", "model.position.kind=t5")
    assert "t5 positions change attention scores" in problem


def test_data_and_architecture_must_fit() -> None:
    (problem,) = problems("model.architecture=decoder_only")
    assert problem.startswith('model.architecture "decoder_only" does not learn from data of kind "parallel"; accepted')
    (problem,) = problems("model.position.kind=learned", "model.position.max_len=100")
    assert problem.startswith("model.position.max_len is 100, and up to 253 positions are needed")
    (problem,) = problems("model.architecture=convolutional", "model.max_positions=252")
    assert problem.startswith("model.max_positions is 252, and up to 253")
    with pytest.raises(ConfigError, match='needs "first" or "mean"'):
        parse_config({"data": {"kind": "labelled", "train": ["a"]}, "model": {"architecture": "encoder_only"}})
    with pytest.raises(UsageError, match='is of kind "text"'):
        _ = parse_config({"data": {"kind": "text", "train": ["a"]}, "model": {"architecture": "decoder_only"}}).parallel


def test_all_that_does_not_fit_is_told_at_once() -> None:
    model = {"architecture": "encoder_only", "tie": "all", "pooling": "mean"}
    document = {"data": {"kind": "tagged", "train": ["a"]}, "model": model, "tokenizer": {"shared": False}}
    with pytest.raises(ConfigError) as caught:
        parse_config(document, ["train.metric=bleu"])
    for words in (
        'model.pooling is "mean", and data of kind "tagged" needs "none"',
        'model.tie = "all": the outputs of data of kind "tagged" are labels',
        'train.metric "bleu" is not scored on data of kind "tagged"; accepted: loss, accuracy',
        'tokenizer.shared has no effect on data of kind "tagged"',
    ):
        assert words in str(caught.value)


def test_another_architecture_keeps_the_keys_that_it_has() -> None:
    model = small_config(
        ROOT, "model.architecture=lstm", "model.attention.kind=luong", "model.attention.score=dot"
    ).model
    assert (model.architecture, model.d_model, model.dropout, model.attention.score) == ("lstm", 16, 0.1, "dot")
    (problem,) = problems("model.architecture=lstn")
    assert "model.architecture: no architecture 'lstn' (did you mean 'lstm'?); accepted: transformer" in problem
    (problem,) = problems("model.d_model=15", "model.n_heads=5")
    assert "even d_model, not 15" in problem


@pytest.mark.parametrize(
    "corpus", [{}, {"source": "a"}, {"source": "a", "target": "b", "path": "c.tsv"}, {"target": "b", "path": "c.tsv"}]
)
def test_a_corpus_is_two_files_or_one(corpus: dict[str, Any]) -> None:
    document = small_document(ROOT)
    document["data"]["train"] = [corpus]
    with pytest.raises(ConfigError, match="give either source and target"):
        parse_config(document)


def test_a_document_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="data: missing; it must be given"):
        parse_config({})
    with pytest.raises(ConfigError, match=r"data\.train"):
        parse_config({"data": {"train": []}})


def test_overrides() -> None:
    config = small_config(
        ROOT, "train.seed=7", "model.order=pre", "data.train.0.weight=2.5", "train.optimizer.kind=adamw",
        "train.optimizer.weight_decay=0.2", "train.budget=3 epochs", "tokenizer.shared=false",
    )  # fmt: skip
    assert (config.train.seed, config.model.order, config.data.train[0].weight) == (7, "pre", 2.5)
    assert config.train.optimizer.kind == "adamw" and config.train.optimizer.weight_decay == 0.2
    assert str(config.train.budget) == "3 epochs" and config.tokenizer.shared is False


def test_another_kind_forgets_the_keys_of_the_first() -> None:
    config = small_config(ROOT, "train.schedule.kind=inverse_sqrt")
    assert config.train.schedule.warmup == 4000, "the document's warmup of 5 belonged to the other kind"


def test_presets_are_those_of_the_paper_and_own_keys_win() -> None:
    document = {"data": small_document(ROOT)["data"], "model": {"preset": "big", "d_ff": 1000}}
    model = parse_config(document).model
    assert (model.d_model, model.n_heads, model.dropout, model.d_ff) == (1024, 16, 0.3, 1000)
    (problem,) = problems("model.preset=bigg")
    assert problem == "model.preset = 'bigg' (did you mean 'big'?); accepted: base, big, deep_shallow"


def test_the_defaults_are_the_paper_s_base_model() -> None:
    model = parse_config({"data": small_document(ROOT)["data"]}).model
    assert (model.d_model, model.d_ff, model.n_heads, model.encoder_layers, model.decoder_layers) == (
        512,
        2048,
        8,
        6,
        6,
    )
    assert (model.dropout, model.order, model.activation, model.position.kind) == (0.1, "post", "relu", "sinusoidal")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.budget=50M tokens", "train.optimizer.kind=adamw", "train.optimizer.eps=1e-12"),
        ("model.norm.kind=rms", "model.position.kind=rotary", "data.filter.max_ratio=1.25"),
        ('data.source_language="a \\"quoted\\" \\\\ name\\twith ☃"', "train.schedule.shape=cosine"),
    ],
)
def test_what_is_written_is_read_back(overrides: tuple[str, ...], tmp_path: Path) -> None:
    config = small_config(ROOT, *overrides)
    file = tmp_path / "config.toml"
    file.write_text(dump_toml(config), encoding="utf-8")
    assert load_config(file) == config
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text("[model]\nd_model = \n")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    for name, words in (
        ("tini.toml", "no such file.*did you mean.*tiny.toml"),
        ("tiny.toml", "not valid TOML.*line 2"),
        ("latin.toml", "not UTF-8 at byte 2"),
        ("", "this is a folder"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){words}"):
            load_config(tmp_path / name)


def test_paths_with_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPORA", "/far")
    monkeypatch.delenv("MISSING_ONE", raising=False)
    assert resolve_path("a/b.txt", "${CORPORA}") == Path("/far/a/b.txt")
    assert resolve_path("b.txt", "${MISSING_ONE:-here}") == Path("here/b.txt")
    assert resolve_path("/absolute.txt", "${CORPORA}") == Path("/absolute.txt")
    with pytest.raises(UsageError, match="MISSING_ONE is not set"):
        resolve_path("${MISSING_ONE}/c.txt")


KEYS = st.sampled_from(
    ["model", "train", "kind", "optimizer", "preset", "d_model", "data", "0", "weight", "budget", "", "ß"]
)
VALUES = st.sampled_from(
    ["1", "-1", "nan", "inf", "true", '"x"', "[1]", "[[]]", "{a = 1}", "{kind = 3}", "20 min", "", "\n", "'"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=4).map(".".join), VALUES).map("=".join), max_size=4))
def test_no_override_ends_in_anything_but_a_configuration_or_its_error(overrides: list[str]) -> None:
    try:
        assert isinstance(small_config(ROOT, *overrides), Config)
    except ConfigError as error:
        assert error.problems and all(error.problems)


def test_overrides_do_not_depend_on_their_order() -> None:
    document = {"data": {"train": [{"source": "a", "target": "b"}]}}
    kind, peak = "train.schedule.kind=budget", "train.schedule.peak=0.123"
    for overrides in ([kind, peak], [peak, kind]):
        schedule = parse_config(copy.deepcopy(document), overrides).train.schedule
        assert schedule.kind == "budget" and schedule.peak == 0.123


def test_a_kind_that_is_no_variant_keeps_its_section() -> None:
    document = {"data": {"train": [{"source": "a", "target": "b"}]}, "tokenizer": {"vocab_size": 1234, "shared": False}}
    tokenizer = parse_config(document, ["tokenizer.kind=unigram"]).tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.shared) == ("unigram", 1234, False)


@pytest.mark.parametrize(
    "override", ["train.0.seed=7", "data.train.weight=2", "data.train.5.weight=2", "train.seed.x=1"]
)
def test_an_override_that_leads_nowhere(override: str) -> None:
    with pytest.raises(ConfigError):
        parse_config({"data": {"train": [{"source": "a", "target": "b"}]}, "train": {"seed": 1}}, [override])
