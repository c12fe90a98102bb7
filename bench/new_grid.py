"""Compare model sizes for corpora and budgets: the measurements for the rules of `dragoman new`.

    python bench/new_grid.py speed --threads 1 2
    python bench/new_grid.py train --corpora tatoeba_en_fr multi30k --minutes 6 20 --sizes new 128x2 192x4 --jobs 2
    python bench/new_grid.py train --corpora tatoeba_en_fr --minutes 6 --sizes 128x2 --set train.batch_tokens=1024
    python bench/new_grid.py table
    python bench/new_grid.py update     # the tables of docs/guides/size_and_budget.md

`speed` measures the tokens per second of each size: per second of processor time with one thread, which hardly depends
on other programs, and per second of elapsed time with several threads, which requires an idle machine.  `train`
converts minutes to tokens with these speeds, so other programs do not affect its scores, and trains each (corpus,
minutes, size) without a result; unfinished runs resume.  A size is `<d_model>x<layers>`, with as many encoder layers as
decoder layers; `new` is the size that `dragoman new` chooses with these speeds.  All other settings follow the rules of
`dragoman new` for this budget; `--set` overrides them.  The validation and test sets are those of the corpora.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recipes import ROOT, processor, read_results, test_scores

from dragoman.advice.choice import (
    SIZES,
    CorpusFacts,
    Setting,
    Size,
    Speed,
    choose_size,
    choose_training,
    choose_vocabulary,
)
from dragoman.advice.document import nested
from dragoman.advice.measurement import corpus_facts, probe
from dragoman.config import Config, parse_config
from dragoman.data.corpus import CorpusSpec, read_pairs

DATA = Path(os.environ.get("DRAGOMAN_DATA", ROOT / "data"))
CORPORA: dict[str, tuple[tuple[str, str], dict[str, tuple[str, str]], int]] = {
    "tatoeba_en_fr": (("en", "fr"), {"train": ("train.en.gz", "train.fr.gz"), "valid": ("valid.en", "valid.fr"),
                                     "test": ("test.en", "test.fr")}, 0),
    "multi30k": (("en", "de"), {"train": ("train.en.gz", "train.de.gz"), "valid": ("valid.en", "valid.de"),
                                "test": ("test2016.en", "test2016.de")}, 0),
    "iwslt17_en_de_small": (("en", "de"), {"train": ("train.en.gz", "train.de.gz"), "valid": ("valid.en", "valid.de"),
                                           "test": ("test2013.en", "test2013.de")}, 0),
}  # fmt: skip
"""Name -> languages, files, and number of training pairs to use, at regular intervals; 0 = all."""
CORPORA |= {f"tatoeba_en_fr-{pairs // 1000}k": (*CORPORA["tatoeba_en_fr"][:2], pairs) for pairs in (5_000, 30_000)}
GUIDE = ROOT / "docs" / "guides" / "size_and_budget.md"
RESULTS, SPEEDS, OPTIMIZERS = (
    ROOT / "docs" / "results" / "size_and_budget" / f"{name}.jsonl" for name in ("grid", "speed", "optimizer")
)
_SAMPLE = 20_000


def corpus_files(corpus: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Return the files of each set; a subset of the training pairs is written into `folder` first."""
    languages, names, wanted = CORPORA[corpus]
    home = DATA / corpus.partition("-")[0]
    files = {part: (str(home / one), str(home / other)) for part, (one, other) in names.items()}
    if wanted:
        pairs = list(read_pairs(CorpusSpec(*map(Path, files["train"]))))
        chosen = [pairs[i * len(pairs) // wanted] for i in range(wanted)]
        paths = [folder / f"{corpus}.{language}" for language in languages]
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text("".join(f"{pair.source}\n" for pair in chosen), encoding="utf-8", newline="\n")
        paths[1].write_text("".join(f"{pair.target}\n" for pair in chosen), encoding="utf-8", newline="\n")
        files["train"] = (str(paths[0]), str(paths[1]))
    return files


def known_facts(corpus: str) -> CorpusFacts:
    """Return the statistics of a corpus, with the tokens per pair from the recorded speeds."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = list(read_pairs(CorpusSpec(*map(Path, corpus_files(corpus, Path(folder))["train"]))))
    step = max(1, len(pairs) // _SAMPLE)
    facts = corpus_facts([(p.source, p.target) for p in pairs[::step]], len(pairs), CORPORA[corpus][0])
    found = [row["tokens_per_pair"] for row in read_results(SPEEDS) if row["corpus"] == corpus]
    if not found:
        sys.exit(f"{corpus}: no speed is recorded; run: python bench/new_grid.py speed --corpora {corpus}")
    return CorpusFacts(**{**facts.__dict__, "tokens_per_pair": found[-1]})


def recorded_speeds(corpus: str, threads: int) -> list[Speed]:
    """Return the recorded speeds, from small models to large ones."""
    rows = {(row["d_model"], row["layers"]): row for row in read_results(SPEEDS)
            if row["corpus"] == corpus and row["threads"] == threads}  # fmt: skip
    return [
        Speed(Size(*key), row["tokens_per_second"], row["parameters"])
        for key, row in sorted(rows.items(), key=lambda item: Size(*item[0]).weights)
    ]


def measure(args: argparse.Namespace) -> None:
    """Measure the speed of each size and append the results to the file of speeds."""
    for corpus in args.corpora:
        for threads in args.threads:
            for size in [parse_size(text) for text in args.sizes] if args.sizes else SIZES:
                row = measured(corpus, size, threads, args.seconds)
                SPEEDS.parent.mkdir(parents=True, exist_ok=True)
                with SPEEDS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def measured(corpus: str, size: Size, threads: int, seconds: float) -> dict[str, Any]:
    """Return the upper quartile of the speeds of the steps of one size, as a result row."""
    import torch

    from dragoman.io.run_log import Reporter
    from dragoman.training.allocator import keep_freed_memory
    from dragoman.training.distributed import DistributedContext
    from dragoman.training.run import open_run
    from dragoman.training.trainer import Trainer

    keep_freed_memory()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = corpus_files(corpus, folder)["train"]
        pairs = [(p.source, p.target) for p in read_pairs(CorpusSpec(*map(Path, files)))]
        facts = corpus_facts(pairs[:: max(1, len(pairs) // _SAMPLE)], len(pairs), CORPORA[corpus][0])
        config = probe(facts, choose_vocabulary(facts), size, folder, files)
        run = open_run(config, folder / "run")
        trainer = Trainer(run, DistributedContext("cpu"), Reporter())
        trainer.model.train()
        clock = time.process_time if threads == 1 else time.monotonic
        speeds: list[float] = []
        end = time.monotonic() + seconds
        for i, indices in enumerate(run.task.epoch(0)):
            batch = trainer.read(indices, i)
            start = clock()
            trainer.step([batch])
            if i > 1:
                speeds.append((batch.src_tokens + batch.tgt_tokens) / (clock() - start))
            if time.monotonic() > end and len(speeds) > 3:
                break
        trainer.close()
        return {
            "corpus": corpus, "d_model": size.d_model, "layers": size.layers, "threads": threads,
            "tokens_per_second": round(sorted(speeds)[3 * len(speeds) // 4]), "steps": len(speeds),
            "parameters": trainer.model.parameter_count(),
            "tokens_per_pair": round(run.task.tokens() / len(run.task.store), 3),  # type: ignore[attr-defined]
            "processor": processor(), "torch": torch.__version__,
        }  # fmt: skip


def parse_size(text: str) -> Size:
    d_model, _, layers = text.partition("x")
    return Size(int(d_model), int(layers))


def configuration(
    corpus: str, minutes: float, size: str, overrides: Sequence[str], threads: int, folder: Path
) -> tuple[Config, Size]:
    """Return the configuration of a cell of the grid, with a budget in tokens."""
    facts, speeds, seconds = known_facts(corpus), recorded_speeds(corpus, threads), 60 * minutes
    if size == "new":
        speed, why = choose_size(facts, speeds, seconds)
    else:
        why = "a size of the grid"
        found = [speed for speed in speeds if speed.size == parse_size(size)]
        if not found:
            sys.exit(f"{corpus}, {size}: no speed with {threads} thread(s) is recorded")
        speed = found[0]
    tokens = round(speed.tokens_per_second * seconds)
    settings = [*choose_vocabulary(facts), *choose_training(facts, speed, why, seconds)]
    # A budget of minutes includes the time for validation: the same share as in `dragoman new`.
    tokens = round(0.93 * tokens)
    settings.append(Setting("train.budget", f"{tokens} tokens", ""))
    settings.append(Setting("train.validate_every", f"{tokens // 4 + 1} tokens", ""))
    document = nested(settings)
    files = {part: dict(zip(("source", "target"), paths, strict=True))
             for part, paths in corpus_files(corpus, folder).items()}  # fmt: skip
    source, target = CORPORA[corpus][0]
    document["data"] = {"source_language": source, "target_language": target, "train": [files["train"]],
                        "valid": files["valid"], "test": files["test"]}  # fmt: skip
    return parse_config(document, overrides), speed.size


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["corpus"], row["minutes"], row["size"], tuple(sorted(row["overrides"])), row["seed"]


def train_all(args: argparse.Namespace) -> None:
    """Train the cells of the grid without a result."""
    done = {identity(row) for row in read_results(args.into)}
    cells = [(corpus, minutes, size, seed) for minutes in args.minutes for corpus in args.corpora
             for size in args.sizes for seed in args.seeds]  # fmt: skip
    waiting = [c for c in cells if (c[0], c[1], c[2], tuple(sorted(args.set)), c[3]) not in done]
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = [name for name in pool.map(lambda cell: train_one(args, *cell), waiting) if name]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see the .log files in {args.runs}")


def train_one(args: argparse.Namespace, corpus: str, minutes: float, size: str, seed: int) -> str | None:
    """Train and evaluate one cell in a separate process.  Return its name if it failed."""
    name = "-".join([corpus, f"{minutes:g}min", size, *args.set, f"seed{seed}"]).replace(" ", "")
    args.runs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    command = [sys.executable, __file__, "one", corpus, str(minutes), size, *args.set, "--seed", str(seed)]
    command += ["--run", str(args.runs / name), "--into", str(args.into), "--speed-threads", str(args.speed_threads)]
    with (args.runs / f"{name}.log").open("a") as log:
        failed = subprocess.run(command, env=environment, cwd=ROOT, stdout=log, stderr=log).returncode
    print(f"{'FAILED' if failed else 'done'}  {name}", flush=True)
    return name if failed else None


def run_one(args: argparse.Namespace) -> None:
    """Train and evaluate one cell, and append its result."""
    import torch

    from dragoman import __version__, train
    from dragoman.evaluation.compare.runs import compare_runs

    overrides = [*args.set, f"train.seed={args.seed}", "train.device=cpu"]
    config, size = configuration(
        args.corpus, args.minutes, args.size, overrides, args.speed_threads, args.run.parent / "parts"
    )
    if train(config, args.run).interrupted:
        sys.exit(130)
    (summary,) = compare_runs([args.run]).runs
    row = {
        "corpus": args.corpus,
        "minutes": args.minutes,
        "size": args.size,
        "overrides": list(args.set),
        "seed": args.seed,
        "d_model": size.d_model,
        "layers": size.layers,
        "batch_tokens": config.train.batch_tokens,
        "dropout": getattr(config.model, "dropout", None),
        "vocab_size": config.tokenizer.vocab_size,
        "budget": str(config.train.budget),
        "speed_threads": args.speed_threads,
        "dragoman": __version__,
        "torch": torch.__version__,
        "processor": processor(),
        "parameters": summary.parameters,
        "steps": summary.steps,
        "valid": summary.scores,
        "test": test_scores(config, args.run),
    }
    args.into.parent.mkdir(parents=True, exist_ok=True)
    with args.into.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table sorted by corpus, budget and BLEU; of several results of a cell, the last one is used."""
    lines = ["| corpus | minutes | size | overrides | tokens | batch | steps | valid loss | test BLEU | test chrF |",
             "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    last = {identity(row): row for row in rows}
    for row in sorted(last.values(), key=lambda r: (r["corpus"], r["minutes"], -r["test"]["bleu"])):
        size = f"{row['d_model']} × {row['layers']}" + (" (`dragoman new`)" if row["size"] == "new" else "")
        tokens = float(row["budget"].split()[0]) / 1e6
        overrides = ", ".join(map(_short, row["overrides"])) or "–"
        lines.append(
            f"| {row['corpus']} | {row['minutes']:g} | {size} | {overrides} | {tokens:.1f} M | "
            f"{row['batch_tokens']:,} | {row['steps']:,} | "
            f"{row['valid']['valid_loss']:.3f} | {row['test']['bleu']:.1f} | {row['test']['chrf']:.1f} |"
        )
    return "\n".join(lines)


def _short(override: str) -> str:
    """Return an override without the sections of its key."""
    key, _, value = override.partition("=")
    return f"{key.rpartition('.')[2]}={value}"


def speed_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of tokens per second by size and corpus; the last measurement is used."""
    found = {(row["d_model"], row["layers"], row["threads"], row["corpus"]): row for row in rows}
    corpora = sorted({key[3] for key in found})
    lines = [f"| size | threads | parameters | {' | '.join(corpora)} |", "|---|---|---|" + "---|" * len(corpora)]
    for key in sorted({key[:3] for key in found}, key=lambda key: (key[2], Size(*key[:2]).weights)):
        here = {corpus: found.get((*key, corpus)) for corpus in corpora}
        parameters = sorted({row["parameters"] for row in here.values() if row})
        shown = " to ".join(f"{count / 1e6:.1f} M" for count in sorted({parameters[0], parameters[-1]}))
        cells = [f"{row['tokens_per_second']:,}" if row else "–" for row in here.values()]
        lines.append(f"| {key[0]} × {key[1]} | {key[2]} | {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def updated(text: str) -> str:
    """Return the guide with new contents of its two tables."""
    tables = {name: table(read_results(file)) for name, file in (("grid", RESULTS), ("optimizer", OPTIMIZERS))}
    tables["speed"] = speed_table(read_results(SPEEDS))
    for name, content in tables.items():
        pattern = rf"(<!-- {name} -->\n)(?:.*\n)*?(<!-- end of {name} -->\n)"
        text = re.sub(pattern, lambda match, made=content: f"{match[1]}\n{made}\n\n{match[2]}", text)
    return text


def update() -> None:
    GUIDE.write_text(updated(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    names = {"nargs": "+", "choices": sorted(CORPORA), "default": ["tatoeba_en_fr"]}
    part = commands.add_parser("speed", help="measure the tokens per second of each size")
    part.add_argument("--corpora", **names)  # type: ignore[arg-type]
    part.add_argument("--sizes", nargs="*", default=[])
    part.add_argument("--threads", type=int, nargs="+", default=[1])
    part.add_argument("--seconds", type=float, default=10.0)
    part = commands.add_parser("train", help="train the cells of the grid without a result")
    part.add_argument("--corpora", **names)  # type: ignore[arg-type]
    part.add_argument("--minutes", type=float, nargs="+", default=[6.0])
    part.add_argument("--sizes", nargs="+", default=["new"])
    part.add_argument("--seeds", type=int, nargs="+", default=[1])
    part.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override; can be repeated")
    part.add_argument("--jobs", type=int, default=1, help="number of parallel runs")
    part.add_argument("--threads", type=int, default=1, help="threads per run")
    part.add_argument(
        "--speed-threads",
        type=int,
        default=1,
        help="convert minutes to tokens with the speed on this number of threads",
    )
    part.add_argument("--runs", type=Path, default=ROOT / "runs" / "new-grid", help="folder of the run folders")
    part.add_argument("--into", type=Path, default=RESULTS, help="file of results, one JSON object per line")
    part = commands.add_parser("one", help="train one cell in this process")
    part.add_argument("corpus")
    part.add_argument("minutes", type=float)
    part.add_argument("size")
    part.add_argument("set", nargs="*")
    part.add_argument("--seed", type=int, required=True)
    part.add_argument("--run", type=Path, required=True)
    part.add_argument("--into", type=Path, required=True)
    part.add_argument("--speed-threads", type=int, default=1)
    part = commands.add_parser("table", help="print a table of results")
    part.add_argument("results", type=Path, nargs="?", default=RESULTS)
    commands.add_parser("update", help="update the tables of the guide")
    args = parser.parse_args()
    if args.command == "train":
        args.into, args.runs = args.into.resolve(), args.runs.resolve()
    if args.command == "table":
        print(table(read_results(args.results)))
    elif args.command == "update":
        update()
    else:
        {"speed": measure, "train": train_all, "one": run_one}[args.command](args)


if __name__ == "__main__":
    main()
