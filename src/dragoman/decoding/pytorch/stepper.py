"""The interface between a search and a model: a validated batch, and a model that gives log-probabilities of tokens.

Letters: B sentences, K beams, N = B*K rows, S source length, T tokens so far, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.decoding.search_types import Ids, SearchSettings
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import DragomanError, UsageError
from dragoman.models.seq2seq import LanguageModel, Model
from dragoman.nn.state import DecodeState
from dragoman.tokenizers import BOS, EOS, PAD


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
    """A PyTorch model.  The sources of a language model are prompts of equal length, read before the first step."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> DecodeState:
        if not src.size(1) or not isinstance(self.model, LanguageModel):
            return self.model.start(self.model.encode(src, src_mask), beams=beams, max_len=max_len)
        if src_mask is not None:
            raise UsageError("prompts of different lengths in a batch; give prompts of one length")
        memory = self.model.encode(src[:, :0], None)
        state = self.model.start(memory, beams=beams, max_len=max_len + src.size(1))
        prompts = src.repeat_interleave(beams, dim=0)  # (N, S)
        self.model.decode_hidden(torch.cat([torch.full_like(prompts[:, :1], BOS), prompts[:, :-1]], dim=1), state)
        state.first = prompts[:, -1]
        return state

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        if state.first is not None:
            tokens, state.first = state.first, None
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


def nan_error(where: str) -> DragomanError:
    """Return the error for a model whose output is NaN."""
    return DragomanError(
        f"the model's probabilities at {where} are not numbers (NaN): its weights are damaged or the training "
        "diverged; load an earlier checkpoint"
    )


def check_prefixes(prefixes: Sequence[Ids]) -> None:
    """Raise UsageError if a forced prefix contains padding, begin or end of sentence."""
    for index, prefix in enumerate(prefixes, start=1):
        if not {PAD, BOS, EOS}.isdisjoint(prefix):
            raise UsageError(f"forced prefix of sentence {index}: {list(prefix)} contains special ids; omit them")


@dataclass(frozen=True)
class SearchRequest:
    """src: (B, S) ids.  src_mask: (B, S) True = token.  limits: B maximum target lengths, end of sentence included.

    prefixes: B lists of ids that the targets must start with.
    """

    src: Tensor
    src_mask: Tensor | None
    settings: SearchSettings
    limits: list[int]
    prefixes: Sequence[Ids]

    @classmethod
    def build(
        cls, src: Tensor, src_mask: Tensor | None, settings: SearchSettings, prefixes: Sequence[Ids] | None
    ) -> SearchRequest:
        """Compute the limits.  Raises UsageError for an invalid prefix, or unless there is one per sentence."""
        count = src.size(0)
        prefixes = [[]] * count if prefixes is None else prefixes
        if len(prefixes) != count:
            raise UsageError(
                f"{len(prefixes)} forced prefixes for {count} sentences; give one per sentence, [] for none"
            )
        check_prefixes(prefixes)
        lengths = [src.size(1)] * count if src_mask is None else src_mask.sum(1).tolist()
        limits = [settings.limit(length, len(prefix)) for length, prefix in zip(lengths, prefixes, strict=True)]
        return cls(src, src_mask, settings, limits, prefixes)

    def restricted(self, log_probs: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Set log_probs (N, V) to -inf in place for tokens that may not follow tokens (N, T), without renormalizing.

        A score therefore equals the score of teacher forcing.  sentences: (N,) index of each row's sentence.  Raises
        DragomanError for NaN.
        """
        if bool(log_probs[:, 0].isnan().any()):  # the softmax of a row is NaN everywhere or nowhere
            raise nan_error(f"target position {tokens.size(1) + 1}")
        possible = log_probs > float("-inf")  # excludes tokens outside of a shortlist
        return log_probs.masked_fill_(~self.allowed(possible, tokens, sentences), float("-inf"))

    def allowed(self, possible: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Set tokens of possible (N, V) that may not follow to False, in place; a row without any allows the end."""
        length, settings = tokens.size(1), self.settings
        possible[:, [PAD, BOS]] = False
        if length < settings.min_length:
            possible[:, EOS] = False
        if settings.no_repeat_ngram:
            disallow_repeated_ngrams(possible, tokens, settings.no_repeat_ngram)
        if length < max(map(len, self.prefixes), default=0):
            for row, sentence in enumerate(sentences.tolist()):
                if length < len(self.prefixes[sentence]):
                    possible[row] = False
                    possible[row, self.prefixes[sentence][length]] = True
        without_end = (~possible[:, EOS]).nonzero()[:, 0]
        possible[without_end, EOS] = ~possible[without_end].any(dim=1)
        return possible


def disallow_repeated_ngrams(allowed: Tensor, tokens: Tensor, n: int) -> None:
    """Set tokens of allowed (N, V) that would repeat an n-gram of tokens (N, T) to False (Paulus et al. 2017, 2.5)."""
    if tokens.size(1) < n:
        return
    ngrams = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
    context = tokens[:, tokens.size(1) - (n - 1) :]  # (N, n - 1)
    rows, starts = (ngrams[..., : n - 1] == context[:, None]).all(-1).nonzero(as_tuple=True)
    allowed[rows, ngrams[rows, starts, n - 1]] = False
