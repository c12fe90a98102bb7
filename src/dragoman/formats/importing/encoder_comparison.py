"""The comparison of an imported encoder of text with its checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dragoman.errors import DataError
from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import SAMPLES
from dragoman.formats.importing.family import Comparison, ImportedVocabulary, Plan, TokenizerParity
from dragoman.formats.importing.labels import compare_labels
from dragoman.formats.importing.reference import ReferenceTokenizer, reference_model
from dragoman.models.model_folder import load_network
from dragoman.tokenizers import BOS, EOS, LabelVocabulary, Tokenizer, Vocabulary

_LINES = 200
_LONGEST = 64
"""Tokens of the longest random row, if the model accepts as many."""


def words_of(vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer of a model that reads text."""
    tokenizer = vocabulary.tokenizer if isinstance(vocabulary, LabelVocabulary) else vocabulary
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


class EncoderRuntime:
    """An encoder of `transformers` on our ids."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, loader: str) -> None:
        """loader: class of `transformers` that loads it."""
        self.model, self.name = reference_model(checkpoint.folder, loader)
        self.source = plan.vocabulary.source
        # Our labels start with the one for "no label", which is compared with nothing.
        self.labels = torch.tensor([label for label in plan.vocabulary.target if label >= 0])

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, labels) of a row of our ids, with T = 1 for a label per text, in our order."""
        logits: Tensor = self.model(input_ids=torch.tensor([[self.source[token] for token in ids]])).logits
        return logits.flatten(0, -2).index_select(1, self.labels)


def compare_encoders(
    checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None, loader: str
) -> Comparison:
    """Compare a model folder with its checkpoint, run by `transformers`.

    check: text; default: rows of random tokens.  loader: see `EncoderRuntime`.  Raises DataError if `check` has no line
    that the model accepts.
    """
    network, vocabulary, _ = load_network(folder)
    tokenizer, runtime = words_of(vocabulary), EncoderRuntime(checkpoint, plan, loader)
    lines = [] if check is None else check.first_lines()
    rows = [row for line in lines if 2 < len(row := [BOS, *tokenizer.encode_source(line)]) <= plan.positions]
    if check is not None and not rows:
        raise DataError(f"{check}: no line of 1 to {plan.positions - 2} tokens to compare; specify another file")
    text = "rows of random tokens" if check is None else f"lines of {check.source.name}"
    rows = rows or list(_random_rows(tokenizer.source_size, plan.positions))
    added = len(plan.vocabulary.target) - len(runtime.labels)

    def ours(ids: list[int]) -> Tensor:
        logits: Tensor = network(torch.tensor([ids]), None, torch.zeros(1, 0, dtype=torch.long))
        return logits[0, :, added:]

    parity = compare_labels(ours, runtime.logits, rows, runtime.name, text)
    samples = [tokenizer.decode_source(row) for row in rows[: 0 if lines else _LINES]]
    source = plan.vocabulary.source
    theirs = ReferenceTokenizer(checkpoint.folder, ImportedVocabulary(tokenizer, source, source))
    return Comparison(parity, _compare_words(tokenizer, theirs, [*SAMPLES, *lines, *samples]))


def _random_rows(size: int, positions: int) -> Iterator[list[int]]:
    rng, longest = random.Random(1), min(_LONGEST, positions) - 2
    for _ in range(_LINES):
        yield [BOS, *rng.choices(range(EOS + 1, size), k=rng.randint(1, max(1, longest))), EOS]


def _compare_words(ours: Tokenizer, theirs: ReferenceTokenizer, lines: Sequence[str]) -> TokenizerParity:
    """Compare the ids of lines with begin and end, and the decoded text.

    As in our tokenizer, names of special tokens in a line are text.
    """
    source, decoded = 0, 0
    for line in lines:
        ids = [BOS, *ours.encode_source(line)]
        found = theirs.tokenizer(line, split_special_tokens=True).input_ids
        source += ids != [theirs.source[token] for token in found]
        decoded += ours.decode_source(ids) != theirs.decode_target(ids)
    return TokenizerParity(len(lines), source, 0, decoded)
