"""What can be wrong with input: operators that damage bytes, files, folders, values and documents.

Every operator takes its random numbers from the `random.Random` that it is given, and from nothing else.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD_TEXT = [
    "", " ", "\0", "\n", "\r\n", "\t", "\ufeff", "²", "٣", "½", "ß", "ſ", "İ", "\u2028", "\u200b", "\u202e",
    "e\u0301" * 40, "\N{CJK UNIFIED IDEOGRAPH-6F22}字", "🙂", "👩\u200d👧", "\ud800", "'", '"', "\\", "$", "${HOME}",
    "${", "${NOT_SET}", "~", "~nosuchuser/a", "..", "/dev/zero", "-", "--help", "%s", "{}", "nan", "true", "1e999",
    "0x", "1_000", "x" * 10_000, "▁", "<s>", "</s>", "<unk>", "<0x0A>",
]  # fmt: skip
"""Text of every kind that has been mistaken for something else."""
NUMBERS = [
    0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30,
    1 << 20_000, 0.0, -0.0, 0.5, 1.5, 1e-300, 5e-324, 1e-9, 1e9, 1e300, 1.7e308, float("nan"), float("inf"),
    -float("inf"),
]  # fmt: skip


def deep(depth: int, kind: str = "list") -> Any:
    """A value nested `depth` times."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def odd_value(draw: random.Random) -> Any:
    """A value of any type that JSON or TOML has, seldom one that fits."""
    match draw.randrange(6):
        case 0:
            return draw.choice([None, True, False, [], {}, [[]], {"kind": "x"}, {"kind": 3}, [None], {"": ""}])
        case 1:
            return deep(draw.choice([3, 50, 400]), draw.choice(["list", "table"]))
        case 2:
            return draw.choice(ODD_TEXT)
        case 3:
            return draw.choice(["20 min", "0.5 steps", "9" * 400 + " h", "1e3 steps", "5 apples", "1 epoch", "3 steps"])
        case _:
            return draw.choice(NUMBERS)


# -------------------------------------------------------------------------------------------------------------- bytes


def flip_bits(content: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 1, 3, 40])):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def truncate(content: bytearray, draw: random.Random) -> None:
    del content[draw.choice([0, len(content) // 2, max(len(content) - 1, 0), draw.randint(0, len(content))]) :]


def zero(content: bytearray, draw: random.Random) -> None:
    start = draw.choice([0, draw.randint(0, len(content))])
    end = draw.choice([len(content), min(len(content), start + draw.choice([1, 8, 64]))])
    content[start:end] = bytes(max(end - start, 0))


def grow(content: bytearray, draw: random.Random) -> None:
    content += draw.choice([b"\0", b"\n", bytes(8), bytes(content[:64]), b"x" * 4096])


def move_part(content: bytearray, draw: random.Random) -> None:
    length = draw.choice([1, 8, 64])
    here, there = draw.randint(0, len(content)), draw.randint(0, len(content))
    content[here : here + length] = content[there : there + length]


def replace_by_junk(content: bytearray, draw: random.Random) -> None:
    content[:] = draw.choice(
        [b"", b"[]", b"{}", b"null", b"3", b'"x"', b"\xff\xfe", b"{" * 3000, b"[" * 100_000, b'{"a":' * 3000,
         b"9" * 6000, b"\xef\xbb\xbf{}", b"\x80\x04\x95", draw.randbytes(300)]
    )  # fmt: skip


def insert_text(content: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(content))
    content[at:at] = draw.choice(ODD_TEXT).encode("utf-8", "surrogatepass")


def insert_bytes(content: bytearray, draw: random.Random) -> None:
    at = draw.randint(0, len(content))
    content[at:at] = draw.choice(
        [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"\r", b"\n\n", b"\x1f\x8b"]
    )


BYTES: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits, truncate, zero, grow, move_part, replace_by_junk, insert_text, insert_bytes,
]  # fmt: skip


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """The content after one or a few of the operators on bytes."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        draw.choice(BYTES)(changed, draw)
    return bytes(changed)


# -------------------------------------------------------------------------------------------------------------- files


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def as_folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def as_pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def as_loop(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def as_device(path: Path) -> None:
    remove(path)
    path.symlink_to("/dev/zero")


def unreadable(path: Path) -> None:
    path.chmod(0)


INSTEAD: list[Callable[[Path], None]] = [remove, as_folder, as_pipe, as_loop, as_device, unreadable]


def damage_file(path: Path, others: list[Path], draw: random.Random, content_only: bool = False) -> str:
    """Damage a file: its bytes, what it is, or what it holds (that of another file).  Returns what was done."""
    kind = draw.random()
    if kind < 0.2 and not content_only:
        operator = draw.choice(INSTEAD)
        operator(path)
        return operator.__name__
    if kind < 0.35 and others:
        other = draw.choice(others)
        path.write_bytes(other.read_bytes())
        return f"content of {other.name}"
    path.write_bytes(damage_bytes(path.read_bytes(), draw))
    return "bytes"


# ---------------------------------------------------------------------------------------------------------- documents


def _tables(document: dict[str, Any]) -> list[Any]:
    """Every table and list within a document, itself included; without recursion, for some are nested deeply."""
    found: list[Any] = [document]
    for table in found:  # which grows meanwhile
        inner = table.values() if isinstance(table, dict) else table
        found += [value for value in inner if isinstance(value, dict | list)]
    return found


def damage_document(document: dict[str, Any], draw: random.Random) -> None:
    """Change one to three places of a document: another value, a key less, a key more, a key renamed, a table moved."""
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = draw.choice(_tables(document))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        numbers = [key for key in keys if isinstance(place[key], int | float) and not isinstance(place[key], bool)]
        operator = draw.randrange(9)
        if operator > 5 and numbers:
            key = draw.choice(numbers)
            place[key] = draw.choice([place[key] + 1, place[key] - 1, place[key] * 2, place[key] / 2, -place[key]])
        elif operator == 0 and isinstance(place, dict):
            place[draw.choice([*ODD_TEXT, "d_modle", "kind", "seed"])] = odd_value(draw)
        elif operator == 1 and keys:
            del place[draw.choice(keys)]
        elif operator == 2 and isinstance(place, dict) and keys:
            key = draw.choice(keys)
            place[draw.choice([key + "s", key.upper(), key[:-1]])] = place.pop(key)
        elif operator == 3 and isinstance(place, dict) and keys:
            place[draw.choice(keys)] = copy.deepcopy(draw.choice(list(document.values()) or [1]))
        elif keys:
            place[draw.choice(keys)] = odd_value(draw)
