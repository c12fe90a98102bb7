"""The vocabulary of a checkpoint: `tokenizer.json`, or files from which it is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.errors import DragomanError
from dragoman.extras import extra_package
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import ImportedVocabulary, ProblemList
from dragoman.formats.importing.sentencepiece_json import sentencepiece_json
from dragoman.tokenizers import Tokenizer
from dragoman.tokenizers.json_pieces import TOKENIZER_JSON, TokenIds


def json_vocabulary(checkpoint: Checkpoint, ids: TokenIds) -> ImportedVocabulary:
    """Return the vocabulary with our ids.  Raises ProblemList.

    ids: special tokens of the checkpoint, which the caller has compared with its settings, and number of rows of its
    matrices.
    """
    try:
        content = _content(checkpoint, ids)
        tokenizer = Tokenizer(content, None, ids.file())
        tokenizer.encode_target("a b\n")  # a model without a piece for unknown characters fails only here
    except ValueError as error:
        raise ProblemList([f"the tokenizer cannot be used: {error}"]) from None
    except DragomanError as error:
        raise ProblemList([str(error)]) from None
    return ImportedVocabulary(tokenizer, ids.theirs, ids.theirs)


def _content(checkpoint: Checkpoint, ids: TokenIds) -> bytes:
    if (checkpoint.folder / TOKENIZER_JSON).exists():
        return checkpoint.bytes(TOKENIZER_JSON).strip()
    if not (checkpoint.folder / "vocab.json").exists():
        if (checkpoint.folder / "tokenizer.model").exists():
            return sentencepiece_json(checkpoint.bytes("tokenizer.model"))
        accepted = "tokenizer.json, or vocab.json and merges.txt, or tokenizer.model"
        raise ProblemList([f"{checkpoint.folder}: no tokenizer; accepted: {accepted}"])
    vocabulary, merges = checkpoint.json("vocab.json"), checkpoint.bytes("merges.txt")
    return _byte_level(vocabulary, merges, set(_special(checkpoint, ids, vocabulary)), checkpoint).encode()


def _byte_level(vocabulary: dict[str, Any], merges: bytes, special: set[str], checkpoint: Checkpoint) -> str:
    """Return the `tokenizer.json` of the tokenizer of GPT-2.  Raises ValueError."""
    package = extra_package("tokenizers", "tokenizers", "byte-level BPE (vocab.json, merges.txt)")
    lines = [line.rstrip("\r") for line in merges.decode().split("\n")]
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    space = bool(_optional(checkpoint, "tokenizer_config.json").get("add_prefix_space", False))
    try:
        model = package.Tokenizer(package.models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # the package has no exception classes of its own
        raise ValueError(f"vocab.json and merges.txt: {error}") from None
    model.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=space)
    model.decoder = package.decoders.ByteLevel()
    model.add_special_tokens([package.AddedToken(name, special=True, normalized=False) for name in sorted(special)])
    text: str = model.to_str()
    return text


def _special(checkpoint: Checkpoint, ids: TokenIds, vocabulary: dict[str, Any]) -> Iterator[str]:
    """Yield the special tokens by name: those with special ids and those that the settings of the tokenizer name."""
    yield from (name for name, token in vocabulary.items() if token in ids.special)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        for key, value in _optional(checkpoint, file).items():
            name = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(name, str) and name in vocabulary:
                yield name


def _optional(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    return checkpoint.json(name) if (checkpoint.folder / name).exists() else {}
