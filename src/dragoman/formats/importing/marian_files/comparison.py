"""The comparison of an imported model with Marian's definition and with sentencepiece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece as spm

from dragoman.data.ids import BOS, PAD
from dragoman.data.ids import EOS as OUR_EOS
from dragoman.data.ids import UNK as OUR_UNK
from dragoman.data.tokenizer import Tokenizer
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import compare_tokenizers
from dragoman.formats.importing.family import NEVER, Comparison, ImportedVocabulary, Plan
from dragoman.formats.importing.marian_files.checkpoint import MarianCheckpoint
from dragoman.formats.importing.marian_files.definition import EOS, Floats, MarianDefinition
from dragoman.formats.parity import ParityCase, compare_models, parity_cases
from dragoman.io.lines import read_lines
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model

__all__ = ["DefinitionRuntime", "MarianTokenizer", "allows_unknown", "compare_with_definition"]

_UNK = 1
_LINES, _BATCH = 200, 16


def compare_with_definition(checkpoint: Checkpoint, folder: Path, plan: Plan, check: Path | None) -> Comparison:
    """Compare a model folder with its checkpoint; see `Family.compare`."""
    assert isinstance(checkpoint, MarianCheckpoint)
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    runtime = DefinitionRuntime(checkpoint, plan.vocabulary)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    lines = [tokenizer.decode_target([t for t in case.source if t != OUR_EOS]) for case in cases.cases]
    if check is not None:
        lines += islice(read_lines(check), _LINES)
    return Comparison(parity, compare_tokenizers(tokenizer, MarianTokenizer(checkpoint, plan.vocabulary), lines))


def allows_unknown(checkpoint: MarianCheckpoint) -> bool:
    """Return whether the settings of decoding allow Marian to generate `<unk>`."""
    return checkpoint.generation.get("allow-unk") is True


class DefinitionRuntime:
    """`MarianDefinition` on the ids of the imported model: a `formats.parity.ExternalRuntime`."""

    name = "Marian's definition in NumPy, float32"

    def __init__(
        self,
        checkpoint: MarianCheckpoint,
        vocabulary: ImportedVocabulary,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        tensors = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
        self.model = MarianDefinition(checkpoint.settings, tensors, dtype)
        self.source, self.target = vocabulary.source, vocabulary.target
        self.ours = {theirs: ours for ours, theirs in enumerate(self.target) if theirs >= 0}
        self.unknown = [] if allows_unknown(checkpoint) else [_UNK]
        self.never = [self.target[token] for token in (PAD, BOS) if self.target[token] >= 0]

    def logits(self, source: Sequence[int], target: Sequence[int]) -> Floats:
        """Return the logits (T, V) after BOS and each token of a target, in Marian's order.

        `<unk>` is excluded, unless the settings of decoding allow it.  source, target: our ids, the source with EOS.
        """
        memory, state = self.model.encode([[self.source[token] for token in source]]), self.model.start(1)
        tokens = [None, *(np.array([self.target[token]]) for token in target)]
        return self._logits(
            np.concatenate([self.model.step(token, i, state, memory) for i, token in enumerate(tokens)])
        )

    def _logits(self, hidden: Floats) -> Floats:
        logits = self.model.logits(hidden)
        logits[:, self.unknown] = NEVER
        return logits

    def score(self, case: ParityCase, ids: Sequence[int]) -> list[float]:
        log_probs = _log_softmax(self.logits(case.source, ids[:-1]))
        theirs = [self.target[token] for token in ids]
        return [float(x) for x in log_probs[np.arange(len(theirs)), theirs]]

    def search(
        self, cases: Sequence[ParityCase], width: int, min_length: int, max_length: int
    ) -> list[list[list[int]]]:
        """Targets of `min_length` = `max_length` tokens end without a cost, as in `formats.parity`."""
        found: list[list[list[int]]] = []
        for begin in range(0, len(cases), _BATCH):
            sources = [[self.source[token] for token in case.source] for case in cases[begin : begin + _BATCH]]
            tokens = self._beams(sources, width, max_length, fixed=min_length == max_length)
            found += [[self._until_end(row) for row in sentence] for sentence in tokens.tolist()]
        return found

    def _beams(self, sources: list[list[int]], width: int, length: int, fixed: bool) -> np.ndarray:
        """Return the ids (B, width, T) of a beam search; of width 1, of greedy search, which may end.

        fixed: the end of sentence is excluded before the softmax.
        """
        count = len(sources)
        state = self.model.start(count * width)
        memory = self.model.encode(sources).select(np.repeat(np.arange(count), width))
        total = np.tile(np.where(np.arange(width) == 0, 0, -np.inf), (count, 1))  # one beam before the first token
        tokens = np.zeros((count, width, 0), np.int64)
        for position in range(length):
            last = tokens[:, :, -1].flatten() if position else None
            logits = self._logits(self.model.step(last, position, state, memory))
            logits[:, self.never] = -np.inf
            if fixed:
                logits[:, EOS] = -np.inf
            likely = np.argpartition(logits, -width, axis=1)[:, -width:]  # (N, K): no other token can be among the best
            scores = np.take_along_axis(_log_softmax(logits), likely, 1).reshape(count, width, width)
            flat = (total[:, :, None] + scores).reshape(count, -1)  # (B, K * K)
            best = np.argpartition(-flat, width - 1, axis=1)[:, :width]
            total, beams = np.take_along_axis(flat, best, 1), best // width
            words = np.take_along_axis(likely.reshape(count, -1), best, 1)
            tokens = np.concatenate([np.take_along_axis(tokens, beams[:, :, None], 1), words[:, :, None]], axis=2)
            rows = (beams + width * np.arange(count)[:, None]).flatten()
            state[:] = [part[rows] for part in state]
            if not fixed and (tokens == EOS).any(2).all():
                break
        return tokens

    def _until_end(self, row: list[int]) -> list[int]:
        return [self.ours[token] for token in (row[: row.index(EOS)] if EOS in row else row)]


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


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
