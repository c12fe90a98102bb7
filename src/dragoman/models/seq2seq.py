"""The seam between a model and everything that uses one.

The trainer talks to a `Network`, search and everything behind it to a `Model`; neither asks which architecture it is.

Letters: B sentences, K beams, N = B*K rows, S source length, T target length, D d_model, V vocabulary.
Masks are boolean, True = may attend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.nn.state import DecodeState

__all__ = ["Head", "Memory", "Model", "Network"]

Head = Callable[[Tensor, nn.Module], Any]
"""What is done with the decoder's last hidden states: `head(hidden (B, T, D), output_layer)`."""


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves for the decoder.

    states: (B, S, D).  mask: (B, S) boolean, True where there is a word, or None when no row is padded.
    """

    states: Tensor
    mask: Tensor | None


class Network(nn.Module, ABC):
    """Whatever is trained here: hidden states, and an output layer that makes logits of them."""

    output: nn.Module
    """The layer from hidden states (..., D) to logits (..., V)."""

    @abstractmethod
    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """The hidden states (B, T, D) from which the T targets of every row are told.

        src: (B, S) token ids (or patches (B, S, numbers)), padded on the right; src_mask: (B, S) True = a word, None =
        nothing is padded.  tgt_in: (B, T), what the target positions are told of the target; not every network looks.
        """

    def forward(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor, head: Head | None = None) -> Any:
        """Logits (B, T, V), or what `head` makes of the hidden states.

        A head sees the hidden states before the output layer, so that a loss need never hold all logits at once.
        It goes through `forward` because that is the call that gets wrapped for several processes.
        """
        hidden = self.hidden(src, src_mask, tgt_in)
        return self.output(hidden) if head is None else head(hidden, self.output)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        """Numbers in the model, shared ones counted once."""
        return sum(p.numel() for p in self.parameters())


class Model(Network, ABC):
    """A network that writes a target token by token: `encode`, `start`, `decode`; `hidden` is the three in a row."""

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        """src: (B, S) token ids, padded on the right; src_mask: (B, S) True = a word, None = nothing is padded."""

    @abstractmethod
    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        """A state of N = B * beams rows (rows of one sentence next to each other) that can hold max_len target tokens.

        `max_len = 0` says that one `decode` call takes the whole target and nothing follows: no cache is kept
        (training, scoring).
        """

    @abstractmethod
    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """tokens (N, T) -> hidden states (N, T, D), the input of `output`; moves the state on by T."""

    def decode(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """tokens (N, T) -> logits (N, T, V), the position after each token; moves the state on by T."""
        logits: Tensor = self.output(self.decode_hidden(tokens, state))
        return logits

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: tgt_in (B, T) begins with BOS; the hidden state at t tells the token after it."""
        return self.decode_hidden(tgt_in, self.start(self.encode(src, src_mask), beams=1, max_len=0))
