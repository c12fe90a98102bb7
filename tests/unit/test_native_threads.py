"""Threads of the native engine: each one is used, and one caller at a time uses a session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.decoding import SearchSettings, generate
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.native.stepper import EngineStepper
from dragoman.errors import UsageError
from dragoman.tokenizers import BOS, EOS
from every_kind import TRANSLATORS, built

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB = 6000
TASKS = Path("/proc/self/task")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model whose steps take about a millisecond."""
    shape = {"d_model": 192, "d_ff": 448, "n_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    model = built(TRANSLATORS["paper"] | shape, VOCAB).float()
    return Engine(pack(model, tmp_path_factory.mktemp("threads") / "p", "int8", max_positions=200))


@pytest.mark.skipif(not TASKS.exists(), reason="this system does not list the threads of a process")
@pytest.mark.parametrize(
    ("threads", "sentences", "helpers"),
    [(5, 3, (1, 2)), (7, 4, (1, 3)), (4, 3, (1, 1)), (3, 2, (1, 1)), (4, 2, (1, 2)), (3, 3, (0, 0)), (2, 5, (0, 0))],
)
def test_every_thread_is_used(
    threads: int, sentences: int, helpers: tuple[int, int], engine: Engine, tmp_path: Path
) -> None:
    """Five threads for three sentences: two sentences get two threads, whose pools stay alive for the next search.

    If a thread starts late, two sentences may be searched one after the other by the same threads.
    """
    before = len(list(TASKS.iterdir()))
    path = tmp_path / "p"
    path.write_bytes(bytes(engine.content))
    fresh = Engine(path)
    lines = [[5 + i, 6, 7, EOS] for i in range(sentences)]
    fresh.search(lines, [40] * sentences, SearchSettings(beam=2, min_length=30), threads=threads)
    waiting = len(list(TASKS.iterdir())) - before

    assert helpers[0] <= waiting <= helpers[1]


class OpenSession:
    """A session with one encoded source, and the arrays of its calls."""

    def __init__(self, engine: Engine, rows: int = 1) -> None:
        self.engine, self.rows = engine, rows
        self.number = engine.open_session(1, target_slots=rows, target_length=200, source_slots=1, source_length=100)
        self.encode()

    def encode(self) -> None:
        tokens = np.array([*range(5, 104), EOS], np.int32)
        length, slot = np.array([100], np.int32), np.array([0], np.int32)
        self.engine.call_session("encode", self.number, tokens.ctypes.data, length.ctypes.data, slot.ctypes.data, 1)

    def step(self, position: int = 0) -> NDArray[np.float32]:
        rows = np.array([[BOS, position, slot, 0] for slot in range(self.rows)], np.int32)
        log_probs = np.empty((self.rows, VOCAB), np.float32)
        self.engine.call_session("step", self.number, rows.ctypes.data, self.rows, log_probs.ctypes.data)
        return log_probs


def test_two_threads_in_one_session_are_an_error(engine: Engine) -> None:
    """One call succeeds and the other is refused; successful calls return correct results."""
    session = OpenSession(engine, rows=64)
    right, refused, wrong = session.step(), 0, 0
    started = threading.Barrier(2)

    def many(_: int) -> tuple[int, int]:
        refused = wrong = 0
        started.wait()
        for _ in range(40):
            try:
                wrong += not np.array_equal(session.step(), right)
            except UsageError as error:
                refused += 1
                assert "is in use by another thread; open one session per thread" in str(error)
        return refused, wrong

    with ThreadPoolExecutor(2) as pool:
        for some_refused, some_wrong in pool.map(many, range(2)):
            refused, wrong = refused + some_refused, wrong + some_wrong
    assert np.array_equal(session.step(), right)
    engine.close_session(session.number)
    assert refused > 0 and wrong == 0


@pytest.mark.parametrize("call", ["step", "encode"])
def test_a_closed_session_is_an_error(call: str, engine: Engine) -> None:
    session = OpenSession(engine)
    engine.close_session(session.number)
    work: Callable[[], object] = getattr(session, call)
    with pytest.raises(UsageError, match=f"session {session.number} is not open"):
        work()
    with pytest.raises(UsageError, match="is not open"):
        engine.call_session("copy", session.number, 0, 0, 1)
    engine.close_session(session.number)  # closing again has no effect
    engine.close_session(0)
    assert OpenSession(engine).number > session.number  # ids are not reused


def test_a_session_may_be_closed_during_a_call(engine: Engine) -> None:
    """The call finishes; the next one is refused."""
    for _ in range(5):
        session = OpenSession(engine, rows=64)
        right, outcome = session.step(), []

        def steps(session: OpenSession = session, outcome: list[object] = outcome) -> None:
            try:
                while True:
                    outcome.append(session.step())
            except UsageError as error:
                outcome.append(str(error))

        thread = threading.Thread(target=steps)
        thread.start()
        while not outcome:
            pass
        engine.close_session(session.number)
        thread.join()
        assert all(np.array_equal(one, right) for one in outcome[:-1])  # type: ignore[arg-type]
        assert outcome[-1] == f"session {session.number} is not open"


def test_concurrent_steppers(engine: Engine) -> None:
    """Several threads may step in one engine, each with its own state."""
    stepper, settings = EngineStepper(engine), SearchSettings(beam=3, max_extra=4)
    sources = [torch.tensor([[5 + i, 9, 40 + i, EOS]]) for i in range(6)]
    right = [generate(stepper, src, None, settings) for src in sources]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda src: generate(stepper, src, None, settings), sources))
    assert found == right
