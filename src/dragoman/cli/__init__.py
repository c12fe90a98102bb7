"""The command line: one thin function a command.  It parses, calls the library, prints.

Results go to standard output, progress and messages to standard error.  Exit codes: 0 done, 1 failed, 2 wrong use,
130 interrupted (what was done is saved).
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from dragoman.cli import atlas, compare, explain, export, serve, shortlist, training, using, vectors
from dragoman.cli.options import app
from dragoman.errors import DragomanError
from dragoman.io.writing import not_written, reason_of

__all__ = ["app", "atlas", "compare", "explain", "export", "main", "serve", "shortlist", "training", "using", "vectors"]


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"dragoman: {message}", err=True)
    sys.exit(code)


def _is_out_of_memory(error: Exception) -> bool:
    """Python's, a GPU's, and what torch says when the CPU's memory is full."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def main() -> NoReturn:
    """The entry point of the command `dragoman`."""
    try:
        app()
    except DragomanError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # whoever read our output has gone, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a full disk behind standard output or --output, most of all
        named = f"{error.filename}: {reason_of(error)}"
        message = not_written("standard output", error) if error.filename is None else named
        typer.echo(f"dragoman: {message}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush cannot fail again
        sys.exit(1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if _is_out_of_memory(error):
            _fail(
                "out of memory; in a training lower train.batch_tokens (train.accumulate makes up for it) or the "
                "model's sizes, in a search ask for less at once: a smaller beam, fewer samples, shorter texts",
                1,
            )
        if os.environ.get("DRAGOMAN_TRACEBACK"):
            raise
        _fail(
            f"{type(error).__name__}: {error}\nThis is a mistake in Dragoman, not yours. "
            "Set DRAGOMAN_TRACEBACK=1 to see where, and please report it.",
            1,
        )
    sys.exit(0)
