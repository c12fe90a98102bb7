"""The comparison of an imported model with its checkpoint, as each kind of model needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Comparison, Plan, TokenizerParity
from dragoman.formats.importing.listed_vocabulary import ListedReference
from dragoman.formats.importing.numpy_reference import NumpyTransformer, SearchedModel
from dragoman.formats.importing.reference import (
    CausalRuntime,
    CausalTokenizer,
    ReferenceTokenizer,
    SentencepieceReference,
    TransformersRuntime,
)
from dragoman.formats.parity import CheckText, ExternalRuntime, compare_models, parity_cases
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS, UNK, Tokenizer

SAMPLES = (
    "", " ", "a", "A line of text.", "  two  spaces and\ta tab ",
    "\N{LATIN SMALL LIGATURE FI}ne \N{HORIZONTAL ELLIPSIS}",
    "\N{LEFT DOUBLE QUOTATION MARK}quotes\N{RIGHT DOUBLE QUOTATION MARK} \N{VULGAR FRACTION ONE HALF}",
    "\N{FULLWIDTH LATIN SMALL LETTER W}ide", "日本語 and Ελληνικά", "\N{GRINNING FACE}\N{GRINNING FACE} !?",
    ">>xx<< text", ">>xx<<", ">> no tag", "A >>xx<< inside", "<< >>", "x" * 50, "1,234.56 % € $ # @",
    "e\N{COMBINING ACUTE ACCENT}", "zero\N{ZERO WIDTH SPACE}width",
)  # fmt: skip
"""Text that is compared in addition to the given lines: spaces, unknown characters, normalization, tags."""


class TextCodec(Protocol):
    """The tokenizer of a checkpoint, on our ids."""

    def encode_source(self, text: str) -> list[int]: ...

    def encode_target(self, text: str) -> list[int]: ...

    def decode_target(self, ids: Sequence[int]) -> str: ...


def compare_translators(
    checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None, samples: Sequence[str] = ()
) -> Comparison:
    """Compare an encoder-decoder in a model folder with its checkpoint, run by `transformers`.

    check: text in the source language; default: random tokens.  samples: more lines that the tokenizers must treat
    alike.
    """
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    bound = tokenizer.some_direction
    direction = bound.default_languages
    cases = parity_cases(network, bound, config, check)
    start = bound.target_start
    cases = replace(
        cases,
        cases=[replace(case, prefix=start) for case in cases.cases],
        limit=min(cases.limit, plan.positions - 1 - len(start)),
    )
    bias = network.output.bias
    assert isinstance(bias, Tensor)
    runtime = TransformersRuntime(checkpoint.folder, plan.vocabulary, bias)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    texts = [tokenizer.decode_target([t for t in case.source if t != EOS]) for case in cases.cases]
    theirs = ReferenceTokenizer(checkpoint.folder, plan.vocabulary)
    lines = [theirs.cleaned(line) for line in (*SAMPLES, *samples, *texts, *lines_of(check))]
    same = compare_tokenizers(bound, theirs.between(*direction), lines)
    for code in tokenizer.languages[0]:
        sides = code, code if code in tokenizer.languages[1] else direction[1]
        same += compare_tokenizers(tokenizer.between(*sides), theirs.between(*sides), lines[-1:])
    return Comparison(parity, same)


def compare_language_models(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare a language model in a model folder with its checkpoint, run by `transformers`.

    check: text, of whose lines the first tokens are prompts; default: random tokens.
    """
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    runtime = CausalRuntime(checkpoint.folder, plan.vocabulary)
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    lines = [*SAMPLES, *(tokenizer.decode_target(case.prefix) for case in cases.cases), *lines_of(check)]
    theirs: TextCodec = (
        SentencepieceReference(checkpoint.bytes("tokenizer.model"), plan.vocabulary)
        if not any((checkpoint.folder / name).exists() for name in ("tokenizer.json", "vocab.json"))
        else CausalTokenizer(checkpoint.folder, plan.vocabulary)
    )
    return Comparison(parity, compare_tokenizers(tokenizer, theirs, lines))


def compare_with_definition(
    runtime: ExternalRuntime, theirs: TextCodec, folder: Path, plan: Plan, check: CheckText | None
) -> Comparison:
    """Compare an encoder-decoder in a model folder with a definition, or another program, and a tokenizer."""
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    texts = [tokenizer.decode_source([t for t in case.source if t not in (EOS, UNK)]) for case in cases.cases]
    lines = [*SAMPLES, *texts, *lines_of(check)]
    if tokenizer.lists is not None and tokenizer.lists.tags:  # which only `transformers` has
        lines = [line for line in lines if not line.startswith(">>")]
    return Comparison(parity, compare_tokenizers(tokenizer, theirs, lines))


def compare_toolkit(
    toolkit: str,
    model: NumpyTransformer,
    reference: ListedReference,
    compared: tuple[Path, Plan, CheckText | None],
) -> Comparison:
    """Compare a model folder with the definition of its toolkit.  compared: arguments of `Family.compare`."""
    folder, plan, check = compared
    name = f"{toolkit}'s definition in NumPy, float32"
    ids = plan.vocabulary.source, plan.vocabulary.target
    runtime = SearchedModel(model, name, ids, model.sizes.end)
    return compare_with_definition(runtime, reference, folder, plan, check)


def lines_of(check: CheckText | None) -> list[str]:
    """Return the first 200 lines of a text; [] without one."""
    return [] if check is None else check.first_lines()


def compare_tokenizers(
    ours: Tokenizer, theirs: TextCodec, lines: Sequence[str], decode_unknown: bool = True
) -> TokenizerParity:
    """Compare ids and decoded text of lines.  decode_unknown: whether targets with unknown tokens are decoded, too."""
    source, target, decoded = 0, 0, 0
    for line in lines:
        ids = ours.encode_target(line)
        source += ours.encode_source(line) != theirs.encode_source(line)
        target += ids != theirs.encode_target(line)
        if decode_unknown or UNK not in ids:
            decoded += ours.decode_target(ids) != theirs.decode_target(ids[len(ours.target_start) :])
    return TokenizerParity(len(lines), source, target, decoded)
