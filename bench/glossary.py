"""Measure glossaries: how many terms are applied, and what they cost.

    python bench/glossary.py runs/en-de --source data/multi30k/test2016.en --reference data/multi30k/test2016.de

The terms are hard ones: a source word, and the word of the reference that the model aligns with it and that its own
translation lacks.  Each of 200 sentences has one or two.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import sacrebleu
from recipes import processor

from dragoman import Translator
from dragoman.pipelines.glossary import Glossary

WORD = re.compile(r"[^\W\d_]{4,}")


def aligned_words(translator: Translator, source: str, target: str) -> list[tuple[str, str]]:
    """Return pairs of a source word and the target word that attends to it most."""
    tokenizer = translator.tokenizer
    (alignment,) = translator.align([source], [target])
    spans: dict[str, list[int]] = {}
    for name, text, pieces in (("source", source, alignment.source), ("target", target, alignment.target)):
        words, number = text.split(), -1
        spans[name] = []
        for piece in pieces:
            number += piece.startswith("\u2581")
            spans[name].append(min(number, len(words) - 1))
    pairs = []
    for row, number in enumerate(spans["target"][:-1]):
        column = int(alignment.weights[row, :-1].argmax())
        pairs.append((spans["source"][column], number))
    words = (
        [re.sub(r"^\W+|\W+$", "", word) for word in source.split()],
        [re.sub(r"^\W+|\W+$", "", word) for word in target.split()],
    )
    assert tokenizer is not None
    return [(words[0][s], words[1][t]) for s, t in dict.fromkeys(pairs)]


def cases(translator: Translator, sources: list[str], references: list[str], wanted: int) -> list[dict[str, Any]]:
    """Return sentences with one or two terms each, alternately."""
    plain = translator.translate(sources)
    found: list[dict[str, Any]] = []
    for source, reference, own in zip(sources, references, plain, strict=True):
        terms: dict[str, str] = {}
        for one, other in aligned_words(translator, source, reference):
            unique = source.split().count(one) == 1 and reference.split().count(other) == 1
            if WORD.fullmatch(one) and WORD.fullmatch(other) and unique and other.lower() not in own.text.lower():
                terms.setdefault(one, other)
        number = 1 + len(found) % 2
        if len(terms) >= number:
            found.append({"source": source, "reference": reference, "terms": dict(list(terms.items())[:number])})
        if len(found) == wanted:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--bonus", type=float, nargs="+", default=[2.0, 4.0, 6.0])
    given = parser.parse_args()
    translator = Translator.load(given.model)
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (given.source, given.reference)]
    selected = cases(translator, *texts, given.sentences)
    references = [case["reference"] for case in selected]
    count = sum(len(case["terms"]) for case in selected)
    print(f"{len(selected)} sentences, {count} terms; {processor()}; {translator.backend.description}")
    print("| glossary | terms applied | whole words and parts | BLEU | seconds |\n|---|---|---|---|---|")
    kinds: list[tuple[str, Any]] = [("none", None)]
    kinds += [(f"bonus {bonus:g}", {"bonus": bonus}) for bonus in given.bonus]
    kinds.append(("strict", {"strict": True}))
    for name, options in kinds:
        begin = time.process_time()
        found = []
        for case in selected:
            glossary = None if options is None else Glossary(case["terms"], **options)
            found += translator.translate([case["source"]], glossary=glossary)
        seconds = time.process_time() - begin
        whole = sum(term.applied for t in found for term in t.terms) * count / max(1, sum(len(t.terms) for t in found))
        parts = sum(
            other in t.text for t, case in zip(found, selected, strict=True) for other in case["terms"].values()
        )
        bleu = sacrebleu.corpus_bleu([t.text for t in found], [references]).score
        print(f"| {name} | {100 * whole / count:.1f} % | {100 * parts / count:.1f} % | {bleu:.1f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
