"""P1: N lines in, N lines out, in order; empty and blank lines included; a line ends at "\\n" only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_translator import copying_translator, round_trip, tiny_translator

ODD = [
    "", " ", "\t", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\u3000", "one\u2028two", "a\x85b\r",
    "x\ny",
]  # fmt: skip
LINES = st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=9)), max_size=11)


@settings(max_examples=60, deadline=None)
@given(lines=LINES, window=st.sampled_from([1, 2, 5, 2000]), batch_tokens=st.sampled_from([1, 30, 4000]))
def test_every_line_has_its_own_translation_in_its_place(lines: list[str], window: int, batch_tokens: int) -> None:
    translator = copying_translator()

    out = list(translator.stream(lines, window=window, batch_tokens=batch_tokens))

    assert [translation.source for translation in out] == lines
    assert [translation.text for translation in out] == [
        round_trip(line.replace("\n", " ").replace("\r", " ")) if line.strip() else "" for line in lines
    ]


@settings(max_examples=25, deadline=None)
@given(lines=LINES)
def test_the_output_of_an_untrained_model_stays_on_one_line(lines: list[str]) -> None:
    out = tiny_translator(beam=2).translate(lines)

    assert len(out) == len(lines)
    written = "".join(f"{translation.text}\n" for translation in out)
    assert written.count("\n") == len(lines)


@pytest.mark.parametrize("byte", ["<0x0A>", "<0x0D>"])
def test_a_byte_that_is_a_line_end_does_not_end_a_line(byte: str) -> None:
    out = copying_translator(says=byte).translate(["one two"])[0]

    assert byte in out.tokens
    assert not {"\n", "\r"} & set(out.text)


@pytest.mark.parametrize("blank", ["", "   ", "\u3000\u2003", "\t\r"])
def test_a_blank_line_is_flagged_and_empty(blank: str) -> None:
    out = tiny_translator().translate(["one", blank, "two"], nbest=2)

    assert [translation.flags == ("empty_source",) for translation in out] == [False, True, False]
    assert (out[1].text, out[1].score, out[1].tokens) == ("", 0.0, [])
    assert out[0].text != ""


def test_nothing_in_nothing_out() -> None:
    assert tiny_translator().translate([]) == []
    assert tiny_translator().score([], []) == []


def test_lines_are_taken_as_they_come() -> None:
    taken: list[int] = []

    def endless() -> object:
        for number in range(10**9):
            taken.append(number)
            yield f"one {number}"

    out = copying_translator().stream(endless(), window=3)  # type: ignore[arg-type]

    assert [next(out).text for _ in range(4)] == ["one 0", "one 1", "one 2", "one 3"]
    assert len(taken) == 6
