"""A packed model at work: the search of `dragoman.decoding`, written in C++, with the same results.

Ids go in and hypotheses come out; nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import operator
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dragoman.data.ids import BOS, EOS, PAD
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native.library import load_native, missing
from dragoman.decoding.native.processor import usable_cores
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import DragomanError, UsageError

__all__ = ["Engine", "Usage", "usable_cores"]

_SMALL = 32 << 20
"""Bytes of a packed model whose weights stay in a cache from step to step."""
_MEMORY = 1 << 30
"""Bytes that the keys, values and shortlists of a search may take."""
_NO_LIMIT = (1 << 63) - 1
_QUICK = 512
"""Tokens at most of a search that is done before a person could press Ctrl-C."""
_ERROR_ROOM = 512
_WRONG_CALL = 1


class _Settings(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("beam", "nbest", "min_length", "no_repeat_ngram")],
        *[(name, ctypes.c_int32) for name in ("bos", "eos", "pad", "rows", "threads")],
        ("alpha", ctypes.c_double),
        *[(name, ctypes.c_int64) for name in ("source_tokens", "memory")],
    ]


class Usage(ctypes.Structure):
    """Peak resource use of a search in any of its threads.

    rows: hypotheses.  source_tokens: tokens of their sources, counted for every row.  bytes: keys, values and
    shortlists.
    """

    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "source_tokens", "bytes")]
    rows: int
    source_tokens: int
    bytes: int


class _Ragged(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("offsets", ctypes.c_void_p)]


class _Request(ctypes.Structure):
    arrays: tuple[Any, ...]
    _fields_ = [
        ("settings", _Settings),
        ("count", ctypes.c_int32),
        ("sources", _Ragged),
        ("prefixes", _Ragged),
        ("shortlists", _Ragged),
        ("limits", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("usage", ctypes.c_void_p),
    ]


class Engine:
    """One packed model, open until it is forgotten; several threads may search in it at once.

    source_size, target_size: words of the vocabularies.  positions: longest source and target.  rows: searched at once
    in a thread.  Raises DragomanError where there is no native core, or the file is no packed model.
    """

    def __init__(self, path: str | Path) -> None:
        native = load_native()
        if native is None:
            raise DragomanError(f"no native engine: {missing()}")
        self.build, self._library = native.build, native.library
        error = ctypes.create_string_buffer(_ERROR_ROOM)
        self._model = self._library.dragoman_open(os.fsencode(path), error)
        if not self._model:
            raise DragomanError(error.value.decode("utf-8", "replace"))
        sizes = (ctypes.c_int32 * 4)()
        self._library.dragoman_sizes(self._model, ctypes.addressof(sizes))
        self.source_size, self.target_size, self.positions = sizes[0], sizes[1], sizes[2]
        self.encodes = bool(sizes[3])
        # Enough rows to read each weight for many, few enough for their keys and values to stay in a cache too.
        self.rows = 32 if Path(path).stat().st_size < _SMALL else 64

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.dragoman_close(self._model)

    @property
    def content(self) -> memoryview:
        """The bytes that were read from the file, valid as long as the engine is."""
        size = ctypes.c_int64()
        start = self._library.dragoman_content(self._model, ctypes.addressof(size))
        return memoryview((ctypes.c_char * size.value).from_address(start)).toreadonly()

    def begin(self, threads: int, rows: int, target: int, sentences: int, source: int) -> int:
        """A session for steps (`EngineStepper`), to be closed with `end`.

        It has room for `rows` targets of up to `target` tokens and `sentences` sources of up to `source` tokens.

        One thread at a time may use a session: a call during another thread's call raises UsageError.
        """
        session = ctypes.c_int64()
        self.call("begin", self._model, threads, rows, target, sentences, source, ctypes.byref(session))
        return session.value

    def end(self, session: int) -> None:
        """Close what `begin` opened; a call that is still at work is finished first."""
        self._library.dragoman_end(session)

    def call(self, name: str, *arguments: Any) -> None:
        """One function of the core.  Raises what it says."""
        error = ctypes.create_string_buffer(_ERROR_ROOM)
        _raise_for(int(getattr(self._library, f"dragoman_{name}")(*arguments, error)), error)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        settings: SearchSettings,
        prefixes: Sequence[Sequence[int]] | None = None,
        threads: int = 1,
        rows: int | None = None,
        memory: int = _MEMORY,
        attention: array[float] | None = None,
        shortlists: Sequence[Sequence[int]] | None = None,
        source_tokens: int = _NO_LIMIT,
        usage: Usage | None = None,
    ) -> list[list[Hypothesis]]:
        """B lists of `settings.nbest` hypotheses, best first.

        sources: ids with the end of sentence, empty for a model without encoder.  limits: target tokens at most, the
        end included.  prefixes: how each target begins.  rows: at work at once in a thread, by default `self.rows`,
        and fewer while the sources of these rows have more than `source_tokens` tokens, or where `memory`, in bytes for
        all threads, does not hold their keys, values and shortlists; each row counts with its own lengths, and one
        sentence is always at work.  usage: is set to what these came to.  attention:
        with beam 1, zeros to which the mean weights of the cross-attention are added, limit * source of each sentence,
        one behind the other.  shortlists: the target ids that each sentence may use, ascending, the end and its prefix
        among them; probabilities are then those among these words.  Raises UsageError with everything that cannot be,
        DragomanError where the model's numbers are not finite or memory is short.
        """
        begins = [[]] * len(sources) if prefixes is None else prefixes
        rows = self.rows if rows is None else rows
        self._check(sources, limits, settings, begins, shortlists, threads, rows)
        if attention is not None:
            wanted = sum(limit * len(source) for limit, source in zip(limits, sources, strict=True))
            if attention.typecode != "f" or len(attention) != wanted:
                raise UsageError(f"attention: must be an array of {wanted} numbers of type f")
        if not sources:
            return []
        rooms = array("i", limits)
        rows_of = [_ragged(sources), _ragged(begins), _ragged(shortlists)]
        request = _Request(
            _Settings(
                settings.beam, settings.nbest, settings.min_length, settings.no_repeat_ngram,
                BOS, EOS, PAD, max(settings.beam, rows), threads, settings.alpha, source_tokens, memory,
            ),
            len(sources),
            *(_Ragged(*map(_at, pair)) for pair in rows_of),
            _at(rooms),
            _at(attention),
            None if usage is None else ctypes.addressof(usage),
        )  # fmt: skip
        request.arrays = *rows_of, rooms, attention, usage  # it has their addresses only
        return self._run(request, rooms, settings.nbest)

    def _check(
        self,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        settings: SearchSettings,
        prefixes: Sequence[Sequence[int]],
        shortlists: Sequence[Sequence[int]] | None,
        threads: int,
        rows: int,
    ) -> None:
        problems = [] if threads in range(1, 1025) else [f"threads = {threads}: must be 1 to 1024"]
        if rows not in range(1, 65537):
            problems.append(f"rows = {rows}: must be 1 to 65536")
        if settings.sample:
            problems.append("sample = True: the native search does not draw; accepted: sample=False")
        given: list[tuple[str, Sequence[Any]]] = [("sources", sources), ("limits", limits), ("prefixes", prefixes)]
        if shortlists is not None:
            given.append(("shortlists", shortlists))
        if len({len(each) for _, each in given}) > 1:
            told = ", ".join(f"{len(each)} {name}" for name, each in given)
            problems.append(f"{told}: give one each a sentence")
        else:
            lists = itertools.repeat(None) if shortlists is None else shortlists
            for number, row in enumerate(zip(sources, limits, prefixes, lists, strict=False), start=1):
                problems += [f"sentence {number}: {problem}" for problem in self._problems(*row, settings)]
        if problems:
            more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
            raise UsageError("\n".join(["this cannot be searched:", *(f"  - {p}" for p in problems[:20] + more)]))

    def _problems(
        self,
        source: Sequence[int],
        limit: int,
        prefix: Sequence[int],
        words: Sequence[int] | None,
        settings: SearchSettings,
    ) -> list[str]:
        problems = []
        if self.encodes and not source:
            problems.append("an empty source; it needs at least the end of sentence")
        if not self.encodes and source:
            problems.append(f"a source of {len(source)} tokens for a model without encoder; accepted: none")
        if len(source) > self.positions:
            problems.append(f"{len(source)} source tokens, the packed model has {self.positions} positions")
        least = max(len(prefix), settings.min_length) + 1
        if not hasattr(limit, "__index__") or not least <= limit <= self.positions:
            problems.append(f"a limit of {limit} target tokens: must be {least} to {self.positions}")
        for whose, ids, size in (("source", source, self.source_size), ("prefix", prefix, self.target_size)):
            wrong = [i for i in ids if not hasattr(i, "__index__") or not 0 <= i < size]
            if wrong:
                problems.append(f"{whose} id {wrong[0]!r}: must be a whole number from 0 to {size - 1}")
        if {PAD, BOS, EOS} & set(prefix):
            problems.append(f"forced prefix {list(prefix)} holds padding, begin or end")
        if words is not None:
            problems += self._list_problems(words, prefix)
        return problems

    def _list_problems(self, words: Sequence[int], prefix: Sequence[int]) -> list[str]:
        try:
            rises = all(map(operator.lt, words, itertools.islice(words, 1, None)))
            ids = array("i", words)
        except (TypeError, ValueError, OverflowError) as error:
            return [f"a shortlist that is no list of ids ({error})"]
        if not rises:
            return ["a shortlist that does not rise: give each id once, in ascending order"]
        wrong = [i for i in (*ids[:1], *ids[-1:]) if not 0 <= i < self.target_size]
        if wrong:
            return [f"shortlist id {wrong[0]}: must be a whole number from 0 to {self.target_size - 1}"]
        lacking = [word for word in (EOS, *prefix) if word not in ids]
        return [f"a shortlist without {lacking[0]}; the end ({EOS}) and the prefix must be in it"] if lacking else []

    def _run(self, request: _Request, rooms: array[int], nbest: int) -> list[list[Hypothesis]]:
        places = request.count * nbest
        starts = list(itertools.accumulate((room for room in rooms for _ in range(nbest)), initial=0))
        words, log_probs = array("i", [0]) * starts[-1], array("f", [0]) * starts[-1]
        lengths, truncated = array("i", [0]) * places, array("i", [0]) * places
        log_prob, score = array("d", [0]) * places, array("d", [0]) * places
        outcome = words, log_probs, lengths, log_prob, score, truncated

        def work(stop: int, error: Any) -> int:
            address = ctypes.addressof(request)
            return int(self._library.dragoman_search(self._model, address, stop, *map(_at, outcome), error))

        _call(work, quick=starts[-1] <= _QUICK)

        def hypothesis(place: int) -> Hypothesis:
            at, length = starts[place], lengths[place]
            return Hypothesis(
                words[at : at + length].tolist(),
                score[place],
                log_prob[place],
                log_probs[at : at + length + 1].tolist(),
                bool(truncated[place]),
            )

        return [
            [hypothesis(place) for place in range(first, first + nbest) if lengths[place] >= 0]
            for first in range(0, places, nbest)
        ]


def _call(work: Callable[[int, Any], int], quick: bool) -> None:
    """Let the core work, unless it is quick in a thread of its own, so that Ctrl-C is heard; raise what it says."""
    stop, error = ctypes.c_int32(0), ctypes.create_string_buffer(_ERROR_ROOM)
    _raise_for(work(ctypes.addressof(stop), error) if quick else _in_a_thread(work, stop, error), error)


def _raise_for(status: int, error: Any) -> None:
    if status:
        what = error.value.decode("utf-8", "replace") or "the native engine failed"
        raise UsageError(what) if status == _WRONG_CALL else DragomanError(what)


def _in_a_thread(work: Callable[[int, Any], int], stop: ctypes.c_int32, error: Any) -> int:
    status: list[int] = []
    done = threading.Event()

    def run() -> None:
        try:
            status.append(work(ctypes.addressof(stop), error))
        finally:
            done.set()

    thread = threading.Thread(target=run, daemon=True)
    interrupted: BaseException | None = None
    try:
        thread.start()
        done.wait()
    except RuntimeError:  # the system gives no more threads: then in this one, and Ctrl-C waits
        return work(ctypes.addressof(stop), error)
    except BaseException as pressed:
        interrupted, stop.value = pressed, 1
    while thread.is_alive() and not done.is_set():  # the core still writes into arrays that the thread keeps alive
        with contextlib.suppress(KeyboardInterrupt):
            done.wait()
    if interrupted is not None:
        raise interrupted
    return status[0]


def _at(numbers: array[Any] | None) -> int | None:
    """The address of numbers that the core reads or writes; whoever has it keeps them alive."""
    return None if numbers is None else numbers.buffer_info()[0]


def _ragged(rows: Sequence[Sequence[int]] | None) -> tuple[array[int] | None, array[int] | None]:
    if rows is None:
        return None, None
    flat = array("i")
    for row in rows:
        flat.fromlist(list(row))
    return flat, array("q", itertools.accumulate(map(len, rows), initial=0))
