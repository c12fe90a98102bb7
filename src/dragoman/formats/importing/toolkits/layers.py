"""Rules and parts of the configuration that the toolkits share; `{}` is the number of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.formats.importing.family import ImportedVocabulary
from dragoman.formats.importing.names import Rule
from dragoman.tokenizers import Tokenizer

MAX_TOKENS = 256
"""Longest source and target of a model whose positions have no maximum."""


def linear(ours: str, *theirs: str) -> dict[str, Rule]:
    return {
        f"{ours}.weight": Rule(tuple(f"{name}.weight" for name in theirs), ("", "")),
        f"{ours}.bias": Rule(tuple(f"{name}.bias" for name in theirs), ("",)),
    }


def norm(ours: str, theirs: str) -> dict[str, Rule]:
    return {f"{ours}.{part}": Rule((f"{theirs}.{part}",), ("",)) for part in ("weight", "bias")}


def attention(ours: str, queries: str, keys: str, values: str, out: str) -> dict[str, Rule]:
    if ours.endswith("cross_attn"):
        inputs = linear(f"{ours}.q", queries) | linear(f"{ours}.kv", keys, values)
    else:
        inputs = linear(f"{ours}.qkv", queries, keys, values)
    return inputs | linear(f"{ours}.out", out)


def document(vocabulary: ImportedVocabulary, languages: tuple[object, object]) -> dict[str, Any]:
    """Return the sections `data` and `tokenizer` of the configuration."""
    tokenizer = vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    sides = dict(zip(("source_language", "target_language"), languages, strict=True))
    return {
        "data": {
            "kind": "parallel", "train": [], "filter": {"max_tokens": MAX_TOKENS},
            **{key: code for key, code in sides.items() if isinstance(code, str) and code},
        },
        "tokenizer": {
            "kind": "unigram", "vocab_size": tokenizer.source_size, "shared": tokenizer.shared, "byte_fallback": False,
        },
    }  # fmt: skip


def search_document(settings: Mapping[str, Any], beam: str, alpha: str) -> dict[str, Any]:
    """Return the section `search`.  beam, alpha: names of the settings."""
    width, penalty = settings.get(beam), settings.get(alpha)
    return {
        "beam": width if type(width) is int and 1 <= width <= 4096 else 4,
        "alpha": float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 1.0,
    }
