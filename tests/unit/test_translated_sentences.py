"""Lines of several sentences: translated one by one, and joined with the whitespace of the source."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig
from dragoman.data.sentences import list_prefix
from dragoman.pipelines.lines import Sentence, format_translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import train_tokenizer
from tiny_translator import copying_translator, tiny_translator
from toy_model import CopyModel

DOCUMENTS = {
    "poem": ["one two,", "    three four.", "", "Five six! Seven", "\teight nine.", "***"],
    "list": ["1. One two.", "  - three. Four five.", "  - six", "", "a) Seven? Eight.", "* nine"],
    "table row": ["one\ttwo three\t4.50\tsix. Seven.\t", "| one | two. Three. |", "\t\tfive\t", "1\t2\t3"],
    "code": ["for one in two:", "    three(four) # Five six. Seven eight.", "}", "", "\treturn nine;\r"],
    "dialogue": ["- One two?", "- Three. Four!\u00a0", "“Five.”  “Six?”", "Zero: one.   Two", "..."],
}
TRAINED_ON_SINGLE: Any = SimpleNamespace(single_sentences=True, translates_wordless=False, length_ratio=None)
TRAINED_ON_SEVERAL: Any = SimpleNamespace(single_sentences=False, translates_wordless=False, length_ratio=None)


def with_profile(translator: Translator, profile: Any = TRAINED_ON_SINGLE) -> Translator:
    translator.describe_data(profile, ("en", "de"))
    return translator


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_keep_their_lines_and_whitespace(kind: str) -> None:
    lines = DOCUMENTS[kind]
    out = with_profile(copying_translator()).translate(lines)

    assert [translation.source for translation in out] == lines
    assert [translation.text for translation in out] == lines
    assert not any("\n" in format_translation(translation, "text") for translation in out)


SENTENCES = st.sampled_from(["One two.", "Three?", "Four five!", "“Six seven.”", "(Eight.)", "Nine 9!", "Nine..."])
SPACES = st.sampled_from([" ", "  ", "\t", "\u00a0", " \t ", "\u2003", "\n", "\r\n", "\n\n  "])


@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(SENTENCES, SPACES), min_size=1, max_size=6), indent=st.sampled_from(["", " ", "\t  "]))
def test_all_whitespace_between_and_around_sentences_is_kept(pairs: list[tuple[str, str]], indent: str) -> None:
    text = indent + "".join(sentence + space for sentence, space in pairs)
    out = copying_translator().translate([text], split=True)[0]

    assert out.text == text
    assert not out.flags


@pytest.mark.parametrize(
    ("profile", "split", "expected"),
    [
        (None, None, False), (None, True, True), (TRAINED_ON_SINGLE, None, True), (TRAINED_ON_SINGLE, False, False),
        (TRAINED_ON_SEVERAL, None, False), (TRAINED_ON_SEVERAL, True, True),
    ],
)  # fmt: skip
def test_the_training_data_decides_unless_asked(profile: Any, split: bool | None, expected: bool) -> None:
    translator = with_profile(copying_translator(), profile)
    assert translator.splits_sentences == (profile is TRAINED_ON_SINGLE)

    out = translator.translate(["One.  Two."], split=split)[0]
    assert out.text == ("One.  Two." if expected else "One. Two.")
    assert [sentence.source for sentence in out.sentences] == (["One.", "Two."] if expected else [])


def test_a_sentence_is_translated_as_if_it_were_alone() -> None:
    translator = tiny_translator(beam=3)
    texts = ["one two.", "Three four five!", "Six?"]
    line = translator.translate([" ".join(texts)], split=True, nbest=2)[0]
    alone = translator.translate(texts, nbest=2)

    assert [(s.source, s.text) for s in line.sentences] == [(t.source, t.text) for t in alone]
    assert [s.score for s in line.sentences] == pytest.approx([t.score for t in alone], abs=1e-5)
    assert line.score == pytest.approx(sum(t.score for t in alone), abs=1e-5)
    assert line.tokens == [token for t in alone for token in t.tokens]
    assert [one.text for one in line.nbest] == [" ".join(t.nbest[rank].text for t in alone) for rank in (0, 1)]


def test_the_model_does_not_see_the_whitespace_between_sentences() -> None:
    text = ["One. Two!"] * 9
    tokenizer = train_tokenizer(TokenizerConfig(kind="char", vocab_size=300), text, text)
    translator = Translator(CopyModel(tokenizer.target_size, None), tokenizer)

    parts = translator.split("\t One.\u00a0 Two!\t", sentences=True).parts
    assert [part.ids for part in parts] == [tokenizer.encode_source("One."), tokenizer.encode_source("Two!")]


def test_lines_and_sentences_without_words_are_copied() -> None:
    translator = copying_translator(says="▁six", max_extra=0)
    wordless = [
        "1\t2",
        " }",
        "12",
        "25,50",
        "15.06.2024",
        "https://www.example.org/a?b=1",
        "- 25,50",
        "a@example.org, 5",
    ]
    line = translator.translate(["one\t3.50\t(12)\t***\thttps://example.org/\ttwo", *wordless], split=True)

    assert line[0].text.split("\t")[1:5] == ["3.50", "(12)", "***", "https://example.org/"]
    assert line[0].sentences[1] == Sentence("3.50", "3.50", 0) and "six" in line[0].text
    assert [(one.text, one.tokens, one.flags) for one in line[1:]] == [(text, [], ()) for text in wordless]


def test_a_model_that_spells_out_numbers_translates_lines_of_digits() -> None:
    spells = SimpleNamespace(single_sentences=True, translates_wordless=True, length_ratio=None)
    out = with_profile(copying_translator(says="▁six", max_extra=0), spells).translate(["12", "1\t2", "***"])
    assert "six" in out[0].text and [one.text for one in out[1:]] == ["1\t2", "***"]


@pytest.mark.parametrize("mark", ["- ", "• ", "1) ", "(a) ", "  -  ", "\t* "])
def test_list_marks_are_kept_and_not_translated(mark: str) -> None:
    translator = with_profile(copying_translator(says="▁six", max_extra=0))
    alone = translator.translate(["one two."])[0]
    out = translator.translate([f"{mark}one two.", f"One.\n{mark}one two."])

    assert out[0].text == mark + alone.text and out[0].tokens == alone.tokens
    assert out[1].text.endswith(f"\n{mark}{alone.text}") and not {"split", "numbers"} & {*out[0].flags, *out[1].flags}
    assert out[1].sentences[1] == Sentence(f"{mark}one two.".strip(), mark.lstrip() + alone.text, alone.score)
    assert [*translator.stream_tokens(f"{mark}one two.")][-1].text == out[0].text


def test_other_beginnings_are_not_list_marks() -> None:
    for text in ["1. one", "-one", "one) two", "-5 one", "A. one"]:
        assert list_prefix(text) == ""


def test_a_sentence_longer_than_the_model_accepts_is_split_and_flagged() -> None:
    long = "one two three four five six seven eight nine"
    out = copying_translator(max_source=12).translate([f"One.  {long}.  Two.", "One. Two. Three. Four."], split=True)

    assert [translation.text for translation in out] == [f"One.  {long}.  Two.", "One. Two. Three. Four."]
    assert [translation.flags for translation in out] == [("split",), ()]
    assert [sentence.text for sentence in out[0].sentences] == ["One.", f"{long}.", "Two."]


def test_a_prefix_begins_the_first_sentence() -> None:
    out = tiny_translator().translate(["1\tone two. Three."], prefix="five six", split=True)[0]

    assert out.text.startswith("1\tfive six") and not out.sentences[2].text.startswith("five")


@pytest.mark.parametrize("text", ["One two.  Three four.", "\t1\tone. Two!\n\nthree ", " one", "", "one two"])
@pytest.mark.parametrize("beam", [1, 3])
def test_streamed_sentences_end_with_the_translation_and_what_is_stable_stays(text: str, beam: int) -> None:
    translator = with_profile(tiny_translator(beam=beam, no_repeat_ngram=3))  # so that nothing is searched twice
    partial = list(translator.stream_tokens(text))

    assert partial[-1].text == translator.translate([text], batch_tokens=1)[0].text
    assert all(partial[-1].text.startswith(step.stable.rstrip("\ufffd").rstrip()) for step in partial)


def test_spaces_are_dropped_where_the_target_has_none_and_added_where_only_it_has() -> None:
    assert copying_translator().translate(["一。  二。\t三。"], split=True)[0].text == "一。二。\t三。"
    assert (
        with_profile(copying_translator(says="▁six", max_extra=0)).translate(["一。二。"])[0].text.count("six. ") == 0
    )


@pytest.mark.parametrize("flag", [[], ["--split"], ["--no-split"]])
def test_command(flag: list[str], cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = with_profile(copying_translator())
    monkeypatch.setattr(Translator, "load", lambda *arguments, **options: translator)
    code, out, err = cli("translate", tmp_path, *flag, stdin=b"One.  Two.\r\n\n  Three.\tFour. \n")

    assert code == 0
    assert out.decode() == (
        "One. Two.\n\nThree. Four.\n" if "--no-split" in flag else "One.  Two.\n\n  Three.\tFour. \n"
    )
    assert ("2 of 3 lines were split into sentences" in err) == (not flag)


def test_every_line_has_an_n_best_list_of_the_same_length() -> None:
    lines = ["One. Two.", "", "  ", "***", " *** ", "One. ***"]
    out = tiny_translator(beam=3).translate(lines, split=True, nbest=3)
    assert [len(translation.nbest) for translation in out] == [3] * len(lines)
    assert [format_translation(translation, "nbest").count("\n") for translation in out] == [2] * len(lines)
    assert {entry.text for entry in out[4].nbest} == {" *** "}


def test_blank_lines_keep_their_whitespace() -> None:
    out = with_profile(tiny_translator(beam=2)).translate(["", "  ", "\t\u00a0"], nbest=2)
    assert [one.text for one in out] == ["", "  ", "\t\u00a0"] == [one.nbest[1].text for one in out]
    assert {one.flags for one in out} == {("empty_source",)}


def test_the_score_of_a_copied_sentence_is_a_float() -> None:
    out = copying_translator().translate(["One. ***", "***"], split=True)
    scores = [sentence.score for sentence in out[0].sentences]
    assert scores[1] == 0.0 and all(isinstance(score, float) for score in [*scores, out[1].score, out[1].log_prob])
