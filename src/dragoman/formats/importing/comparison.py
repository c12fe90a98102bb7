"""The comparison of an imported model with its checkpoint, as each kind of model needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from dragoman.data.tokenizer import EOS, Tokenizer
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Comparison, Plan, TokenizerParity
from dragoman.formats.importing.reference import (
    CausalRuntime,
    CausalTokenizer,
    ReferenceTokenizer,
    SentencepieceReference,
    TransformersRuntime,
)
from dragoman.formats.parity import compare_models, parity_cases
from dragoman.io.lines import read_lines
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model

__all__ = ["SAMPLES", "compare_language_models", "compare_tokenizers", "compare_translators"]

_LINES = 200
SAMPLES = (
    "", " ", "a", "A line of text.", "  two  spaces and\ta tab ",
    "\N{LATIN SMALL LIGATURE FI}ne \N{HORIZONTAL ELLIPSIS}",
    "\N{LEFT DOUBLE QUOTATION MARK}quotes\N{RIGHT DOUBLE QUOTATION MARK} \N{VULGAR FRACTION ONE HALF}",
    "\N{FULLWIDTH LATIN SMALL LETTER W}ide", "日本語 and Ελληνικά", "\N{GRINNING FACE}\N{GRINNING FACE} !?",
    ">>xx<< text", ">>xx<<", ">> no tag", "A >>xx<< inside", "<< >>", "x" * 50, "1,234.56 % € $ # @",
    "e\N{COMBINING ACUTE ACCENT}", "zero\N{ZERO WIDTH SPACE}width",
)  # fmt: skip
"""Text that is compared in addition to the given lines: spaces, unknown characters, normalization, tags."""
_Reference = ReferenceTokenizer | SentencepieceReference


def compare_translators(checkpoint: Checkpoint, folder: Path, plan: Plan, check: Path | None) -> Comparison:
    """Compare an encoder-decoder in a model folder with its checkpoint, run by `transformers`.

    check: text in the source language; default: random tokens.
    """
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    bias = network.output.bias
    assert isinstance(bias, Tensor)
    runtime = TransformersRuntime(checkpoint.folder, plan.vocabulary, bias)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    lines = [tokenizer.decode_target([t for t in case.source if t != EOS]) for case in cases.cases]
    theirs = ReferenceTokenizer(checkpoint.folder, plan.vocabulary)
    return Comparison(parity, compare_tokenizers(tokenizer, theirs, [*lines, *_lines(check)]))


def compare_language_models(checkpoint: Checkpoint, folder: Path, plan: Plan, check: Path | None) -> Comparison:
    """Compare a language model in a model folder with its checkpoint, run by `transformers`.

    check: text, of whose lines the first tokens are prompts; default: random tokens.
    """
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    runtime = CausalRuntime(checkpoint.folder, plan.vocabulary)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    lines = [tokenizer.decode_target(case.prefix) for case in cases.cases]
    theirs: _Reference = (
        SentencepieceReference(checkpoint.bytes("tokenizer.model"), plan.vocabulary)
        if not any((checkpoint.folder / name).exists() for name in ("tokenizer.json", "vocab.json"))
        else CausalTokenizer(checkpoint.folder, plan.vocabulary)
    )
    return Comparison(parity, compare_tokenizers(tokenizer, theirs, [*lines, *_lines(check)]))


def _lines(check: Path | None) -> list[str]:
    return [] if check is None else [line for line, _ in zip(read_lines(check), range(_LINES), strict=False)]


def compare_tokenizers(ours: Tokenizer, theirs: _Reference, lines: Sequence[str]) -> TokenizerParity:
    """Compare ids and decoded text of lines, and of some with unusual characters."""
    source, target, decoded = 0, 0, 0
    lines = [*SAMPLES, *lines]
    for line in lines:
        ids = ours.encode_target(line)
        source += ours.encode_source(line) != theirs.encode_source(line)
        target += ids != theirs.encode_target(line)
        decoded += ours.decode_target(ids) != theirs.decode_target(ids)
    return TokenizerParity(len(lines), source, target, decoded)
