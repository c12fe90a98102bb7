"""Replacing the models of a server while it serves."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.decoding.search_types import Pruning
from dragoman.errors import UsageError
from dragoman.pipelines.translation import Translator
from dragoman.serve.directions import Directions
from dragoman.serve.models import Direction, model_sources
from dragoman.serve.settings import ModelEntry, SearchOverrides, ServerConfig, with_options
from dragoman.serve.uvicorn_server import Reloader
from served_models import TEXTS, closed, configured, copied_model, directions_of, loaded, offline, translated


def replaced(path: Path, seed: int, target: str) -> None:
    shutil.rmtree(path)
    copied_model(path, seed, target)


def test_reload_replaces_adds_and_removes_models(model_folders: list[Path]) -> None:
    async def run() -> None:
        directions, said = directions_of(model_folders[:2]), []
        configs = [configured(model_folders[:2])]
        reloader = Reloader(directions, configs[0], lambda: configs[-1], said.append)
        await reloader.start()
        before = dict(directions.by_pair)
        await reloader.reload()
        assert directions.by_pair == before and said[-1] == "models: 0 replaced, 0 added, 0 removed, 2 unchanged"
        old = await translated(directions, "xa")
        replaced(model_folders[0], 5, "xa")
        configs.append(configured([model_folders[0], model_folders[2]], cache=7))
        await reloader.reload()
        assert said[-2:] == [
            "models: 1 replaced, 1 added, 1 removed, 0 unchanged",
            "changes of cache take effect when the server is started again",
        ]
        assert loaded(directions) == ["xa", "xc"] == directions.targets("en")
        new = await translated(directions, "xa")
        assert new == offline(model_folders[0]) != old
        await closed(before.values())
        directions.close()

    asyncio.run(run())


def test_the_configuration_replaces_settings_of_the_search(model_folders: list[Path]) -> None:
    """Those of one model, those of all models by an option, and other ones by a reload."""
    path = model_folders[1]
    own = ServerConfig(
        models=[ModelEntry(path=str(path), search=SearchOverrides(beam=2, max_extra=1, protect=("six",)))]
    )
    by_options = with_options(
        own, beam=3, shrink_beam=True, beam_threshold=2.0, recombine=1, early_end="off", alpha=None
    )
    configs = [own, by_options, configured([path])]
    texts = [*TEXTS, "one two three four five six"]
    expected = []
    replaced_by_options = {
        "beam": 3, "shrink_beam": True, "beam_threshold": 2.0, "recombine": 1, "early_end": "off", "max_extra": 1,
        "protect": ["six"],
    }  # fmt: skip
    for settings in ({"beam": 2, "max_extra": 1, "protect": ["six"]}, replaced_by_options, {}):
        found = Translator.load(path).translate(texts, **settings)  # type: ignore[arg-type]
        expected.append([(translation.text, translation.score) for translation in found])
    assert expected[0] != expected[2]

    async def run() -> None:
        sources = model_sources(configs[0].models)
        directions = Directions([Direction(source, source.name) for source in sources])
        current: list[ServerConfig] = [configs[0]]
        reloader = Reloader(directions, configs[0], lambda: current[-1], lambda said: None)
        await reloader.start()
        for config, wanted in zip(configs, expected, strict=True):
            current.append(config)
            await reloader.reload()
            route = directions.route("en", "xb")
            settings = route[0].translator.settings
            assert route[0].beam == settings.beam
            assert settings.pruning == (Pruning(True, 2.0, 1) if config is configs[1] else Pruning())
            found = (await directions.translate(route, texts, "me"))[-1]
            assert [(translation.text, translation.score) for translation in found] == wanted
        directions.close()

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["damaged", "missing", "language model", "configuration", "none", "large"])
def test_an_invalid_configuration_changes_nothing(model_folders: list[Path], fault: str) -> None:
    async def run() -> None:
        directions, said = directions_of(model_folders[:2], models=2), []
        config = configured(model_folders[:2])

        def read() -> ServerConfig:
            if fault == "configuration":
                return ServerConfig.parse({"models": [], "port": -1}, "serve.toml")
            return config

        reloader = Reloader(directions, config, read, said.append)
        await reloader.start()
        expected, before = await translated(directions, "xb"), dict(directions.by_pair)
        replaced(model_folders[0], 3, "xa")
        if fault == "damaged":
            (model_folders[0] / "model.safetensors").write_bytes(b"x" * 1000)
        elif fault == "missing":
            shutil.rmtree(model_folders[0])
        elif fault == "language model":
            config = configured([model_folders[1].parent / "lm"])
            shutil.copytree(Path(__file__).parents[1] / "golden" / "tagger_v1", model_folders[1].parent / "lm")
        elif fault == "none":
            config = configured([Path(__file__).parents[1] / "golden" / "language_v1"])
        elif fault == "large":
            directions.memory.limit = 1000
        await reloader.reload()
        assert said and "stay as they were" in said[-1]
        assert directions.by_pair == before and loaded(directions) == ["xa", "xb"]
        assert await translated(directions, "xb") == expected
        directions.close()

    asyncio.run(run())


def test_a_damaged_model_is_found_by_a_reload_though_it_is_not_loaded(model_folders: list[Path]) -> None:
    async def run() -> None:
        config, said = configured(model_folders[:1], load="first_use"), []
        directions = directions_of(model_folders[:1])
        reloader = Reloader(directions, config, lambda: config, said.append)
        await reloader.start()
        old = directions.route("en", "xa")
        replaced(model_folders[0], 3, "xa")
        (model_folders[0] / "model.safetensors").write_bytes(b"x" * 1000)
        await reloader.reload()
        assert "model.safetensors" in said[-1] and directions.route("en", "xa") == old and loaded(directions) == []

    asyncio.run(run())


def test_a_reload_that_fails_unloads_what_it_has_loaded(
    model_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Direction] = []
    original = Direction.open

    def noted(self: Direction) -> None:
        opened.append(self)
        original(self)

    monkeypatch.setattr(Direction, "open", noted)

    async def run() -> None:
        config = configured(model_folders[:2])
        directions = directions_of(model_folders[:2])
        reloader = Reloader(directions, config, lambda: config, lambda text: None)
        await reloader.start()
        for path in model_folders[:2]:
            replaced(path, 3, f"x{'ab'[model_folders.index(path)]}")
        (model_folders[1] / "model.safetensors").write_bytes(b"x" * 1000)
        await reloader.reload()
        assert [direction.name for direction in opened] == ["m0", "m1"] * 2
        assert [direction.is_open for direction in opened] == [True, True, False, False]
        directions.close()

    asyncio.run(run())


def test_requests_in_progress_finish_on_the_models_they_began_with(model_folders: list[Path]) -> None:
    """Also on the second model of two, which is removed while the first one translates."""

    async def run() -> None:
        config = configured(model_folders[:2])
        config.models[1] = ModelEntry(path=str(model_folders[1]), source="xa", target="xq")
        sources = model_sources(config.models)
        directions = Directions([Direction(source, source.name) for source in sources])
        route = directions.route("en", "xq")
        assert len(route) == 2
        begun, go_on = asyncio.Event(), asyncio.Event()
        original = route[0].translate

        async def slow(*args: Any, **keys: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await original(*args, **keys)

        route[0].translate = slow  # type: ignore[method-assign]
        request = asyncio.create_task(directions.translate(route, TEXTS, "me"))
        await begun.wait()
        reloader = Reloader(directions, config, lambda: configured(model_folders[2:]), lambda text: None)
        await reloader.reload()
        assert directions.targets("en") == ["xc"] and all(direction.retired for direction in route)
        go_on.set()
        found = await request
        assert [t.text for t in found[1]] == offline(model_folders[1], [t.text for t in found[0]])
        await closed(route)
        with pytest.raises(UsageError, match="en to xa is not translated any more"):
            await directions.translate(route, TEXTS, "me")
        assert directions.admission.tokens == 0
        directions.close()

    asyncio.run(run())


def test_a_retired_model_gives_way_to_its_successor(model_folders: list[Path]) -> None:
    async def run() -> None:
        directions = directions_of(model_folders[:1])
        config = configured(model_folders[:1])
        route = directions.route("en", "xa")
        replaced(model_folders[0], 4, "xa")
        await Reloader(directions, config, lambda: config, lambda text: None).reload()
        found = await directions.translate(route, TEXTS, "me")
        assert [t.text for t in found[0]] == offline(model_folders[0])
        assert not route[0].is_open
        directions.close()

    asyncio.run(run())
