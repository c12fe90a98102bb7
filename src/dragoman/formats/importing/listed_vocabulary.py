"""Vocabularies that are lists of tokens, beside sentencepiece models that segment the text: CTranslate2, toolkits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece as spm

from dragoman.errors import DragomanError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.encoder_decoder import renamed
from dragoman.formats.importing.family import ImportedVocabulary, ProblemList
from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer
from dragoman.tokenizers.listed_pieces import PieceLists
from dragoman.tokenizers.templates import NO_SOURCE_END

_SUFFIXES = (".model", ".spm")
_SIDES = (("source", "src"), ("target", "tgt", "trg"))
"""Names of files of one side begin or end with one of these."""
_LEAST_KNOWN = 0.5
"""A sentencepiece model knows at least this part of the tokens; fewer are a sign of the model of another vocabulary."""


@dataclass(frozen=True)
class TokenList:
    """The vocabulary of a side.

    tokens: by id.  special: ids of PAD, UNK, BOS and EOS, -1 for one that the checkpoint lacks; BOS may be EOS.  name:
    of the file, for messages.
    """

    tokens: Sequence[str]
    special: tuple[int, int, int, int]
    name: str

    @property
    def order(self) -> list[int]:
        """For each of our ids that of the checkpoint."""
        return [*self.special, *(token for token in range(len(self.tokens)) if token not in self.special)]


def sentencepiece_models(folder: Path) -> tuple[Path, Path]:
    """Return the sentencepiece models of source and target, of one for both the same path twice.

    Raises ProblemList.
    """
    files = sorted(path for suffix in _SUFFIXES for path in folder.glob(f"*{suffix}") if path.is_file())
    sides = [[path for path in files if _is_of(path, names)] for names in _SIDES]
    if all(len(side) == 1 for side in sides):
        return sides[0][0], sides[1][0]
    if len(files) == 1 and not any(sides):
        return files[0], files[0]
    found = ", ".join(path.name for path in files) or "none"
    raise ProblemList(
        [
            f"{folder}: the sentencepiece model is not known (*.model, *.spm: {found}); accepted: one file for both "
            "sides, such as sentencepiece.model, or source.model and target.model; other tokenizers, such as "
            "subword-nmt, are not supported"
        ]
    )


def _is_of(path: Path, names: Sequence[str]) -> bool:
    return any(path.stem == name or path.stem.endswith((f".{name}", f"_{name}", f"-{name}")) for name in names)


def listed_vocabulary(
    checkpoint: Checkpoint,
    source: TokenList,
    target: TokenList | None,
    restrict: bool = False,
    source_ends: bool = True,
) -> ImportedVocabulary:
    """Return the vocabulary of lists of tokens; target None: one list for both sides.  Raises ProblemList.

    restrict: whether the sentencepiece models use only pieces that are listed (see `restricted`).  source_ends: whether
    sources have the end of sentence.
    """
    paths = sentencepiece_models(checkpoint.folder)
    models, problems = [], []
    for path, listed in zip(paths, (source, target or source), strict=True):
        try:
            models.append(checkpoint.bytes(path.name))
            problems += _foreign(spm.SentencePieceProcessor(model_proto=models[-1]), path, listed)
        except RuntimeError as error:
            problems.append(f"{path.name} cannot be read by sentencepiece: {error}")
        except DragomanError as error:
            problems.append(str(error))
    if problems:
        raise ProblemList(list(dict.fromkeys(problems)))
    if restrict:
        lists = (source, target or source)
        models = [restricted(model, listed.tokens) for model, listed in zip(models, lists, strict=True)]
    orders = [listed.order for listed in (source, target or source)]
    names = [renamed(listed.tokens, order) for listed, order in zip((source, target or source), orders, strict=True)]
    file = PieceLists(names[0], None if target is None else names[1], tags=False).file()
    try:
        frames = None if source_ends else NO_SOURCE_END.file()
        tokenizer = Tokenizer(models[0], None if models[0] == models[1] else models[1], file, frames)
    except (RuntimeError, ValueError) as error:
        raise ProblemList([f"the vocabulary cannot be used: {error}"]) from None
    return ImportedVocabulary(tokenizer, *orders)


def _foreign(model: spm.SentencePieceProcessor, path: Path, listed: TokenList) -> list[str]:
    """Return a problem if a sentencepiece model belongs to another vocabulary."""
    own = {str(model.id_to_piece(i)) for i in range(model.get_piece_size())}
    rest = [token for i, token in enumerate(listed.tokens) if i not in listed.special]
    known = sum(token in own for token in rest)
    if known >= _LEAST_KNOWN * len(rest):
        return []
    return [
        f"{path.name}: only {known:,} of {len(rest):,} tokens of {listed.name} are its pieces; accepted: its own model"
    ]


def restricted(model: bytes, tokens: Sequence[str]) -> bytes:
    """Return a sentencepiece model that uses only these pieces, and single characters.

    This is what `SetVocabulary` of sentencepiece does: other pieces get the type "unused", and a word is segmented into
    the remaining ones.  model: of a valid file, a `ModelProto`.
    """
    kept, position, out = set(tokens), 0, bytearray()
    while position < len(model):
        start = position
        key, position = _number(model, position)
        size, begin = _field_size(model, position, key & 7)
        position = begin + size
        if key == _PIECE:
            body = model[begin:position]
            kind = _new_type(body, kept)
            body += b"" if kind is None else bytes([_TYPE, kind])  # the last value of a field counts
            out += bytes([_PIECE]) + _encoded(len(body)) + body
        else:
            out += model[start:position]
    return bytes(out)


_PIECE, _TEXT, _TYPE = 0x0A, 0x0A, 0x18
"""Keys of protocol buffers: the pieces of a model; the text and the type of a piece."""
_NORMAL, _UNUSED, _FIXED_TYPES = 1, 5, (2, 3, 4)
"""Types of pieces; those of unknown, control and user-defined symbols stay."""


def _new_type(piece: bytes, kept: set[str]) -> int | None:
    """Return the type of a serialized piece, None if it stays."""
    position, text, kind = 0, "", _NORMAL
    while position < len(piece):
        key, position = _number(piece, position)
        size, begin = _field_size(piece, position, key & 7)
        if key == _TEXT:
            text = piece[begin : begin + size].decode()
        elif key == _TYPE:
            kind = _number(piece, begin)[0]
        position = begin + size
    wanted = _NORMAL if text in kept or len(text) == 1 else _UNUSED
    return None if kind in _FIXED_TYPES or kind == wanted else wanted


def _number(content: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = shift = 0
    while True:
        byte = content[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def _field_size(content: bytes, position: int, wire: int) -> tuple[int, int]:
    """Return the bytes of a field and where they begin."""
    if wire == 2:
        return _number(content, position)
    return {1: 8, 5: 4}[wire] if wire else _number(content, position)[1] - position, position


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


class ListedReference:
    """The sentencepiece models and lists of tokens of a checkpoint, on our ids."""

    def __init__(
        self,
        models: Sequence[bytes],
        lists: Sequence[TokenList],
        vocabulary: ImportedVocabulary,
        source_ends: bool = True,
    ) -> None:
        self.source_ends = source_ends
        self.models = [spm.SentencePieceProcessor(model_proto=model) for model in models]
        self.lists, self.theirs = lists, (vocabulary.source, vocabulary.target)
        self.numbers = [{token: i for i, token in enumerate(listed.tokens)} for listed in lists]

    def encode_source(self, text: str) -> list[int]:
        ids = self._encode(text, 0)
        return [*ids, EOS] if self.source_ends or not ids else ids

    def encode_target(self, text: str) -> list[int]:
        return [*self._encode(text, 1), EOS]

    def _encode(self, text: str, side: int) -> list[int]:
        numbers, special, order = self.numbers[side], self.lists[side].special, self.theirs[side]
        ids = [numbers.get(piece, special[UNK]) for piece in self.models[side].encode(text, out_type=str)]
        return [UNK if token in special else order.index(token) for token in ids]

    def decode_target(self, ids: Sequence[int]) -> str:
        kept = [self.theirs[1][token] for token in ids if token not in (PAD, UNK, BOS, EOS)]
        return str(self.models[1].decode([self.lists[1].tokens[token] for token in kept])).strip()
