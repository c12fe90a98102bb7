"""Fuzz the native engine with random requests and damaged files, under the sanitizers of the compiler.

    python bench/fuzz_native.py [--seconds 600] [--seed N] [--build avx2] [--sanitizer address]

The library is built in a temporary folder with -fsanitize=address,undefined (or thread), models are packed, and
a child process runs cases: valid requests, whose results must not depend on the batch; invalid requests, through
Python and directly; sessions; concurrent calls; damaged files.  Each case must give a result or a DragomanError.  The
number of a case determines it: the number of a failing case is printed, and `--seed NUMBER --cases 1` repeats it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_native_requests import (
    BUDGETS,
    EDGE_INTEGERS,
    INSTRUCTIONS,
    POSITIONS,
    SANITIZERS,
    compiled,
    damage,
    environment,
    learned_lists,
    make_phrases,
    make_shortlist,
    mostly,
    odd_phrases,
    odd_shortlists,
    pack_models,
)

TIMEOUT = 120.0
"""Seconds after which a case counts as hanging."""


# ------------------------------------------------------------------------------------------------------------ the child


class Fuzzer:
    """Runs test cases; the number of a case seeds its random generator."""

    def __init__(self, folder: Path, library: Path) -> None:
        from dragoman.decoding.native import engine, request
        from dragoman.decoding.native import library as native

        self.engine: Any = engine
        self.structures: Any = request
        self.engine.load_native = lambda: native.NativeLibrary(
            "sanitized", native._declare_functions(ctypes.CDLL(str(library)))
        )
        self.paths = sorted(folder.glob("*.packed"))
        self.engines = [engine.Engine(path) for path in self.paths]
        self.damaged_path = folder / "damaged"
        self.outcomes: Counter[str] = Counter()

    def run(self, number: int) -> None:
        from dragoman.errors import DragomanError

        draw = random.Random(number)
        cases = [
            self.valid, self.invalid, self.bypassing_python, self.bypassing_python,
            self.shortlists, self.session, self.concurrent, self.service, self.damaged,
        ]  # fmt: skip
        case = draw.choice(cases)
        try:
            case(draw)
            self.outcomes[f"{case.__name__}: answered"] += 1
        except DragomanError as error:
            assert str(error).strip()
            self.outcomes[f"{case.__name__}: refused"] += 1

    def request(self, draw: random.Random, engine: Any) -> dict[str, Any]:
        """Return a valid request."""
        from dragoman.decoding.search_types import SearchSettings

        def ids(max_length: int, size: int) -> list[int]:
            return [draw.randrange(min(4, size - 1), size) for _ in range(draw.randint(0, max_length))]

        count, positions = draw.randint(1, 9), min(engine.positions, POSITIONS)
        longest = draw.choice([3, 17, positions - 1])
        beam = draw.choice([1, 2, 4, 7])
        min_length = draw.choice([0, 0, 2])
        prefixes = [ids(draw.choice([0, 0, 3]), engine.target_size) for _ in range(count)]
        phrases = [make_phrases(draw, engine.target_size) for _ in range(count)]
        needed = [own.total if own else 0 for own in phrases]
        min_limits = [max(len(p) + n, min_length) + 1 for p, n in zip(prefixes, needed, strict=True)]
        wanted = [[t for ids in (own.ids if own else ()) for t in ids] for own in phrases]
        kept = [[*p, *w] for p, w in zip(prefixes, wanted, strict=True)]
        return {
            "sources": [[*ids(longest, engine.source_size), 3] if engine.has_encoder else [] for _ in range(count)],
            "limits": [draw.randint(low, max(low, draw.choice([8, positions]))) for low in min_limits],
            "settings": SearchSettings(
                beam=beam, nbest=draw.randint(1, beam), min_length=min_length,
                no_repeat_ngram=draw.choice([0, 0, 2, 3]), alpha=draw.choice([0.0, 0.6, 2.0]),
                shrink_beam=draw.choice([False, True]), beam_threshold=draw.choice([0.0, 0.0, 0.3, 3.0]),
                recombine=draw.choice([0, 0, 1, 2, 9]),
            ),
            "prefixes": prefixes,
            "shortlists": draw.choice([None, [make_shortlist(draw, engine.target_size, k) for k in kept]]),
            "phrases": phrases,
            "threads": draw.choice([1, 1, 2, 3, 5]),
            "rows": draw.choice([1, 3, 8, 64]),
            "memory": draw.choice([0, 10_000, 100_000, 1 << 30]),
            "source_tokens": draw.choice([0, 20, 100, 1 << 40]),
        }  # fmt: skip

    def valid(self, draw: random.Random) -> None:
        engine = draw.choice(self.engines)
        request = self.request(draw, engine)
        results = engine.search(**request)
        index = draw.randrange(len(results))
        names = ("sources", "limits", "prefixes", "shortlists", "phrases")
        single: dict[str, Any] = {name: [request[name][index]] for name in names if request[name] is not None}
        assert len(results) == len(request["sources"]) and all(results)
        assert engine.search(**single, settings=request["settings"]) == [results[index]], "the batch changed a result"

    def invalid(self, draw: random.Random) -> None:
        """A valid request with one change."""
        engine = draw.choice(self.engines)
        request = self.request(draw, engine)
        name = draw.choice(["sources", "prefixes", "limits", "shortlists", "phrases", "threads", "rows", "fewer"])
        number = draw.choice([*EDGE_INTEGERS, 2**32, 2**32 + 1, 2**70, -(2**70)])
        if name in ("shortlists", "fewer") and request["shortlists"] is None:
            request["shortlists"] = [make_shortlist(draw, engine.target_size, prefix) for prefix in request["prefixes"]]
        if name in ("sources", "prefixes", "shortlists"):
            row = draw.choice(request[name])
            row[draw.randint(0, len(row)) :] = draw.choice([[], [number], [5] * draw.choice([1, POSITIONS, 999])])
        elif name == "phrases":
            from dragoman.decoding.search_types import Phrases

            row = draw.randrange(len(request[name]))
            request[name][row] = Phrases(((number,) * draw.choice([1, POSITIONS]),), draw.choice([None, 1.0]), bytes(3))
        elif name == "limits":
            request[name][draw.randrange(len(request[name]))] = number
        elif name == "fewer":
            del request[draw.choice(["sources", "prefixes", "limits", "shortlists", "phrases"])][-1]
        elif abs(number) < 9 or not 0 < number < 2**20:  # other values are valid and slow
            request[name] = number
        engine.search(**request)

    def bypassing_python(self, draw: random.Random) -> None:
        """Pass unchecked values directly to the library; the arrays have the lengths that their offsets declare."""
        module, engine = self.structures, draw.choice(self.engines)
        count = mostly(draw, [1, 2, 5], [-1, 0])
        rows = max(count, 0)

        def integers(length: int, usual: range, dtype: type) -> Any:
            edge = [n for n in EDGE_INTEGERS if n < 4096] if dtype is np.int64 else EDGE_INTEGERS  # bounds the memory
            rate = mostly(draw, [0.0], [0.3])
            return np.array([mostly(draw, usual, edge, rate) for _ in range(length)], dtype)

        def ragged(size: int, min_length: int, max_length: int) -> tuple[Any, Any]:
            lengths = integers(rows, range(min_length, max_length + 1), np.int64)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            if mostly(draw, [False], [True]):
                offsets = np.sort(offsets)
            return integers(max(int(offsets[-1]), 0), range(min(4, size - 1), size), np.int32), offsets

        sources = ragged(engine.source_size, int(engine.has_encoder), 6 * int(engine.has_encoder))
        prefixes = ragged(engine.target_size, 0, 1)
        shortlists = odd_shortlists(draw, engine.target_size, rows, *prefixes)
        limits = integers(rows, range(3, 12), np.int32)
        beam = mostly(draw, [1, 2, 3, 5], [-1, 0, 40, 4097, 2**31 - 1])
        nbest = mostly(draw, [beam, 1], [0, -1, beam + 1 if beam < 99 else 1, 2**31 - 1])
        settings = [mostly(draw, [0, 0, 1, 2], [-1, 2**31 - 1]) for _ in range(2)]
        settings += [mostly(draw, [0, 1], [-1, 2, 2**31 - 1]), mostly(draw, [0, 0, 1, 2], [-1, 2**31 - 1])]
        settings += [mostly(draw, [token], EDGE_INTEGERS) for token in (2, 3, 0)]
        settings += [mostly(draw, [8, 64], [0, 1, -5, 2**31 - 1]), mostly(draw, [1, 2, 3], [0, -1, 1025])]
        alpha = mostly(draw, [0.6, 0.0, 5.0], [-1.0, float("nan"), float("inf"), 1e308])
        threshold = mostly(draw, [0.0, 0.3, 3.0], [-1.0, float("nan"), float("inf"), 1e308])
        usage = module.Usage()

        def ragged_array(ids: Any, offsets: Any) -> Any:
            return module.RaggedArray(*(None if values is None else values.ctypes.data for values in (ids, offsets)))

        request = module.SearchRequest(
            module.Settings(beam, nbest, *settings, alpha, threshold, *(draw.choice(BUDGETS) for _ in range(2))),
            count,
            *(ragged_array(*arrays) for arrays in (sources, prefixes, shortlists)),
            limits=limits.ctypes.data,
            usage=ctypes.addressof(usage),
        )
        phrases = odd_phrases(draw, engine.target_size, rows)
        if draw.random() < 0.4:
            request.phrases = ragged_array(*phrases[:2])
            request.phrase_counts, request.bonuses = (array.ctypes.data for array in phrases[2:4])
            tables = (ctypes.c_char_p * rows)(*(draw.choice([None, phrases[4]]) for _ in range(rows)))
            request.inside = mostly(draw, [ctypes.addressof(tables)], [None])
        hypotheses, tokens = min(max(nbest, 0), 4096), int(np.clip(limits, 0, POSITIONS).sum())
        dtypes = [(np.int32, tokens), (np.float32, tokens), (np.int32, rows), (float, rows), (float, rows)]
        outputs = [np.empty(hypotheses * size, dtype) for dtype, size in [*dtypes, (np.int32, rows)]]
        stop, error = ctypes.c_int32(draw.random() < 0.05), ctypes.create_string_buffer(512)
        addresses = [array.ctypes.data for array in outputs]
        status = engine.functions.dragoman_search(
            engine._model, ctypes.addressof(request), ctypes.addressof(stop), *addresses, error
        )
        self.raise_for_status(status, error)

    def shortlists(self, draw: random.Random) -> None:
        """Select the tokens of shortlists, as Python does; tokens outside the vocabularies are refused."""
        engine, rate = draw.choice(self.engines), draw.choice([0.0, 0.0, 0.02])
        shortlist = learned_lists(draw, engine.source_size, engine.target_size, rate)

        def rows(size: int) -> list[list[int]]:
            return [
                [mostly(draw, range(size), EDGE_INTEGERS, rate) for _ in range(draw.randint(0, 9))] for _ in range(5)
            ]

        sources, required = rows(engine.source_size), rows(engine.target_size)
        found = engine.shortlists(shortlist, sources, required)
        expected = [shortlist.of(source, own) for source, own in zip(sources, required, strict=True)]
        assert [found[i].tolist() for i in range(5)] == expected, "not the tokens that Python selects"

    def raise_for_status(self, status: int, error: Any) -> None:
        from dragoman.errors import DragomanError

        if status != 0:
            raise DragomanError(error.value.decode())

    def session(self, draw: random.Random) -> None:
        """Call the functions of a session with valid and invalid arguments; the probabilities of a step sum to 1."""
        engine, error = draw.choice(self.engines), ctypes.create_string_buffer(512)
        functions = engine.functions
        threads = mostly(draw, [1, 2, 4], [0, -1, 1025])
        target_slots, target_length, source_slots, source_length = (
            mostly(draw, [1, 3, 9, 40], [0, 41, -1]) for _ in range(4)
        )
        number, sizes = ctypes.c_int64(), (target_slots, target_length, source_slots, source_length)
        self.raise_for_status(
            functions.dragoman_session_open(engine._model, threads, *sizes, ctypes.byref(number), error), error
        )
        session = number.value

        def integers(count: int, end: int) -> Any:
            rate = 0.0 if draw.random() < 0.7 else 0.1
            values = (mostly(draw, range(max(end, 1)), EDGE_INTEGERS, rate) for _ in range(count))
            return np.fromiter(values, np.int32, count)

        try:
            for _ in range(draw.randint(1, 12)):
                count = draw.randint(1, min(target_slots, 6))
                kind = draw.choice(["encode", "step", "step", "copy"])
                if kind == "copy":
                    slots, length = integers(2, target_slots).tolist(), int(integers(1, target_length)[0])
                    functions.dragoman_session_copy(session, *slots, length, error)
                elif kind == "encode":
                    lengths = 1 + np.minimum(integers(count, source_length), 999)
                    tokens = integers(int(np.maximum(lengths, 0).sum()), engine.source_size)
                    addresses = [a.ctypes.data for a in (tokens, lengths, integers(count, source_slots))]
                    functions.dragoman_session_encode(session, *addresses, count, error)
                else:
                    ends = (engine.target_size, target_length, target_slots, source_slots)
                    columns = [integers(count, end) for end in ends]
                    if draw.random() < 0.8:  # otherwise a slot may occur twice, which is refused
                        columns[2] = np.array(draw.sample(range(target_slots), count), np.int32)
                    rows = np.ascontiguousarray(np.stack(columns, axis=1))
                    out = np.empty((count, engine.target_size), np.float32)
                    status = functions.dragoman_session_step(session, rows.ctypes.data, count, out.ctypes.data, error)
                    if status == 0:
                        assert np.allclose(np.exp(out.astype(np.float64)).sum(1), 1, atol=1e-4)
                assert functions.dragoman_session_bytes(session) > 0
        finally:
            functions.dragoman_session_close(session)
        assert functions.dragoman_session_step(session, None, 1, None, error) != 0, "a closed session accepted a step"

    def concurrent(self, draw: random.Random) -> None:
        """Concurrent searches give the results of separate ones; concurrent calls of one session may be refused."""
        engine = draw.choice(self.engines)
        requests = [self.request(draw, engine) for _ in range(draw.randint(2, 4))]
        with ThreadPoolExecutor(len(requests)) as pool:
            results = list(pool.map(lambda request: engine.search(**request), requests))
        assert results == [engine.search(**request) for request in requests], "other threads changed a result"
        session = engine.open_session(1, target_slots=4, target_length=40, source_slots=1, source_length=20)
        functions = engine.functions

        def use(thread: int) -> None:
            error, length, slot = ctypes.create_string_buffer(512), np.array([20], np.int32), np.array([0], np.int32)
            tokens, out = np.full(20, 1 % engine.source_size, np.int32), np.empty((4, engine.target_size), np.float32)
            rows = np.array([[0, thread, slot, 0] for slot in range(4)], np.int32)
            for _ in range(3):
                functions.dragoman_session_encode(session, *(a.ctypes.data for a in (tokens, length, slot)), 1, error)
                functions.dragoman_session_step(session, rows.ctypes.data, 4, out.ctypes.data, error)
                functions.dragoman_session_copy(session, 0, 1, thread + 1, error)
            engine.close_session(session)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(use, range(3)))

    def service(self, draw: random.Random) -> None:
        """Searches of several callers in a service give the results of separate ones; cancelled ones disturb nobody."""
        from dragoman.decoding.native.backend import NativeBackend, NativeSearchService

        engine = draw.choice(self.engines)
        threads, rows = draw.choice([1, 2, 3]), draw.choice([7, 12, 40])
        backend = NativeBackend(engine, "", threads, lambda: None)  # type: ignore[arg-type, return-value]
        service = NativeSearchService(backend, engine.positions, rows, draw.choice([0, 100_000, 1 << 30]))
        try:
            searches = []
            for _ in range(draw.randint(1, 6)):
                request = self.request(draw, engine)
                settings = replace(request["settings"], max_extra=draw.choice([0, 5]))
                arguments = request["sources"], request["prefixes"], settings
                if max(backend.search_arguments(*arguments, request["phrases"])["limits"]) > engine.positions:
                    continue
                ranks = [float(draw.randrange(99)) for _ in request["sources"]]
                search = service.submit(*arguments, ranks, request["phrases"])
                if draw.random() < 0.3:
                    service.cancel(search)
                else:
                    searches.append((search, *arguments, request["phrases"]))
            for search, sources, prefixes, settings, phrases in searches:
                found = search.future.result(TIMEOUT)
                assert found == backend.search(sources, prefixes, settings, 4000, phrases), "others changed a result"
        finally:
            service.close()

    def damaged(self, draw: random.Random) -> None:
        content = bytearray(draw.choice(self.paths).read_bytes())
        for _ in range(draw.choice([1, 1, 2, 4])):
            damage(draw, content)
        self.damaged_path.write_bytes(content)
        engine = self.engine.Engine(self.damaged_path)
        if engine.source_size > 1 and engine.target_size > 4 and engine.positions > 4:
            engine.search(**self.request(draw, engine))


def child(folder: Path, library: Path, seed: int, seconds: float, cases: int | None) -> None:
    fuzzer = Fuzzer(folder, library)
    deadline, number = time.monotonic() + seconds, seed
    with (folder / "case").open("wb", buffering=0) as record:
        while time.monotonic() < deadline and (cases is None or number < seed + cases):
            os.pwrite(record.fileno(), b"%020d" % number, 0)
            fuzzer.run(number)
            number += 1
    print(json.dumps({"cases": number - seed, **dict(sorted(fuzzer.outcomes.items()))}))


# ----------------------------------------------------------------------------------------------------------- the parent


def run_child(folder: Path, library: Path, args: argparse.Namespace) -> int:
    """Run the cases in a child process and return its exit status; print the number of a failing case."""
    prefix = ["setarch", "-R"] if args.sanitizer == "thread" else []  # the thread sanitizer requires fixed addresses
    command = [*prefix, sys.executable, __file__, "--child", str(folder), str(library), "--seed", str(args.seed)]
    command += ["--seconds", str(args.seconds), *(["--cases", str(args.cases)] if args.cases else [])]
    last, since = b"", time.monotonic()
    with (folder / "errors").open("w+b") as errors:
        process = subprocess.Popen(command, env=environment(args.sanitizer), stderr=errors)
        while process.poll() is None:
            time.sleep(0.5)
            case = (folder / "case").read_bytes() if (folder / "case").exists() else b""
            if case != last:
                last, since = case, time.monotonic()
            elif time.monotonic() - since > TIMEOUT:
                process.kill()
                print(f"no answer for {TIMEOUT:.0f} seconds", file=sys.stderr)
        errors.seek(0)
        sys.stderr.write(errors.read().decode("utf-8", "replace")[-12_000:])
    if process.returncode:
        case_text = (
            f"case {int(last)}: repeat it with --seed {int(last)} --cases 1" if last else "before the first case"
        )
        print(f"FAILED ({args.build}, {args.sanitizer}, exit {process.returncode}) {case_text}", file=sys.stderr)
    return process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None, help="number of the first case (default: random)")
    parser.add_argument("--cases", type=int, default=None, help="number of cases (default: as many as the time allows)")
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
        pack_models(folder)
        library = compiled(folder, args.build, args.sanitizer)
        print(f"{args.build}, {args.sanitizer}: cases from {args.seed} for {args.seconds:.0f} s", flush=True)
        sys.exit(1 if run_child(folder, library, args) else 0)


if __name__ == "__main__":
    main()
