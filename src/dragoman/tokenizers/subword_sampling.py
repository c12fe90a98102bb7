"""Random segmentation of text into subwords, determined by a seed (subword regularization).

BPE: BPE-dropout (Provilkov et al. 2020).  Unigram: sampling from an n-best list (Kudo 2018).  sentencepiece's own
sampling differs between processes even with a fixed seed, so that a resumed run would train on other tokens.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from itertools import pairwise

import sentencepiece as spm

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece
_NBEST = 32
ADDED_SCORE = 1.0
"""Score of the pieces of `tokenizers.added_words`, which are never divided; scores of learned pieces are at most 0."""


class SubwordSampler:
    """Sampler of segmentations into the pieces of one sentencepiece model."""

    def __init__(self, model: spm.SentencePieceProcessor) -> None:
        self._model = model
        self._unk = int(model.unk_id())
        ids = range(model.get_piece_size())
        regular = [i for i in ids if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
        self._ids = {str(model.id_to_piece(i)): i for i in regular}
        self._scores = {str(model.id_to_piece(i)): float(model.get_score(i)) for i in regular}
        added = [piece for piece, score in self._scores.items() if score == ADDED_SCORE]
        self._added = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))))
        # The score of a BPE piece is its rank, that of a unigram piece a log-probability.
        self._is_bpe = all(score.is_integer() for score in self._scores.values())
        self._bytes = [int(model.piece_to_id(f"<0x{b:02X}>")) for b in range(256)]
        self._byte_fallback = any(model.is_byte(i) for i in ids)

    def draw(self, text: str, rate: float, rng: random.Random) -> list[int]:
        """Return token ids without EOS.

        rate: probability of skipping a merge (BPE), or exponent of the probabilities (unigram).
        """
        if not self._is_bpe:
            return self._from_nbest(text, rate, rng)
        normal = str(self._model.normalize(text)).replace(" ", _SPACE)
        pieces: list[str] = []
        for part in self._parts(normal):
            if self._scores.get(part) == ADDED_SCORE:
                pieces.append(part)
                continue
            words = part.replace(_SPACE, f"\0{_SPACE}").split("\0")
            pieces += [piece for word in words for piece in self._merged(list(word), rate, rng.random)]
        return self._to_ids(pieces)

    def _parts(self, text: str) -> list[str]:
        """Divide a text at added pieces, which are parts by themselves."""
        if not self._added.pattern:
            return [text]
        parts, end = [], 0
        for match in self._added.finditer(text):
            parts += [text[end : match.start()], match.group()]
            end = match.end()
        return [*parts, text[end:]]

    def _merged(self, pieces: list[str], rate: float, draw: Callable[[], float]) -> list[str]:
        """Merge the best pair that is not skipped, until there is none."""
        scores = self._scores
        while len(pieces) > 1:
            best, index = -math.inf, -1
            for i, (left, right) in enumerate(pairwise(pieces)):
                score = scores.get(left + right)
                if score is not None and score > best and (rate == 0 or draw() >= rate):
                    best, index = score, i
            if index < 0:
                break
            pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]
        return pieces

    def _to_ids(self, pieces: list[str]) -> list[int]:
        """Return the ids of pieces: an unknown character as its bytes, or a run of them as one UNK."""
        out: list[int] = []
        for piece in pieces:
            known = self._ids.get(piece)
            if known is not None:
                out.append(known)
            elif self._byte_fallback:
                out += [self._bytes[b] for b in piece.encode()]
            elif not out or out[-1] != self._unk:
                out.append(self._unk)
        return out

    def _from_nbest(self, text: str, power: float, rng: random.Random) -> list[int]:
        segmentations = self._model.nbest_encode(text, nbest_size=_NBEST, out_type=int)
        if self._added.pattern:
            segmentations = [
                ids for ids in segmentations if self._count_added(ids) == self._count_added(segmentations[0])
            ]
        scores = [power * sum(float(self._model.get_score(i)) for i in ids) for ids in segmentations]
        weights = [math.exp(score - max(scores)) for score in scores]
        return [int(i) for i in rng.choices(segmentations, weights)[0]]

    def _count_added(self, ids: list[int]) -> int:
        return sum(float(self._model.get_score(i)) == ADDED_SCORE for i in ids)
