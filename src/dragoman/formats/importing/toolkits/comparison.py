"""The comparison of an imported model with the definition of its toolkit and with sentencepiece."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dragoman.formats.check_text import CheckText
from dragoman.formats.importing.comparison import compare_tokenizers, lines_of
from dragoman.formats.importing.family import Comparison, Plan
from dragoman.formats.importing.listed_vocabulary import ListedReference
from dragoman.formats.importing.numpy_reference import SearchedReference
from dragoman.formats.parity import compare_models, parity_cases
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS, UNK, Tokenizer


def compare_with_definition(
    runtime: SearchedReference, reference: ListedReference, folder: Path, plan: Plan, check: CheckText | None
) -> Comparison:
    """Compare a model folder with a definition and a tokenizer; see `Family.compare`."""
    network, tokenizer, config = load_network(folder)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    cases = parity_cases(network, tokenizer, config, check)
    cases = replace(cases, limit=min(cases.limit, plan.positions - 1))
    parity = compare_models(network, runtime, cases, max(2, config.search.beam))
    texts = [tokenizer.decode_source([t for t in case.source if t not in (EOS, UNK)]) for case in cases.cases]
    return Comparison(parity, compare_tokenizers(tokenizer, reference, [*texts, *lines_of(check)]))
