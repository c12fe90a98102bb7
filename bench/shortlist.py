"""Speed and quality of the native engine with and without a shortlist, on the same sentences in turns.

    python bench/shortlist.py random-base                                        # about 1,000 random tokens per list
    python bench/shortlist.py runs/en-de --text test.en --reference test.de      # learned from its training data
    python bench/shortlist.py runs/en-de --text test.en --reference test.de --shrink-beam --beam-threshold 2

One core, one thread, int8.  The table has medians over the rounds and the quartiles of their ratios; the time to select
the tokens is included, and printed separately beside that of `Shortlist.of`.  A trained model is copied first, so that
nothing is written into its folder; learning is timed, and BLEU (raw, beam 4), coverage and the processor time per
sentence are of the text, the last with the given settings of the search.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

from decode import LENGTH, SHAPES, VOCABULARIES, lines_of, quartiles

from dragoman.config import parse_config
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.pack import pack
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist
from dragoman.models.build import build_model
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS, UNK
from dragoman.training.shortlist import coverage, learn_shortlist

Rows = list[list[int]]
ALONE = 40
BEST, FREQUENT = 43, 100  # of random lists: with 22 source words on average some 1,000 words a sentence


def random_model(name: str, folder: Path) -> tuple[NativeBackend, Shortlist]:
    """Random weights, and lists of random words."""
    vocab, draw = VOCABULARIES[name], random.Random(3)
    config = parse_config({"data": {"train": [{"source": "s", "target": "t"}]}, "model": SHAPES[name]})
    path = pack(build_model(config.model, vocab, vocab, seed=1).eval(), folder / "packed", "int8")
    lists = [sorted(draw.sample(range(4, vocab), BEST)) for _ in range(vocab)]
    frequent = array("i", sorted({UNK, EOS, *draw.sample(range(4, vocab), FREQUENT)}))
    starts, ids = array("i", range(0, vocab * BEST + 1, BEST)), array("i", [i for words in lists for i in words])
    backend = NativeBackend(Engine(path), "int8", 1, lambda: backend)
    return backend, Shortlist(BEST, vocab, "00" * 32, frequent, starts, ids)


def learned_model(model: Path, folder: Path, best: int, frequent: int) -> tuple[Translator, Shortlist]:
    """A trained model, and what it learns from its training data."""
    from dragoman.decoding.loader import load_shortlist
    from dragoman.models.model_folder import find_model

    copy = Path(shutil.copytree(find_model(model), folder / "model", ignore=shutil.ignore_patterns("packed")))
    translator = Translator.load(copy, engine="native", threads=1)
    began = time.perf_counter()
    learned = learn_shortlist(copy, best=best, frequent=frequent)
    print(*learned.lines(), f"learned in {time.perf_counter() - began:.1f} s", sep="\n")
    return translator, load_shortlist(copy)


def taken(backend: NativeBackend, rows: Rows, beam: int, length: int, alone: bool) -> float:
    """Milliseconds a token where sentences come one at a time, else tokens a second."""
    shape = {"min_length": length - 1, "max_extra": 0} if length else {}
    settings = SearchSettings(beam=beam, **shape)  # type: ignore[arg-type]
    seconds, tokens = 0.0, 0
    for some in [[row] for row in rows] if alone else [rows]:
        began = time.perf_counter()
        found = backend.search(some, [[]] * len(some), settings, 1 << 20)
        seconds += time.perf_counter() - began
        tokens += sum(len(best.tokens) + 1 for best, *_ in found)
    return 1e3 * seconds / tokens if alone else tokens / seconds


def compare(backend: NativeBackend, shortlist: Shortlist, rows: Rows, length: int, rounds: int) -> None:
    """The table: four questions, without and with the list."""
    sizes = [len(shortlist.of(row)) for row in rows]
    print(f"{len(rows):,} sentences, {sum(sizes) / len(sizes):,.0f} tokens per list on average, {max(sizes):,} at most")
    selected = selection(backend.engine, shortlist, rows, rounds)
    print("selecting them takes {:.3f} ms per sentence, one at a time {:.3f}; in Python {:.3f}\n".format(*selected))
    some = random.Random(2).sample(rows, min(ALONE, len(rows)))
    print("| | full vocabulary | shortlist | speed-up |\n|---|---|---|---|")
    for alone, beam in ((True, 1), (True, 4), (False, 1), (False, 4)):
        measured: tuple[list[float], list[float]] = [], []
        for warm in range(-1, rounds):
            for speeds, own in zip(measured, (None, shortlist), strict=True):
                backend.shortlist = own
                value = taken(backend, some if alone else rows, beam, length, alone)
                if warm >= 0:
                    speeds.append(value)
        ratios = [a / b if alone else b / a for a, b in zip(*measured, strict=True)]
        what = f"{'one at a time, ms a token' if alone else 'all at once, tokens/s'}, beam {beam}"
        cells = [f"{quartiles(speeds)[0]:,.3f}" if alone else f"{quartiles(speeds)[0]:,.0f}" for speeds in measured]
        middle, low, high = quartiles(ratios)
        print(f"| {what} | {' | '.join(cells)} | {middle:.2f} ({low:.2f}-{high:.2f}) |", flush=True)


def selection(engine: Engine, shortlist: Shortlist, rows: Rows, rounds: int) -> list[float]:
    """Return the milliseconds per sentence to select the tokens: all at once, one at a time, and in Python."""

    def alone() -> None:
        for row in rows:
            engine.shortlists(shortlist, [row], [[]])

    def in_python() -> None:
        for row in rows:
            shortlist.of(row)

    found = []
    for select in (lambda: engine.shortlists(shortlist, rows, [[]] * len(rows)), alone, in_python):
        seconds = []
        for _ in range(rounds):
            began = time.process_time()
            select()
            seconds.append(time.process_time() - began)
        found.append(1e3 * statistics.median(seconds) / len(rows))
    return found


def quality(
    translator: Translator,
    shortlist: Shortlist,
    texts: list[str],
    references: list[str],
    rounds: int,
    **settings: Any,
) -> None:
    """Print processor time and BLEU without and with the shortlist, and its coverage.  settings: of the search."""
    import sacrebleu

    pieces = translator.tokenizer
    pairs = [(pieces.encode_source(s), pieces.encode_target(r)) for s, r in zip(texts, references, strict=True)]
    found: list[list[str]] = [[], []]
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for i, own in enumerate((None, shortlist)):
            translator.backend.shortlist = own
            began = time.process_time()
            found[i] = [t.text for t in translator.translate(texts, beam=4, **settings)]
            seconds[i].append(time.process_time() - began)
    bleu = [sacrebleu.corpus_bleu(translations, [references]).score for translations in found]
    times = [1e3 * statistics.median(column) / len(texts) for column in seconds]
    same = sum(one == other for one, other in zip(*found, strict=True))
    size, share = coverage(shortlist, pairs)
    print(f"\nbeam 4: {times[0]:.2f} ms per sentence without a shortlist, {times[1]:.2f} with it")
    print(f"BLEU {bleu[0]:.2f} without, {bleu[1]:.2f} with it; {same:,} of {len(texts):,} translations are the same")
    print(f"{100 * share:.2f} % of the reference tokens are in the lists ({size:,.0f} tokens on average)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"{', '.join(SHAPES)}, or a model folder")
    parser.add_argument("--text", type=Path, help="the lines that a trained model translates")
    parser.add_argument("--reference", type=Path, help="their reference translations")
    parser.add_argument("--best", type=int, default=50)
    parser.add_argument("--frequent", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--shrink-beam", action="store_true")
    parser.add_argument("--beam-threshold", type=float, default=0.0)
    parser.add_argument("--recombine", type=int, default=0)
    given = parser.parse_args()
    if given.model not in SHAPES and (given.text is None or given.reference is None):
        parser.error("a trained model needs --text and --reference")
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    with tempfile.TemporaryDirectory() as folder:
        if given.model in SHAPES:
            backend, shortlist = random_model(given.model, Path(folder))
            draw, size = random.Random(1), VOCABULARIES[given.model]
            rows = [[*draw.choices(range(4, size), k=draw.randint(4, LENGTH - 1)), EOS] for _ in range(given.sentences)]
            compare(backend, shortlist, rows, LENGTH, given.rounds)
            return
        translator, shortlist = learned_model(given.model, Path(folder), given.best, given.frequent)
        texts, references = (lines_of(path)[: given.sentences] for path in (given.text, given.reference))
        assert isinstance(translator.backend, NativeBackend)
        compare(translator.backend, shortlist, list(map(translator.tokenizer.encode_source, texts)), 0, given.rounds)
        search = {
            "shrink_beam": given.shrink_beam, "beam_threshold": given.beam_threshold, "recombine": given.recombine,
        }  # fmt: skip
        quality(translator, shortlist, texts, references, given.rounds, **search)


if __name__ == "__main__":
    main()
