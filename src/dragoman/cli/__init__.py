"""The command line: one function per command, which parses its arguments, calls the library and prints the result.

Results are printed on standard output, progress and messages on standard error.  Exit codes: 0 success, 1 failure,
2 usage error, 130 interrupted (work done so far is saved).
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from dragoman.cli.commands import Commands
from dragoman.errors import DragomanError, is_out_of_memory
from dragoman.io.writing import not_written, reason_of

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from dragoman._version import __version__

        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, run and inspect the Transformer of 'Attention Is All You Need'."""


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"dragoman: {message}", err=True)
    sys.exit(code)


def _let_waiting_threads_sleep() -> None:
    """Let waiting OpenMP threads sleep, unless the environment specifies a policy.  Call it before importing torch.

    By default, waiting threads spin, which makes training many times slower if another process uses one of the cores.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def main() -> NoReturn:
    """Entry point of the command `dragoman`."""
    _let_waiting_threads_sleep()
    try:
        app()
    except DragomanError as error:
        if error.reported:
            sys.exit(error.exit_code)
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of standard output has exited, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # usually standard output redirected to a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise the final flush of the interpreter fails again
        named = f"{error.filename}: {reason_of(error)}"
        _fail(not_written("standard output", error) if error.filename is None else named)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if is_out_of_memory(error):
            _fail(
                "out of memory; for training, reduce train.batch_tokens (train.accumulate compensates for it) or the "
                "sizes of the model; for inference, use a smaller beam, fewer samples or shorter texts"
            )
        if os.environ.get("DRAGOMAN_TRACEBACK"):
            raise
        _fail(
            f"{type(error).__name__}: {error}\nThis is a bug in Dragoman. Set DRAGOMAN_TRACEBACK=1 for the traceback, "
            "and please report it."
        )
    sys.exit(0)
