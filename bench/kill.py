"""Kill a training with SIGKILL at random moments, resume it each time, and compare it with an uninterrupted one.

    python bench/kill.py CONFIG.toml train.budget="900 steps" train.save_every="5 s" --kills 20 --longest 25

The moments are drawn uniformly from the time since the start of each process, so that some processes are killed while
they load PyTorch, prepare the data or write a checkpoint.  For each kill, the script prints the step, the current phase
and the seconds of training that the next process repeats; at the end, the largest number of these seconds, and whether
both runs have the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints, read_pointer

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()", "train"]


def session(config: Path, overrides: list[str], run: Path, seconds: float | None) -> tuple[bool, str]:
    """Train in a new process, killed after `seconds`; return whether the training ended, and the last printed line."""
    output = run.parent / "output.txt"
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
    return code == 0, lines[-1] if lines else "nothing yet"


def last_step(run: Path) -> tuple[int, float]:
    """Return the last step in the log and the seconds of training up to it."""
    rows = [row for row in read_log(run) if "loss" in row]
    return (rows[-1]["step"], rows[-1]["seconds"]) if rows else (0, 0.0)


def saved(run: Path) -> tuple[int, float]:
    """Return step and seconds of the newest checkpoint."""
    found = list_checkpoints(run)
    if not found:
        return 0, 0.0
    progress = json.loads((found[-1] / "training.json").read_bytes())["progress"]
    return progress["step"], progress["seconds"]


def content(run: Path) -> dict[str, str]:
    """Return the hashes of the weights of all checkpoints, and the pointers."""
    models = {str(f.relative_to(run)): f for f in sorted((run / "checkpoints").glob("*/model.safetensors"))}
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in models.items()}
    targets = {name: read_pointer(run, name) for name in ("best", "last", "average")}
    return hashes | {name: str(target.relative_to(run)) for name, target in targets.items() if target is not None}


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
        run = Path(scratch) / "killed" / "run"
        run.parent.mkdir()
        print("| kill | after | step | phase | step of the checkpoint | repeated |\n|---|---|---|---|---|---|")
        for kill in range(1, given.kills + 1):
            after = draw.uniform(0, given.longest)
            ended, doing = session(given.config, overrides, run, after)
            if ended:
                print(f"the run ended before kill {kill}: use a larger budget")
                break
            (step, seconds), (kept, kept_seconds) = last_step(run), saved(run)
            repeated.append(max(0.0, seconds - kept_seconds))
            row = (f"{after:.1f} s", step, doing.strip().split("  ")[0][:40], kept, f"{repeated[-1]:.1f} s")
            print(f"| {kill} | " + " | ".join(map(str, row)) + " |", flush=True)
        session(given.config, overrides, run, None)
        threads = json.loads((run / "threads.json").read_bytes())["threads"]
        whole = Path(scratch) / "whole" / "run"
        whole.parent.mkdir()
        session(given.config, [*overrides, f"train.threads={threads}"], whole, None)
        same = content(run) == content(whole)
        median = statistics.median(repeated)
        print(f"repeated: at most {max(repeated):.1f} s, median {median:.1f} s, {len(repeated)} kills")
        print(f"threads: {threads}; {len(content(whole))} files and pointers; same bytes: {same}")
        sys.exit(not same)


if __name__ == "__main__":
    main()
