"""Translator: prefixes, overrides, flags, n best, scores."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dragoman.decoding import SearchSettings
from dragoman.errors import UsageError
from dragoman.pipelines.translation import Translator
from tiny_translator import copying_translator, tiny_tokenizer, tiny_transformer, tiny_translator


def test_a_translation_carries_all_its_information() -> None:
    out = tiny_translator(beam=4).translate(["one two three"], nbest=3)[0]

    assert out.source == "one two three"
    assert len(out.tokens) == len(out.token_log_probs)
    assert out.tokens[-1] == "</s>"
    assert out.log_prob == pytest.approx(sum(out.token_log_probs), abs=1e-4)
    assert out.score == pytest.approx(out.log_prob / ((5 + len(out.tokens)) / 6) ** 0.6, abs=1e-5)
    assert out.nbest[0].text == out.text
    assert [a.score for a in out.nbest] == sorted((a.score for a in out.nbest), reverse=True)
    assert len(out.nbest) == 3
    assert json.loads(json.dumps(out.to_json()))["nbest"][2]["log_prob"] == out.nbest[2].log_prob


def test_a_split_line_is_the_sum_of_its_parts() -> None:
    translator = tiny_translator(max_source=9)
    whole = translator.translate(["one two. Three four."], nbest=2)[0]
    parts = translator.translate(["one two. ", "Three four."], nbest=2)

    assert "split" in whole.flags
    assert whole.text == " ".join(part.text for part in parts)
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-5)
    assert whole.tokens == parts[0].tokens + parts[1].tokens
    assert whole.nbest[1].text == " ".join(part.nbest[1].text for part in parts)


def test_one_prefix_serves_all_or_each_line_has_its_own() -> None:
    translator = tiny_translator()

    assert [out.text.startswith("five six") for out in translator.translate(["one", "two"], prefix="five six")] == [
        True
    ] * 2
    own = translator.translate(["one", "two", "three"], prefix=["four", "", "five"])
    assert own[0].text.startswith("four") and own[2].text.startswith("five")
    assert own[1].text == translator.translate(["two"])[0].text


def test_a_prefix_longer_than_any_text_is_refused() -> None:
    """It would be decoded token by token, for minutes."""
    translator = tiny_translator(max_source=9)
    assert translator.translate(["one"], prefix="two three")[0].text.startswith("two three")
    with pytest.raises(UsageError, match=r"prefix 'one one .*: [\d,]+ tokens; accepted: at most 9"):
        translator.translate(["one"], prefix="one " * 500)


@pytest.mark.parametrize(
    ("prefix", "told"), [(["a"], "1 prefixes but more lines"), (["a"] * 3, "3 prefixes but 2 lines")]
)
def test_prefixes_that_do_not_match_are_refused(prefix: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        tiny_translator().translate(["one", "two"], prefix=prefix)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"beems": 2}, "did you mean 'beam'"),
        ({"beam": 0}, "beam = 0"),
        ({"batch_tokens": 0}, "batch_tokens = 0"),
        ({"window": -1}, "window = -1"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(arguments: dict[str, Any], told: str) -> None:
    def lines() -> Any:
        raise AssertionError("read")
        yield ""

    with pytest.raises(UsageError, match=told):
        tiny_translator().stream(lines(), **arguments)


def test_a_source_that_can_hold_no_word_is_refused() -> None:
    with pytest.raises(UsageError, match="max_source = 1"):
        tiny_translator(max_source=1)


def test_much_more_text_than_the_source_is_flagged() -> None:
    out = tiny_translator().translate(["one"], min_length=30, no_repeat_ngram=2)[0]

    assert "length" in out.flags


def test_a_loop_that_the_source_has_is_not_flagged() -> None:
    out = copying_translator().translate(["one one one one one one one one"])[0]

    assert out.text == "one one one one one one one one"
    assert out.flags == ()


def test_a_loop_stays_where_its_tokens_are_already_guarded() -> None:
    translator = copying_translator(says="▁six", max_extra=20)
    guarded = translator.translate(["one two"], no_repeat_ngram=2)[0]

    assert "repetition" not in guarded.flags


def test_training_continues_as_before() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_transformer(tokenizer.target_size).train()
    translator = Translator(model, tokenizer, SearchSettings(beam=2, max_extra=3))

    first, second = (translator.translate(["one two three"])[0] for _ in range(2))

    assert first == second
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_a_model_keeps_for_itself_can_still_be_trained() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_transformer(tokenizer.target_size)
    Translator(model, tokenizer).translate(["one two three"], beam=2)

    model(torch.tensor([[5, 6, 3]]), None, torch.tensor([[2, 5, 6, 7]])).sum().backward()

    assert model.output.weight.grad is not None


def test_pairs_of_different_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="2 sources but 1 targets"):
        tiny_translator().score(["one", "two"], ["un"])


def test_scoring_a_long_pair_takes_the_logits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = tiny_translator()
    translator.model.double()  # in float32 one part or several round differently, and how depends on the processor
    sources, targets = ["one two", "three"], ["zero one two three four five", "six"]
    at_once = translator.score(sources, targets)

    monkeypatch.setattr("dragoman.decoding.pytorch.backend._LOGITS_AT_ONCE", 1)

    for one, other in zip(translator.score(sources, targets), at_once, strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-6)


def test_every_text_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, texts = tiny_translator(max_source=9), []
    encode = translator.tokenizer.encode_source
    monkeypatch.setattr(translator.tokenizer, "encode_source", lambda text: texts.append(text) or encode(text))

    out = translator.translate(["one two", "one two three. Four five six, seven eight nine.", "seven"])

    assert [("split" in translation.flags) for translation in out] == [False, True, False]
    assert len(texts) == len(set(texts)) >= 5


def test_half_a_surrogate_pair_is_no_reason_to_fail() -> None:
    out = copying_translator().translate(["one \ud83d two"])

    assert out[0].text == "one ? two"


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 4}, {"sample": True, "seed": 2}])
def test_streamed_tokens_end_with_the_translation_and_what_is_stable_stays(settings: dict[str, int]) -> None:
    translator = tiny_translator(max_source=9)
    for text in ("one two three", "four five six seven eight. nine one two three four five.", ""):
        (whole,) = translator.translate([text], batch_tokens=1, **settings)
        steps = list(translator.stream_tokens(text, **settings))
        assert steps[-1].text == steps[-1].stable == whole.text
        if "repetition" not in whole.flags:
            assert all(whole.text.startswith(step.stable.rstrip()) for step in steps)
            assert len(steps) >= len(whole.tokens) > 0 or not text


@pytest.mark.parametrize("split", ["no", 0, 1, []])
def test_split_is_a_bool(split: Any) -> None:
    translator = copying_translator()
    with pytest.raises(UsageError, match=r"split = .*; accepted: True, False or None"):
        translator.translate([], split=split)
    with pytest.raises(UsageError, match="split = "):
        next(translator.stream_tokens("one.", split=split))
