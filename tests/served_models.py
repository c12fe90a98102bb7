"""Model folders for servers: a small trained model, and variations of it that translate differently."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from dragoman.config.server import ModelEntry, ServerConfig
from dragoman.pipelines.translation import Translator
from dragoman.serve.directions import Directions
from dragoman.serve.models import Direction, model_sources

TEXTS = ["one two three", "four five six seven", "nine eight", "zero one"]
TARGETS = ("xa", "xb", "xc")
GOLDEN = Path(__file__).parent / "golden" / "model_v1"


def copied_model(folder: Path, seed: int = 0, target: str = "xx") -> Path:
    """A translation model from en to `target`; seed: 0 = the trained weights, otherwise weights with noise."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("packed"))
    changed = {}
    if seed:
        draw = np.random.default_rng(seed)
        tensors = load_file(folder / "model.safetensors")
        noisy = {n: (t + 0.3 * t.std() * draw.standard_normal(t.shape)).astype(t.dtype) for n, t in tensors.items()}
        changed["model.safetensors"] = save(noisy)
    config = json.loads((folder / "config.json").read_text())
    config["data"]["target_language"] = target
    changed["config.json"] = json.dumps(config).encode()
    meta = json.loads((folder / "meta.json").read_text())
    for name, content in changed.items():
        (folder / name).write_bytes(content)
        meta["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def packed_models(folder: Path) -> list[Path]:
    """Three models that translate differently, to the languages `TARGETS`."""
    paths = [copied_model(folder / f"m{i}", i, target) for i, target in enumerate(TARGETS)]
    for path in paths:
        Translator.load(path)
    return paths


def offline(path: Path, texts: Sequence[str] = TEXTS) -> list[str]:
    return [translation.text for translation in Translator.load(path).translate(texts)]


def configured(paths: Sequence[Path], **keys: Any) -> ServerConfig:
    return ServerConfig(models=[ModelEntry(path=str(path)) for path in paths], **keys)


def directions_of(paths: Sequence[Path], models: float = 0) -> Directions:
    """Directions without loaded models.  models: how many fit into the memory; 0 = any number."""
    sources = model_sources(configured(paths).models)
    memory = int(models * sources[0].size[0])
    return Directions([Direction(source, source.name) for source in sources], memory=memory)


def loaded(directions: Directions) -> list[str]:
    return [direction.target for direction in directions.by_pair.values() if direction.is_open]


async def translated(directions: Directions, target: str, texts: Sequence[str] = TEXTS) -> list[str]:
    found = await directions.translate(directions.route("en", target), texts, "me")
    return [translation.text for translation in found[-1]]


async def closed(directions: Iterable[Direction]) -> None:
    """Wait until no model is loaded."""
    async with asyncio.timeout(300):
        while any(direction.is_open for direction in directions):
            await asyncio.sleep(0.01)
