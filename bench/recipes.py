"""Train recipes with several seeds, record their scores, and print the tables of the documents.

    python bench/recipes.py train recipes/positions/*.toml --seeds 1 2 --jobs 2 --into docs/results/positions.jsonl
    python bench/recipes.py table docs/results/positions.jsonl

`train` starts one process with `--threads` threads per run, at most `--jobs` at a time, and appends one line per
finished run: recipe, overrides, seed, processor, time, validation scores of the best checkpoint, and for translation
the scores of the test set with the [search] of the recipe.  Runs that have a line are skipped, and unfinished runs
resume, so the program can be stopped at any time.  A budget in steps, epochs or tokens gives the same scores whatever
else the machine does; only a budget in minutes needs an idle machine.  A line identifies the configuration by a hash,
so that `table` can report lines whose recipe has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def processor() -> str:
    """Return the model of the processor and its instructions that matter for speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    known = set(cpu.get("flags", "").split())
    sets = [
        name for flag, name in (("avx512f", "AVX-512"), ("avx512_vnni", "VNNI"), ("amx_int8", "AMX")) if flag in known
    ]
    return f"{cpu.get('model name', platform.machine())} ({', '.join(sets) or 'no AVX-512'})"


def digest(recipe: str, overrides: Sequence[str]) -> str:
    """Return a short hash of the resolved configuration, without the seed."""
    from dragoman.config import flatten, load_config

    flat = flatten(load_config(ROOT / recipe, list(overrides)).model_dump(mode="json"))
    kept = {key: value for key, value in flat.items() if key not in ("train.seed", "data.root")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def identity(recipe: str, overrides: Sequence[str], seed: int) -> tuple[str, tuple[str, ...], int]:
    return recipe, tuple(sorted(overrides)), seed


def train_all(args: argparse.Namespace) -> None:
    """Train what has no result yet."""
    recipes = [Path(path).resolve().relative_to(ROOT).as_posix() for path in args.recipes]
    done = {identity(row["recipe"], row["overrides"], row["seed"]) for row in read_results(args.into)}
    waiting = [
        (recipe, seed) for seed in args.seeds for recipe in recipes if identity(recipe, args.set, seed) not in done
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = [name for name in pool.map(lambda item: train_one(args, *item), waiting) if name]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see the .log files in {args.runs}")


def train_one(args: argparse.Namespace, recipe: str, seed: int) -> str | None:
    """Train and score one run in a process of its own.  Return its name if it failed."""
    name = "-".join([recipe.removeprefix("recipes/").removesuffix(".toml").replace("/", "-"), *args.set, f"seed{seed}"])
    run = args.runs / name.replace(" ", "")
    run.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    command = [sys.executable, __file__, "one", recipe, *args.set, "--seed", str(seed), "--run", str(run)]
    command += ["--into", str(args.into)]
    started = time.monotonic()
    with Path(f"{run}.log").open("a") as log:
        failed = subprocess.run(command, env=environment, cwd=ROOT, stdout=log, stderr=log).returncode
    print(f"{'FAILED' if failed else 'done'}  {name}  {(time.monotonic() - started) / 60:.1f} min", flush=True)
    return name if failed else None


def run_one(args: argparse.Namespace) -> None:
    """Train one run and append its result."""
    import torch

    from dragoman import __version__, train
    from dragoman.config import load_config
    from dragoman.evaluation.compare.runs import compare_runs

    config = load_config(ROOT / args.recipe, [*args.set, f"train.seed={args.seed}"])
    result = train(config, args.run)
    if result.interrupted:
        sys.exit(130)
    (summary,) = compare_runs([args.run]).runs
    row = {
        "recipe": args.recipe,
        "overrides": list(args.set),
        "seed": args.seed,
        "config": digest(args.recipe, args.set),
        "dragoman": __version__,
        "torch": torch.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "budget": str(config.train.budget),
        "parameters": summary.parameters,
        "steps": summary.steps,
        "best_step": summary.best_step,
        "minutes": round(summary.seconds / 60, 2),
        "tokens_per_second": round(summary.tokens_per_second or 0),
        "valid": summary.scores,
    }
    if config.data.kind == "parallel" and config.data.test is not None:
        row["test"] = test_scores(config, args.run)
    args.into.parent.mkdir(parents=True, exist_ok=True)
    with args.into.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def test_scores(config: Any, run: Path) -> dict[str, Any]:
    """Return BLEU and chrF of the test set, and BLEU by number of source words."""
    from dragoman.data.corpus import corpus_spec
    from dragoman.evaluation.compare.scores import read_eval_set, score_translations
    from dragoman.evaluation.metrics import bleu_tokenizer
    from dragoman.pipelines.translation import Translator

    spec = corpus_spec(config, config.data.test)
    test = read_eval_set(spec.source, spec.target)
    translations = Translator.load(run, quantize="none").translate(test.sources)
    tokenize = bleu_tokenizer(config.data.target_language or "")
    scores = score_translations([t.text for t in translations], test, samples=2, tokenize=tokenize)
    return {
        "bleu": round(scores.bleu.score, 2),
        "chrf": round(scores.chrf.score, 2),
        "signature": re.sub(r"bs:\d+\|seed:\d+\|", "", scores.bleu_signature),
        "by_length": {bucket.title: round(bucket.bleu.score, 2) for bucket in scores.by_length},
    }


def mean(values: Sequence[float], digits: int = 1) -> str:
    """Format the mean, with the sample standard deviation where there are several values."""
    text = f"{fmean(values):,.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if len(values) > 1 else text


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table with a row per recipe and set of overrides."""
    groups: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for row in read_results(args.results):
        groups.setdefault((row["recipe"], tuple(row["overrides"])), []).append(row)
    lengths = list(dict.fromkeys(key for rows in groups.values() for row in rows for key in by_length(row)))
    tested = any("test" in row for rows in groups.values() for row in rows)
    scores = list(dict.fromkeys(key for rows in groups.values() for row in rows for key in row["valid"]))
    scores = ["valid_loss"] if tested else scores
    head = ["recipe", "seeds", "parameters", "min", *(name.replace("valid_", "valid ") for name in scores)]
    head += ["test BLEU", "test chrF", *lengths] if tested else []
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for (recipe, overrides), rows in groups.items():
        name = " ".join([recipe.removeprefix("recipes/").removesuffix(".toml"), *overrides])
        cells = [name, str(len(rows)), f"{rows[0]['parameters']:,}", f"{fmean(row['minutes'] for row in rows):.1f}"]
        for score in scores:
            values = [row["valid"][score] for row in rows if score in row["valid"]]
            cells.append(mean(values, 3 if "loss" in score else 1) if values else "")
        if tested:
            cells += [mean([row["test"][key] for row in rows]) for key in ("bleu", "chrf")]
            cells += [f"{fmean(by_length(row)[length] for row in rows):.1f}" for length in lengths]
        print("| " + " | ".join(cells) + " |")
    stale = [recipe for (recipe, overrides), rows in groups.items() if rows[-1]["config"] != digest(recipe, overrides)]
    if stale:
        print(f"\nchanged since they were measured: {', '.join(stale)}", file=sys.stderr)


def by_length(row: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = row.get("test", {}).get("by_length", {})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("train", help="train recipes that have no result yet")
    part.add_argument("recipes", nargs="+", help="files")
    part.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override; can be repeated")
    part.add_argument("--seeds", type=int, nargs="+", default=[1])
    part.add_argument("--jobs", type=int, default=2, help="runs at a time")
    part.add_argument("--threads", type=int, default=1, help="threads per run")
    part.add_argument("--runs", type=Path, default=ROOT / "runs" / "recipes", help="folder of the run folders")
    part.add_argument("--into", type=Path, required=True, help="file of results, one JSON object per line")
    part = commands.add_parser("one", help="train one recipe in this process")
    part.add_argument("recipe")
    part.add_argument("set", nargs="*")
    part.add_argument("--seed", type=int, required=True)
    part.add_argument("--run", type=Path, required=True)
    part.add_argument("--into", type=Path, required=True)
    part = commands.add_parser("table", help="print a table of results")
    part.add_argument("results", type=Path)
    args = parser.parse_args()
    if args.command == "train":
        args.into, args.runs = args.into.resolve(), args.runs.resolve()
    {"train": train_all, "one": run_one, "table": table}[args.command](args)


if __name__ == "__main__":
    main()
