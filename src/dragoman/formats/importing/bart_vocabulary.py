"""The vocabularies of BART, mBART, M2M-100 and NLLB, and the tokens of their languages.

Ids are those of fairseq: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, then the pieces of sentencepiece from the fourth one
on, in a list for M2M-100 (`vocab.json`), then the languages, and unused rows.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sentencepiece as spm

from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.encoder_decoder import renamed
from dragoman.formats.importing.family import ImportedVocabulary, ProblemList
from dragoman.formats.importing.json_vocabulary import json_vocabulary
from dragoman.formats.importing.reference import transformers_package
from dragoman.tokenizers import EOS, Tokenizer
from dragoman.tokenizers.json_pieces import TokenIds
from dragoman.tokenizers.listed_pieces import PieceLists
from dragoman.tokenizers.templates import Templates

_FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
_PAD, _END, _UNKNOWN = 1, 2, 3
_CODE = re.compile(r"__([\w-]+)__|([a-z]{2,3}_[A-Z]{2})|([a-z]{3}_[A-Z][a-z]{3})")
"""M2M-100, mBART, NLLB."""
_MODEL = "sentencepiece.bpe.model"
_MODULES = {
    "MBartTokenizer": "mbart.tokenization_mbart", "MBart50Tokenizer": "mbart50.tokenization_mbart50",
    "NllbTokenizer": "nllb.tokenization_nllb", "M2M100Tokenizer": "m2m_100.tokenization_m2m_100",
}  # fmt: skip
_LISTS = "tokenizer.json, or tokenizer_config.json or special_tokens_map.json with additional_special_tokens"


def read_vocabulary(checkpoint: Checkpoint) -> ImportedVocabulary:
    """Raises ProblemList."""
    settings = checkpoint.settings
    size, start = settings.get("vocab_size"), settings.get("decoder_start_token_id")
    if type(size) is not int or type(start) is not int:
        raise ProblemList([])  # reported with the settings
    if settings.get("model_type") == "bart":
        return _byte_level(checkpoint, size, start)
    try:
        model = checkpoint.bytes(_MODEL)
        pieces = _pieces(checkpoint, model)
    except RuntimeError as error:
        raise ProblemList([f"{_MODEL} cannot be read by sentencepiece: {error}"]) from None
    codes = _codes(checkpoint, len(pieces))
    problems = []
    if not codes:
        problems.append(f"{checkpoint.folder}: no list of languages; accepted: {_LISTS}")
    if (last := max([len(pieces) - 1, *codes.values()])) >= size:
        problems.append(f"the vocabulary has ids up to {last:,}, but vocab_size of config.json is {size:,}")
    if start != _END and start not in codes.values():
        problems.append(f"decoder_start_token_id = {start}; accepted: {_END} (</s>) or a language")
    if problems:
        raise ProblemList(problems)
    names = [*pieces, *(f"<unused {i}>" for i in range(len(pieces), size))]
    for code, token in codes.items():
        names[token] = f"<{code}>"
    order = [_PAD, _UNKNOWN, start, _END]
    special = set(order)
    order += [token for token in range(size) if token not in special]
    try:
        frames = _frames(checkpoint, _Codes(codes, start), order, len(pieces))
        tokenizer = Tokenizer(model, None, PieceLists(renamed(names, order), None, tags=False).file(), frames.file())
    except ValueError as error:
        raise ProblemList([f"the vocabulary cannot be used: {error}"]) from None
    return ImportedVocabulary(tokenizer, order, order)


def _byte_level(checkpoint: Checkpoint, size: int, start: int) -> ImportedVocabulary:
    """Return the vocabulary of BART, of which every text begins with `<s>`."""
    ids = [checkpoint.settings.get(f"{name}_token_id") for name in ("pad", "bos", "eos")]
    if any(type(token) is not int or not 0 <= token < size for token in (*ids, start)) or start == ids[1]:
        raise ProblemList([f"pad, bos, eos and decoder_start_token_id = {[*ids, start]}; accepted: ids, bos != start"])
    pad, begin, end = (int(token or 0) for token in ids)
    vocabulary = json_vocabulary(checkpoint, TokenIds((pad, _UNKNOWN, start, end), size))
    first = vocabulary.target.index(begin, EOS + 1)
    frame = (first, "text", EOS)
    assert isinstance(vocabulary.tokenizer, Tokenizer)
    source, target, pieces, _ = vocabulary.tokenizer.models
    tokenizer = Tokenizer(source, target, pieces, Templates(frame, frame, control=(first,)).file())
    return ImportedVocabulary(tokenizer, vocabulary.source, vocabulary.target)


@dataclass(frozen=True)
class _Codes:
    """ids: language -> id in the checkpoint.  start: first token of the decoder."""

    ids: Mapping[str, int]
    start: int


def _pieces(checkpoint: Checkpoint, model: bytes) -> list[str]:
    """Return the pieces by id, without languages.  Raises DragomanError, ProblemList, RuntimeError."""
    processor = spm.SentencePieceProcessor(model_proto=model)
    if checkpoint.settings.get("model_type") != "m2m_100" or not (checkpoint.folder / "vocab.json").exists():
        return [*_FAIRSEQ, *(processor.id_to_piece(i) for i in range(3, processor.get_piece_size()))]
    ids = checkpoint.json("vocab.json")
    if sorted(token for token in ids.values() if type(token) is int) != list(range(len(ids))):
        raise ProblemList([f"vocab.json: its ids are not 0 to {len(ids) - 1:,}, each once"])
    pieces = sorted(ids, key=lambda piece: int(ids[piece]))
    if pieces[:4] != _FAIRSEQ:
        raise ProblemList([f"vocab.json: the ids 0 to 3 are {pieces[:4]}; accepted: {_FAIRSEQ}"])
    return pieces


def _codes(checkpoint: Checkpoint, first: int) -> dict[str, int]:
    """Return the languages with their ids.  first: id of the first one, where files do not list ids."""
    ids = {
        str(entry.get("content")): entry.get("id")
        for entry in _json(checkpoint, "tokenizer.json").get("added_tokens", [])
    }
    settings = _json(checkpoint, "tokenizer_config.json")
    ids |= {str(entry.get("content")): int(token) for token, entry in settings.get("added_tokens_decoder", {}).items()}
    found = {code: token for name, token in ids.items() if (code := _code(name)) and type(token) is int}
    if found:
        return found
    for source in (settings, _json(checkpoint, "special_tokens_map.json")):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            names = source.get(key)
            if isinstance(names, list) and (codes := [code for name in map(_content, names) if (code := _code(name))]):
                return {code: first + i for i, code in enumerate(dict.fromkeys(codes))}
    kind = settings.get("tokenizer_class", checkpoint.settings.get("tokenizer_class"))
    return {code: first + i for i, code in enumerate(_class_codes(str(kind), str(settings.get("language_codes"))))}


def _class_codes(kind: str, group: str) -> list[str]:
    """Return the languages that `transformers` has for a class of tokenizers.  group: of M2M-100."""
    module = _MODULES.get(kind.removesuffix("Fast"))
    if module is None:
        return []
    transformers_package()
    codes = importlib.import_module(f"transformers.models.{module}").FAIRSEQ_LANGUAGE_CODES
    return list(codes.get(group, []) if isinstance(codes, dict) else codes)


def _json(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    return checkpoint.json(name) if (checkpoint.folder / name).exists() else {}


def _content(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _code(name: str) -> str:
    match = _CODE.fullmatch(name)
    return "" if match is None else next(filter(None, match.groups()))


def _frames(checkpoint: Checkpoint, codes: _Codes, order: list[int], pieces: int) -> Templates:
    """Return the frames, with our ids.  pieces: number of ids before the languages."""
    ours = {theirs: token for token, theirs in enumerate(order)}
    languages = {code: ours[token] for code, token in codes.ids.items() if ours[token] > EOS}
    control = [ours[i] for i in (0, *range(pieces, max(order) + 1)) if ours[i] > EOS]
    settings = _json(checkpoint, "tokenizer_config.json")
    forced = checkpoint.generation.get("forced_bos_token_id")
    first = next((code for code, token in codes.ids.items() if token == forced), None)
    source, target = (_known(code, languages) for code in (settings.get("src_lang"), settings.get("tgt_lang") or first))
    after = codes.start != _END or bool(settings.get("legacy_behaviour"))
    frame = ("text", EOS, "source") if after else ("source", "text", EOS)
    if codes.start == _END:
        return Templates(frame, ("target", "text", EOS), (languages, languages), (source, target), tuple(control))
    return Templates(frame, ("text", EOS), (languages, {}), (source, None), tuple(control))


def _known(code: object, languages: Mapping[str, int]) -> str | None:
    return code if isinstance(code, str) and code in languages else None
