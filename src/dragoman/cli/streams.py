"""Text in and out of a command: lines of a file or of standard input, an output that appears only when complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dragoman.errors import DragomanError, UsageError
from dragoman.io.writing import not_written

__all__ = ["OutputStream", "lines_of"]


def lines_of(path: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input; a line ends at "\\n" and nowhere else."""
    from dragoman.io.lines import decode_line, raw_lines, read_lines

    if path is not None:
        yield from read_lines(path)
        return
    if sys.stdin is None:
        raise UsageError("standard input is closed: name a file with --input, or give the text through a pipe")
    for number, raw in enumerate(raw_lines(sys.stdin.buffer, "standard input"), start=1):
        yield decode_line(raw, number, "standard input")


class OutputStream:
    """Writes lines, to standard output or to a file that appears only when it is complete.

    A link is followed; what is no file, such as a pipe or a device, is written to line by line.  source: what is read
    meanwhile.  Raises UsageError where it cannot be written, or is the source.
    """

    def __init__(self, path: Path | None, source: Path | None = None) -> None:
        if path is not None and source is not None and path.exists() and source.exists() and path.samefile(source):
            raise UsageError(f"{path}: both --input and --output; choose another output, so that the text is kept")
        direct = path is not None and path.exists() and not path.is_file()
        self.path = path.resolve() if path is not None and path.is_symlink() and not direct else path
        self.part = None
        if self.path is not None and not direct:
            self.part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def __enter__(self) -> Any:
        if self.path is None:
            if sys.stdout is None:
                raise UsageError("standard output is closed: name a file with --output")
            self.file = sys.stdout.buffer
        else:
            try:
                self.file = (self.part or self.path).open("wb")
            except OSError as error:
                parent = self.path.parent
                if not parent.is_dir():
                    raise UsageError(f"{self.path}: cannot be written: there is no folder {parent}; make it") from None
                raise UsageError(not_written(self.path, error)) from None
        return self._write

    def _write(self, line: str) -> None:
        data = line.encode("utf-8") + b"\n"
        if self.path is None:
            self.file.write(data)
            return
        try:
            self.file.write(data)
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> OSError | DragomanError:
        """The error that names the output; a reader of a pipe that has gone away is no problem of the output."""
        return error if isinstance(error, BrokenPipeError) else DragomanError(not_written(self.path, error))

    def __exit__(self, kind: object, *rest: object) -> None:
        if self.path is None:
            self.file.flush()
            return
        problem = None
        try:
            self.file.close()
            if self.part is not None and kind is None:
                self.part.replace(self.path)
        except OSError as error:
            problem = error
        if self.part is not None and (kind is not None or problem is not None):
            typer.echo(f"what was done before the error is in {self.part}", err=True)
        if problem is not None and kind is None:
            raise self._problem(problem) from problem
