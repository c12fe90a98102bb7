"""How fast the native engine decodes, beside the programs that people would use instead, with the same sentences.

    python bench/decode.py --models random-tiny random-base                # sizes of the paper, random weights
    python bench/decode.py --models runs/en-de --text test.en --reference test.de     # targets as they come
    python bench/decode.py --quick --threads 1 2 --out decode.json

Every program runs in a process of its own, bound to as many cores as it may use threads, and the programs take turns:
a round asks each of them the same, so that a noisy machine disturbs all alike.  The table gives medians over the
rounds and ratios by round with their quartiles.  CTranslate2 first tries its settings and keeps the best of each
question.  See docs/decoding-bench.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "random-tiny": {"d_model": 128, "d_ff": 256, "n_heads": 4, "encoder_layers": 4, "decoder_layers": 4},
    "random-base": {"d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 6, "decoder_layers": 6},
}
VOCABULARIES = {"random-tiny": 10_000, "random-base": 32_000}
LENGTH = 40  # tokens of every target of a random model, the end included; its sources have 5 to 40
OURS = ("ours-int8", "ours-float32")
PEERS = ("ctranslate2-int8", "ctranslate2-float32", "huggingface", "plain")
SLOW = {"huggingface": 10, "plain": 10}  # of the sentences that are translated together they get every tenth
BATCHES: dict[str, list[Any]] = {
    "ctranslate2": [[8, "examples"], [32, "examples"], [64, "examples"], [128, "examples"], [1024, "tokens"],
                    [4096, "tokens"]],
    "huggingface": [16, 64],
    "plain": [1000, 4000],
    "ours": [None],
}  # fmt: skip
SWITCHES = [{}, {"CT2_USE_MKL": "1"}, {"CT2_USE_MKL": "0"}, {"CT2_PACKED_GEMM": "0"}]


@dataclass(frozen=True)
class Question:
    """What a program is asked in a round: sentences alone, one after the other, or all of them at once."""

    name: str
    alone: bool
    beam: int
    numbers: list[int]


QUESTIONS = [("one at a time, greedy", True, 1), ("one at a time, beam 4", True, 4),
             ("all at once, greedy", False, 1), ("all at once, beam 4", False, 4)]  # fmt: skip


class Process:
    """A program at work (bench/decoders.py)."""

    def __init__(self, job: Path, program: str, options: dict[str, Any], switches: dict[str, str]) -> None:
        self.program, threads = program, str(options["threads"])
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads) | {"OPENBLAS_NUM_THREADS": "1"} | switches
        command = [sys.executable, str(Path(__file__).with_name("decoders.py")), str(job), program, json.dumps(options)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True
        )
        self._answer()
        self.start_seconds = time.perf_counter() - began

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self.errors.seek(0)
        raise SystemExit(f"{self.program} ended:\n{self.errors.read()[-2000:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Contestant:
    """A program with, for each question, the process and the batch setting that answer it best."""

    name: str
    chosen: dict[str, tuple[Process, Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def take(self, question: Question) -> None:
        process, batch = self.chosen[question.name]
        answer = process.ask(numbers=self.share(question), beam=question.beam, batch=batch, alone=question.alone)
        self.rounds.setdefault(question.name, []).append(answer)

    def share(self, question: Question) -> list[int]:
        return question.numbers if question.alone else question.numbers[:: SLOW.get(self.name, 1)]

    def speeds(self, question: str) -> list[float]:
        """Of each round: milliseconds a token where sentences come alone, else tokens a second."""
        sums = [(sum(r["seconds"]), sum(r["tokens"])) for r in self.rounds[question]]
        return [1e3 * s / n for s, n in sums] if question.startswith("one") else [n / s for s, n in sums]

    def sentence_milliseconds(self, question: str) -> tuple[float, float]:
        """The median and the 99th percentile over all rounds."""
        times = sorted(1e3 * t for answer in self.rounds[question] for t in answer["seconds"])
        return statistics.median(times), times[min(len(times) - 1, round(0.99 * len(times)))]


# -------------------------------------------------------------------------------------------------------- preparation


def prepare(model: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Pack and export the model, choose the sentences, and write job.json."""
    from dragoman.config import parse_config
    from dragoman.fast.pack import pack
    from dragoman.formats.ctranslate2 import specification, write_specification
    from dragoman.model_folder import load_model
    from dragoman.models.build import build_model

    if model in SHAPES:
        vocab = VOCABULARIES[model]
        document = {"data": {"train": [{"source": "s", "target": "t"}]}, "model": SHAPES[model]}
        config = parse_config(document)
        network = build_model(config.model, vocab, vocab, seed=1).eval()
        pieces = sides = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(4, vocab))]
        draw = random.Random(1)
        sources = [[*draw.choices(range(4, vocab), k=draw.randint(4, LENGTH - 1)), 3] for _ in range(given.sentences)]
    else:
        network, tokenizer, config = load_model(model)
        pieces = [tokenizer.source_piece(i) for i in range(tokenizer.source_size)]
        sides = [tokenizer.target_piece(i) for i in range(tokenizer.target_size)]
        sources = [tokenizer.encode_source(line) for line in lines_of(given.text)[: given.sentences]]
    for precision in ("float32", "int8"):
        pack(network, folder / f"packed-{precision}", precision)
        write_specification(specification(network, config.model, pieces, sides), folder / f"ct2-{precision}", precision)
    job = {
        "folder": str(folder), "sources": sources, "length": LENGTH if model in SHAPES else 0,
        "lengths": [len(source) + 2 for source in sources], "model": config.model.model_dump(mode="json"),
        "pieces": pieces, "target_pieces": sides, "trained": None if model in SHAPES else model,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    return job


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def weights_a_token(job: dict[str, Any]) -> int:
    """How many weights a step of the decoder reads, whatever the number of rows."""
    shape = job["model"]
    d, f, h = shape["d_model"], shape["d_ff"], shape["n_heads"]
    shared = d // h * (shape["n_kv_heads"] or h)
    layer = d * (d + 2 * shared) + d * d + 2 * d * d + d * f * (3 if shape["gated"] else 2)
    return int(shape["decoder_layers"] * layer + len(job["target_pieces"]) * d)


# ----------------------------------------------------------------------------------------------------------- measuring


@contextlib.contextmanager
def contestant(name: str, job: Path, threads: int, questions: Sequence[Question], quick: bool) -> Iterator[Contestant]:
    """Start a program, try its settings on part of the sentences, keep the best of each question."""
    program, _, precision = name.partition("-")
    options: dict[str, Any] = {"threads": threads, "precision": precision}
    variants: list[tuple[dict[str, Any], dict[str, str]]] = [(options, {})]
    if program == "ctranslate2":
        splits = [options] if threads == 1 else [options, {**options, "inter": threads}]
        variants = [(split, switches) for split in splits for switches in (SWITCHES[:1] if quick else SWITCHES)]
    processes = [Process(job, program, own, switches) for own, switches in variants]
    batches = BATCHES[program][:1] if quick else BATCHES[program]
    found = Contestant(name)
    for question in questions:
        some = question.numbers[:5] if question.alone else question.numbers[::10]
        tried = []
        for place, process in enumerate(processes):
            for batch in batches[:1] if question.alone else batches:
                one = len(processes) == len(batches) == 1
                seconds = min(
                    sum(process.ask(numbers=some, beam=question.beam, batch=batch, alone=question.alone)["seconds"])
                    for _ in range(1 if one else 2)
                )
                tried.append((seconds, place, batch))
        _, place, batch = min(tried, key=lambda row: row[0])
        found.chosen[question.name] = processes[place], batch
        found.settings[question.name] = {"batch": batch, "switches": variants[place][1], **variants[place][0]}
    used = [process for process, _ in found.chosen.values()]
    for process in processes:
        if process not in used:
            process.close()
    yield found
    for process in {id(process): process for process in used}.values():
        process.close()


def start_of(name: str, job: Path, threads: int, numbers: list[int]) -> dict[str, float]:
    """Seconds from nothing to the first translation, and peak memory after a few more, in a fresh process."""
    program, _, precision = name.partition("-")
    process = Process(job, program, {"threads": threads, "precision": precision}, {})
    batch = BATCHES[program][0]
    first = process.ask(numbers=numbers[:1], beam=1, batch=batch, alone=True)
    peak = process.ask(numbers=numbers[:32], beam=4, batch=batch, alone=False)["peak_mb"]
    process.close()
    return {"ready_s": process.start_seconds, "first_s": process.start_seconds + sum(first["seconds"]), "peak_mb": peak}


def measure(model: str, threads: int, given: argparse.Namespace, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    path = folder / "job.json"
    count = len(job["sources"])
    alone = random.Random(2).sample(range(count), min(count, 8 if given.quick else 40))
    questions = [Question(name, one, beam, alone if one else list(range(count))) for name, one, beam in QUESTIONS]
    names = [*given.ours, *given.peers]
    starts = {name: start_of(name, path, threads, alone) for name in names}
    with contextlib.ExitStack() as stack:
        contestants = [stack.enter_context(contestant(name, path, threads, questions, given.quick)) for name in names]
        for _ in range(given.rounds):
            for question in questions:
                for each in contestants:
                    each.take(question)
        scored = contestants if given.reference else []
        bleu = {each.name: bleu_of(each, questions[-1], job, given.reference) for each in scored}
    memory = Process(path, "nothing", {"threads": threads}, {})
    weights = weights_a_token(job)
    bound = {}
    for precision, size in (("int8", weights), ("float32", 4 * weights)):
        speed = memory.ask(read=size)["bytes_per_second"]
        bound[precision] = {"bytes": size, "gb_per_second": speed / 1e9, "ms_per_token": 1e3 * size / speed}
    memory.close()
    return {
        "model": Path(model).name, "threads": threads, "sentences": count, "bound": bound, "start": starts,
        "bleu": bleu,
        "contestants": {
            each.name: {
                "settings": each.settings,
                "speed": {q: quartiles(each.speeds(q)) for q in each.rounds},
                "sentence_ms": {q.name: each.sentence_milliseconds(q.name) for q in questions if q.alone},
                "rival": rival(each, contestants).name,
                "ratio": {q: quartiles(ratios(rival(each, contestants), each, q)) for q in each.rounds},
            }
            for each in contestants
        },
    }  # fmt: skip


def bleu_of(each: Contestant, question: Question, job: dict[str, Any], reference: Path) -> float | None:
    """BLEU of all sentences with beam 4; None for a program with other weights, or of a part of the sentences."""
    if each.name in SLOW or not job["trained"]:
        return None
    import sacrebleu

    from dragoman.data.tokenizer import Tokenizer
    from dragoman.model_folder import find_model

    tokenizer = Tokenizer.load(find_model(job["trained"]))
    process, batch = each.chosen[question.name]
    answer = process.ask(numbers=question.numbers, beam=question.beam, batch=batch, alone=False, words=True)
    texts = [tokenizer.decode_target(ids) for ids in answer["ids"]]
    return float(sacrebleu.corpus_bleu(texts, [lines_of(reference)[: len(texts)]]).score)


def rival(other: Contestant, contestants: Sequence[Contestant]) -> Contestant:
    """Who of ours is compared with a program: the one of its precision, int8 where it has no such choice."""
    same = [c for c in contestants if c.name == f"ours-{other.name.partition('-')[2]}"]
    return same[0] if same else contestants[0]


def ratios(ours: Contestant, other: Contestant, question: str) -> list[float]:
    """Round by round, how many times as fast we were."""
    pairs = zip(ours.speeds(question), other.speeds(question), strict=True)
    return [b / a if question.startswith("one") else a / b for a, b in pairs]


def quartiles(values: Sequence[float]) -> list[float]:
    """Median, lower and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return [middle, low, high]


# ------------------------------------------------------------------------------------------------------------- tables


def table(result: dict[str, Any]) -> str:
    """One model and number of threads in Markdown."""
    bound = result["bound"]
    floor = ", ".join(
        f"{p}: {b['bytes'] / 1e6:.1f} MB a token at {b['gb_per_second']:.1f} GB/s = {b['ms_per_token']:.3f} ms"
        for p, b in bound.items()
    )
    names = [name for name, _, _ in QUESTIONS]
    rows = [
        f"### {result['model']}, {result['threads']} thread(s), {result['sentences']} sentences",
        "",
        f"Reading the weights once: {floor}.",
        "",
        "| | greedy, ms a token | p50, p99 of a sentence | beam 4, ms a token | p50, p99 | "
        "greedy, tokens/s | beam 4, tokens/s | ready s | first s | peak MB | BLEU |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, each in result["contestants"].items():
        speed, sentence, start = each["speed"], each["sentence_ms"], result["start"][name]
        bleu = result["bleu"].get(name)
        rows.append(
            f"| {name} | {speed[names[0]][0]:.3f} | {sentence[names[0]][0]:.1f}, {sentence[names[0]][1]:.1f} | "
            f"{speed[names[1]][0]:.3f} | {sentence[names[1]][0]:.1f}, {sentence[names[1]][1]:.1f} | "
            f"{speed[names[2]][0]:,.0f} | {speed[names[3]][0]:,.0f} | "
            f"{start['ready_s']:.2f} | {start['first_s']:.2f} | {start['peak_mb']:.0f} | "
            f"{'' if bleu is None else f'{bleu:.2f}'} |"
        )
    rows += ["", "How many times as fast ours is, median of the rounds (quartiles):", ""]
    rows += [f"| ours | against | {' | '.join(names)} |", "|---|---|---|---|---|---|"]
    for name, each in result["contestants"].items():
        if name != each["rival"]:
            cells = [f"{m:.2f} ({low:.2f}-{high:.2f})" for m, low, high in (each["ratio"][q] for q in names)]
            rows.append(f"| {each['rival']} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    import importlib.metadata

    packages = ("dragoman", "torch", "ctranslate2", "transformers", "numpy")
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    cpu = {key.strip(): value.strip() for key, value in facts.items()}
    flags = [flag for flag in cpu.get("flags", "").split() if flag.startswith(("avx", "amx"))]
    name = cpu.get("model name", platform.processor())
    return {"cpu": name, "flags": flags, "cores": os.cpu_count(), "system": platform.platform(), "versions": versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["random-tiny"], help=f"{', '.join(SHAPES)}, or a model folder")
    parser.add_argument("--text", type=Path, help="the lines that a trained model translates")
    parser.add_argument("--reference", type=Path, help="their reference translations, for BLEU")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--ours", nargs="+", choices=OURS, default=OURS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="2 rounds, 80 sentences, default settings: does it run?")
    parser.add_argument("--out", type=Path, help="all numbers as JSON")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.sentences = min(2, given.rounds), min(80, given.sentences)
    if given.text is None and not set(given.models) <= set(SHAPES):
        parser.error("a trained model needs --text")
    if max(given.threads) > (cores := len(os.sched_getaffinity(0))):
        parser.error(f"--threads {max(given.threads)}: this process may use {cores} cores")
    results = []
    for model in given.models:
        with tempfile.TemporaryDirectory() as folder:
            job = prepare(model, given, Path(folder))
            for threads in given.threads:
                results.append(measure(model, threads, given, Path(folder), job))
                print(table(results[-1]), end="\n\n", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine(), "rounds": given.rounds, "results": results}, indent=1))


if __name__ == "__main__":
    main()
