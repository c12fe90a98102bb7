"""Shortlists: the target words that a sentence may use, most of which never follow its source words anyway.

    of(source) = the most frequent words, and for each source word those it was aligned with most often

(Jean et al. 2015, Junczys-Dowmunt et al. 2018.)  Only their logits are made, and probabilities are those among them.

The file: a header (`_HEADER`), the frequent ids, where each source id's list begins, the lists; numbers of four bytes,
little-endian; last the sha256 of it all.  Reading needs neither numpy nor torch.

Letters: S source length, T target length.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.data.ids import EOS, UNK
from dragoman.errors import ModelFolderError, UsageError
from dragoman.io.reading import read_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SHORTLIST", "AlignedWords", "Shortlist"]

SHORTLIST = "shortlist.bin"
"""Its name in a model folder."""

_MAGIC, _VERSION = b"DRAGLIST", 1
_HEADER = struct.Struct("<8s6i32s")
"""Magic, version, `best`, target words, source words, frequent ids, ids of all lists, sha256 of the weights."""
_DIGEST = 32
_LARGEST = 1 << 30
"""Largest file that is read, in bytes; 64,000 source words with 100 words each take 26 MB."""


@dataclass(frozen=True)
class Shortlist:
    """Target words by source word.

    best: the longest list of a source word.  target_size: words of the target's vocabulary.  weights: sha256 of the
    model's weights that aligned the words.  frequent: ids for every sentence, the end among them.  starts, ids: the
    list of source id i is ids[starts[i] : starts[i + 1]].
    """

    best: int
    target_size: int
    weights: str
    frequent: array[int]
    starts: array[int]
    ids: array[int]
    _lists: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, source: Sequence[int], prefix: Sequence[int] = ()) -> list[int]:
        """The target ids of a sentence in ascending order: of its source ids, and of how its target must begin."""
        return sorted(set(self.frequent).union(*map(self._list, set(source)), prefix))

    def _list(self, word: int) -> tuple[int, ...]:
        found = self._lists.get(word)
        if found is None:  # kept, because a text has few different words
            found = self._lists[word] = tuple(self.ids[self.starts[word] : self.starts[word + 1]])
        return found

    @property
    def description(self) -> str:
        """For a person."""
        return f"shortlist ({self.best} a word and {len(self.frequent)})"

    # ------------------------------------------------------------------------------------------------------------ file

    def to_bytes(self) -> bytes:
        """The content of its file."""
        counts = len(self.starts) - 1, len(self.frequent), len(self.ids)
        head = _HEADER.pack(_MAGIC, _VERSION, self.best, self.target_size, *counts, bytes.fromhex(self.weights))
        body = head + b"".join(map(_little, (self.frequent, self.starts, self.ids)))
        return body + hashlib.sha256(body).digest()

    @property
    def sha256(self) -> str:
        """Of its file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def read(cls, path: Path, weights: str) -> Shortlist:
        """The shortlist of a model whose weights have the sha256 `weights`.

        Raises UsageError where there is none, ModelFolderError where it is damaged or stale.
        """
        again = f"learn it again: dragoman shortlist {path.parent}"
        if not os.path.lexists(path):
            raise UsageError(f"{path.parent}: no shortlist ({path.name}); learn one: dragoman shortlist {path.parent}")
        content = read_bytes(path, ModelFolderError, f"Please {again}", _LARGEST)
        if not content.startswith(_MAGIC):
            raise ModelFolderError(f"{path}: not a shortlist, it begins with {content[:8]!r}; {again}")
        body, digest = content[:-_DIGEST], content[-_DIGEST:]
        if len(body) < _HEADER.size or hashlib.sha256(body).digest() != digest:
            raise ModelFolderError(
                f"{path}: cut or altered ({len(content):,} bytes, whose sha256 is not the one at their end); {again}"
            )
        _, version, best, target_size, sources, frequent, listed, learned_from = _HEADER.unpack_from(body)
        if version != _VERSION:
            raise ModelFolderError(f"{path}: format version {version}, and {_VERSION} is read here; {again}")
        if learned_from.hex() != weights:
            raise ModelFolderError(f"{path}: learned from other weights than the model has now; {again}")
        numbers = _from_little(body[_HEADER.size :])
        sizes = frequent, sources + 1, listed
        places = list(itertools.accumulate(sizes, initial=0))
        if places[-1] != len(numbers):
            raise ModelFolderError(f"{path}: {len(numbers):,} numbers where {places[-1]:,} are announced; {again}")
        parts = [numbers[begin:end] for begin, end in itertools.pairwise(places)]
        return cls(best, target_size, weights, *parts)


class AlignedWords:
    """How often each target word was aligned with each source word: what a shortlist is made of."""

    def __init__(self, source_size: int, target_size: int) -> None:
        self.source_size, self.target_size = source_size, target_size
        self.pairs: Counter[int] = Counter()  # source id * target_size + target id
        self.targets: Counter[int] = Counter()

    def add(self, source: Sequence[int], target: Sequence[int], weights: NDArray[np.float32]) -> None:
        """Count a pair; weights (T, S): how much each target word looked at each source word (`DecodingBackend.align`).

        Each target word counts with the source word that it looked at most; the end, which is on every list, does not.
        """
        words = target[:-1]
        looked = weights[: len(words)].argmax(1).tolist()
        self.pairs.update(source[place] * self.target_size + word for place, word in zip(looked, words, strict=True))
        self.targets.update(words)

    def shortlist(self, best: int, frequent: int, weights: str) -> Shortlist:
        """The `best` words of each source word and the `frequent` of all; of equal counts the lower id comes first.

        weights: the sha256 of the model's.
        """
        starts, ids = array("i", [0]), array("i")
        order = sorted(self.pairs.items(), key=lambda item: (item[0] // self.target_size, -item[1], item[0]))
        lists = {
            source: [code % self.target_size for code, _ in itertools.islice(group, best)]
            for source, group in itertools.groupby(order, lambda item: item[0] // self.target_size)
        }
        for source in range(self.source_size):
            ids.extend(sorted(lists.get(source, ())))
            starts.append(len(ids))
        top = sorted(self.targets, key=lambda word: (-self.targets[word], word))[:frequent]
        return Shortlist(best, self.target_size, weights, array("i", sorted({UNK, EOS, *top})), starts, ids)


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _from_little(content: bytes) -> array[int]:
    numbers = array("i")
    numbers.frombytes(content[: len(content) // numbers.itemsize * numbers.itemsize])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
