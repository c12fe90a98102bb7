"""Measure the preparation of a large synthetic corpus, and the start of training on it.

    python bench/large_corpus.py --pairs 20000000 --added 1000000 --folder /large/disk/folder

Writes pairs of random words to --folder, and then reports: minutes and peak memory of `dragoman prepare`, of all its
processes together; the seconds from the start of `dragoman train` to its first step, and its memory, also for a corpus
of a hundredth of the size; the time of `dragoman prepare` after --added pairs were added as another file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WORDS, LONGEST = 60_000, 40
BLOCK = 100_000


def vocabulary(seed: int) -> np.ndarray[Any, Any]:
    """Return random words, made of syllables, so that subwords can be learned."""
    rng = np.random.default_rng(seed)
    syllables = ["".join(rng.choice(list("bcdfghklmnprstvw"))) + rng.choice(list("aeiou")) for _ in range(80)]
    return np.array(["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(WORDS)], dtype=object)


def write(folder: Path, name: str, pairs: int, seed: int) -> None:
    """Write pairs whose target translates the source word by word, with Zipf-distributed words."""
    sides = vocabulary(1), vocabulary(2)
    rng = np.random.default_rng(seed)
    with (folder / f"{name}.src").open("w") as src, (folder / f"{name}.tgt").open("w") as tgt:
        for first in range(0, pairs, BLOCK):
            count = min(BLOCK, pairs - first)
            lengths = np.minimum(LONGEST, 3 + rng.geometric(0.12, count))
            ids = np.minimum(rng.zipf(1.3, int(lengths.sum())), WORDS) - 1
            ends = np.cumsum(lengths)
            for file, words in zip((src, tgt), sides, strict=True):
                text = words[ids]
                rows = np.split(text, ends[:-1])
                file.write("\n".join(map(" ".join, rows)) + "\n")


def config(folder: Path, names: list[str]) -> Path:
    corpora = "".join(f'[[data.train]]\nsource = "{name}.src"\ntarget = "{name}.tgt"\n' for name in names)
    path = folder / f"{'-'.join(names)}.toml"
    path.write_text(
        f'[data]\nroot = "."\nsource_language = "en"\ntarget_language = "de"\n{corpora}'
        "[data.filter]\nmax_tokens = 128\n"
        "[tokenizer]\nvocab_size = 8000\nsentences = 500000\ncorpora = 1\n"
        "[model]\nd_model = 64\nd_ff = 128\nn_heads = 2\nencoder_layers = 1\ndecoder_layers = 1\n"
        '[train]\nbudget = "20 steps"\nbatch_tokens = 4096\nvalidate_every = "1000 steps"\nthreads = 1\n'
        '[train.schedule]\nkind = "constant"\nrate = 1e-4\nwarmup = 1\n'
    )
    return path


def resident(process: int) -> int:
    """Return the resident memory of a process and its descendants, in bytes."""
    total, waiting = 0, [process]
    while waiting:
        current = waiting.pop()
        try:
            status = Path(f"/proc/{current}/smaps_rollup").read_text()
            total += int(status.split("\nPss:", 1)[1].split()[0]) * 1024
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return total


def run(
    command: list[str], folder: Path, watch: Callable[[str], bool] = lambda line: False
) -> tuple[float, float, float]:
    """Run a command; return seconds, seconds until `watch` accepts a line of its messages, and peak memory in MB."""
    began, peak, first = time.monotonic(), 0, 0.0
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)
    done = threading.Event()

    def measure() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, resident(process.pid))

    thread = threading.Thread(target=measure)
    thread.start()
    assert process.stderr is not None
    for line in process.stderr:
        print("   ", line.rstrip(), file=sys.stderr)
        if not first and watch(line):
            first = time.monotonic() - began
    code = process.wait()
    done.set()
    thread.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return time.monotonic() - began, first, peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20_000_000)
    parser.add_argument("--added", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    sizes = {"small": args.pairs // 100, "large": args.pairs, "added": args.added}
    for seed, (name, pairs) in enumerate(sizes.items()):
        if not (args.folder / f"{name}.done").exists():
            write(args.folder, name, pairs, seed)
            (args.folder / f"{name}.done").touch()
    dragoman = [sys.executable, "-m", "dragoman"]
    results: dict[str, Any] = {}
    for label, names in (("small", ["small"]), ("large", ["large"]), ("large and added", ["large", "added"])):
        path = config(args.folder, names)
        prepare = [*dragoman, "prepare", path.name, "--workers", str(args.workers)]
        seconds, _, memory = run(prepare, args.folder)
        results[label] = {"prepare_seconds": round(seconds, 1), "prepare_mb": round(memory)}
        for attempt in ("first", "second"):
            train = [*dragoman, "train", path.name, "train.log_every=1", "--out", f"runs/{path.stem}-{attempt}"]
            _, first, memory = run(train, args.folder, lambda line: " step 1 " in line)
            results[label] |= {f"{attempt}_start_seconds": round(first, 1), f"{attempt}_train_mb": round(memory)}
        print(json.dumps({label: results[label]}), flush=True)


if __name__ == "__main__":
    main()
