"""The comparison of an imported model with CTranslate2 and with sentencepiece."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dragoman.errors import UsageError
from dragoman.formats.check_text import CheckText
from dragoman.formats.ctranslate2 import CTranslate2Runtime
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.comparison import SAMPLES, compare_tokenizers, lines_of
from dragoman.formats.importing.ctranslate2_files.checkpoint import CTranslate2Checkpoint
from dragoman.formats.importing.ctranslate2_files.lists import token_lists
from dragoman.formats.importing.family import Comparison, Plan
from dragoman.formats.importing.listed_vocabulary import ListedReference
from dragoman.formats.parity import compare_models, parity_cases
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS, UNK, Tokenizer


def compare_with_ctranslate2(checkpoint: Checkpoint, folder: Path, plan: Plan, check: CheckText | None) -> Comparison:
    """Compare a model folder with its checkpoint; see `Family.compare`."""
    assert isinstance(checkpoint, CTranslate2Checkpoint)
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    parity = compare_models(network, reference_runtime(checkpoint, plan), cases, max(2, config.search.beam))
    lists = token_lists(checkpoint)
    models = [model for model in tokenizer.models[:2] if model is not None]
    theirs = ListedReference([models[0], models[-1]], [lists[0], lists[-1]], plan.vocabulary, tokenizer.sources_end)
    texts = [tokenizer.decode_source([t for t in case.source if t not in (EOS, UNK)]) for case in cases.cases]
    lines = [*SAMPLES, *texts, *lines_of(check)]
    if tokenizer.lists is not None and tokenizer.lists.tags:  # CTranslate2 has no tags
        lines = [line for line in lines if not line.startswith(">>")]
    return Comparison(parity, compare_tokenizers(tokenizer, theirs, lines, samples=()))


def reference_runtime(checkpoint: CTranslate2Checkpoint, plan: Plan) -> CTranslate2Runtime:
    """Return CTranslate2 with the checkpoint, in float32, on our ids."""
    lists = token_lists(checkpoint)
    pieces = [
        ["" if token < 0 else side.tokens[token] for token in order]
        for side, order in zip((lists[0], lists[-1]), (plan.vocabulary.source, plan.vocabulary.target), strict=True)
    ]
    try:
        return CTranslate2Runtime(checkpoint.folder, "float32", *pieces)
    except RuntimeError as error:
        raise UsageError(
            f"{checkpoint.folder}: CTranslate2 cannot load the model: {error}; copy the folder again, completely, with "
            "config.json"
        ) from error
