"""What `fuzz_native.py` uses: the engine with compiler sanitizers, models, and random inputs that are usual, at the
edges or damaged."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = Path(__file__).parents[1] / "src" / "dragoman" / "decoding" / "native" / "csrc"
INSTRUCTIONS = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# Replaces mmap by heap memory, so that the address sanitizer detects accesses outside of a buffer.  Released pages are
# filled with NaN.
MMAP_REPLACEMENT = """
#include <sys/mman.h>
#include <cstdlib>
#include <cstring>
inline void* heap_mmap(size_t bytes) {
  void* found = nullptr;
  if (posix_memalign(&found, 64, bytes) != 0 || found == nullptr) return MAP_FAILED;
  return std::memset(found, 0, bytes);
}
#define mmap(address, bytes, protection, flags, file, offset) heap_mmap(bytes)
#define munmap(address, bytes) std::free(address)
#define madvise(address, bytes, advice) ((advice) == MADV_FREE ? (std::memset(address, 0xFF, bytes), 0) : 0)
#define DRAGOMAN_RELEASE_THRESHOLD 0
"""
VOCAB, POSITIONS = 83, 40
BLOCK: dict[str, Any] = {"d_model": 12, "d_ff": 20, "n_heads": 2, "dropout": 0.0}
BOTH: dict[str, Any] = {"architecture": "transformer", **BLOCK, "encoder_layers": 1, "decoder_layers": 2}
MODERN: dict[str, Any] = {
    "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu", "gated": True,
    "bias": False,
}  # fmt: skip
WIDE: dict[str, Any] = {"d_model": 192, "d_ff": 448, "n_heads": 4, "decoder_layers": 1}  # enough for parallel steps
MODELS: dict[str, tuple[dict[str, Any], str, int]] = {
    "paper": (BOTH, "float32", VOCAB),
    "wide": (BOTH | WIDE, "int8", 700),
    "modern": (BOTH | MODERN | {"n_kv_heads": 1}, "int8", VOCAB),
    "small keys": (BOTH | MODERN | {"d_key": 4, "n_kv_heads": 1}, "float32", VOCAB),
    "large keys": (BOTH | {"d_key": 9}, "int8", VOCAB),
    "padded": (BOTH | {"d_model": 70, "d_ff": 131, "n_heads": 5, "activation": "gelu"}, "int8", 64),
    "t5": (BOTH | {"position": {"kind": "t5", "buckets": 8, "max_distance": 12}, "order": "pre"}, "int8", VOCAB),
    "alibi": (BOTH | {"position": {"kind": "alibi"}, "activation": "gelu_tanh"}, "float32", VOCAB),
    "ssru": (BOTH | {"decoder_self": "ssru"}, "int8", VOCAB),
    "alone": ({"architecture": "decoder_only", **BLOCK, "n_layers": 2, **MODERN}, "int8", VOCAB),
    "learned": (
        {"architecture": "decoder_only", **BLOCK, "n_layers": 2, "position": {"kind": "learned", "max_len": 40}},
        "float32",
        VOCAB,
    ),
}
EDGE_INTEGERS = [-(2**31), -1, 0, 1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 83, 128, 4096, 65536]
EDGE_INTEGERS += [2**20, 2**24, 2**30, 2**31 - 1]
BUDGETS = [-(2**63), -1, 0, 1, 50, 1000, 100_000, 2**40, 2**63 - 1]
"""Values of `source_tokens` and `memory`."""
SPECIAL_FLOATS = [float("nan"), float("inf"), -float("inf"), 3e38, -1e30, 1e-42, 0.0, 70000.0]


def pack_models(folder: Path) -> None:
    from pydantic import TypeAdapter

    from dragoman.config import ModelConfig
    from dragoman.decoding.native.pack import pack
    from dragoman.models.build import build_model

    adapter: TypeAdapter[Any] = TypeAdapter(ModelConfig)
    for name, (document, precision, vocab) in MODELS.items():
        model = build_model(adapter.validate_python(document), vocab, vocab, seed=1).eval()
        pack(model, folder / f"{name}.packed", precision, max_positions=POSITIONS)  # type: ignore[arg-type]


def mostly(draw: random.Random, usual: Sequence[Any], edge: Sequence[Any], rate: float = 0.06) -> Any:
    """Return one of the edge values with probability `rate`, else one of the usual values."""
    return draw.choice(edge if draw.random() < rate else usual)


def make_phrases(draw: random.Random, size: int) -> Any:
    """Return no phrases, or one or two of up to three tokens."""
    from dragoman.decoding.search_types import Phrases

    if draw.random() < 0.6 or size < 6:
        return None
    ids = tuple(tuple(draw.randrange(4, size) for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, 2)))
    inside = draw.choice([b"", bytes(draw.choices([0, 1], k=size))])
    return Phrases(ids, draw.choice([None, 0.5, 9.0]), inside)


def odd_phrases(draw: random.Random, size: int, rows: int) -> tuple[Any, Any, Any, Any, bytes]:
    """Return ids, offsets, counts per sentence and bonuses that may be invalid, and a valid table of tokens."""
    counts = np.array([mostly(draw, [0, 1, 2], [-1, 3]) for _ in range(rows)], np.int64)
    totals = np.concatenate([[mostly(draw, [0], [1])], np.cumsum(counts)]).astype(np.int64)
    lengths = np.array([mostly(draw, [1, 2], [0]) for _ in range(max(0, int(totals.max())))], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.array(
        [mostly(draw, range(min(4, size - 1), size), EDGE_INTEGERS) for _ in range(int(offsets[-1]))], np.int32
    )
    bonuses = np.array([mostly(draw, [0.0, 2.0], SPECIAL_FLOATS) for _ in range(rows)], np.float32)
    return ids, offsets, totals, bonuses, bytes(draw.choices([0, 1], k=size))


def make_shortlist(draw: random.Random, size: int, prefix: Sequence[int]) -> list[int]:
    """Return a shortlist: very short, about one block of 64, or most of the vocabulary."""
    tokens = (draw.randrange(size) for _ in range(draw.choice([0, 1, 5, 62, 64, 200])))
    return sorted({3, *prefix, *tokens})


def odd_shortlists(draw: random.Random, size: int, rows: int, prefix_ids: Any, prefix_offsets: Any) -> tuple[Any, Any]:
    """Return None, or ids and offsets of shortlists that mostly contain the prefixes; offsets stay within the ids."""
    if draw.random() < 0.4:
        return None, None
    bounds = itertools.pairwise(np.clip(prefix_offsets, 0, len(prefix_ids)))
    prefixes = [[i for i in prefix_ids[begin:end].tolist() if 0 <= i < size] for begin, end in bounds]
    lists = [make_shortlist(draw, size, prefix) for prefix in prefixes[:rows]]
    ids = np.array([i for tokens in lists for i in tokens], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in lists])]).astype(np.int64)
    if mostly(draw, [False], [True], 0.2) and len(ids):
        ids[draw.randrange(len(ids))] = draw.choice([*EDGE_INTEGERS, int(ids[0])])
    if mostly(draw, [False], [True], 0.2):
        offsets[draw.randrange(len(offsets))] = draw.choice([-1, 0, 1, 5, 64, len(ids)])
    return ids, np.minimum(offsets, len(ids))


def damage(draw: random.Random, content: bytearray) -> None:
    """Damage the content of a file in one of several ways."""
    kind = draw.choice(["header", "header", "bytes", "float", "shape", "truncated", "extended", "mixed"])
    offset = draw.randrange(max(len(content) - 64, 1)) // 4 * 4
    if kind == "header":
        field = 8 + 4 * draw.randrange(27)
        content[field : field + 4] = draw.choice(EDGE_INTEGERS).to_bytes(4, "little", signed=True)
    elif kind == "bytes":
        for _ in range(draw.randint(1, 40)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif kind == "float":
        content[offset : offset + 4] = np.float32(draw.choice(SPECIAL_FLOATS)).tobytes()
    elif kind == "shape":
        shape = offset // 64 * 64
        content[shape : shape + 4] = draw.choice(EDGE_INTEGERS).to_bytes(4, "little", signed=True)
    elif kind == "truncated":
        del content[draw.randrange(100, len(content)) :]
    elif kind == "extended":
        content += bytes(draw.choice([1, 64, 4096, 1 << 20]))
    else:
        other = draw.randrange(max(len(content) - 64, 1))
        length = draw.choice([4, 64, 4096])
        content[offset : offset + length] = content[other : other + length]


def learned_lists(draw: random.Random, source_size: int, target_size: int, rate: float) -> Any:
    """Return a `Shortlist` with random lists.  rate: of invalid tokens and starts; 0 = none."""
    from dragoman.decoding.shortlist import Shortlist

    def token() -> int:
        return int(mostly(draw, range(target_size), EDGE_INTEGERS, rate))

    lists = [[token() for _ in range(draw.choice([0, 1, 5]))] for _ in range(source_size)]
    starts = list(itertools.accumulate(map(len, lists), initial=0))
    starts = [int(mostly(draw, [start], EDGE_INTEGERS, rate)) for start in starts]
    frequent, ids = [token() for _ in range(draw.choice([0, 3, 70]))], [i for tokens in lists for i in tokens]
    return Shortlist(5, target_size, "5a" * 32, *(array("i", numbers) for numbers in (frequent, starts, ids)))


def compiled(folder: Path, build: str, sanitizer: str) -> Path:
    """Return the path of the instrumented library."""
    (folder / "mmap_replacement.h").write_text(MMAP_REPLACEMENT)
    library = folder / f"_{build}.so"
    flags = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    checks = [f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    include = ["-include", str(folder / "mmap_replacement.h")]
    subprocess.run(["g++", *flags, *checks, *INSTRUCTIONS[build], *include, *sources, "-o", library], check=True)
    return library


def environment(sanitizer: str) -> dict[str, str]:
    """Return the environment in which Python loads the instrumented library."""
    runtimes = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer], "libstdc++.so.6"
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in runtimes]
    return os.environ | {
        "LD_PRELOAD": " ".join(os.path.realpath(path) for path in paths),
        "PYTHONMALLOC": "malloc",  # the sanitizer checks Python's objects too
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
