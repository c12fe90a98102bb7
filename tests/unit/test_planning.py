"""The rules of `dragoman new`: from facts to settings, and the document with their reasons."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.models.size import count_parameters
from dragoman.planning.choice import (
    SIZES,
    CorpusFacts,
    Setting,
    Size,
    Speed,
    choose_size,
    choose_training,
    choose_vocabulary,
    duration,
    enough_tokens,
    expect,
    model_settings,
)
from dragoman.planning.document import nested, render
from dragoman.planning.measurement import corpus_facts

FACTS = CorpusFacts(100_000, ("en", "fr"), (20_000, 30_000), (90, 120), True, tokens_per_pair=20.0)
SPEEDS = [Speed(size, 8e9 / (size.weights + 5e5)) for size in SIZES]
"""Speeds of a machine that needs the same time for every weight."""


def values(settings: list[Setting]) -> dict[str, Any]:
    return {setting.key: setting.value for setting in settings}


def chosen(seconds: float, facts: CorpusFacts = FACTS, speeds: list[Speed] = SPEEDS) -> Size:
    return choose_size(facts, speeds, seconds)[0].size


def test_more_time_gives_a_larger_model() -> None:
    sizes = [chosen(seconds).weights for seconds in (1, 360, 1200, 7200, 86_400, 1e9)]
    assert sizes == sorted(sizes) and sizes[0] == SIZES[0].weights and len(set(sizes)) > 2


def test_each_model_but_the_smallest_sees_enough_tokens() -> None:
    for seconds in (60, 600, 6000, 60_000):
        speed, _ = choose_size(FACTS, SPEEDS, seconds)
        assert speed.size is SIZES[0] or seconds * speed.tokens_per_second > enough_tokens(speed.size)


def test_a_small_corpus_limits_the_model() -> None:
    small = replace(FACTS, pairs=5000)
    speed, why = choose_size(small, SPEEDS, 1e9)
    assert speed.size.weights < chosen(1e9).weights and "would learn so few pairs by heart" in why


def test_the_reason_names_the_next_size_and_what_it_lacks() -> None:
    _, why = choose_size(FACTS, SPEEDS, 360)
    assert "would see" in why and "needs about" in why
    assert choose_size(FACTS, SPEEDS[:1], 360)[1].startswith("the smallest model")


@pytest.mark.parametrize(("epochs", "dropout"), [(1, 0.1), (4.9, 0.1), (5.1, 0.2), (19, 0.2), (21, 0.3)])
def test_dropout_grows_with_the_number_of_epochs(epochs: float, dropout: float) -> None:
    speed = Speed(SIZES[0], 10_000.0)
    seconds = epochs * FACTS.tokens / (0.93 * speed.tokens_per_second)
    assert values(choose_training(FACTS, speed, "", seconds))["model.dropout"] == dropout


def test_longer_trainings_have_larger_batches_and_longer_warm_ups() -> None:
    found = [values(choose_training(FACTS, Speed(SIZES[0], 10_000.0), "", s)) for s in (60, 600, 6000, 60_000)]
    for key in ("train.batch_tokens", "train.schedule.warmup"):
        series = [one[key] for one in found]
        assert series == sorted(series) and series[0] < series[-1], key
    for seconds, one in zip((60, 600, 6000, 60_000), found, strict=True):
        assert one["train.schedule.warmup"] < 0.2 * expect(FACTS, Speed(SIZES[0], 10_000.0), seconds).steps


def test_the_peak_falls_with_the_width() -> None:
    peaks = [values(choose_training(FACTS, Speed(size, 1000.0), "", 600))["train.schedule.peak"] for size in SIZES]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] == 4e-3 and peaks[-1] == 1e-3


@pytest.mark.parametrize("seconds", [30, 360, 1200, 7200, 86_400])
@pytest.mark.parametrize("common_script", [True, False])
@pytest.mark.parametrize("replaced", [True, False])
def test_every_choice_is_a_valid_configuration(seconds: float, common_script: bool, replaced: bool) -> None:
    facts = replace(FACTS, common_script=common_script, replaced=replaced)
    speed, why = choose_size(facts, SPEEDS, seconds)
    data = [Setting("data.train", [{"source": "a", "target": "b"}], "1 pair."), Setting("data.valid.path", "v.tsv", "")]
    settings = [*data, *choose_vocabulary(facts), *choose_training(facts, speed, why, seconds)]

    document = tomllib.loads(render(["A title."], settings))

    assert document == nested(settings)
    config = parse_config(document)
    assert config.train.budget.amount == seconds
    identity = config.tokenizer.sides[1].normalization == "identity"
    assert identity is replaced and config.tokenizer.shared is common_script


def test_weights_of_a_size_are_those_of_its_layers() -> None:
    size = Size(128, 3)
    config = parse_config({"data": {"train": [{"path": "a.tsv"}]}, **nested(model_settings(size))}).model
    with_vocabulary = [count_parameters(config, size_, size_) for size_ in (1000, 2000)]
    layers = with_vocabulary[0] - (with_vocabulary[1] - with_vocabulary[0])
    assert layers == pytest.approx(size.weights, rel=0.01)


@pytest.mark.parametrize(
    ("pairs", "expected"), [(3000, 2000), (15_000, 4000), (100_000, 8000), (1_000_000, 16_000), (9_000_000, 32_000)]
)
def test_more_pairs_allow_more_tokens(pairs: int, expected: int) -> None:
    facts = replace(FACTS, pairs=pairs, distinct=(50_000, 60_000))
    assert values(choose_vocabulary(facts))["tokenizer.vocab_size"] == expected


def test_a_small_text_limits_the_vocabulary() -> None:
    facts = replace(FACTS, pairs=300, distinct=(150, 200), characters=(40, 50))
    assert values(choose_vocabulary(facts))["tokenizer.vocab_size"] == 50 + 260 + 200


def test_many_characters_need_more_tokens() -> None:
    facts = replace(FACTS, pairs=17_000, characters=(80, 3400), common_script=False)
    found = values(choose_vocabulary(facts))
    assert found["tokenizer.vocab_size"] == 4000 and found["tokenizer.target.vocab_size"] == 5400


def test_facts_of_a_text() -> None:
    sample = [("a b", "b c"), ("a d", "e")]
    facts = corpus_facts(sample, 8, ("en", "fr"))
    assert facts.distinct == (6, 6)  # 3 words each in a quarter of the text
    assert facts.characters == (4, 4) and not facts.common_script
    assert corpus_facts([("abc", "bca")], 1, ("en", "fr")).common_script


def test_every_setting_stands_below_its_reason() -> None:
    long = "A reason " + "that is long " * 20
    text = render(["Title.", "More."], [Setting("model.norm.kind", "rms", "Why."), Setting("train.seed", 3, long)])
    lines = text.split("\n")
    assert lines[:3] == ["# Title.", "#", "# More."]
    assert lines[lines.index('norm.kind = "rms"') - 1] == "# Why."
    assert max(map(len, lines)) <= 100 and tomllib.loads(text) == {
        "model": {"norm": {"kind": "rms"}},
        "train": {"seed": 3},
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 s"), (90, "90 s"), (360, "6 min"), (1200, "20 min"), (3600, "1 h"), (5400, "90 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
