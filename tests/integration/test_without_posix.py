"""Without the modules and functions that Windows lacks, everything can be imported, trained and translated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from small_run import write_corpus, write_toml

WITHOUT_POSIX = """
import builtins, errno, os, pathlib, pkgutil, sys

LACKING = {"fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "syslog"}

real_import = builtins.__import__

def import_(name, globals=None, *args, **kwargs):
    # Other packages choose by the name of the system, which stays what it is.
    if name.split(".")[0] in LACKING and (globals or {}).get("__name__", "").startswith("dragoman"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real_import(name, globals, *args, **kwargs)

builtins.__import__ = import_
for name in ("sched_getaffinity", "O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW", "pread", "pwrite",
             "statvfs", "getloadavg", "killpg", "setsid", "mkfifo", "chown", "fdatasync"):
    if hasattr(os, name):
        delattr(os, name)

real_open, real_sync, real_rename, real_replace = os.open, os.fsync, os.rename, os.replace

def open_(path, flags, *args, **kwargs):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return real_open(path, flags, *args, **kwargs)

def sync(descriptor):
    info = pathlib.Path(f"/proc/self/fdinfo/{descriptor}")
    if info.exists() and int(info.read_text().split("flags:")[1].split()[0], 8) & 3 == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    real_sync(descriptor)

def rename(path, target, **kwargs):
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "File exists", str(target))
    real_rename(path, target, **kwargs)

def replace(path, target, **kwargs):
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "Permission denied", str(target))
    real_replace(path, target, **kwargs)

os.open, os.fsync, os.rename, os.replace = open_, sync, rename, replace

real_text = pathlib.Path.write_text
def write_text(self, data, encoding=None, errors=None, newline=None):
    return real_text(self, data, encoding or "cp1252", errors, "\\r\\n" if newline is None else newline)
pathlib.Path.write_text = write_text
"""
"""Also as on Windows: no descriptors of folders, flushing only what is open for writing, no renaming over anything,
"\\r\\n" and another encoding in text files.
"""

IMPORTS = """
import filelock, dragoman

del os.O_NONBLOCK  # filelock needs it to lock

names = [module.name for module in pkgutil.walk_packages(dragoman.__path__, "dragoman.") if "._" not in module.name]
assert len(names) > 100, names
for name in names:
    __import__(name)
print(len(names))
"""

COMMANDS = """
from dragoman.cli import main

for command in sys.argv[1].split("|"):
    sys.argv = ["dragoman", *command.split()]
    try:
        main()
    except SystemExit as exit_:
        assert exit_.code == 0, command
"""


def without_posix(code: str, *args: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + code, *map(str, args)], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_module_can_be_imported() -> None:
    assert int(without_posix(IMPORTS)) > 100


def test_training_translating_and_bulk(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    config = write_toml(tmp_path / "tiny.toml", data, "train.budget=12 steps", "train.keep=2", "tokenizer.sampling=0.1")
    run, source = tmp_path / "run", data / "valid.src"
    translate = f"translate {run} --input {source}"
    commands = [
        f"train {config} --out {run}",
        f"train {config} train.budget=2epochs --out {run}",
        f"{translate} --output {tmp_path}/out.txt",
        f"{translate} --input {data}/valid.tgt --output {tmp_path}/bulk",
        f"{translate} --input {data}/valid.tgt --output {tmp_path}/bulk",  # finds all of it done
        f"average {run} --last 2",
        f"explain {run} one --out {tmp_path}/page.html",
        f"info {run}/average",
    ]
    without_posix(COMMANDS, "|".join(commands))
    assert (tmp_path / "out.txt").read_bytes().count(b"\n") == 9
    assert (tmp_path / "bulk" / "valid.src").read_bytes() == (tmp_path / "out.txt").read_bytes()
    assert (tmp_path / "page.html").stat().st_size > 1000
