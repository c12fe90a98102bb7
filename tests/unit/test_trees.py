"""Trees: brackets read, trees as rows and back, mended where they are none, and F1 as counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.readers.trees import Tree, bracket_f1, brackets, delinearize, linearize, penn_word, read_trees
from dragoman.errors import DataError
from small_run import write_lines

JOHN = "(ROOT (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))"
ROW = "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"


def tree(text: str, folder: Path) -> Tree:
    (found,) = read_trees(write_lines(folder / "one.ptb", [text]))
    return found


# ----------------------------------------------------------------------------------------------------------- reading


def test_brackets_that_never_close_are_refused_before_python_runs_out_of_stack(tmp_path: Path) -> None:
    deep = "(S " * 5000 + "(N a)" + ")" * 5000
    with pytest.raises(DataError, match="line 2: more than 200 brackets are open"):
        list(read_trees(write_lines(tmp_path / "deep.ptb", [JOHN, deep])))
    deepest = tree("(S " * 199 + "(N a)" + ")" * 199, tmp_path)
    assert deepest.words() == ["a"] and len(linearize(deepest).split()) == 2 * 199 + 1


def test_trees_over_several_lines(tmp_path: Path) -> None:
    broken = JOHN.replace(" (VP", "\n\n   (VP").replace("dog)", "dog\n)")
    path = write_lines(tmp_path / "a.ptb", ["", broken, f"{JOHN} (ROOT (UH Yeah))", ""])
    found = list(read_trees(path))
    assert [str(t) for t in found] == [JOHN, JOHN, "(ROOT (UH Yeah))"]
    assert found[0].words() == ["John", "has", "a", "dog", "."]
    assert [tag for tag, _ in found[0].leaves()] == ["NNP", "VBZ", "DT", "NN", "."]


def test_functions_and_traces_are_taken_off_and_spaces_that_are_no_blanks_stay(tmp_path: Path) -> None:
    found = tree("( (S-1 (NP-SBJ=2 (-NONE- *T*-1)) (VP (VBZ is) (-LRB- -LRB-) (NP|X (NN-x u00a0)))))", tmp_path)
    assert str(found) == "( (S (VP (VBZ is) (-LRB- -LRB-) (NP|X (NN u00a0)))))"
    assert tree("(NP (CD 1\u00a0000) (NN x\u2028y))", tmp_path).words() == ["1\u00a0000", "x\u2028y"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([JOHN, "", "(S (NP (NN a))"], r"the tree that begins in line 3 is not closed; add 1 brackets"),
        ([JOHN, f"{JOHN})"], r'a\.ptb, line 2: "\)" outside of any tree'),
        (["(S (NN dog))", "cat"], r'line 2: "cat" outside of any tree'),
        (["(S (NP))"], r'line 1: the bracket "NP" has no children'),
        (["(S (NN hot dog))"], r'line 1: the bracket "NN" has 2 children, 2 of them words'),
        (["(S (NP the (NN dog)))"], r'line 1: the bracket "NP" has 2 children, 1 of them words'),
    ],
)
def test_bad_brackets_are_named(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_trees(write_lines(tmp_path / "a.ptb", lines)))


# ------------------------------------------------------------------------------------------------------ rows and back


def test_the_row_of_a_tree(tmp_path: Path) -> None:
    john = tree(JOHN, tmp_path)
    assert linearize(john) == ROW
    assert delinearize(ROW, john.words(), [tag for tag, _ in john.leaves()]) == (john, True)
    assert linearize(tree("(ROOT (UH Yeah))", tmp_path)) == "XX"


WORDS = ["John", "has", "a", "dog", "."]


@pytest.mark.parametrize(
    ("row", "mended"),
    [
        ("", "(ROOT (XX John) (XX has) (XX a) (XX dog) (XX .))"),
        ("(S XX XX", "(ROOT (S (XX John) (XX has)) (XX a) (XX dog) (XX .))"),
        ("(S XX )VP XX )S", "(ROOT (S (XX John) (XX has)) (XX a) (XX dog) (XX .))"),
        ("(S (NP XX )S XX XX XX XX", "(ROOT (S (NP (XX John))) (XX has) (XX a) (XX dog) (XX .))"),
        ("(S XX XX XX XX XX XX )S XX", "(ROOT (S (XX John) (XX has) (XX a) (XX dog) (XX .)))"),
        ("(S (NP )NP XX XX XX XX XX )S", "(ROOT (S (XX John) (XX has) (XX a) (XX dog) (XX .)))"),
        ("(S ( dog XX XX XX ) XX XX )S", "(ROOT (S (XX John) (XX has) (XX a) (XX dog) (XX .)))"),
        ("(S (NP(VP XX XX XX XX )NP)VP XX )S", "(ROOT (S (XX John) (XX has) (XX a) (XX dog) (XX .)))"),
    ],
)
def test_malformed_rows_are_repaired_and_reported(row: str, mended: str) -> None:
    found, whole = delinearize(row, WORDS)
    assert (str(found), whole) == (mended, False)


@given(st.lists(st.sampled_from(["(S", "(NP", ")S", ")NP", "XX", "(", ")", "(S)S", "x"]), max_size=25).map(" ".join))
def test_for_any_row_every_word_is_in_the_tree_once(row: str) -> None:
    found, whole = delinearize(row, WORDS)
    assert found.words() == WORDS
    if whole:
        assert linearize(found) == row


def test_a_tree_over_no_words() -> None:
    found, _ = delinearize("(S XX )S", [])
    assert found.words() == [] and found.children == () and linearize(found) == "" and not brackets(found)


def test_round_brackets_of_a_text_are_words_as_treebanks_have_them(tmp_path: Path) -> None:
    found, whole = delinearize("(S XX XX XX )S", [penn_word(word) for word in ("(", "a)", "b")])
    assert whole and tree(str(found), tmp_path) == found and found.words() == ["-LRB-", "a-RRB-", "b"]


def test_round_trip_of_the_treebank(data_root: Path) -> None:
    count = 0
    for part in ("train.ptb.gz", "valid.ptb"):
        for own in read_trees(data_root / "gum_constituency" / part):
            count += 1
            assert delinearize(linearize(own), own.words(), [tag for tag, _ in own.leaves()]) == (own, True)
    assert count == 10_224 + 1_575


# ------------------------------------------------------------------------------------------------------------ scores


def test_brackets_by_hand(tmp_path: Path) -> None:
    assert brackets(tree(JOHN, tmp_path)) == Counter(
        {("S", 0, 4): 1, ("NP", 0, 1): 1, ("VP", 1, 4): 1, ("NP", 2, 4): 1}
    )


def test_punctuation_is_no_word_and_prt_is_advp(tmp_path: Path) -> None:
    found = tree("(ROOT (S (PRN (, ,)) (NP (NP (`` ``) (NN a))) (PRT (RP up)) (: -) (X (-LRB- -LRB-))))", tmp_path)
    assert brackets(found) == Counter({("S", 0, 3): 1, ("NP", 0, 1): 2, ("ADVP", 1, 2): 1, ("X", 2, 3): 1})


def test_f1_by_hand(tmp_path: Path) -> None:
    gold = [tree(JOHN, tmp_path), tree("(ROOT (NP (DT the) (NN cat)))", tmp_path)]
    assert bracket_f1(gold, gold) == {"precision": 100, "recall": 100, "f1": 100}
    found = [
        tree("(ROOT (S (NP (NNP John)) (VP (VBZ has)) (NP (DT a) (NN dog)) (. .)))", tmp_path),  # 3 right of 4
        tree("(ROOT (NP (NP (DT the)) (NN cat)))", tmp_path),  # 1 right of 2, and there is 1
    ]
    assert bracket_f1(gold, found) == pytest.approx({"precision": 100 * 4 / 6, "recall": 100 * 4 / 5, "f1": 800 / 11})
    flat = [tree("(ROOT (UH a))", tmp_path)]
    assert bracket_f1(flat, flat) == {"precision": 0, "recall": 0, "f1": 0}


def test_a_bracket_counts_as_often_as_it_is_there(tmp_path: Path) -> None:
    gold = [tree("(ROOT (NP (NP (NN a))))", tmp_path)]
    once = [tree("(ROOT (NP (NN a)))", tmp_path)]
    assert bracket_f1(gold, once) == pytest.approx({"precision": 100, "recall": 50, "f1": 200 / 3})
    assert bracket_f1(gold, gold)["recall"] == 100
