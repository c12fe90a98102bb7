"""Model folders and runs on disk, without their content: which folder a path stands for, and whether it is intact.

`models/model_folder.py` describes the files, and reads and writes them; the configuration of a fine-tuning reads the
folder that it starts from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from dragoman._version import __version__
from dragoman.errors import ModelFolderError
from dragoman.io.reading import COPY_AGAIN, as_path, read_json, read_text
from dragoman.io.weights import file_problem

FORMAT_VERSION = 1
POINTERS = ("best", "last", "average")
STAGE = "stage"
"""Name of the file in a run with stages that names the folder of the last one."""
_MOST_LISTED = 8


def read_pointer(run: Path, name: str) -> Path | None:
    """Return the folder that a pointer names, or None if the pointer does not exist.

    Raises ModelFolderError if it names anything but a folder inside the run.
    """
    file = run / name
    if not os.path.lexists(file):
        return None
    advice = f"Specify a checkpoint instead of the run, or write the path of one to {name}: checkpoints/<step>."
    text = read_text(file, ModelFolderError, advice, limit=4096).strip()
    path = PurePosixPath(text)
    is_name = text.isprintable() and max(map(len, path.parts), default=0) in range(1, 256)
    if not is_name or ".." in path.parts or path.root or PureWindowsPath(text).anchor:
        raise ModelFolderError(f"{file}: {text[:80]!r} is not the path of a folder inside the run. {advice}")
    return run / path


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, sorted by step."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if re.fullmatch("[0-9]+", path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def runs_inside(folder: Path) -> list[Path]:
    """Return the run folders with a checkpoint that are directly inside of a folder."""
    return sorted({pointer.parent for name in ("best", "last") for pointer in folder.glob(f"*/{name}")})


def last_stage(run: Path) -> Path:
    """Return the run folder of the last stage of a run with stages; another folder as it is."""
    return read_pointer(run, STAGE) or run


def find_model(path: str | Path) -> Path:
    """Return the model folder for a run folder, one of its checkpoints or pointers, or a model folder.

    A run with stages stands for its last stage, and a folder that contains a single run, such as that of `dragoman
    demo`, for the run.  Raises ModelFolderError if there is no model.
    """
    run = as_path(path, "model")
    path = last_stage(run)
    if path != run and not path.is_dir():
        raise ModelFolderError(
            f"{run}: its last stage, {path.name}, has not begun; continue it with: dragoman train CONFIG --out {run}"
        )
    if (path / "model.safetensors").exists() or (path / "meta.json").exists():
        return path
    if path.is_file() and path.name in POINTERS:
        return read_pointer(path.parent, path.name) or path
    if path.is_dir():
        targets = [target for name in ("best", "last") if (target := read_pointer(path, name)) is not None]
        for target in targets:
            if target.is_dir():
                return target
        if targets:
            raise ModelFolderError(f"{targets[0]}: missing, but {path} points to it; copy the complete run again")
        if (path / "config.toml").exists():
            raise ModelFolderError(
                f"{path}: this run has no checkpoint yet; continue it with: dragoman train CONFIG --out {path}"
            )
        inside = runs_inside(path)
        if len(inside) == 1:
            return find_model(inside[0])
        if inside:
            shown = ", ".join(map(str, inside[:_MOST_LISTED])) + ", ..." * (len(inside) > _MOST_LISTED)
            raise ModelFolderError(f"{path}: contains {len(inside)} runs; specify one of them: {shown}")
        raise ModelFolderError(
            f"{path}: not a model; accepted: a run folder, one of its checkpoints, or a folder with config.json, "
            f"model.safetensors, the tokenizer and meta.json; {_import_advice(path)}"
        )
    what = "not a folder (text is read with --input)" if os.path.lexists(path) else "no such folder"
    raise ModelFolderError(f"{path}: {what}; specify a folder written by 'dragoman train'")


def _import_advice(folder: Path) -> str:
    return f"a checkpoint of another program is converted with: dragoman import {folder} OUT"


def read_meta(folder: Path) -> dict[str, Any]:
    """Return `meta.json` of a model folder.  Raises ModelFolderError if it is missing, damaged or of a later format."""
    if (folder / "config.json").exists() and not (folder / "meta.json").exists():
        raise ModelFolderError(f"{folder}/meta.json: missing. {COPY_AGAIN[:-1]}; {_import_advice(folder)}")
    meta = read_json(folder / "meta.json", ModelFolderError, COPY_AGAIN)
    version = meta.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelFolderError(
            f"{folder}: format version {str(version)[:20]}; Dragoman {__version__} reads up to {FORMAT_VERSION}; "
            f"upgrade (the folder was written by Dragoman {str(meta.get('package_version'))[:20]})"
        )
    problems = list(_meta_problems(meta))
    if problems:
        raise ModelFolderError(f"{folder}/meta.json: cannot be read: {'; '.join(problems)}. {COPY_AGAIN}")
    return meta


def _meta_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    def invalid(key: str, accepted: str) -> str:
        return f"{key} is {str(meta.get(key))[:40]!r}, accepted: {accepted}"

    if type(meta.get("format_version")) is not int or meta["format_version"] < 1:
        yield invalid("format_version", f"1 to {FORMAT_VERSION}")
    if not isinstance(meta.get("package_version"), str):
        yield invalid("package_version", "text")
    if type(meta.get("step", 0)) is not int or not 0 <= meta.get("step", 0) < 1 << 63:
        yield invalid("step", "a non-negative integer")
    scores = meta.get("scores", {})
    if not isinstance(scores, dict) or not all(isinstance(score, int | float) for score in scores.values()):
        yield invalid("scores", "an object with numbers")
    digests = meta.get("sha256")
    if not isinstance(digests, dict):
        yield invalid("sha256", "an object that maps file names to sha256")
        return
    unlisted = sorted({"config.json", "model.safetensors"} - digests.keys())
    if unlisted:
        yield f"no sha256 of {', '.join(unlisted)}"
    for name, digest in digests.items():
        if not re.fullmatch(r"\w[\w. -]*", name) or not isinstance(digest, str):
            yield f"{str(name)[:40]!r} with sha256 {str(digest)[:40]!r} is not a file of a model folder"


def verify(folder: Path, skip: Collection[str] = ()) -> dict[str, Any]:
    """Check the files of a model folder, except those in `skip`, against their sha256; return its `meta.json`.

    Raises ModelFolderError with all problems.
    """
    meta = read_meta(folder)
    found = ((name, file_problem(folder / name, sha256)) for name, sha256 in meta["sha256"].items() if name not in skip)
    problems = [f"{name} {problem}" for name, problem in found if problem]
    if problems:
        raise ModelFolderError(f"{folder}: {'; '.join(problems)}. Copy the folder again, or use an earlier checkpoint.")
    return meta
