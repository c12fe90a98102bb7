"""What bench/fuzz_input.py gives damaged input to: one function per target.

A target damages its input, uses it, and returns how that ended, in a word or two.  It raises `DragomanError` where the
input is refused, and `Difference` where damaged input gave another result than the undamaged one, without a message.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import random
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_damage import ODD_TEXT, damage_document, damage_file, odd_value

RECIPES = Path(__file__).parents[1] / "recipes"
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
LINES = ["one two three", "", "nine nine one", "seven", "zero four two six"]
LONGEST_MESSAGE = 8000


class Difference(Exception):
    """A result that is not that of undamaged input."""


# ------------------------------------------------------------------------------------------------------------ undamaged


def prepare(folder: Path) -> None:
    """A corpus, a run folder with a model packed for the engine, the prepared store, and the results of all of them."""
    from dragoman.config import dump_toml, parse_config
    from dragoman.training.trainer import train

    draw = random.Random(3)
    rows = [[draw.randrange(10) for _ in range(draw.randint(2, 6))] for _ in range(130)]
    for name, some in (("train", rows[:120]), ("valid", rows[120:])):
        text = "".join(" ".join(WORDS[d] for d in row) + "\n" for row in some)
        (folder / f"{name}.src").write_text(text, encoding="utf-8")
        (folder / f"{name}.tgt").write_text(text.replace("e", "é"), encoding="utf-8")
    config = parse_config(_document(folder))
    (folder / "tiny.toml").write_text(dump_toml(config), encoding="utf-8")
    train(config, folder / "work" / "run")
    wanted = {
        **{engine: _translated(folder / "work" / "run", engine) for engine in ("native", "pytorch")},
        "store": _read_store(folder),
    }
    (folder / "wanted.json").write_text(json.dumps(wanted), encoding="utf-8")


def _document(folder: Path) -> dict[str, Any]:
    return {
        "data": {
            "root": str(folder), "source_language": "en", "target_language": "xx",
            "train": [{"source": "train.src", "target": "train.tgt"}],
            "valid": {"source": "valid.src", "target": "valid.tgt"},
        },
        "tokenizer": {"vocab_size": 40, "byte_fallback": False, "sampling": 0.1},
        "model": {"d_model": 16, "d_ff": 24, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "train": {
            "budget": "20 steps", "batch_tokens": 300, "validate_every": "20 steps", "validate_sentences": 2, "keep": 1,
            "schedule": {"kind": "budget", "peak": 1e-2, "warmup": 2}, "device": "cpu",
        },
        "search": {"beam": 2, "max_extra": 3},
    }  # fmt: skip


def _translated(run: Path, engine: str) -> list[Any]:
    from dragoman.pipelines.translation import Translator

    translator = Translator.load(run, engine=engine, threads=1 if engine == "native" else None)  # type: ignore[arg-type]
    return [[t.text, round(t.score, 3)] for t in translator.translate(LINES)]


def _read_store(folder: Path, after_opening: Callable[[], object] = lambda: None) -> str:
    """A digest of all that a training would read in its first two epochs."""
    from dragoman.config import load_config
    from dragoman.training.run import open_run

    task = open_run(load_config(folder / "tiny.toml"), folder / "work" / "again").task
    after_opening()
    digest = hashlib.sha256()
    for epoch in (0, 1):
        for place, numbers in enumerate(task.epoch(epoch)):
            batch = task.read(numbers, epoch, place)
            for name in ("src", "tgt_in", "tgt_out"):
                digest.update(getattr(batch, name).numpy().tobytes())
    return digest.hexdigest()


def _wanted(folder: Path, name: str) -> Any:
    return json.loads((folder / "wanted.json").read_text(encoding="utf-8"))[name]


# -------------------------------------------------------------------------------------------------------- configuration


def configuration(folder: Path, draw: random.Random) -> str:
    """A recipe as a document with something wrong in it; an accepted one must be read back as it was written."""
    from dragoman.config import Config, parse_config

    recipe = draw.choice(sorted(RECIPES.rglob("*.toml")))
    document = tomllib.loads(recipe.read_text(encoding="utf-8"))
    damage_document(document, draw)
    stored = draw.random() < 0.2
    config = parse_config(copy.deepcopy(document), stored=stored)
    _same_when_read_again(config, folder, stored)
    assert isinstance(config, Config)
    _built(config)
    return "accepted"


def overrides(folder: Path, draw: random.Random) -> str:
    """key=value, with odd keys and odd values."""
    from dragoman.config import flatten, load_config

    recipe = draw.choice(sorted(RECIPES.rglob("*.toml")))
    known = list(flatten(tomllib.loads(recipe.read_text(encoding="utf-8"))))
    given = []
    for _ in range(draw.randint(1, 4)):
        parts = draw.choice(known).split(".")
        if draw.random() < 0.4:
            parts[draw.randrange(len(parts))] = draw.choice([*ODD_TEXT, "²", "0", "-1", "kind", "a." * 5000])
        value = odd_value(draw)
        with contextlib.suppress(ValueError):  # an integer of more digits than Python writes
            written = value if isinstance(value, str) else json.dumps(value)
            given.append(f"{'.'.join(parts)}={draw.choice([written, written + chr(10) + 'x = 1', repr(value)])}")
    config = load_config(recipe, given)
    _same_when_read_again(config, folder)
    return "accepted"


def toml(folder: Path, draw: random.Random) -> str:
    """A configuration file with damaged bytes, or something else in the place of the file."""
    from dragoman.config import load_config

    file = folder / "damaged.toml"
    shutil.copy(draw.choice(sorted(RECIPES.rglob("*.toml"))), file)
    if draw.random() < 0.15:
        part = draw.choice(["a", '"a"', "a b", "²"])
        whole = draw.choice([".".join([part] * 20_000) + " = 1", f"[{'.'.join([part] * 9000)}]", "x = " + "[" * 5000,
                             "x = " + "{a=" * 3000, "\n".join(f"k{i} = 1" for i in range(10_000)), "x = " + "9" * 5000,
                             "\n".join(f"[k{i}.a]" for i in range(9000)), 'x = """' + "\\\n" * 9000])  # fmt: skip
        file.write_text(whole, encoding="utf-8")
    else:
        damage_file(file, [*sorted(RECIPES.glob("*.toml"))[:3], folder / "train.src"], draw)
    load_config(file)
    return "accepted"


def _same_when_read_again(config: Any, folder: Path, stored: bool = False) -> None:
    from dragoman.config import dump_toml, parse_config, read_document

    file = folder / "again.toml"
    file.write_text(dump_toml(config), encoding="utf-8")
    try:
        again = parse_config(read_document(file), stored=stored)  # paths do not start at the folder of this file
    except Exception as error:
        raise Difference(f"what was accepted is refused when it is read again: {error}") from error
    if again != config:
        raise Difference("what is written is not read back")


def _built(config: Any) -> None:
    """A small model that was accepted can be built."""
    import torch

    from dragoman.models.build import build_model

    sizes = config.model.model_dump()
    layers = sum(value for key, value in sizes.items() if key.endswith("layers"))
    if max(sizes["d_model"], sizes.get("d_ff", 0)) <= 4096 and layers <= 40:
        with torch.device("meta"):
            build_model(config.model, 100, 100, shared=config.tokenizer.shared)


# ------------------------------------------------------------------------------------------------ folders that are read


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def store(folder: Path, draw: random.Random) -> str:
    """A damaged file of the prepared data: built again, refused, or read with the same result."""
    files = [path for path in _files(folder / "work" / "prepared") if path.name != "tokenizer.vocab"]
    file = draw.choice(files)

    def damage() -> None:
        damage_file(file, [path for path in files if path != file], draw)

    def shrink() -> None:
        os.truncate(file, draw.choice([0, file.stat().st_size // 2]))

    if draw.random() < 0.2:
        found = _read_store(folder, after_opening=shrink)
    else:
        damage()
        found = _read_store(folder)
    if found != _wanted(folder, "store"):
        raise Difference(f"{file.name} was damaged, and other batches were read")
    return "read"


def model_folder(folder: Path, draw: random.Random) -> str:
    """A damaged file of a run, or one that was exchanged together with its checksum."""
    run = folder / "work" / "run"
    files = [path for path in _files(run) if "tensorboard" not in path.parts]
    file = draw.choice(files)
    engine = draw.choice(["native", "pytorch"])
    consistent = file.name not in ("meta.json", "best", "last") and "packed" not in file.parts and draw.random() < 0.4
    damage_file(file, [path for path in files if path != file], draw, content_only=consistent)
    if consistent and (meta := file.parent / "meta.json").is_file():
        about = json.loads(meta.read_text(encoding="utf-8"))
        if file.name in about["sha256"]:
            about["sha256"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
            meta.write_text(json.dumps(about), encoding="utf-8")
    if draw.random() < 0.15:
        (run / "checkpoints" / draw.choice(["²", "average-last9", ".00000020.replaced", "x" * 200])).mkdir()
    if draw.random() < 0.2:
        from dragoman.cli.describe import describe
        from dragoman.io.run_log import read_log

        read_log(run)
        describe(run)
    found = _translated(run, engine)
    if not consistent and found != _wanted(folder, engine):
        raise Difference(f"{file.relative_to(run)} was damaged, and translations by {engine} are others")
    return "read"


# ----------------------------------------------------------------------------------------------------------------- text


def text(folder: Path, draw: random.Random) -> str:
    """Odd text for a command that reads text; N lines in must be N lines out."""
    one, other = folder / "one.txt", folder / "other.txt"
    for path, name in ((one, "valid.src"), (other, "valid.tgt")):
        path.write_bytes((folder / name).read_bytes())
    damaged = draw.choice([one, one, other])
    commands: dict[str, list[str]] = {
        "translate": ["translate", str(folder / "work" / "run"), "--input", str(one), "--beam", "1"],
        "jsonl": ["translate", str(folder / "work" / "run"), "--input", str(one), "--beam", "1", "--jsonl", "--engine",
                  draw.choice(["pytorch", "auto"])],
        "stdin": ["translate", str(folder / "work" / "run"), "--beam", "1"],
        "prefix": ["translate", str(folder / "work" / "run"), "--input", str(folder / "valid.src"), "--prefix",
                   draw.choice(ODD_TEXT).replace("\0", "") or "x", "--beam", "1"],
        "score": ["score", str(folder / "work" / "run"), "--source", str(one), "--target", str(other)],
        "evaluate": ["evaluate", str(folder / "work" / "run"), "--source", str(one), "--reference", str(other)],
        "doctor": ["doctor", str(one), str(other)],
        "vectors": ["vectors", str(folder / "out.txt"), "--train", str(one), "--size", "4", "--min-count", "1"],
        "read vectors": ["vectors", str(folder / "vectors.txt"), "--near", "one"],
    }  # fmt: skip
    name = draw.choice(list(commands))
    if name == "read vectors":
        damaged = folder / "vectors.txt"
        damaged.write_text("2 3\none 1 0 0.5\ntwo 0.25 -1 3\n", encoding="utf-8")
    if draw.random() < 0.3:
        damaged.write_text("\n".join(draw.choices([t for t in ODD_TEXT if t != "\ud800"], k=10)), encoding="utf-8")
    else:
        # A pipe without a writer is waited for: that is what a pipe is for.
        damage_file(damaged, [folder / "tiny.toml"], draw, content_only=name not in ("score", "evaluate", "doctor"))
    given = one.read_bytes() if name == "stdin" else b""
    code, out = command_line(commands[name], given, folder)
    if code == 0 and name in ("translate", "jsonl", "stdin"):
        content = one.read_bytes()
        wanted = content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
        if out.count(b"\n") != wanted:
            raise Difference(f"{wanted} lines in, {len(out.splitlines())} lines out")
    return "done" if code == 0 else "refused"


def command_line(arguments: list[str], given: bytes, folder: Path) -> tuple[int, bytes]:
    """Run `dragoman` in this process, with standard input and output as files; raises what is not a clear message."""
    from dragoman.cli import main

    (folder / "stdin").write_bytes(given)
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "w+b"), ("stderr", "w+b"))):
        with (folder / name).open(mode) as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["dragoman", *(argument.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
                              for argument in arguments)]  # fmt: skip
    os.environ["DRAGOMAN_TRACEBACK"] = "1"
    code = 0
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    message = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
    if "Traceback" in message or "mistake in Dragoman" in message:
        raise AssertionError(message[-500:])
    if len(message) > LONGEST_MESSAGE:
        raise AssertionError(f"a message of {len(message):,} characters: {message[:200]}")
    if code not in (0, 1, 2):
        raise AssertionError(f"exit code {code}")
    return code, (folder / "stdout").read_bytes()


TARGETS: dict[str, Callable[[Path, random.Random], str]] = {
    "configuration": configuration, "overrides": overrides, "toml": toml, "store": store, "model": model_folder,
    "text": text,
}  # fmt: skip
NEED_A_MODEL = ("store", "model", "text")
