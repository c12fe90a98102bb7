"""The log of a run: rows and TensorBoard events, and a disk that is full."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dragoman.errors import TrainingError
from dragoman.io.run_log import RunLog, read_log

FULL = Path("/dev/full")  # every write to it fails as on a full disk


def events(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads: scalars by name, as (step, value)."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(run / "tensorboard"))
        found.Reload()
        return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_rows_and_events(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.write({"step": 3, "loss": 2.5, "seconds": 1.0, "note": "text"})
    log.write({"step": 6, "loss": math.inf, "count": 7})
    assert events(tmp_path) == {"loss": [(3, 2.5), (6, math.inf)], "count": [(6, 7.0)]}, "there at once"
    log.close()
    assert read_log(tmp_path) == [
        {"step": 3, "loss": 2.5, "seconds": 1.0, "note": "text"},
        {"step": 6, "loss": None, "count": 7},
    ]


def test_work_that_was_lost_is_taken_out(tmp_path: Path) -> None:
    first = RunLog(tmp_path, 0)
    for step in (2, 4, 6, 8):
        first.write({"step": step, "loss": float(step)})
    first.write({"step": 4, "average": 2, "loss": 0.5})
    first.close()
    second = RunLog(tmp_path, 4)
    second.write({"step": 6, "loss": 60.0})
    second.close()
    assert [(row["step"], row["loss"]) for row in read_log(tmp_path)] == [(2, 2.0), (4, 4.0), (6, 60.0)]
    assert [(step, value) for step, value in events(tmp_path)["loss"] if step > 4] == [(6, 60.0)]
    assert events(tmp_path)["loss"][:2] == [(2, 2.0), (4, 4.0)]


def test_a_line_that_a_crash_has_cut_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2, "lo')
    assert read_log(tmp_path) == [{"step": 1}]


DAMAGED_LINES = [
    b"\xff\xfe{}", b"5", b"null", b"[1]", b"{}", b'{"step": "x"}', b'{"step": true}', b'{"step": 1.5}', b'{"step": -1}',
    b'{"step": ' + b"9" * 400 + b"}", b'{"step": ' + b"9" * 5000 + b"}", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED_LINES, ids=lambda line: line[:16].decode(errors="replace"))
def test_a_damaged_line_is_left_out(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n{"step": 7}\n')
    assert read_log(tmp_path) == [{"step": 1}, {"step": 2}, {"step": 7}]
    RunLog(tmp_path, 2).close()
    assert (tmp_path / "log.jsonl").read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.jsonl").touch()

    def refuse(self: Path, **kwargs: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(TrainingError, match=r"log\.jsonl: cannot be read: Permission denied"):
        read_log(tmp_path)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("part", ["log.jsonl", "tensorboard"])
def test_a_full_disk_is_named_with_what_is_safe(part: str, tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0, saved=lambda: "The last good checkpoint is 12.")
    if part == "log.jsonl":
        log._file.close()
        log._file = FULL.open("a", encoding="utf-8")
    else:
        log._events._file.close()
        log._events._file = log._events._records._writer = FULL.open("wb")
    with pytest.raises(TrainingError) as full:
        log.write({"step": 3, "loss": 2.5})
    log.close()
    assert str(full.value) == (
        f"{tmp_path / part} could not be written: the disk is full. The last good checkpoint is 12. "
        "Free some space, or choose a folder on another disk. Then run the same command again."
    )
