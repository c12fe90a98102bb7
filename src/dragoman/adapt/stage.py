"""A stage with `prune`: its settings as a `Pruning`, its problems before any work, and what determines its bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.adapt.pruning import Pruned, Pruning, prune_model
from dragoman.config import resolve_path
from dragoman.config.stages import Stage
from dragoman.errors import ModelFolderError
from dragoman.io.model_files import find_model
from dragoman.io.reading import hash_file
from dragoman.tokenizers import Tokenizer, load_vocabulary


def pruning_of(stage: Stage, model: Path | None = None) -> Pruning:
    """Return the settings of a stage.  model: instead of its own.  Raises UsageError as `resolve_path` does."""
    rules, data, model = stage.prune, stage.config.parallel, model or stage.models[0]
    assert rules is not None
    source, target = ([resolve_path(path, data.root) for path in side] for side in (rules.source, rules.target))
    valid = [] if data.valid is None else [resolve_path(path, data.root) for path in data.valid.paths().values()]
    languages = direction(_tokenizer(stage, model), stage.languages)
    pair = (valid[0], valid[1]) if len(valid) == 2 else None
    layers = rules.encoder_layers, rules.decoder_layers
    return Pruning(model, source, target, pair, rules.min_count, rules.scripts, *layers, languages)


def direction(tokenizer: object, codes: tuple[str, str]) -> tuple[str | None, str | None]:
    """Return those codes that must be named for a model of several languages."""
    if not isinstance(tokenizer, Tokenizer) or tokenizer.models[3] is None:
        return None, None
    return codes[0] if tokenizer.languages[0] else None, codes[1] if tokenizer.languages[1] else None


def _tokenizer(stage: Stage, model: Path) -> Tokenizer | None:
    """Return the tokenizer of a model; None before an earlier stage has its first checkpoint."""
    try:
        tokenizer = load_vocabulary(find_model(model)) if model.is_dir() else None
    except ModelFolderError:
        if model.parent != stage.folder.parent:
            raise
        return None
    return tokenizer if isinstance(tokenizer, Tokenizer) else None


def stage_problems(stage: Stage) -> list[str]:
    """Return what is wrong with the files, the layers and the vocabulary; the model may not exist yet."""
    return pruning_of(stage).problems(stage.config, _tokenizer(stage, stage.models[0]))


def stage_settings(stage: Stage) -> dict[str, Any]:
    """Return what determines the pruned model, besides the weights of the original."""
    assert stage.prune is not None
    pruning = pruning_of(stage)
    files = {"source": pruning.source, "target": pruning.target, "valid": pruning.valid or ()}
    hashes = {name: [hash_file(path, "blake2b") for path in paths] for name, paths in files.items()}
    return stage.prune.model_dump(mode="json", exclude={"model"}) | {"languages": pruning.languages} | hashes


def prune_stage(stage: Stage, log: Callable[[str], None] = lambda text: None, probe: Path | None = None) -> Pruned:
    """Write the pruned model into the folder of a stage, or one of its size into `probe`.  Raises as `prune_model`."""
    return prune_model(pruning_of(stage), probe or stage.folder, log, replace=True, compare=probe is None)
