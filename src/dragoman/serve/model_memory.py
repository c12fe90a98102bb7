"""Which models of a server are in memory: loading when they are used, and unloading when the memory is limited."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from dragoman.errors import DragomanError, UsageError

__all__ = ["ModelMemory", "Slot", "Use", "in_thread"]

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


class Slot(ABC):
    """A model that is loaded or not.

    users: requests that use it or wait until it is loaded.  pins: requests that will use it.  retired: whether new
    requests no longer use it, because another model replaces it.
    """

    name: str
    size_known: bool
    """Whether `bytes` is the size, and not an upper limit."""

    def __init__(self) -> None:
        self.users, self.pins, self.retired = 0, 0, False
        self.idle, self.available = asyncio.Event(), asyncio.Event()  # no users; not about to be unloaded
        self.idle.set()
        self.available.set()
        self.opening: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Size of the weights in memory."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the model is loaded."""

    @abstractmethod
    def open(self) -> None:
        """Load the model; called in a thread.  Raises DragomanError."""

    @abstractmethod
    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use a loaded model in an event loop; called in the loop."""

    @abstractmethod
    def close(self) -> None:
        """Unload the model; called in a thread."""


class Use:
    """A context in which a model is loaded; entering it raises DragomanError if the model cannot be loaded."""

    __slots__ = ("_memory", "_slot")

    def __init__(self, memory: ModelMemory, slot: Slot) -> None:
        self._memory, self._slot = memory, slot

    async def __aenter__(self) -> None:
        slot = self._slot
        while not slot.available.is_set():
            await slot.available.wait()
        slot.users += 1
        slot.idle.clear()
        try:
            await self._memory.load(slot)
        except BaseException as error:
            self._release()
            if not isinstance(error, DragomanError):
                raise
            reason = "cannot be loaded; the server's log has the reason"
            raise DragomanError(f"the model {slot.name} {reason}") from error
        loaded = self._memory.loaded
        loaded[slot] = loaded.pop(slot, None)

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._slot.users -= 1
        if not self._slot.users:
            self._slot.idle.set()


class ModelMemory:
    """Loads models when they are used, and unloads others so that their weights have at most `limit` bytes.

    The model that was unused longest is unloaded first, models in use only if there is no other: new requests for such
    a model then wait, so that those for other models have their turn.  limit: 0 = none.  One event loop uses it.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.observe: Callable[[], None] = lambda: None
        """Called for each model that is loaded."""
        self.loaded: dict[Slot, None] = {}
        """Unused longest first."""
        self._lock = asyncio.Lock()  # models are loaded one after the other
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bytes(self) -> int:
        """Size of the weights of all loaded models."""
        return sum(slot.bytes for slot in list(self.loaded))  # also called in the thread that reads metrics

    def using(self, slot: Slot) -> Use:
        """Load a model unless it is loaded, and keep it meanwhile."""
        return Use(self, slot)

    async def load(self, slot: Slot) -> None:
        """Load a model unless it is loaded; several calls share the work.  Raises as `open` does."""
        if slot.opening is None and not slot.is_open:
            slot.opening = self._start(self._open(slot))
        if slot.opening is not None:  # also at its end, when the model is open and its size is checked
            await asyncio.shield(slot.opening)

    def retire(self, slot: Slot) -> None:
        """Unload a model as soon as no request has pinned it."""
        slot.retired = True
        if not slot.pins and slot in self.loaded and slot.available.is_set():
            self._start(self._unload(slot))

    def unpin(self, slot: Slot) -> None:
        """Note that a request will no longer use a model."""
        slot.pins -= 1
        if slot.retired:
            self.retire(slot)

    async def open(self, slot: Slot) -> None:
        """Load a model in addition to all others.  Raises what `Slot.open` raises, and UsageError beyond the limit."""
        self.check(slot)
        await in_thread(slot.open)
        try:
            self.check(slot)
        except UsageError:
            await in_thread(slot.close)
            raise
        slot.deliver_in(asyncio.get_running_loop())
        self.observe()

    def check(self, slot: Slot) -> None:
        """Raise UsageError for a model that is known to be larger than the limit."""
        if self.limit and slot.size_known and slot.bytes > self.limit:
            raise UsageError(
                f"model {slot.name}: its weights have {_mib(slot.bytes)} MiB; accepted: at most memory = "
                f"{_mib(self.limit)}; raise the limit, or do not serve this model"
            )

    async def trim(self) -> None:
        """Unload models beyond the limit."""
        async with self._lock:
            await self._make_room(0)

    async def _open(self, slot: Slot) -> None:
        try:
            async with self._lock:
                await self._make_room(min(slot.bytes, self.limit))
                await self.open(slot)
                self.loaded[slot] = None
        except DragomanError as error:
            _LOG.error("model %s: %s", slot.name, error)
            raise
        finally:
            slot.opening = None
        if slot.retired:  # and nobody waits for it any more
            self.retire(slot)

    async def _make_room(self, needed: int) -> None:
        while self.limit and self.bytes + needed > self.limit:
            candidates = [slot for slot in self.loaded if slot.bytes and slot.available.is_set()]
            if not candidates:
                return
            await self._unload(next((slot for slot in candidates if not slot.users), candidates[0]))

    async def _unload(self, slot: Slot) -> None:
        slot.available.clear()
        try:
            await slot.idle.wait()
            await in_thread(slot.close)
            self.loaded.pop(slot, None)
        finally:
            slot.available.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who wait for the task receive it; there may be none


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"


async def in_thread(work: Callable[[], Result]) -> Result:
    """Return the result of `work`, called in a thread for whose end the process does not wait."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dragoman-models", daemon=True).start()
    return await asyncio.wrap_future(future)
