"""What search.shrink_beam, search.beam_threshold and search.recombine save, and how many translations they change.

    python bench/narrow_beam.py runs/en-de --text test.en --reference test.de
    python bench/narrow_beam.py runs/en-de --text test.en --reference test.de --thresholds 2 3 --beam 4 5

The first row is the search without these settings; all others shrink the beam.  The rows take turns.  Hypotheses: those
that are extended, per sentence, with the PyTorch backend in float32.  All other columns are of the native engine with
one thread: milliseconds of processor time per sentence (median of the rounds), translations that differ from those of
the first row, the mean score of the translations, and BLEU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from decode import lines_of
from sacrebleu.metrics import BLEU

from dragoman.data.batching import collate_source
from dragoman.decoding.pytorch.beam import beam_search
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.pipelines.translated import Translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import Tokenizer

BATCH = 32
"""Sentences that the PyTorch backend decodes together."""


def hypotheses(model: Path, texts: list[str], settings: SearchSettings) -> float:
    """Return the hypotheses that all steps together extend, per sentence."""
    network, tokenizer, _ = load_network(model)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    rows = sorted((tokenizer.encode_source(text) for text in texts), key=len)
    extended = len(rows)  # the empty hypothesis of each sentence
    for begin in range(0, len(rows), BATCH):
        src, mask = collate_source(rows[begin : begin + BATCH])
        for step in beam_search(ModelStepper(network), SearchRequest.build(src, mask, settings, None)):
            extended += int(step.extended.sum())
    return extended / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="file with one sentence per line")
    parser.add_argument("--reference", type=Path, required=True, help="translations of the text")
    parser.add_argument("--beam", type=int, nargs="+", default=[4], help="the first one is that of the first row")
    parser.add_argument(
        "--thresholds", type=float, nargs="+", default=[0.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0], help="0: off"
    )
    parser.add_argument("--recombine", type=int, nargs="+", default=[0, 1, 2], help="0: off")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-hypotheses", action="store_true", help="do not count hypotheses, which takes long")
    given = parser.parse_args()
    texts, reference = lines_of(given.text), lines_of(given.reference)
    names = "beam", "shrink_beam", "beam_threshold", "recombine"
    others = itertools.product(given.beam, [True], given.thresholds, given.recombine)
    narrow: list[dict[str, Any]] = [
        dict(zip(names, row, strict=True)) for row in [(given.beam[0], False, 0.0, 0), *others]
    ]
    translator = Translator.load(given.model, engine="native", threads=1)
    times: list[list[float]] = [[] for _ in narrow]
    found: list[list[Translation]] = [[] for _ in narrow]
    for _ in range(given.rounds):
        for own, taken, settings in zip(found, times, narrow, strict=True):
            began = time.process_time()
            own[:] = translator.translate(texts, **settings)
            taken.append(1e3 * (time.process_time() - began) / len(texts))
    heads = [*names, "hypotheses", "ms", "changed", "mean score", "BLEU"]
    print(f"{len(texts)} sentences\n| {' | '.join(heads)} |\n" + "|---" * len(heads) + "|")
    for own, taken, settings in zip(found, times, narrow, strict=True):
        asked = SearchSettings.of(translator.settings, **settings)
        count = "" if given.no_hypotheses else f"{hypotheses(given.model, texts, asked):.1f}"
        changed = sum(a.text != b.text for a, b in zip(own, found[0], strict=True))
        score = statistics.mean(t.score for t in own)
        bleu = BLEU().corpus_score([t.text for t in own], [reference]).score
        cells = [asked.beam, asked.shrink_beam, f"{asked.beam_threshold:g}", asked.recombine, count]
        cells += [f"{statistics.median(taken):.2f}", changed]
        print("| " + " | ".join(map(str, [*cells, f"{score:.3f}", f"{bleu:.2f}"])) + " |")


if __name__ == "__main__":
    main()
