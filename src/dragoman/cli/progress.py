"""Progress of training on standard error: a progress bar or lines, validation scores and messages."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dragoman.io.run_log import Reporter

__all__ = ["RichReporter", "console"]


def console(stderr: bool = True) -> Console:
    """Return a console on standard error or output, without automatic highlighting."""
    return Console(stderr=stderr, highlight=False)


_SCORES = {
    "valid_loss": "valid loss {:.3f}",
    "perplexity": "perplexity {:.2f}",
    "bits_per_character": "{:.3f} bits per character",
    "bleu": "BLEU {:.2f}",
    "chrf": "chrF {:.2f}",
    "accuracy": "accuracy {:.2f} %",
    "f1": "F1 {:.2f}",
    "well_formed": "well-formed {:.1f} %",
}


class RichReporter(Reporter):
    """A progress bar on a terminal; elsewhere one line for every `quiet_every` rows of the log."""

    quiet_every = 5

    def __init__(self) -> None:
        self.console = console()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._rows = 0
        self._begin = (0.0, 0.0)

    def log(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def started(self, total: str, used: float) -> None:
        self._begin = (used, time.monotonic())
        self.log(f"training for {total}" + (f", {used:.0%} already used" if used else ""))
        if self.console.is_terminal:
            columns = (
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[left]} left"),
            )
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("", total=1.0, left="?")
            self._bar.start()

    def stepped(self, row: dict[str, Any], used: float) -> None:
        left = self._left(used)
        text = (
            f"step {row['step']:,}  loss {row['loss']:.3f}  lr {row['learning_rate']:.1e}  "
            f"{row['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=min(used, 1.0), description=text, left=left)
            return
        self._rows += 1
        if self._rows % self.quiet_every == 1:
            self.log(f"{text}  {left} left")

    def _left(self, used: float) -> str:
        """Extrapolate the remaining time from the budget used since training started or resumed."""
        used_before, since = self._begin
        if used <= used_before:
            return "?"
        rest = max(0.0, (1 - used) * (time.monotonic() - since) / (used - used_before))
        return f"{rest / 60:.0f} min" if rest >= 90 else f"{rest:.0f} s"

    def validated(self, row: dict[str, Any], better: bool) -> None:
        if "valid_loss" not in row:
            return
        parts = [form.format(row[name]) for name, form in _SCORES.items() if name in row]
        if row.get("exact_match", 0) >= 1:
            parts.append(f"exact {row['exact_match']:.1f} %")
        average = " (average)" if "average" in row else ""
        self.log(f"step {row['step']:,}{average}  {'  '.join(parts)}{'  best so far' if better else ''}")

    def finished(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
