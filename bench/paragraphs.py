"""Translate lines of several sentences: without splitting, split into sentences, and sentence by sentence.

    python bench/paragraphs.py MODEL --source test.en --reference test.fr [--lines 200] [--sentences 3]

Random test sentences are joined to lines, with varied whitespace between and around them.  BLEU is computed over the
lines; for `sentence by sentence`, the translator receives single sentences, and their translations are joined.
`whitespace kept` is the number of lines whose translation has the same whitespace as the source, around and between
sentences.  The last line reports the cost of splitting for lines of one sentence, as median over the rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from dragoman.data.sentences import split_sentences
from dragoman.evaluation.metrics import evaluate_texts
from dragoman.pipelines.translation import Translation, Translator

SPACES = (" ", " ", " ", "  ", "   ", "\t", "\u00a0", " \t", "\u2003")
ENDS = ("", "", "", " ", "  ", "\t")


def draw_spaces(lines: int, sentences: int) -> list[list[str]]:
    """Return the whitespace before, between and after the sentences of each line."""
    draw = random.Random(7)
    return [
        [draw.choice(ENDS), *(draw.choice(SPACES) for _ in range(sentences - 1)), draw.choice(ENDS)]
        for _ in range(lines)
    ]


def join(sentences: list[str], spaces: list[str]) -> str:
    return spaces[0] + "".join(a + b for a, b in zip(sentences, spaces[1:], strict=True))


def groups(sentences: list[str], count: int) -> list[list[str]]:
    return [sentences[i : i + count] for i in range(0, len(sentences) - count + 1, count)]


def keeps_spaces(translation: Translation, spaces: list[str]) -> bool:
    """Return whether the translation consists of the translated sentences, joined with `spaces`."""
    texts = [sentence.text for sentence in translation.sentences]
    return len(texts) == len(spaces) - 1 and join(texts, spaces) == translation.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--sentences", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = [path.read_text(encoding="utf-8").split("\n") for path in (arguments.source, arguments.reference)]
    pairs = [pair for pair in zip(*texts, strict=True) if all(pair)]
    drawn = random.Random(3).sample(pairs, arguments.lines * arguments.sentences)
    sources, references = map(list, zip(*drawn, strict=True))
    translator = Translator.load(arguments.model, quantize="none", threads=1)
    print(f"{translator.description}; profile: {translator.profile}; splits by default: {translator.splits_sentences}")

    grouped = groups([source.strip() for source in sources], arguments.sentences)
    spaces = draw_spaces(len(grouped), arguments.sentences)
    lines = [join(sentences, own) for sentences, own in zip(grouped, spaces, strict=True)]
    expected = [join(texts, own) for texts, own in zip(groups(references, arguments.sentences), spaces, strict=True)]

    single = [t.text for t in translator.translate([s for sentences in grouped for s in sentences], split=False)]
    split = translator.translate(lines, split=True)
    outputs = {
        "sentence by sentence": [
            join(t, own) for t, own in zip(groups(single, arguments.sentences), spaces, strict=True)
        ],
        "split into sentences": [translation.text for translation in split],
        "without splitting": [translation.text for translation in translator.translate(lines, split=False)],
    }
    print(f"{len(lines)} lines of {arguments.sentences} sentences")
    for name, texts in outputs.items():
        print(f"  {name:22} BLEU {evaluate_texts(texts, [expected]).bleu.score:6.2f}")
    kept = sum(keeps_spaces(translation, own) for translation, own in zip(split, spaces, strict=True))
    exact = sum(len(translation.sentences) == arguments.sentences for translation in split)
    print(f"  split into {arguments.sentences} sentences: {exact}; whitespace kept: {kept}")

    seconds: dict[bool, list[float]] = {False: [], True: []}
    splitting = []
    for _ in range(arguments.rounds):
        for on in (False, True):
            began = time.perf_counter()
            translator.translate(sources, split=on, beam=1)
            seconds[on].append(time.perf_counter() - began)
        began = time.perf_counter()
        for source in sources:
            split_sentences(source, translator.languages[0])
        splitting.append(time.perf_counter() - began)
    off, on = (statistics.median(seconds[key]) for key in (False, True))
    share = statistics.median(splitting) / on
    print(
        f"{len(sources)} lines of one sentence, greedy: {off:.3f} s without splitting, {on:.3f} s split; "
        f"splitting: {1e6 * statistics.median(splitting) / len(sources):.1f} us per line, {share:.2%}"
    )


if __name__ == "__main__":
    main()
