"""Compare the precision, recall and speed of `split_sentences` with those of libraries.

    python bench/sentences.py DATA [--against sentencex pysbd ...]

DATA: folder of corpora (see `CORPORA`).  Three lines that end with a final mark are joined with varied whitespace, none
in Chinese.  `recall` is the share of the boundaries between the lines that are found, `extra` the number of other
boundaries per 1,000 lines; some lines consist of two sentences, so a perfect result is above 0.  In the treebanks,
people marked the sentences; consecutive sentences of a document are joined with their original whitespace, and
precision, recall and F1 are computed over all boundaries.  Libraries that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dragoman.data.sentences import split_sentences

Splitter = Callable[[str], Iterable[str]]
Factory = Callable[[str], Splitter]

CORPORA = {
    "en": ["wmt_news/newstest2014.en-de.en", "iwslt17_en_de_small/test2012.en", "tatoeba_en_fr/valid.en"],
    "de": ["wmt_news/newstest2014.en-de.de", "iwslt17_en_de_small/test2012.de", "tatoeba_en_de/valid.de"],
    "fr": ["wmt_news/newstest2014.en-fr.fr", "multi30k/valid.fr", "tatoeba_en_fr/valid.fr"],
    "cs": ["multi30k/valid.cs"],
    "sk": ["mt_scoring/ted.sk-en.src.sk"],
    "ru": ["mt_scoring/newstest2015_100.en-ru.ref.ru"],
    "zh": ["wmt_news/newstest2017.en-zh.zh", "tatoeba_en_zh/valid.zh"],
}
TREEBANKS = {
    "en": ["ud_english_ewt/valid.conllu.gz"],
    "de": ["ud_german_gsd/valid.conllu"],
    "zh": ["ud_chinese_gsd/valid.conllu.gz"],
}
"""The rules were developed on other parts of these corpora, except for sk, ru, Chinese news, and de and zh GSD."""
SPACES = (" ", " ", "  ", "\t", "\u00a0", "   ")
FINAL = (".", "!", "?", "…", "。", "！", "？")
CLOSING = "\"'”’»“)]」』）"


def spans_of(text: str, parts: Iterable[str]) -> set[int]:
    """Return the start of each part but the first, also if a library strips the whitespace between parts."""
    starts, position = set(), 0
    for part in parts:
        stripped = part.strip()
        if stripped:
            found = text.find(stripped, position)
            if found < 0:  # the library has changed the text
                continue
            starts.add(found)
            position = found + len(stripped)
    return starts - {min(starts, default=0)}


def ours(language: str) -> Splitter:
    return lambda text: split_sentences(text, language)


def _sentencex(language: str) -> Splitter:
    module = importlib.import_module("sentencex")
    return lambda text: module.segment(language, text)


def _pysbd(language: str) -> Splitter:
    module = importlib.import_module("pysbd")
    known = language if language in module.languages.LANGUAGE_CODES else "en"
    segmenter = module.Segmenter(language=known, clean=False)
    return lambda text: segmenter.segment(text)


def _sentence_splitter(language: str) -> Splitter:
    module = importlib.import_module("sentence_splitter")
    return module.SentenceSplitter(language="en" if language == "zh" else language).split


def _syntok(language: str) -> Splitter:
    module = importlib.import_module("syntok.segmenter")

    def split(text: str) -> Iterator[str]:
        for paragraph in module.analyze(text):
            for sentence in paragraph:
                yield text[sentence[0].offset : sentence[-1].offset + len(sentence[-1].value)]

    return split


def _blingfire(language: str) -> Splitter:
    module = importlib.import_module("blingfire")
    return lambda text: (text[start:end] for start, end in module.text_to_sentences_and_offsets(text)[1])


def _nupunkt(language: str) -> Splitter:
    return importlib.import_module("nupunkt").sent_tokenize


def _yasbd(language: str) -> Splitter:
    module = importlib.import_module("yasbd.utils.pysbd_adapter")
    segmenter = module.Segmenter(language=language, clean=False)
    return lambda text: segmenter.segment(text)


LIBRARIES: dict[str, Factory] = {
    "sentencex": _sentencex,
    "pysbd": _pysbd,
    "sentence-splitter": _sentence_splitter,
    "syntok": _syntok,
    "blingfire": _blingfire,
    "nupunkt": _nupunkt,
    "yasbd": _yasbd,
}


def lines_of(path: Path) -> list[str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode().split("\n")


def joined_lines(path: Path, language: str, count: int = 3) -> list[tuple[str, set[int]]]:
    """Return texts of `count` lines, each with the starts of its lines but the first."""
    draw = random.Random(5)
    lines = [line.strip() for line in lines_of(path)]
    lines = [line for line in lines if line.rstrip(CLOSING).endswith(FINAL)]
    texts = []
    for first in range(0, len(lines) - count + 1, count):
        text, starts = "", set()
        for line in lines[first : first + count]:
            text += ("" if language == "zh" else draw.choice(SPACES)) if text else ""
            starts.add(len(text))
            text += line
        texts.append((text, starts - {0}))
    return texts


def treebank(paths: list[Path], language: str, count: int = 3) -> list[tuple[str, set[int]]]:
    """Return texts of up to `count` consecutive sentences of a document, with the original whitespace."""
    texts: list[tuple[str, set[int]]] = []
    for path in paths:
        pieces: list[tuple[str, bool]] = []  # sentence, whether a space follows
        text, space = "", True
        for line in [*lines_of(path), "# newdoc"]:
            if line.startswith("# newdoc") or len(pieces) == count:
                joined, starts = "", set()
                for sentence, after in pieces:
                    starts.add(len(joined))
                    joined += sentence + (" " if after and language != "zh" else "")
                if len(pieces) > 1:
                    texts.append((joined.rstrip(), starts - {0}))
                pieces = []
            if line.startswith("# text = "):
                text = line.removeprefix("# text = ")
            elif line and not line.startswith("#"):
                space = "SpaceAfter=No" not in line.split("\t")[-1]
            elif not line and text:
                pieces.append((text, space))
                text = ""
    return texts


def show(text: str, found: set[int], starts: set[int]) -> None:
    """Print a text with a mark at each boundary that is extra (+) or missing (-)."""
    marks = [(position, "|+") for position in found - starts] + [(position, "|-") for position in starts - found]
    for position, mark in sorted(marks, reverse=True):
        text = text[:position] + mark + text[position:]
    print("   ", text)


def counts(splitter: Splitter, texts: list[tuple[str, set[int]]], shown: bool = False) -> tuple[int, int, int]:
    """Return the numbers of correct boundaries, of found boundaries, and of true boundaries."""
    right = found_all = wanted = 0
    for text, starts in texts:
        found = spans_of(text, splitter(text))
        right, found_all, wanted = right + len(found & starts), found_all + len(found), wanted + len(starts)
        if shown and found != starts:
            show(text, found, starts)
    return right, found_all, wanted


def compare_joined(data: Path, systems: dict[str, Factory], shown: str | None) -> None:
    print("joined lines: recall in percent, extra boundaries per 1,000 lines")
    for language, names in CORPORA.items():
        for name in names:
            texts = joined_lines(data / name, language)
            row = []
            for system, factory in systems.items():
                right, found, wanted = counts(factory(language), texts, system == shown)
                row.append(f"{100 * right / wanted:10.2f} {1000 * (found - right) / (3 * len(texts)):8.1f}")
            print_row(f"{language} {name:40} {len(texts):4}", row)


def compare_treebanks(data: Path, systems: dict[str, Factory]) -> None:
    print("treebanks: precision, recall and F1 in percent")
    for language, names in TREEBANKS.items():
        texts = treebank([data / name for name in names], language)
        row = []
        for factory in systems.values():
            right, found, wanted = counts(factory(language), texts)
            precision, recall = right / max(found, 1), right / wanted
            f1 = 2 * precision * recall / max(precision + recall, 1e-9)
            row.append(f"{100 * precision:6.1f} {100 * recall:5.1f} {100 * f1:5.1f}")
        print_row(f"{language} {names[0]:40} {len(texts):4}", row)


def compare_speed(data: Path, systems: dict[str, Factory], rounds: int) -> None:
    texts = [text for text, _ in joined_lines(data / CORPORA["en"][0], "en")]
    row = []
    for factory in systems.values():
        splitter, best = factory("en"), float("inf")
        for _ in range(rounds):
            began = time.process_time()
            for text in texts:
                list(splitter(text))
            best = min(best, time.process_time() - began)
        row.append(f"{sum(map(len, texts)) / best / 1e6:.2f}")
    print_row("million characters per second of CPU (best)", row)


def print_row(name: str, cells: Iterable[str]) -> None:
    print(f"{name:56}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--against", nargs="*", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--show", help="print the errors of this system in the joined lines")
    parser.add_argument("--only-speed", action="store_true")
    arguments = parser.parse_args()
    systems: dict[str, Factory] = {"ours": ours}
    for name in arguments.against:
        try:
            LIBRARIES[name]("en")("One. Two.")
        except ImportError:
            print(f"{name}: not installed")
        else:
            systems[name] = LIBRARIES[name]
    print_row("", systems)
    if not arguments.only_speed:
        compare_joined(arguments.data, systems, arguments.show)
        compare_treebanks(arguments.data, systems)
    compare_speed(arguments.data, systems, arguments.rounds)


if __name__ == "__main__":
    main()
