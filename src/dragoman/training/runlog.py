"""What a run tells: `log.jsonl`, TensorBoard events, and whoever listens (`Reporter`)."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

__all__ = ["Reporter", "RunLog", "read_log"]


class Reporter:
    """Hears what happens in training; this one keeps quiet, the command line's draws progress."""

    def say(self, text: str) -> None:
        """A sentence for the user."""

    def started(self, total: str, used: float) -> None:
        """Training begins (or goes on) with a budget `total`, of which the part `used` is over."""

    def stepped(self, row: dict[str, Any], used: float) -> None:
        """A row of the log: step, loss, learning_rate, tokens_per_second, seconds.

        loss: nats a target token, not smoothed.
        """

    def validated(self, row: dict[str, Any], better: bool) -> None:
        """A validation: step, valid_loss, perplexity, and with decoding bleu, chrf, exact_match."""

    def finished(self) -> None:
        """Training is over or was interrupted."""


def read_log(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's `log.jsonl`; a last line cut by a crash is left out."""
    file = run / "log.jsonl"
    rows = []
    for line in file.read_text(encoding="utf-8").split("\n") if file.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class RunLog:
    """Appends rows to `log.jsonl` and TensorBoard events; rows of work that was lost are taken out.

    Those are the rows after `step`, and that of the average, which is made again.
    """

    def __init__(self, run: Path, step: int) -> None:
        # The score of the average is written anew when the run ends again.
        kept = [row for row in read_log(run) if row["step"] <= step and "average" not in row]
        unfinished = run / ".log.jsonl.unfinished"
        unfinished.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        unfinished.replace(run / "log.jsonl")
        self._file = (run / "log.jsonl").open("a", encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorboard's own imports warn about each other
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(run / "tensorboard", purge_step=step + 1 if step else None)

    def write(self, row: dict[str, Any]) -> None:
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()
        for key, value in row.items():
            if key not in ("step", "seconds") and isinstance(value, int | float):
                self._events.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._file.close()
        self._events.close()
