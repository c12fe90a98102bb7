"""Remove what a server never reads from a virtual environment, and compile what it imports.

    python deploy/slim.py VENV

Used by the Dockerfile.  Removed: tests and C sources of packages, names of languages in other languages than English,
and the symbols for debuggers of some extension modules (if `strip` is installed).  The modules of the server are
compiled, because a container cannot write into the environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

STRIPPED = ("dragoman", "lxml", "uvloop", "zstandard")
"""Packages whose extension modules carry symbols.  Modules with libraries of their own, as of numpy, are left alone:
their wheels were patched, and `strip` can damage them."""

SOURCES = {".a", ".c", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx"}
COMPILE = """
import py_compile, sys
import dragoman.cli, dragoman.serve.command, dragoman.serve.app, dragoman.decoding.native.pack
import dragoman.documents, dragoman.markup, dragoman.markup.xml, lxml, uvloop
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None) or ""
    if path.startswith(sys.prefix) and path.endswith(".py"):
        py_compile.compile(path, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


def main(venv: Path) -> None:
    (packages,) = venv.glob("lib/python*/site-packages")
    before = size(venv)
    for folder in [*packages.rglob("tests"), *packages.rglob("__pycache__")]:
        if folder.is_dir():
            shutil.rmtree(folder)
    for file in (packages / "babel" / "locale-data").glob("*.dat"):
        if file.name != "root.dat" and file.stem.partition("_")[0] != "en":
            file.unlink()
    for file in packages.rglob("*"):
        if file.suffix in SOURCES:
            file.unlink()
    if shutil.which("strip"):
        for name in STRIPPED:
            for library in (packages / name).rglob("*.so"):
                subprocess.run(["strip", "--strip-unneeded", library], check=True)
    subprocess.run([venv / "bin" / "python", "-c", COMPILE], check=True)
    print(f"{venv}: {before / 1e6:.0f} MB -> {size(venv) / 1e6:.0f} MB")


def size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
