"""The comparison of an imported model with Marian's definition and with sentencepiece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm

from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_tokenizers, lines_of
from dragoman.formats.importing.family import Comparison, ImportedVocabulary, Plan
from dragoman.formats.importing.marian_files.checkpoint import MarianCheckpoint
from dragoman.formats.importing.marian_files.numpy_marian import EOS, NumpyMarian
from dragoman.formats.importing.numpy_reference import SearchedReference
from dragoman.formats.parity import compare_models, parity_cases
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, Tokenizer
from dragoman.tokenizers import EOS as OUR_EOS
from dragoman.tokenizers import UNK as OUR_UNK

_UNK = 1


def compare_with_definition(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare a model folder with its checkpoint; see `Family.compare`."""
    assert isinstance(checkpoint, MarianCheckpoint)
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    runtime = DefinitionRuntime(checkpoint, plan.vocabulary)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    lines = [tokenizer.decode_target([t for t in case.source if t != OUR_EOS]) for case in cases.cases]
    lines += lines_of(check)
    return Comparison(parity, compare_tokenizers(tokenizer, MarianTokenizer(checkpoint, plan.vocabulary), lines))


def allows_unknown(checkpoint: MarianCheckpoint) -> bool:
    """Return whether the settings of decoding allow Marian to generate `<unk>`."""
    return checkpoint.generation.get("allow-unk") is True


class DefinitionRuntime(SearchedReference):
    """`NumpyMarian` on the ids of the imported model: a `formats.parity.ExternalRuntime`."""

    def __init__(
        self,
        checkpoint: MarianCheckpoint,
        vocabulary: ImportedVocabulary,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
        never = () if allows_unknown(checkpoint) else (_UNK,)
        model = NumpyMarian(checkpoint.settings, tensors, dtype)
        super().__init__(model, "Marian's definition in NumPy, float32", vocabulary, EOS, never=never)


class MarianTokenizer:
    """The sentencepiece models of a checkpoint, and its lists of ids if it has them, on our ids."""

    def __init__(self, checkpoint: MarianCheckpoint, vocabulary: ImportedVocabulary) -> None:
        self.sides = []
        for side, path, order in zip(
            ("source", "target"), checkpoint.vocabularies, (vocabulary.source, vocabulary.target), strict=True
        ):
            listed = None if path.suffix == ".spm" else checkpoint.pieces(path)
            model = spm.SentencePieceProcessor(model_proto=checkpoint.bytes(path.name if not listed else f"{side}.spm"))
            self.sides.append((model, listed, {theirs: ours for ours, theirs in enumerate(order)}))
        self.theirs = vocabulary.target

    def encode_source(self, text: str) -> list[int]:
        return self._encode(text, 0)

    def encode_target(self, text: str) -> list[int]:
        return self._encode(text, 1)

    def _encode(self, text: str, side: int) -> list[int]:
        model, listed, ours = self.sides[side]
        ids = model.encode(text) if listed is None else [listed.get(p, _UNK) for p in model.encode(text, out_type=str)]
        return [ours[token] for token in ids] + [OUR_EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        model, listed, _ = self.sides[1]
        kept = [self.theirs[token] for token in ids if token not in (BOS, OUR_EOS, OUR_UNK)]
        if listed is not None:
            pieces = {token: piece for piece, token in listed.items()}
            return str(model.decode([pieces[token] for token in kept])).strip()
        return str(model.decode(kept)).strip()  # ours has no space at an end that begins after an unknown token
