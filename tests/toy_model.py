"""A model small enough to search by hand: its logits are a fixed pseudo-random function of source and prefix.

Letters: B sentences, K beams, N = B*K rows, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.state import DecodeState
from dragoman.tokenizers import BOS, EOS, PAD


class TokensSoFar:
    """A layer record that holds the sources (B, S) and the tokens of every row (N, T)."""

    def __init__(self, sources: list[list[int]], rows: list[list[int]]) -> None:
        self.sources = sources
        self.rows = rows

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.rows = [list(self.rows[row]) for row in rows.tolist()]
        self.sources = [self.sources[sentence] for sentence in sentences.tolist()]

    def nbytes(self) -> int:
        return 8 * sum(map(len, self.rows))


class ToyModel(Model):
    """Logits of N(0, sharpness) by hash; `calls` counts the decoding steps, `rows_seen` holds the rows of each."""

    def __init__(self, vocab: int, sharpness: float = 1.5, seed: int = 0) -> None:
        super().__init__()
        self.vocab = vocab
        self.sharpness = sharpness
        self.seed = seed
        self.calls = 0
        self.rows_seen: list[int] = []
        self.output = nn.Identity()
        self.unused = nn.Parameter(torch.zeros(1))

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        return Memory(src[..., None].float(), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        mask = torch.ones(memory.states.shape[:2], dtype=torch.bool) if memory.mask is None else memory.mask
        sources = [row[keep].int().tolist() for row, keep in zip(memory.states[..., 0], mask, strict=True)]
        rows: list[list[int]] = [[] for _ in range(len(sources) * beams)]
        return DecodeState([TokensSoFar(sources, rows)], beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        self.calls += 1
        self.rows_seen.append(tokens.size(0))
        record = state.layers[0]
        assert isinstance(record, TokensSoFar)
        logits = torch.zeros(*tokens.shape, self.vocab)  # (N, T, V)
        for row, new in enumerate(tokens.tolist()):
            for place, token in enumerate(new):
                record.rows[row].append(token)
                logits[row, place] = self.logits(record.sources[row // state.beams], record.rows[row])
        state.length += tokens.size(1)
        return logits

    def logits(self, source: list[int], prefix: list[int]) -> Tensor:
        """(V,) what follows `prefix` (with begin of sentence)."""
        name = repr((self.seed, source, prefix)).encode()
        seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        return torch.from_numpy(np.random.default_rng(seed).normal(0, self.sharpness, self.vocab)).float()


def every_target(vocab: int, limit: int) -> Iterator[list[int]]:
    """All targets of at most `limit` tokens with the end of sentence, which is left out."""
    words = [token for token in range(vocab) if token not in (PAD, BOS, EOS)]
    for length in range(limit):
        yield from (list(words) for words in product(words, repeat=length))


def padded(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    """src (B, S) and src_mask (B, S) of lists of different lengths."""
    width = max(map(len, sources))
    src = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources])
    return src, src != PAD


class CopyState:
    """A layer record that holds the sources (B, S)."""

    def __init__(self, sources: Tensor) -> None:
        self.sources = sources

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.sources = self.sources[sentences]

    def nbytes(self) -> int:
        return self.sources.nbytes


class CopyModel(Model):
    """Says what it hears: nearly all probability is on the source token of the same position.

    `encoded`: the shapes of all batches.  says: the token that it says for ever instead, whatever it hears.
    """

    def __init__(self, vocab: int, says: int | None = None) -> None:
        super().__init__()
        self.vocab = vocab
        self.says = says
        self.encoded: list[tuple[int, ...]] = []
        self.output = nn.Identity()
        self.unused = nn.Parameter(torch.zeros(1))

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        self.encoded.append(tuple(src.shape))
        return Memory(src[..., None].float(), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        return DecodeState([CopyState(memory.states[..., 0].long())], beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        record = state.layers[0]
        assert isinstance(record, CopyState)
        ahead = state.length + torch.arange(tokens.size(1))
        wanted = record.sources[:, ahead.clamp(max=record.sources.size(1) - 1)]  # (B, T)
        wanted = wanted.repeat_interleave(state.beams, dim=0)
        if self.says is not None:
            wanted = torch.full_like(wanted, self.says)
        state.length += tokens.size(1)
        return 20.0 * nn.functional.one_hot(wanted, self.vocab).float()


def teacher_forced(model: Model, source: list[int], target: list[int]) -> list[float]:
    """The log-probabilities of `target` (with end of sentence) from one forward pass of any model."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), None, torch.tensor([[BOS, *target[:-1]]]))[0]
    return torch.log_softmax(logits, -1)[torch.arange(len(target)), torch.tensor(target)].tolist()


class NeverEnds(ToyModel):
    """A model that hardly ever predicts the end of sentence."""

    def logits(self, source: list[int], prefix: list[int]) -> Tensor:
        logits = super().logits(source, prefix)
        logits[EOS] = -40
        return logits
