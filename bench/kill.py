"""Kill a training with SIGKILL at random moments, resume it each time, and compare it with an uninterrupted one.

    python bench/kill.py CONFIG.toml train.budget="900 steps" train.save_every="5 s" --kills 20 --longest 25

The moments are drawn uniformly from the time since the start of each process, so that some processes are killed while
they load PyTorch, prepare the data or write a checkpoint.  For each kill, the script prints the folder (of a document
with stages, that of the stage), the step, the current phase and the seconds of training that the next process repeats;
at the end, the largest number of these seconds, and whether both runs have the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()", "train"]


def session(config: Path, overrides: list[str], run: Path, seconds: float | None) -> tuple[bool, list[str]]:
    """Train in a new process, killed after `seconds`; return whether the training ended, and the printed lines."""
    output = run.parent / "output.txt"
    output.parent.mkdir(exist_ok=True)
    with output.open("wb") as file:
        process = subprocess.Popen([*COMMAND, str(config), *overrides, "--out", str(run)], stderr=file)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    lines = output.read_text(encoding="utf-8").splitlines()
    if code:
        raise SystemExit("\n".join(lines[-5:]))
    return code == 0, lines


def progress(run: Path) -> tuple[int, int, float]:
    """Return the last step in the log, that of the newest checkpoint, and the seconds of training between them."""
    saved: dict[str, Any] = {"step": 0, "seconds": 0.0}
    last = [saved, *(row for row in read_log(run) if "loss" in row)][-1]
    if found := list_checkpoints(run):
        saved = json.loads((found[-1] / "training.json").read_bytes())["progress"]
    return last["step"], saved["step"], max(0.0, last["seconds"] - saved["seconds"])


def content(run: Path) -> dict[str, str]:
    """Return the hashes of all files of a run and its stages, without their logs and the seconds that they took."""
    hashes = {}
    for file in sorted(run.rglob("*")):
        if file.is_file() and file.name != "log.jsonl" and file.parent.name != "tensorboard":
            lines = file.read_bytes().split(b"\n")
            kept = [line for line in lines if not re.match(rb' *"(seconds|training.json)": ', line)]
            hashes[str(file.relative_to(run))] = hashlib.sha256(b"\n".join(kept)).hexdigest()
    return hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=25.0, help="largest number of seconds before a kill")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw, repeated = random.Random(given.seed), []
    overrides = ["train.log_every=1", *given.overrides]
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "runs" / "run"
        print("| kill | after | folder | step | phase | step of the checkpoint | repeated |\n" + "|---" * 7 + "|")
        for kill in range(1, given.kills + 1):
            after = draw.uniform(0, given.longest)
            ended, lines = session(given.config, overrides, run, after)
            if ended:
                print(f"the run ended before kill {kill}: use a larger budget")
                break
            folder = run / [".", *re.findall(r"^stage \d+ of \d+, ([^:\n]+)", "\n".join(lines), re.M)][-1]
            step, saved, seconds = progress(folder)
            repeated.append(seconds)
            doing = lines[-1].strip().split("  ")[0][:40] if lines else "nothing yet"
            row = (f"{after:.1f} s", folder.name, step, doing, saved, f"{seconds:.1f} s")
            print(f"| {kill} | " + " | ".join(map(str, row)) + " |", flush=True)
        session(given.config, overrides, run, None)
        threads = {json.loads(file.read_bytes())["threads"] for file in run.rglob("threads.json")}
        os.environ["OMP_NUM_THREADS"] = str(max(threads))
        killed = content(run)
        shutil.rmtree(run.parent)
        session(given.config, overrides, run, None)
        whole = content(run)
        different = sorted(name for name in killed.keys() | whole.keys() if killed.get(name) != whole.get(name))
        median = statistics.median(repeated)
        print(f"repeated: at most {max(repeated):.1f} s, median {median:.1f} s, {len(repeated)} kills")
        print(f"threads: {threads}; {len(whole)} files; same bytes: {not different}", *different, sep="\n    ")
        sys.exit(bool(different))


if __name__ == "__main__":
    main()
