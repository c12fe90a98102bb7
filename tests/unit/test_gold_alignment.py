"""Word alignment: files, the error rate, links from the attention to pieces, and what the built-in corpus knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dragoman.data.spelled_numbers import build
from dragoman.errors import DataError, UsageError
from dragoman.interpret.heads.gold_alignment import (
    Agreement,
    GoldAlignment,
    Link,
    Unit,
    alignment_error_rate,
    join_pieces,
    read_alignment,
    spelled_numbers_alignment,
    unit_of_piece,
    word_count,
)
from small_run import write_lines


def gold(m: int, n: int, sure: set[Link], possible: set[Link] | None = None) -> GoldAlignment:
    """m source and n target words."""
    words = [tuple(Unit(i) for i in range(count)) for count in (m, n)]
    return GoldAlignment(words[0], words[1], frozenset(sure), frozenset(sure | (possible or set())))


# --------------------------------------------------------------------------------------------------------------- files


def test_a_file_has_sure_and_possible_links(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "links", ["0-0 1-2 1?1", "2p0", ""])
    first, second, third = read_alignment(path, ["a b", "c d e", "f"], ["x y z", "u", "v w"])
    assert first.sure == {(0, 0), (1, 2)} and first.possible == {(0, 0), (1, 2), (1, 1)}
    assert second.sure == frozenset() and second.possible == {(2, 0)}
    assert (len(first.source), len(first.target)) == (2, 3) and third.possible == frozenset()
    assert second.source == (Unit(0), Unit(1), Unit(2))


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "links", ["0-0 0:1", "0-0", "1-0 0-2"])
    with pytest.raises(DataError) as refused:
        read_alignment(path, ["a", "b", "c"], ["x", "y", "z"])
    message = str(refused.value)
    assert 'line 1: invalid link "0:1"' in message and "line 3: 1-0: the source has 1 words" in message
    assert "line 3: 0-2" in message and "line 2" not in message and "accepted: links such as" in message
    with pytest.raises(DataError, match=r"has 3 lines, the source 2 and the target 2"):
        read_alignment(path, ["a", "b"], ["x", "y"])


# ---------------------------------------------------------------------------------------------------------- error rate


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    """By hand: A = 3 links, S = 2; one of A is sure, one more possible: 1 - (1 + 2) / (3 + 2)."""
    given = gold(3, 3, {(0, 0), (2, 2)}, {(1, 1)})
    found = {(0, 0), (1, 1), (1, 2)}
    assert alignment_error_rate([found], [given]) == pytest.approx(1 - 3 / 5)
    assert alignment_error_rate([{(0, 0), (2, 2), (1, 1)}], [given]) == 0
    assert alignment_error_rate([{(2, 0)}], [given]) == 1
    # A corpus is one sum, not a mean of sentences.
    assert alignment_error_rate([found, {(0, 0)}], [given, gold(1, 1, {(0, 0)})]) == pytest.approx(1 - 5 / 7)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(UsageError, match="sure links to compare"):
        alignment_error_rate([set()], [gold(1, 1, set())])
    with pytest.raises(UsageError, match="numbers of sentences"):
        alignment_error_rate([set()], [])


# -------------------------------------------------------------------------------------------------------------- pieces


def test_pieces_belong_to_words() -> None:
    pieces = ["▁tw", "enty", "▁", "four", "▁▁", "▁now", "</s>"]
    words = tuple(Unit(i) for i in range(3))
    assert unit_of_piece(pieces, words) == [0, 0, 1, 1, 2, 2, -1]
    assert word_count(pieces) == 3 == len("tw enty four  now".replace("tw enty", "twenty").split())
    assert unit_of_piece(["no", "▁mark", "▁first"], words) == [0, 1, 2]
    assert unit_of_piece(["<s>", "▁a"], words[:1]) == [-1, 0]


def test_pieces_belong_to_the_part_of_a_word_they_share_most_with() -> None:
    """vier|und|zwanzig with `und` outside: the piece `undzw` shares two letters with the last part."""
    parts = (Unit(0, 0, 4), Unit(0, 7, 14))
    assert unit_of_piece(["▁vie", "r", "undzw", "anzig"], parts) == [0, 0, 1, 1]
    assert unit_of_piece(["▁v", "ierun", "d", "zwanzig"], parts) == [0, 0, -1, 1]
    assert unit_of_piece(["▁", "vierund", "zwanzig"], parts) == [0, 0, 1]


def test_weights_of_pieces_become_weights_of_words() -> None:
    """Added over the source, averaged over the target."""
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    joined = join_pieces(weights, [0, 0, 1], [1, 0, 0, -1], 2, 3)
    expected = [[(0.2 + 0.3 + 0.1 + 0.2) / 2, (0.1 + 0.5) / 2, 0.0], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(joined, torch.tensor(expected, dtype=torch.float64))


def test_the_agreement_of_heads_is_the_error_rate_of_their_links() -> None:
    """Two ways to one number: sums over a batch of heads, and sets of links."""
    heads, sentences, generator = 3, 5, torch.Generator().manual_seed(3)
    agreement = Agreement()
    assert agreement.error_rates is None
    found: list[list[set[Link]]] = [[] for _ in range(heads)]
    golds = []
    for i in range(sentences):
        m, n = 4 + i, 3 + i
        weights = torch.rand(heads, n + 1, m + 1, generator=generator).softmax(-1)
        pieces = [[f"▁{j}" for j in range(count)] + ["</s>"] for count in (n, m)]
        golds.append(gold(m, n, {(j, j % n) for j in range(m)}, {(0, 1)}))
        agreement.add(weights, pieces[0], pieces[1], golds[-1])
        for head in range(heads):
            best = weights[head, :n, :m].argmax(-1).tolist()
            found[head].append({(source, target) for target, source in enumerate(best)})
    expected = [alignment_error_rate(links, golds) for links in found]
    assert agreement.error_rates == pytest.approx(expected) and len(set(expected)) == heads


# ------------------------------------------------------------------------------------------------- the built-in corpus


def linked(english: str, german: str) -> list[tuple[str, str]]:
    """The texts of the parts that are linked, in the order of the English ones."""
    found = spelled_numbers_alignment(english, german)
    assert found.sure == found.possible == {(i, i) for i in range(len(found.source))}
    sides = []
    for text, units in ((english, found.source), (german, found.target)):
        words = text.split()
        sides.append([words[unit.word][unit.begin : unit.end] for unit in units])
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize(
    ("english", "german", "pairs"),
    [
        ("twenty-four", "vierundzwanzig", "twenty/zwanzig four/vier"),
        ("four hundred and forty-four", "vierhundertvierundvierzig",
         "four/vier hundred/hundert forty/vierzig four/vier"),
        ("the thirty-first", "der einunddreißigste", "thirty/dreißigste first/ein"),
        ("the twentieth", "der zwanzigste", "twentieth/zwanzigste"),
        ("in the year nineteen eighty-seven", "im Jahr neunzehnhundertsiebenundachtzig",
         "year/Jahr nineteen/neunzehn eighty/achtzig seven/sieben"),
        ("on Tuesday, the third of March nineteen oh-one", "am Dienstag, dem dritten März neunzehnhunderteins",
         "Tuesday/Dienstag third/dritten March/März nineteen/neunzehn one/eins"),
        ("nothing of this", "nichts davon", ""),
    ],
)  # fmt: skip
def test_parts_that_mean_the_same_are_linked(english: str, german: str, pairs: str) -> None:
    assert " ".join(f"{a}/{b}" for a, b in linked(english, german)) == pairs


def test_every_number_of_the_corpus_is_linked_whole() -> None:
    """Of numbers that are no years, every word of either side but `and`, `und` and articles has its partner."""
    pairs = build().test
    plain = [(e, g) for e, g in pairs if not re.search(r"[A-Z]|year", e)]
    assert len(plain) > 500
    for english, german in plain:
        parts = linked(english, german)
        said = [word for word in re.findall("[a-z]+", english) if word not in ("and", "the")]
        assert [source for source, _ in parts] == said, (english, german)
        rest = german.removeprefix("der ")
        for target in sorted((target for _, target in parts), key=len, reverse=True):
            assert target in rest
            rest = rest.replace(target, "", 1)
        assert rest in ("", "und", "undund"), (german, rest)
    assert all(linked(english, german) for english, german in pairs)
