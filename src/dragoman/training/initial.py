"""Fine-tuning: the model in `train.init_from`, its vocabulary with `tokenizer.add_words`, and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, resolve_path
from dragoman.errors import ModelFolderError
from dragoman.io.run_log import Reporter
from dragoman.io.weights import load_file
from dragoman.models.model_folder import find_model, list_checkpoints, load_tensors, read_meta, unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.tokenizers import LabelVocabulary, Tokenizer, Vocabulary, load_vocabulary
from dragoman.tokenizers.training import AddedWords, add_words

_META = "init_from"


class InitialModel:
    """The model that a run starts from.

    vocabulary: with the added words.  origin: what `meta.json` of the run's checkpoints says about it, its folder and
    the sha256 of its weights.  folder: None if the run has a checkpoint, which replaces it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        origin: Mapping[str, Any],
        folder: Path | None = None,
        added: AddedWords | None = None,
    ) -> None:
        self.vocabulary, self.origin = vocabulary, {_META: dict(origin)}
        self._folder, self._added = folder, added

    def load_into(self, model: Network) -> None:
        """Copy the weights into a new model, unless the run has a checkpoint.  Raises ModelFolderError."""
        if self._folder is None:
            return
        tensors = load_file(self._folder / "model.safetensors")
        if self._added is not None:
            tensors = _extended(tensors, unique_tensors(model), self._added)
        load_tensors(model, tensors, self._folder, self.vocabulary)


def open_initial(config: Config, run: Path, reporter: Reporter) -> InitialModel | None:
    """Return the model of train.init_from, None without it.

    A run with a checkpoint needs nothing from the folder, which may have changed or been removed.  The languages of the
    data become the default direction of a multilingual model.  Raises ModelFolderError, and UsageError for words that
    cannot be added and for languages that the model lacks.
    """
    if config.train.init_from is None:
        return None
    for checkpoint in reversed(list_checkpoints(run)):
        with suppress(ModelFolderError):
            return InitialModel(load_vocabulary(checkpoint), read_meta(checkpoint).get(_META, {}))
    folder = find_model(resolve_path(config.train.init_from))
    vocabulary, sha256 = load_vocabulary(folder), read_meta(folder)["sha256"]["model.safetensors"]
    if config.data.about.translates and isinstance(vocabulary, Tokenizer):
        data = config.parallel
        vocabulary = vocabulary.with_default(data.source_language, data.target_language)
    origin = {"folder": config.train.init_from, "sha256": sha256}
    reporter.log(f"starting with the weights and the tokenizer of {folder} (sha256 {sha256[:12]}...)")
    if not config.tokenizer.add_words:
        return InitialModel(vocabulary, origin, folder)
    tokenizer = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    assert isinstance(tokenizer, Tokenizer)  # checked by the configuration
    added = add_words(tokenizer, config.tokenizer.add_words)
    _report(added, reporter)
    if isinstance(vocabulary, LabelVocabulary):
        vocabulary = LabelVocabulary(vocabulary.labels, added.tokenizer, vocabulary.patch_numbers)
    else:
        vocabulary = added.tokenizer
    return InitialModel(vocabulary, origin, folder, added)


def _report(added: AddedWords, reporter: Reporter) -> None:
    """Report how many tokens are new, and which words were tokens already."""
    sizes = {len(added.source), len(added.target)}
    reporter.log(f"tokenizer.add_words: {' and '.join(f'{size:,}' for size in sorted(sizes))} new tokens")
    if added.present:
        reporter.log(f"tokenizer.add_words: single tokens already: {', '.join(added.present)}")


def _extended(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], added: AddedWords) -> dict[str, Tensor]:
    """Append rows for the added words to the tensors with a row per token.

    A new row is the mean of those of the pieces of the word (Sachidananda et al. 2021), so that the word starts with a
    similar meaning; a random row would be noise for the trained layers.
    """
    extended = dict(tensors)
    for name, tensor in tensors.items():
        before = added.source if name.startswith("encoder.") else added.target
        if name in expected and len(expected[name].shape) and len(expected[name]) == len(tensor) + len(before):
            rows = [tensor[torch.tensor(ids)].double().mean(0).to(tensor.dtype) for ids in before]
            extended[name] = torch.cat([tensor, torch.stack(rows)]) if rows else tensor
    return extended
