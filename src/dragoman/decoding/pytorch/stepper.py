"""The interface between a search and a model: an initial state, and log-probabilities of the next token.

Letters: B sentences, K beams, N = B*K rows, S source length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Ids
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.nn.state import DecodeState

__all__ = ["EnsembleStepper", "ModelStepper", "SearchState", "ShortlistStepper", "State", "Stepper", "with_shortlist"]


class SearchState(Protocol):
    """The decoder state of N rows."""

    def select(self, rows: Tensor) -> None:
        """Keep `rows` (N',) in that order; each group of K rows belongs to one sentence."""


State = TypeVar("State", bound=SearchState)


class Stepper(Protocol[State]):
    """A source of next-token log-probabilities: a model, an ensemble, or a wrapper of another stepper."""

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> State:
        """Return a state of B * beams rows for max_len tokens; src: (B, S) ids, src_mask: (B, S) True = token."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """Return the natural log-probabilities (N, V) of the next tokens in float32, given the last tokens (N,).

        The caller may overwrite the result.
        """


class ModelStepper:
    """A PyTorch model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> DecodeState:
        return self.model.start(self.model.encode(src, src_mask), beams=beams, max_len=max_len)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        logits = self.model.decode(tokens[:, None], state)[:, -1]  # (N, V)
        return torch.log_softmax(logits.float(), dim=-1)


class EnsembleState:
    """One state per member."""

    def __init__(self, states: list[SearchState]) -> None:
        self.states = states

    def select(self, rows: Tensor) -> None:
        for state in self.states:
            state.select(rows)


class EnsembleStepper:
    """The mean of the probabilities of several steppers.  Raises UsageError if their vocabulary sizes differ."""

    def __init__(self, members: Sequence[Stepper[Any]]) -> None:
        if not members:
            raise UsageError("an ensemble of 0 models: specify at least 1")
        self.members = members

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> EnsembleState:
        return EnsembleState([member.start(src, src_mask, beams, max_len) for member in self.members])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        log_probs = [member.step(tokens, own) for member, own in zip(self.members, state.states, strict=True)]
        sizes = [row.size(1) for row in log_probs]
        if len(set(sizes)) > 1:
            raise UsageError(f"an ensemble with vocabularies of {sizes} tokens; use models with the same tokenizer")
        return torch.logsumexp(torch.stack(log_probs), dim=0) - math.log(len(log_probs))


class ShortlistState:
    """The inner state, the shortlists as a mask (B, V), True = listed, and the sentence of each row (N,)."""

    def __init__(self, inner: SearchState, listed: Tensor, sentences: Tensor) -> None:
        self.inner, self.listed, self.sentences = inner, listed, sentences

    def select(self, rows: Tensor) -> None:
        self.inner.select(rows)
        self.sentences = self.sentences[rows]  # (N,)


class ShortlistStepper:
    """A stepper restricted to a list of tokens per sentence; probabilities are normalized over the list."""

    def __init__(self, stepper: Stepper[Any], lists: Sequence[Sequence[int]], vocab: int) -> None:
        self.stepper, self.lists, self.vocab = stepper, lists, vocab

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> ShortlistState:
        listed = torch.zeros(len(self.lists), self.vocab, dtype=torch.bool)
        for row, tokens in zip(listed, self.lists, strict=True):
            row[torch.tensor(tokens)] = True
        sentences = torch.arange(len(self.lists), device=src.device).repeat_interleave(beams)
        return ShortlistState(self.stepper.start(src, src_mask, beams, max_len), listed.to(src.device), sentences)

    def step(self, tokens: Tensor, state: ShortlistState) -> Tensor:
        log_probs = self.stepper.step(tokens, state.inner).masked_fill_(~state.listed[state.sentences], float("-inf"))
        return torch.log_softmax(log_probs, dim=-1)


def with_shortlist(
    shortlist: Shortlist | None, stepper: Stepper[Any], sources: Sequence[Ids], prefixes: Sequence[Ids]
) -> Stepper[Any]:
    """Restrict a stepper to the shortlists of these sentences; None = return it unchanged."""
    if shortlist is None:
        return stepper
    lists = [shortlist.of(source, prefix) for source, prefix in zip(sources, prefixes, strict=True)]
    return ShortlistStepper(stepper, lists, shortlist.target_size)
