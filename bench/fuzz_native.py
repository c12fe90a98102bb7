"""Random requests and damaged files for the native engine, under the sanitizers of the compiler.

    python bench/fuzz_native.py [--seconds 600] [--seed N] [--build avx2] [--sanitizer address]

The core is built into a temporary folder with -fsanitize=address,undefined (or thread), some models are packed, and a
child process plays cases: good requests, whose answers must not depend on their company; wrong ones, through Python and
past it; steps of a session; several threads in one engine and one session; damaged files.  Allowed is an answer or a
DragomanError, nothing else.  Every case follows from its number: the one that goes wrong is printed, and `--seed NUMBER
--cases 1` plays it again.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sanitized import INSTRUCTIONS, SANITIZERS, compiled, environment

VOCAB, POSITIONS = 83, 40
HANGS = 120.0
"""Seconds after which a case counts as hanging."""
BLOCK: dict[str, Any] = {"d_model": 12, "d_ff": 20, "n_heads": 2, "dropout": 0.0}
BOTH: dict[str, Any] = {"architecture": "transformer", **BLOCK, "encoder_layers": 1, "decoder_layers": 2}
MODERN: dict[str, Any] = {
    "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu", "gated": True,
    "bias": False,
}  # fmt: skip
WIDE: dict[str, Any] = {"d_model": 192, "d_ff": 448, "n_heads": 4, "decoder_layers": 1}  # enough to share among threads
MODELS: dict[str, tuple[dict[str, Any], str, int]] = {
    "paper": (BOTH, "float32", VOCAB),
    "wide": (BOTH | WIDE, "int8", 700),
    "modern": (BOTH | MODERN | {"n_kv_heads": 1}, "int8", VOCAB),
    "padded": (BOTH | {"d_model": 70, "d_ff": 131, "n_heads": 5, "activation": "gelu"}, "int8", 64),
    "t5": (BOTH | {"position": {"kind": "t5", "buckets": 8, "max_distance": 12}, "order": "pre"}, "int8", VOCAB),
    "alibi": (BOTH | {"position": {"kind": "alibi"}, "activation": "gelu_tanh"}, "float32", VOCAB),
    "alone": ({"architecture": "decoder_only", **BLOCK, "n_layers": 2, **MODERN}, "int8", VOCAB),
    "learned": (
        {"architecture": "decoder_only", **BLOCK, "n_layers": 2, "position": {"kind": "learned", "max_len": 40}},
        "float32",
        VOCAB,
    ),
}
ODD = [-(2**31), -1, 0, 1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 83, 128, 4096, 65536, 2**20, 2**24, 2**30, 2**31 - 1]
BUDGETS = [-(2**63), -1, 0, 1, 50, 1000, 100_000, 2**40, 2**63 - 1]
"""Of source tokens, and of bytes."""
SPOILT = [float("nan"), float("inf"), -float("inf"), 3e38, -1e30, 1e-42, 0.0, 70000.0]


# ------------------------------------------------------------------------------------------------------------ the child


class Player:
    """The cases, each from its own random numbers."""

    def __init__(self, folder: Path, library: Path) -> None:
        from dragoman.decoding.native import engine
        from dragoman.decoding.native import library as native

        self.engine: Any = engine
        self.engine.load_native = lambda: native.NativeLibrary("fuzzed", native._declare_functions(ctypes.CDLL(str(library))))
        self.paths = sorted(folder.glob("*.packed"))
        self.engines = [engine.Engine(path) for path in self.paths]
        self.hurt = folder / "hurt"
        self.outcomes: Counter[str] = Counter()

    def play(self, number: int) -> None:
        from dragoman.errors import DragomanError

        draw = random.Random(number)
        cases = [self.good, self.wrong, self.past_python, self.past_python, self.session, self.together, self.damaged]
        case = draw.choice(cases)
        try:
            case(draw)
            self.outcomes[f"{case.__name__}: answered"] += 1
        except DragomanError as error:
            assert str(error).strip()
            self.outcomes[f"{case.__name__}: refused"] += 1

    def request(self, draw: random.Random, engine: Any) -> dict[str, Any]:
        """A request that this engine must answer."""
        from dragoman.decoding.settings import SearchSettings

        def ids(most: int, size: int) -> list[int]:
            return [draw.randrange(min(4, size - 1), size) for _ in range(draw.randint(0, most))]

        count, positions = draw.randint(1, 9), min(engine.positions, POSITIONS)
        longest = draw.choice([3, 17, positions - 1])
        beam = draw.choice([1, 2, 4, 7])
        min_length = draw.choice([0, 0, 2])
        prefixes = [ids(draw.choice([0, 0, 3]), engine.target_size) for _ in range(count)]
        least = [max(len(prefix), min_length) + 1 for prefix in prefixes]
        return {
            "sources": [[*ids(longest, engine.source_size), 3] if engine.has_encoder else [] for _ in range(count)],
            "limits": [draw.randint(low, max(low, draw.choice([8, positions]))) for low in least],
            "settings": SearchSettings(
                beam=beam, nbest=draw.randint(1, beam), min_length=min_length,
                no_repeat_ngram=draw.choice([0, 0, 2, 3]), alpha=draw.choice([0.0, 0.6, 2.0]),
            ),
            "prefixes": prefixes,
            "shortlists": draw.choice([None, [listed(draw, engine.target_size, prefix) for prefix in prefixes]]),
            "threads": draw.choice([1, 1, 2, 3, 5]),
            "rows": draw.choice([1, 3, 8, 64]),
            "memory": draw.choice([0, 10_000, 100_000, 1 << 30]),
            "source_tokens": draw.choice([0, 20, 100, 1 << 40]),
        }  # fmt: skip

    def good(self, draw: random.Random) -> None:
        engine = draw.choice(self.engines)
        asked = self.request(draw, engine)
        found = engine.search(**asked)
        place = draw.randrange(len(found))
        names = ("sources", "limits", "prefixes", "shortlists")
        own: dict[str, Any] = {name: [asked[name][place]] for name in names if asked[name] is not None}
        assert len(found) == len(asked["sources"]) and all(found)
        assert engine.search(**own, settings=asked["settings"]) == [found[place]], "its company changed a sentence"

    def wrong(self, draw: random.Random) -> None:
        """One thing in a good request is not as it should be."""
        engine = draw.choice(self.engines)
        asked = self.request(draw, engine)
        name = draw.choice(["sources", "prefixes", "limits", "shortlists", "threads", "rows", "fewer"])
        number = draw.choice([*ODD, 2**32, 2**32 + 1, 2**70, -(2**70)])
        if name in ("shortlists", "fewer") and asked["shortlists"] is None:
            asked["shortlists"] = [listed(draw, engine.target_size, prefix) for prefix in asked["prefixes"]]
        if name in ("sources", "prefixes", "shortlists"):
            row = draw.choice(asked[name])
            row[draw.randint(0, len(row)) :] = draw.choice([[], [number], [5] * draw.choice([1, POSITIONS, 999])])
        elif name == "limits":
            asked[name][draw.randrange(len(asked[name]))] = number
        elif name == "fewer":
            del asked[draw.choice(["sources", "prefixes", "limits", "shortlists"])][-1]
        elif abs(number) < 9 or not 0 < number < 2**20:  # the rest is right, and slow
            asked[name] = number
        engine.search(**asked)

    def past_python(self, draw: random.Random) -> None:
        """What Python would have refused, straight to the core; arrays have their length, their content is odd."""
        module, engine = self.engine, draw.choice(self.engines)
        count = usually(draw, [1, 2, 5], [-1, 0])
        rows = max(count, 0)

        def numbers(length: int, usual: range, dtype: type) -> Any:
            odd = [n for n in ODD if n < 4096] if dtype is np.int64 else ODD  # so that all arrays fit into memory
            rare = usually(draw, [0.0], [0.3])
            return np.array([usually(draw, usual, odd, rare) for _ in range(length)], dtype)

        def ragged(size: int, least: int, most: int) -> tuple[Any, Any]:
            each = numbers(rows, range(least, most + 1), np.int64)
            offsets = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
            if usually(draw, [False], [True]):
                offsets = np.sort(offsets)
            return numbers(max(int(offsets[-1]), 0), range(min(4, size - 1), size), np.int32), offsets

        ids, offsets = ragged(engine.source_size, int(engine.has_encoder), 6 * int(engine.has_encoder))
        begin, ahead = ragged(engine.target_size, 0, 1)
        lists = odd_lists(draw, engine.target_size, rows, begin, ahead)
        limits = numbers(rows, range(3, 12), np.int32)
        beam = usually(draw, [1, 2, 3, 5], [-1, 0, 40, 4097, 2**31 - 1])
        nbest = usually(draw, [beam, 1], [0, -1, beam + 1 if beam < 99 else 1, 2**31 - 1])
        settings = [usually(draw, [0, 0, 1, 2], [-1, 2**31 - 1]) for _ in range(2)]
        words = [usually(draw, [usual], ODD) for usual in (2, 3, 0)]
        settings += [*words, usually(draw, [8, 64], [0, 1, -5, 2**31 - 1]), usually(draw, [1, 2, 3], [0, -1, 1025])]
        alpha = usually(draw, [0.6, 0.0, 5.0], [-1.0, float("nan"), float("inf"), 1e308])
        usage = module.Usage()
        asked = module._Request(
            module._Settings(beam, nbest, *settings, alpha, *(draw.choice(BUDGETS) for _ in range(2))),
            count,
            module._Ragged(ids.ctypes.data, offsets.ctypes.data),
            module._Ragged(begin.ctypes.data, ahead.ctypes.data),
            module._Ragged(*(None if numbers is None else numbers.ctypes.data for numbers in lists)),
            limits.ctypes.data,
            None,
            ctypes.addressof(usage),
        )
        each, room = min(max(nbest, 0), 4096), int(np.clip(limits, 0, POSITIONS).sum())
        kinds = [(np.int32, room), (np.float32, room), (np.int32, rows), (float, rows), (float, rows), (np.int32, rows)]
        outcome = [np.empty(each * size, kind) for kind, size in kinds]
        stop, error = ctypes.c_int32(draw.random() < 0.05), ctypes.create_string_buffer(512)
        self.told(
            engine._functions.dragoman_search(
                engine._model, ctypes.addressof(asked), ctypes.addressof(stop), *(a.ctypes.data for a in outcome), error
            ),
            error,
        )

    def told(self, status: int, error: Any) -> None:
        from dragoman.errors import DragomanError

        if status != 0:
            raise DragomanError(error.value.decode())

    def session(self, draw: random.Random) -> None:
        """Steps of a session, good and wrong ones; the probabilities of a good one sum to 1."""
        engine, error = draw.choice(self.engines), ctypes.create_string_buffer(512)
        library = engine._functions
        threads = usually(draw, [1, 2, 4], [0, -1, 1025])
        slots, capacity, sentences, source = (usually(draw, [1, 3, 9, 40], [0, 41, -1]) for _ in range(4))
        number, sizes = ctypes.c_int64(), (slots, capacity, sentences, source)
        self.told(library.dragoman_begin(engine._model, threads, *sizes, ctypes.byref(number), error), error)
        opened = number.value

        def some(count: int, most: int) -> Any:
            right = draw.random() < 0.7
            each = (usually(draw, range(max(most, 1)), ODD, 0.0 if right else 0.1) for _ in range(count))
            return np.fromiter(each, np.int32, count)

        try:
            for _ in range(draw.randint(1, 12)):
                count = draw.randint(1, min(slots, 6))
                kind = draw.choice(["encode", "step", "step", "copy"])
                if kind == "copy":
                    library.dragoman_copy(opened, *some(2, slots).tolist(), int(some(1, capacity)[0]), error)
                elif kind == "encode":
                    lengths, places = 1 + np.minimum(some(count, source), 999), some(count, sentences)
                    tokens = some(int(np.maximum(lengths, 0).sum()), engine.source_size)
                    library.dragoman_encode(opened, *(a.ctypes.data for a in (tokens, lengths, places)), count, error)
                else:
                    columns = [some(count, most) for most in (engine.target_size, capacity, slots, sentences)]
                    if draw.random() < 0.8:  # a slot twice is refused
                        columns[2] = np.array(draw.sample(range(slots), count), np.int32)
                    rows = np.ascontiguousarray(np.stack(columns, axis=1))
                    out = np.empty((count, engine.target_size), np.float32)
                    if library.dragoman_step(opened, rows.ctypes.data, count, out.ctypes.data, error) == 0:
                        assert np.allclose(np.exp(out.astype(np.float64)).sum(1), 1, atol=1e-4)
                assert library.dragoman_bytes(opened) > 0
        finally:
            library.dragoman_end(opened)
        assert library.dragoman_step(opened, None, 1, None, error) != 0, "an ended session took a step"

    def together(self, draw: random.Random) -> None:
        """Threads that search in the same engine have the answers of each alone; in one session some are refused."""
        engine = draw.choice(self.engines)
        asked = [self.request(draw, engine) for _ in range(draw.randint(2, 4))]
        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(lambda one: engine.search(**one), asked))
        assert found == [engine.search(**one) for one in asked], "other threads changed a search"
        number, library = engine.begin(1, rows=4, target=40, sentences=1, source=20), engine._functions

        def use(which: int) -> None:
            error, length, place = ctypes.create_string_buffer(512), np.array([20], np.int32), np.array([0], np.int32)
            tokens, out = np.full(20, 1 % engine.source_size, np.int32), np.empty((4, engine.target_size), np.float32)
            rows = np.array([[0, which, slot, 0] for slot in range(4)], np.int32)
            for _ in range(3):
                library.dragoman_encode(number, *(a.ctypes.data for a in (tokens, length, place)), 1, error)
                library.dragoman_step(number, rows.ctypes.data, 4, out.ctypes.data, error)
                library.dragoman_copy(number, 0, 1, which + 1, error)
            engine.end(number)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(use, range(3)))

    def damaged(self, draw: random.Random) -> None:
        content = bytearray(draw.choice(self.paths).read_bytes())
        for _ in range(draw.choice([1, 1, 2, 4])):
            damage(draw, content)
        self.hurt.write_bytes(content)
        engine = self.engine.Engine(self.hurt)
        if engine.source_size > 1 and engine.target_size > 4 and engine.positions > 4:
            engine.search(**self.request(draw, engine))


def usually(draw: random.Random, usual: Sequence[Any], odd: Sequence[Any], rare: float = 0.06) -> Any:
    return draw.choice(odd if draw.random() < rare else usual)


def listed(draw: random.Random, size: int, prefix: Sequence[int]) -> list[int]:
    """What a sentence may use: next to nothing, a block and its neighbours, or most words."""
    some = (draw.randrange(size) for _ in range(draw.choice([0, 1, 5, 62, 64, 200])))
    return sorted({3, *prefix, *some})


def odd_lists(draw: random.Random, size: int, rows: int, begin: Any, ahead: Any) -> tuple[Any, Any]:
    """None, or ragged lists, mostly with the prefixes (begin, ahead) in them; what is odd stays inside of the array."""
    if draw.random() < 0.4:
        return None, None
    places = np.clip(ahead, 0, len(begin))
    prefixes = [[i for i in begin[at:end].tolist() if 0 <= i < size] for at, end in itertools.pairwise(places)]
    lists = [listed(draw, size, prefix) for prefix in prefixes[:rows]]
    ids = np.array([i for words in lists for i in words], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(words) for words in lists])]).astype(np.int64)
    if usually(draw, [False], [True], 0.2) and len(ids):
        ids[draw.randrange(len(ids))] = draw.choice([*ODD, int(ids[0])])
    if usually(draw, [False], [True], 0.2):
        offsets[draw.randrange(len(offsets))] = draw.choice([-1, 0, 1, 5, 64, len(ids)])
    return ids, np.minimum(offsets, len(ids))


def damage(draw: random.Random, content: bytearray) -> None:
    """Change the file in one of the ways in which files go wrong, or are made to."""
    kind = draw.choice(["header", "header", "bytes", "number", "sizes", "cut", "longer", "mixed"])
    place = draw.randrange(max(len(content) - 64, 1)) // 4 * 4
    if kind == "header":
        at = 8 + 4 * draw.randrange(26)
        content[at : at + 4] = draw.choice(ODD).to_bytes(4, "little", signed=True)
    elif kind == "bytes":
        for _ in range(draw.randint(1, 40)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif kind == "number":
        content[place : place + 4] = np.float32(draw.choice(SPOILT)).tobytes()
    elif kind == "sizes":
        at = place // 64 * 64
        content[at : at + 4] = draw.choice(ODD).to_bytes(4, "little", signed=True)
    elif kind == "cut":
        del content[draw.randrange(100, len(content)) :]
    elif kind == "longer":
        content += bytes(draw.choice([1, 64, 4096, 1 << 20]))
    else:
        other = draw.randrange(max(len(content) - 64, 1))
        length = draw.choice([4, 64, 4096])
        content[place : place + length] = content[other : other + length]


def child(folder: Path, library: Path, seed: int, seconds: float, cases: int | None) -> None:
    player = Player(folder, library)
    until, number = time.monotonic() + seconds, seed
    with (folder / "case").open("wb", buffering=0) as said:
        while time.monotonic() < until and (cases is None or number < seed + cases):
            os.pwrite(said.fileno(), b"%020d" % number, 0)
            player.play(number)
            number += 1
    print(json.dumps({"cases": number - seed, **dict(sorted(player.outcomes.items()))}))


# ----------------------------------------------------------------------------------------------------------- the parent


def packed(folder: Path) -> None:
    from pydantic import TypeAdapter

    from dragoman.config import ModelConfig
    from dragoman.decoding.native.pack import pack
    from dragoman.models.build import build_model

    adapter: TypeAdapter[Any] = TypeAdapter(ModelConfig)
    for name, (document, precision, vocab) in MODELS.items():
        model = build_model(adapter.validate_python(document), vocab, vocab, seed=1).eval()
        pack(model, folder / f"{name}.packed", precision, max_positions=POSITIONS)  # type: ignore[arg-type]


def watched(folder: Path, library: Path, args: argparse.Namespace) -> int:
    """Play the cases in a child; 0 = all went well, else the number of the bad one is printed."""
    fixed = ["setarch", "-R"] if args.sanitizer == "thread" else []  # the thread sanitizer needs its addresses
    command = [*fixed, sys.executable, __file__, "--child", str(folder), str(library), "--seed", str(args.seed)]
    command += ["--seconds", str(args.seconds), *(["--cases", str(args.cases)] if args.cases else [])]
    last, since = b"", time.monotonic()
    with (folder / "errors").open("w+b") as errors:
        process = subprocess.Popen(command, env=environment(args.sanitizer), stderr=errors)
        while process.poll() is None:
            time.sleep(0.5)
            case = (folder / "case").read_bytes() if (folder / "case").exists() else b""
            if case != last:
                last, since = case, time.monotonic()
            elif time.monotonic() - since > HANGS:
                process.kill()
                print(f"no answer for {HANGS:.0f} seconds", file=sys.stderr)
        errors.seek(0)
        sys.stderr.write(errors.read().decode("utf-8", "replace")[-12_000:])
    if process.returncode:
        what = f"case {int(last)}: play it again with --seed {int(last)} --cases 1" if last else "before the first case"
        print(f"FAILED ({args.build}, {args.sanitizer}, exit {process.returncode}) {what}", file=sys.stderr)
    return process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None, help="number of the first case (default: drawn)")
    parser.add_argument("--cases", type=int, default=None, help="how many (default: as many as the time allows)")
    parser.add_argument("--build", choices=sorted(INSTRUCTIONS), default="avx2")
    parser.add_argument("--sanitizer", choices=sorted(SANITIZERS), default="address")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(10**9) * 1000
    if args.child:
        return child(args.child[0], args.child[1], args.seed, args.seconds, args.cases)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packed(folder)
        library = compiled(folder, args.build, args.sanitizer)
        print(f"{args.build}, {args.sanitizer}: cases from {args.seed} for {args.seconds:.0f} s", flush=True)
        sys.exit(1 if watched(folder, library, args) else 0)


if __name__ == "__main__":
    main()
