"""The part of a vocabulary that a corpus needs, as a tokenizer of its own.

Exact: a text whose pieces are all kept has the same tokens as before.  A unigram model keeps the pieces of lowest and
highest score, on which the scores of unknown characters and of added words depend.  A BPE model keeps the pieces that
are merged on the way to a kept one: every merge of the text is still possible, and none is new.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise

from dragoman.data.languages import script_of
from dragoman.errors import DataError
from dragoman.io.reading import protobuf_field, protobuf_fields
from dragoman.tokenizers import EOS, Tokenizer
from dragoman.tokenizers.pieces import SPACE, Pieces
from dragoman.tokenizers.templates import Templates

LEAST_SHARE = 0.001
"""Share of the letters of a corpus from which the single characters of their script are kept."""
_NORMAL, _UNUSED, _BPE = 1, 5, 2
"""Types of pieces, and type of a model, in sentencepiece's ModelProto."""
_SYMBOLS = re.compile(r"<extra_id_\d+>|<2\w+>|>>[\w.-]+<<|<0x[0-9A-F]{2}>")
"""Sentinels of T5, languages of MADLAD-400 and OPUS-MT, bytes."""
_LINES = 1000


@dataclass(frozen=True)
class Kept:
    """A smaller tokenizer.  source, target: for each of its ids that of the original, in ascending order."""

    tokenizer: Tokenizer
    source: list[int]
    target: list[int]

    def coverage(self, original: Tokenizer, side: int, lines: Iterable[str]) -> Coverage:
        """Compare both tokenizers on a text of a side."""
        ids, total = (self.source, self.target)[side], [0] * 5
        known = set(ids)
        for some in windows(lines):
            before, after = (each.pieces[side].encode_batch(some) for each in (original, self.tokenizer))
            for one, other in zip(before, after, strict=True):
                kept, same = sum(token in known for token in one), one == [ids[token] for token in other]
                assert same or kept < len(one), "all pieces of a text are kept, but it has other tokens"
                total = [a + b for a, b in zip(total, (len(one), kept, len(other), 1, same), strict=True)]
        return Coverage(*total)


@dataclass(frozen=True)
class Coverage:
    """tokens, kept, after: tokens before, those of them that are kept, tokens after.  same: lines with the same."""

    tokens: int
    kept: int
    after: int
    lines: int
    same: int

    def __str__(self) -> str:
        tokens, lines = max(1, self.tokens), max(1, self.lines)
        shares = f"{self.kept / tokens:.2%} of {self.tokens:,} tokens kept, {self.same / lines:.2%} of {self.lines:,}"
        return f"{shares} lines as before, {self.after / tokens - 1:+.2%} tokens"


def windows(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while some := list(islice(rest, _LINES)):
        yield some


def keep_pieces(
    tokenizer: Tokenizer, texts: Sequence[Iterable[str]], least: int, scripts: Sequence[str], prefixes: Sequence[str]
) -> Kept:
    """Return the tokenizer of the pieces that texts of source and target need, and of all symbols.

    Kept are the pieces that occur at least `least` times, or in `prefixes`; single characters of the scripts of the
    texts; digits, punctuation, bytes; all pieces of `scripts` ("LATIN"); languages, sentinels and added words.  Raises
    DataError if a text has no tokens.
    """
    source_model, target_model, _, templates_file = tokenizer.models
    sides, lists = tokenizer.pieces, tokenizer.lists
    names, listed, templates = [], [], None
    if templates_file is not None:
        templates = Templates.parse(templates_file, (tokenizer.source_size, tokenizer.target_size))
    for pieces, lines, side in zip(sides, texts, ("source", "target"), strict=True):
        ids = _needed_ids(pieces, lines, side, least, scripts, prefixes) | {*pieces.tags.values()}
        if templates is not None:
            around = (*templates.source, *templates.target, *chain(*(each.values() for each in templates.languages)))
            ids.update(token for token in around if isinstance(token, int))
        names.append(set(map(pieces.piece, ids)))
        listed.append(set(map(pieces.piece, range(pieces.size))))
    models = [SentencePieceModel(model) for model in (source_model, target_model) if model is not None]
    # Texts become unknown tokens by pieces without an id, and must continue to.
    silent = [model.scores.keys() - own for model, own in zip(models, listed, strict=False)]
    size = -1
    while size != (size := sum(map(len, names))):  # a piece of one model may need others of both
        for i, model in enumerate(models):
            names[i] |= model.needed(names[i] | silent[i]) & listed[i]
        names = [names[0] | names[1]] * 2 if tokenizer.shared else names
    kept = [
        [token for token in range(side.size) if token <= EOS or side.piece(token) in own]
        for side, own in zip(sides, names, strict=True)
    ]
    files = [model.file(names[i] | silent[i]) for i, model in enumerate(models)]
    if lists is not None:
        target = None if lists.target is None else [lists.target[token] for token in kept[1]]
        lists = replace(lists, source=[lists.source[token] for token in kept[0]], target=target)
    file = None if templates is None else _renumbered(templates, {old: new for new, old in enumerate(kept[0])}).file()
    new_lists = None if lists is None else lists.file()
    return Kept(Tokenizer(files[0], files[1] if len(files) == 2 else None, new_lists, file), *kept)


def _needed_ids(
    pieces: Pieces, lines: Iterable[str], side: str, least: int, scripts: Sequence[str], prefixes: Sequence[str]
) -> set[int]:
    """Return the ids that a text needs, and those of symbols and characters."""
    counts, letters = Counter[int](), Counter[str]()
    for some in windows(lines):
        counts.update(chain.from_iterable(pieces.encode_batch(some)))
        letters.update(map(script_of, chain.from_iterable(some)))
    if not counts:
        raise DataError(f"nothing is left of the {side} vocabulary, because its text is empty; give a text with {side}")
    del letters[""]
    found = {script for script, count in letters.items() if count >= LEAST_SHARE * letters.total()}
    ids = {token for token, count in counts.items() if count >= least}
    ids.update(chain.from_iterable(pieces.encode_batch(prefixes)))
    for token in range(EOS + 1, pieces.size):
        text = pieces.piece(token).strip(SPACE)
        own = set(map(script_of, text)) - {""}
        if (len(text) <= 1 and own <= found) or _SYMBOLS.fullmatch(text) or (own and own <= {*scripts}):
            ids.add(token)
    return ids


def _renumbered(templates: Templates, new: dict[int, int]) -> Templates:
    """Return the templates with new ids of both sides, which have one vocabulary."""
    sides = [
        tuple(new[entry] if isinstance(entry, int) else entry for entry in side)
        for side in (templates.source, templates.target)
    ]
    source, target = ({code: new[token] for code, token in side.items()} for side in templates.languages)
    control = tuple(new[token] for token in templates.control if token in new)
    return replace(templates, source=sides[0], target=sides[1], languages=(source, target), control=control)


class SentencePieceModel:
    """The pieces of a serialized sentencepiece model with their scores, in the order of their ids."""

    def __init__(self, content: bytes) -> None:
        self._fields = list(protobuf_fields(content))
        self._is_bpe = dict(protobuf_fields(dict(self._fields).get(2, b""))).get(3) == _BPE
        self.scores: dict[str, float] = {}
        self._fixed, normal = set[str](), list[str]()
        for piece in (dict(protobuf_fields(field)) for number, field in self._fields if number == 1):
            text = piece.get(1, b"").decode()
            (self.scores[text],) = struct.unpack("<f", piece.get(2, bytes(4)))
            if piece.get(3, _NORMAL) == _NORMAL:
                normal.append(text)
            elif piece[3] != _UNUSED or self._is_bpe:  # BPE merges unused pieces, and divides them at the end
                self._fixed.add(text)
        if normal and not self._is_bpe:
            self._fixed |= {choose(normal, key=self.scores.__getitem__) for choose in (min, max)}

    def needed(self, names: Iterable[str]) -> set[str]:
        """Return the pieces without which these would not be found, and those on which the scores of others depend."""
        return self._fixed.union(*(self._merged(list(text)) for text in names if self._is_bpe and text in self.scores))

    def _merged(self, parts: list[str]) -> Iterator[str]:
        """Yield the pieces by which BPE builds a piece from its characters."""
        while len(parts) > 1:
            merges = [a + b for a, b in pairwise(parts)]
            best = max(range(len(merges)), key=lambda i: self.scores.get(merges[i], -math.inf))
            if merges[best] not in self.scores:
                return
            parts[best : best + 2] = [merges[best]]
            yield merges[best]

    def file(self, names: set[str]) -> bytes:
        """Return the serialized model with these pieces, in the same order."""
        texts = iter(self.scores)
        kept = (field for field in self._fields if field[0] != 1 or next(texts) in names)
        return b"".join(protobuf_field(number, content) for number, content in kept)
