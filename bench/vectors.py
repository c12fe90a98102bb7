"""Word vectors of mixed English text by skip-gram and CBOW: neighbours, analogies, correlation with human scores.

    python bench/vectors.py [DATA] [--out FOLDER] [--kind skipgram] [--tokens all]

Trains on all SOURCES found in DATA (default: $DRAGOMAN_DATA or data) with the default settings of word2vec, none of
them tuned.  --out saves the vectors and pictures of both kinds.  --tokens all keeps punctuation, and counts how many
neighbours of punctuation marks and of numbers are of the same class.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

from dragoman.io.lines import read_lines
from dragoman.vectors import WordVectors, train_vectors
from dragoman.vectors.questions import read_questions, read_similarities
from dragoman.vectors.train import Kind, Tokens, tokens_of, words_of

WORDS = ["king", "french", "three", "monday", "brother", "money", "sea", "happy", "said", "computer"]
ANALOGIES = ["man king woman", "france paris england", "good better bad", "walk walked say", "brother sister son"]
MARKS = [",", ".", ";", ":", "?", "!", "(", ")", "--", "...", "$", "%"]
NUMBERS = ["3", "15", "100", "1984", "1960", "2.5"]
CLASSES = {"punctuation": r"[\W_]+", "numbers": r"\d+([.,]\d+)*"}
PICTURE = [
    "man woman king queen brother sister father mother son daughter uncle aunt he she his her",
    "france paris england london germany berlin russia moscow spain madrid",
    "good better best bad worse worst big bigger biggest",
]
ARROWS = [
    ("man", "woman"), ("king", "queen"), ("brother", "sister"), ("father", "mother"), ("son", "daughter"),
    ("uncle", "aunt"), ("he", "she"), ("his", "her"), ("france", "paris"), ("england", "london"),
    ("germany", "berlin"), ("russia", "moscow"), ("spain", "madrid"),
]  # fmt: skip

Reader = Callable[[Iterable[str]], Iterable[str]]


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield runs of non-empty lines, joined; the novels have hard line breaks."""
    part: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            part.append(line)
        elif part:
            yield " ".join(part)
            part = []


def tagged(lines: Iterable[str]) -> Iterator[str]:
    return (" ".join(token.rpartition("/")[0] for token in line.split()) for line in lines)


def news(lines: Iterable[str]) -> Iterator[str]:
    return (f"{title}. {text}" for _, title, text in csv.reader(lines))


def after_tab(lines: Iterable[str]) -> Iterator[str]:
    return (line.partition("\t")[2] for line in lines)


def after_colon(lines: Iterable[str]) -> Iterator[str]:
    return (line.partition(": ")[2] for line in lines)


def treebank(lines: Iterable[str]) -> Iterator[str]:
    return (line.partition(" = ")[2] for line in lines if line.startswith("# text = "))


SOURCES: list[tuple[str, Reader]] = [
    ("gutenberg_novels/train.txt.gz", paragraphs),
    ("brown/train.tagged.txt.gz", tagged),
    ("tinyshakespeare/train.txt.gz", paragraphs),
    ("wikitext2/valid.raw.txt.gz", iter),
    ("wmt_news/*.en", iter),
    ("iwslt17_en_de_small/*.en*", iter),
    ("tatoeba_en_*/train.en*", iter),
    ("multi30k/train.en.gz", iter),
    ("ag_news_sample/train.csv.gz", news),
    ("subjectivity/train.tsv.gz", after_tab),
    ("switchboard_sample/train.txt", after_colon),
    ("trec_questions/train.txt", after_colon),
    ("ud_english_ewt/train.conllu.gz", treebank),
]


def read_all(root: Path) -> list[str]:
    """Return every text once; some sentences are in several sets."""
    texts: dict[str, None] = {}
    for pattern, reader in SOURCES:
        for path in sorted(root.glob(pattern)):
            texts.update(dict.fromkeys(reader(read_lines(path))))
    return list(texts)


def show(vectors: WordVectors, root: Path) -> None:
    print(f"\n{len(vectors):,} words\n\nnearest by cosine")
    for word in WORDS:
        if word in vectors:
            print(f"  {word:10} {'  '.join(f'{n.word} {n.value:.2f}' for n in vectors.neighbours(word, 7))}")
    print("\nanalogies: a is to b as c is to ...")
    for analogy in ANALOGIES:
        found = vectors.analogy(*analogy.split(), 5)
        print(f"  {analogy:24} {'  '.join(f'{n.word} {n.value:.2f}' for n in found)}")
    folder = root / "word_vectors_eval"
    print("\naccuracy of analogies")
    for line in vectors.accuracy(read_questions(folder / "analogy.txt")).lines():
        print(f"  {line}")
    print("\nSpearman correlation with human scores, by cosine")
    for path in sorted(folder.glob("*.tsv")):
        result = vectors.correlation(read_similarities(path))
        print(f"  {path.stem:26} {result.spearman:.3f}   ({result.known} of {result.asked} pairs known)")
    pairs = read_similarities(folder / "wordsim353.tsv")
    for measure in ("dot", "euclidean", "mahalanobis"):
        print(f"  wordsim353, {measure:14} {vectors.correlation(pairs, measure).spearman:.3f}")


def show_classes(vectors: WordVectors, most: int = 100) -> None:
    """Print neighbours of marks and numbers, and how many of the 10 nearest of each are of the same class."""
    print("\nnearest by cosine")
    for word in [*MARKS, *NUMBERS]:
        if word in vectors:
            print(f"  {word:10} {'  '.join(f'{n.word} {n.value:.2f}' for n in vectors.neighbours(word, 10))}")
    for name, pattern in CLASSES.items():
        members = [word for word in vectors.words if re.fullmatch(pattern, word)]
        asked = members[:most]  # the most frequent ones
        same = sum(n.word in set(members) for word in asked for n in vectors.neighbours(word, 10)) / len(asked)
        chance = 10 * (len(members) - 1) / (len(vectors) - 1)
        print(f"{name}: {len(members)} of {len(vectors):,} tokens; of the 10 nearest of the {len(asked)} most frequent")
        print(f"  {same:.2f} are {name} on average; by chance {chance:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("DRAGOMAN_DATA", "data")
    parser.add_argument("data", nargs="?", type=Path, default=Path(default))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kind", choices=get_args(Kind), action="append")
    parser.add_argument("--tokens", choices=get_args(Tokens), default="words")
    given = parser.parse_args()
    split = words_of if given.tokens == "words" else tokens_of
    texts = read_all(given.data)
    print(f"{len(texts):,} texts, {sum(len(split(text)) for text in texts):,} tokens")
    for kind in given.kind or get_args(Kind):
        began = time.process_time()
        vectors = train_vectors(texts, kind, tokens=given.tokens)
        print(f"\n=== {kind}: {time.process_time() - began:.0f} s of one core", end="")
        show(vectors, given.data)
        if given.tokens == "all":
            show_classes(vectors)
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            vectors.save(given.out / f"{kind}.safetensors")
            for number, group in enumerate(PICTURE, start=1):
                words = [word for word in group.split() if word in vectors]
                arrows = [(a, b) for a, b in ARROWS if a in words and b in words]
                vectors.picture(words, given.out / f"{kind}-{number}.svg", arrows)


if __name__ == "__main__":
    main()
