"""What a search needs of a model: a state to start from, and the next log-probabilities.

Letters: B sentences, K beams, N = B*K rows, S source length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.decoding.backend import Ids
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.nn.state import DecodeState

__all__ = [
    "EnsembleState",
    "EnsembleStepper",
    "ModelStepper",
    "SearchState",
    "ShortlistState",
    "ShortlistStepper",
    "State",
    "Stepper",
    "with_shortlist",
]


class SearchState(Protocol):
    """What is remembered between two steps."""

    def select(self, rows: Tensor) -> None:
        """Keep `rows` (N',) in that order; each group of K rows is of one sentence."""


State = TypeVar("State", bound=SearchState)


class Stepper(Protocol[State]):
    """One model, several, or anything else that says how probable each next token is."""

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> State:
        """src: (B, S) token ids; src_mask: (B, S) True = a word; a state of B * beams rows for max_len tokens."""

    def step(self, tokens: Tensor, state: State) -> Tensor:
        """tokens: (N,), the last ones -> natural log-probabilities (N, V) of the next ones, float32.

        The caller may overwrite them.
        """


class ModelStepper:
    """One model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> DecodeState:
        return self.model.start(self.model.encode(src, src_mask), beams=beams, max_len=max_len)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        logits = self.model.decode(tokens[:, None], state)[:, -1]  # (N, V)
        return torch.log_softmax(logits.float(), dim=-1)


class EnsembleState:
    """One state a model."""

    def __init__(self, states: list[DecodeState]) -> None:
        self.states = states

    def select(self, rows: Tensor) -> None:
        for state in self.states:
            state.select(rows)


class EnsembleStepper:
    """The mean of the probabilities of several models.  Raises UsageError when their vocabularies differ."""

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            raise UsageError("an ensemble of 0 models: name at least 1")
        self.members = [ModelStepper(model) for model in models]

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> EnsembleState:
        return EnsembleState([member.start(src, src_mask, beams, max_len) for member in self.members])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        each = [member.step(tokens, own) for member, own in zip(self.members, state.states, strict=True)]
        sizes = [log_probs.size(1) for log_probs in each]
        if len(set(sizes)) > 1:
            raise UsageError(f"the models of an ensemble have vocabularies of {sizes} tokens: they must share one")
        return torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))


class ShortlistState:
    """The state beneath, and what each of its rows may say: listed (B, V), True = a word of the sentence's list."""

    def __init__(self, inner: SearchState, listed: Tensor, sentences: Tensor) -> None:
        self.inner, self.listed, self.sentences = inner, listed, sentences

    def select(self, rows: Tensor) -> None:
        self.inner.select(rows)
        self.sentences = self.sentences[rows]  # (N,)


class ShortlistStepper:
    """Any stepper, confined to the words of a list a sentence (B of them): probabilities are those among its words."""

    def __init__(self, stepper: Stepper[Any], lists: Sequence[Sequence[int]], vocab: int) -> None:
        self.stepper, self.lists, self.vocab = stepper, lists, vocab

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> ShortlistState:
        listed = torch.zeros(len(self.lists), self.vocab, dtype=torch.bool)
        for row, words in zip(listed, self.lists, strict=True):
            row[torch.tensor(words)] = True
        sentences = torch.arange(len(self.lists), device=src.device).repeat_interleave(beams)
        return ShortlistState(self.stepper.start(src, src_mask, beams, max_len), listed.to(src.device), sentences)

    def step(self, tokens: Tensor, state: ShortlistState) -> Tensor:
        log_probs = self.stepper.step(tokens, state.inner).masked_fill_(~state.listed[state.sentences], float("-inf"))
        return torch.log_softmax(log_probs, dim=-1)


def with_shortlist(
    shortlist: Shortlist | None, stepper: Stepper[Any], sources: Sequence[Ids], prefixes: Sequence[Ids]
) -> Stepper[Any]:
    """The stepper for these sentences: confined to what the shortlist gives each, or itself where there is none."""
    if shortlist is None:
        return stepper
    lists = [shortlist.of(source, prefix) for source, prefix in zip(sources, prefixes, strict=True)]
    return ShortlistStepper(stepper, lists, shortlist.target_size)
