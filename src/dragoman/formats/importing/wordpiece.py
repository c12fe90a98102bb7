"""The vocabulary of a BERT checkpoint: WordPiece in `tokenizer.json`, or in `vocab.txt` with the settings of BERT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dragoman.extras import extra_package
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import ImportedVocabulary, ProblemList
from dragoman.tokenizers import EOS, Tokenizer
from dragoman.tokenizers.json_pieces import TOKENIZER_JSON, TokenIds

_LIST, _SETTINGS = "vocab.txt", "tokenizer_config.json"
_NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""The special tokens, the first four in the order of our ids, with the names that BERT gives them."""


def wordpiece_vocabulary(checkpoint: Checkpoint, size: object) -> ImportedVocabulary:
    """Return the vocabulary with our ids, [CLS] as BOS and [SEP] as EOS.  Raises ProblemList.

    size: number of rows of the embeddings, which may exceed that of the tokenizer.
    """
    settings = checkpoint.json(_SETTINGS) if (checkpoint.folder / _SETTINGS).exists() else {}
    names = {key: _name(settings.get(f"{key}_token"), name) for key, name in _NAMES.items()}
    try:
        content = _content(checkpoint, settings, names)
        ids = dict(_pieces(content))
        problems = [f"no token {name}" for name in names.values() if name not in ids]
        highest = max(ids.values(), default=0)
        if type(size) is not int or highest >= size or highest <= EOS:
            problems.append(f"it has ids up to {highest:,}, but the vocabulary of config.json {size} ids")
        if problems:
            raise ValueError("; ".join(problems))
        assert isinstance(size, int)
        found = TokenIds(tuple(ids[names[key]] for key in list(names)[:4]), size, ids[names["mask"]])
        tokenizer = Tokenizer(content, None, found.file())
        tokenizer.encode_source("a b")
    except ValueError as error:
        raise ProblemList([f"the tokenizer cannot be used: {error}"]) from None
    return ImportedVocabulary(tokenizer, found.theirs, found.theirs)


def _name(value: object, default: str) -> str:
    """Return the name of a special token, which is a text or an object with its text."""
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) else default


def _pieces(content: bytes) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a `tokenizer.json` with their ids.  Raises ValueError."""
    try:
        document = json.loads(content)
        model = document["model"]
        if model["type"] != "WordPiece":
            raise ValueError(f"{TOKENIZER_JSON}: model of type {model['type']!r}; accepted: 'WordPiece'")
        found = [*model["vocab"].items(), *((each["content"], each["id"]) for each in document["added_tokens"])]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{TOKENIZER_JSON}: not a tokenizer of Hugging Face ({error!r:.100})") from None
    yield from ((str(piece), token) for piece, token in found if type(token) is int)


def _content(checkpoint: Checkpoint, settings: dict[str, Any], names: dict[str, str]) -> bytes:
    """Return the content of `tokenizer.json`, made from `vocab.txt` if the folder lacks it.  Raises ValueError."""
    if (checkpoint.folder / TOKENIZER_JSON).exists():
        return checkpoint.bytes(TOKENIZER_JSON).strip()
    if not (checkpoint.folder / _LIST).exists():
        raise ProblemList([f"{checkpoint.folder}: no tokenizer; accepted: {TOKENIZER_JSON} or {_LIST}"])
    package = extra_package("tokenizers", "tokenizers", f"WordPiece ({_LIST})")
    pieces = checkpoint.bytes(_LIST).decode().removesuffix("\n").split("\n")
    vocabulary = {piece.removesuffix("\r"): token for token, piece in enumerate(pieces)}
    model = package.Tokenizer(package.models.WordPiece(vocabulary, unk_token=names["unk"]))
    accents = settings.get("strip_accents")
    model.normalizer = package.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True) is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=settings.get("do_lower_case", True) is not False,
    )
    model.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    model.decoder = package.decoders.WordPiece(prefix="##")
    model.add_special_tokens([name for name in names.values() if name in vocabulary])
    return str(model.to_str()).encode()
