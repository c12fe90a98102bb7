"""Vocabularies that are lists of tokens, beside sentencepiece models that segment the text: CTranslate2, toolkits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece as spm

from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.encoder_decoder import renamed
from dragoman.formats.importing.family import ImportedVocabulary, ProblemList, collecting, reading_vocabulary
from dragoman.io.reading import protobuf_field, protobuf_fields
from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer
from dragoman.tokenizers.listed_pieces import PieceLists
from dragoman.tokenizers.pieces import read_sentencepiece
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
    of the file, for messages.  restrict: whether sentencepiece uses only pieces that are listed (see `restricted`).
    ends: whether sources have the end of sentence.
    """

    tokens: Sequence[str]
    special: tuple[int, int, int, int]
    name: str
    restrict: bool = False
    ends: bool = True

    @property
    def order(self) -> list[int]:
        """For each of our ids that of the checkpoint."""
        return [*self.special, *(token for token in range(len(self.tokens)) if token not in self.special)]


def sentencepiece_models(folder: Path) -> tuple[Path, Path]:
    """Return the sentencepiece models of source and target, of one for both the same path twice.  Raises UsageError."""
    files = sorted(path for suffix in _SUFFIXES for path in folder.glob(f"*{suffix}") if path.is_file())
    suffixes = [tuple(f"{separator}{name}" for name in names for separator in "._-") for names in _SIDES]
    pairs = zip(_SIDES, suffixes, strict=True)
    sides = [[path for path in files if path.stem in names or path.stem.endswith(ends)] for names, ends in pairs]
    if all(len(side) == 1 for side in sides):
        return sides[0][0], sides[1][0]
    if len(files) == 1 and not any(sides):
        return files[0], files[0]
    shown = ", ".join(path.name for path in files) or "none"
    raise UsageError(
        f"{folder}: the sentencepiece model is not known (*.model, *.spm: {shown}); accepted: one file for both sides, "
        "such as sentencepiece.model, or source.model and target.model; other tokenizers, such as subword-nmt, are not "
        "supported"
    )


def piece_models(checkpoint: Checkpoint, lists: Sequence[TokenList]) -> list[bytes]:
    """Return the sentencepiece models of source and target as they segment text.

    Raises ProblemList if they cannot be read, or do not belong to the lists of both sides.
    """
    models: list[bytes] = []
    problems: list[str] = []
    for path, listed in zip(sentencepiece_models(checkpoint.folder), lists, strict=True):
        with collecting(problems):
            model = checkpoint.bytes(path.name)
            # Raise UsageError if a sentencepiece model cannot be read, or belongs to another vocabulary.
            with reading_vocabulary(path.name):
                pieces = set(read_sentencepiece(model)[1])
            rest = [token for i, token in enumerate(listed.tokens) if i not in listed.special]
            known = sum(token in pieces for token in rest)
            if known < _LEAST_KNOWN * len(rest):
                accepted = "are its pieces; accepted: its own model"
                raise UsageError(f"{path.name}: only {known:,} of {len(rest):,} tokens of {listed.name} {accepted}")
            models.append(restricted(model, listed.tokens) if listed.restrict else model)
    if problems:
        raise ProblemList(list(dict.fromkeys(problems)))
    return models


def listed_vocabulary(checkpoint: Checkpoint, lists: Sequence[TokenList]) -> ImportedVocabulary:
    """Return the vocabulary of lists of tokens: of source and target, or one for both.  Raises ProblemList."""
    sides = lists[0], lists[-1]
    models = piece_models(checkpoint, sides)
    orders = [listed.order for listed in sides]
    names = [renamed(listed.tokens, order) for listed, order in zip(sides, orders, strict=True)]
    file = PieceLists(names[0], None if len(lists) == 1 else names[1], tags=False).file()
    with reading_vocabulary():
        frames = None if sides[0].ends else NO_SOURCE_END.file()
        tokenizer = Tokenizer(models[0], None if models[0] == models[1] else models[1], file, frames)
    return ImportedVocabulary(tokenizer, *orders)


def toolkit_vocabulary(checkpoint: Checkpoint, lists: Sequence[TokenList], tied: str) -> ImportedVocabulary:
    """Return the vocabulary of the lists of source and target, of which equal ones become one.  Raises ProblemList.

    tied: the problem if the lists differ, because both sides have one embedding; "" if they have two.
    """
    source, target = lists
    same = source.tokens == target.tokens and source.special == target.special
    if tied and not same:
        raise ProblemList([tied])
    return listed_vocabulary(checkpoint, lists[:1] if same else lists)


def restricted(model: bytes, tokens: Sequence[str]) -> bytes:
    """Return a sentencepiece model that uses only these pieces, and single characters.

    This is what `SetVocabulary` of sentencepiece does: other pieces get the type "unused", and a word is segmented into
    the remaining ones.  model: of a valid file, a `ModelProto`.
    """
    kept, out = set(tokens), bytearray()
    for number, content in protobuf_fields(model):
        if number == _PIECE:
            piece = dict(protobuf_fields(content))  # the last value of a field counts
            text, kind = piece.get(_TEXT, b"").decode(), piece.get(_TYPE, _NORMAL)
            wanted = _NORMAL if text in kept or len(text) == 1 else _UNUSED
            if kind not in _FIXED_TYPES and kind != wanted:
                content += bytes([_TYPE << 3, wanted])
        out += protobuf_field(number, content)
    return bytes(out)


_PIECE, _TEXT, _TYPE = 1, 1, 3
"""Fields of protocol buffers: the pieces of a model; the text and the type of a piece."""
_NORMAL, _UNUSED, _FIXED_TYPES = 1, 5, (2, 3, 4)
"""Types of pieces; those of unknown, control and user-defined symbols stay."""


class ListedReference:
    """The sentencepiece models and lists of tokens of a checkpoint, on our ids."""

    def __init__(self, models: Sequence[bytes], lists: Sequence[TokenList], vocabulary: ImportedVocabulary) -> None:
        self.source_ends = lists[0].ends
        self.models = [spm.SentencePieceProcessor(model_proto=model) for model in models]
        self.target, self.tokens = vocabulary.target, lists[1].tokens
        self.ids = []
        """Of each side: token -> our id, UNK for special tokens."""
        for listed, order in zip(lists, (vocabulary.source, vocabulary.target), strict=True):
            ours = {theirs: token for token, theirs in enumerate(order)} | dict.fromkeys(listed.special, UNK)
            self.ids.append({token: ours[theirs] for theirs, token in enumerate(listed.tokens)})

    def encode_source(self, text: str) -> list[int]:
        ids = self._encode(text, 0)
        return [*ids, EOS] if self.source_ends or not ids else ids

    def encode_target(self, text: str) -> list[int]:
        return [*self._encode(text, 1), EOS]

    def _encode(self, text: str, side: int) -> list[int]:
        return [self.ids[side].get(piece, UNK) for piece in self.models[side].encode(text, out_type=str)]

    def decode_target(self, ids: Sequence[int]) -> str:
        kept = [self.tokens[self.target[token]] for token in ids if token not in (PAD, UNK, BOS, EOS)]
        # Ours has no space at an end that begins after an unknown token.
        return str(self.models[1].decode(kept)).strip()
