"""Loading the models of a server, and replacing them while it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dragoman.config.server import ServerConfig
from dragoman.errors import DragomanError, UsageError
from dragoman.models.model_folder import distinct_names, find_model, verify
from dragoman.serve.directions import Directions
from dragoman.serve.model_source import ModelSource, model_sources
from dragoman.serve.models import Direction, Slot, in_thread
from dragoman.serve.viewer_routes import Viewer, ViewerModel

_LOG = logging.getLogger(__name__)
_RELOADED = {"models"}
"""Keys of the configuration that take effect without a restart."""


class Reloader:
    """Loads the models of `directions`, and replaces those whose files have changed.

    read: returns the configuration, read again.  log: receives messages for the operator.  viewer: shows the models.
    """

    def __init__(
        self,
        directions: Directions,
        config: ServerConfig,
        read: Callable[[], ServerConfig],
        log: Callable[[str], None],
        viewer: Viewer | None = None,
    ) -> None:
        self._directions, self._config, self._read = directions, config, read
        self._log, self._viewer = log, viewer
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Load the models for the first time.  Raises DragomanError."""
        memory = self._directions.memory
        async with self._lock:
            slots: list[Slot] = list(self._directions.by_pair.values())
            if not slots and self._viewer:
                slots = list(self._viewer.models.values())
            for slot in slots:
                memory.check(slot)
            for slot in slots:
                if self._is_due(slot):
                    await memory.load(slot)

    def _is_due(self, slot: Slot) -> bool:
        """Return whether a model is loaded before it is used.

        Even with `load = "first_use"`, models are loaded of which only this shows whether they fit.
        """
        memory = self._directions.memory
        if memory.limit and slot.bytes > memory.limit:
            return True
        fits = not memory.limit or memory.bytes + slot.bytes <= memory.limit
        return fits and self._config.load == "start"

    async def reload(self) -> None:
        """Read the configuration again, and use its models for new requests.

        If anything in it is invalid, or a model cannot be loaded, everything stays as it was, and the error is logged.
        """
        async with self._lock:
            try:
                config = await in_thread(self._read)
                sources = await in_thread(lambda: model_sources(config.models, self._config.device))
                await self._replace(config, sources)
            except DragomanError as error:
                self._log(f"the models stay as they were, because the configuration is invalid: {error}")
            except Exception:
                _LOG.exception("the models stay as they were")

    async def _replace(self, config: ServerConfig, sources: Sequence[ModelSource]) -> None:
        directions, before = self._directions, self._directions.by_pair
        chosen: list[Direction] = []
        for source in sources:
            same = [direction for direction in before.values() if direction.is_same(source)]
            chosen.append(same[0] if same else Direction(source, source.name))
        if not chosen and before:
            raise UsageError("no models to serve; specify at least one translation model")
        if chosen and not before:
            raise UsageError("a server of language models cannot add translation models; start it again")
        used: dict[tuple[str, str], Direction] = {}
        for direction in chosen:
            used.setdefault((direction.source, direction.target), direction)
        new = [direction for pair, direction in used.items() if before.get(pair) is not direction]
        try:
            for direction in new:
                await self._prepare(direction, before.get((direction.source, direction.target)))
        except BaseException:
            await _close(new)
            raise
        kept = set(used.values()) & set(before.values())
        directions.replace(chosen)
        added, removed = used.keys() - before.keys(), before.keys() - used.keys()
        counts = len(new) - len(added), len(added), len(removed), len(kept)
        self._log("models: {} replaced, {} added, {} removed, {} unchanged".format(*counts))
        self._warn(config)
        if self._viewer and (config.models != self._config.models or new):
            self._viewer.replace(viewer_models(config, directions))
        self._config = self._config.model_copy(update={"models": config.models})
        await directions.memory.trim()

    async def _prepare(self, direction: Direction, replaced: Direction | None) -> None:
        """Load a new model if it will be used at once, and otherwise check its files.  Raises DragomanError."""
        if self._is_due(direction) or (replaced is not None and replaced.is_open):
            await self._directions.memory.open(direction)
        elif direction.model is not None:
            folder = direction.model.folder
            await in_thread(lambda: verify(folder))

    def _warn(self, config: ServerConfig) -> None:
        keys = (name for name in type(config).model_fields if name not in _RELOADED)
        changed = [name for name in keys if getattr(config, name) != getattr(self._config, name)]
        if changed:
            self._log(f"changes of {', '.join(changed)} take effect when the server is started again")


async def _close(directions: Iterable[Direction]) -> None:
    for direction in directions:
        await in_thread(direction.close)


def viewer_models(config: ServerConfig, directions: Directions) -> dict[str, Slot]:
    """Return the models of the viewer by name: those of `directions`, and models that only the viewer shows.

    Of the directions of a model with several languages, the first one is shown.
    """
    paths = list(dict.fromkeys(Path(entry.path).resolve() for entry in config.models))
    served = {
        direction.model.folder: direction for direction in reversed(directions.by_pair.values()) if direction.model
    }
    names = zip(distinct_names(paths), paths, strict=True)
    return {
        name: served.get(find_model(path).resolve()) or ViewerModel(name, path, config.device) for name, path in names
    }
