"""The interface between a model and everything that uses one.

The trainer needs a `Network`, decoding needs a `Model`; neither depends on the architecture.

Shapes: B sentences, K beams, N = B*K rows, S source length, T target length, D d_model, V vocabulary.
Masks are boolean, True = may attend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.errors import UsageError
from dragoman.nn.layers import Embedding
from dragoman.nn.state import DecodeState

Pooling = Literal["none", "first", "last", "mean"]
"""How the states of a sentence become one vector; see `EncoderOnly.pool`."""

Head = Callable[[Tensor, nn.Module], Any]
"""A function of the last hidden states and the output layer: `head(hidden (B, T, D), output)`."""


@dataclass(frozen=True)
class Memory:
    """The output of the encoder.  states: (B, S, D).  mask: (B, S), True = a token, or None if no row is padded."""

    states: Tensor
    mask: Tensor | None


class Network(nn.Module, ABC):
    """A module that computes hidden states, with an output layer that maps them to logits."""

    architecture: ClassVar[str] = "custom"
    """The value of `model.architecture` in configurations, for messages."""
    config: ModelConfig | None = None
    """What the network was built from; None if it was not built by `models.build`."""
    output: nn.Module
    """Hidden states (..., D) -> logits (..., V)."""

    @abstractmethod
    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """Return the hidden states (B, T, D) that predict the T targets of each row.

        src: (B, S) token ids, or patches (B, S, values), padded on the right.  src_mask: (B, S), True = a token, or
        None without padding.  tgt_in: (B, T), the decoder's input; networks without a decoder ignore it.
        """

    def forward(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor, head: Head | None = None) -> Any:
        """Return the logits (B, T, V), or the result of `head`.

        A head receives hidden states and not logits, so that a loss need not store all logits at once.
        """
        hidden = self.hidden(src, src_mask, tgt_in)
        return self.output(hidden) if head is None else head(hidden, self.output)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def parameter_count(self) -> int:
        """Return the number of parameters, with shared ones counted once."""
        return sum(p.numel() for p in self.parameters())


class Model(Network, ABC):
    """A network that generates a target token by token: `encode`, `start`, `decode`."""

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        """Encode src (B, S), padded on the right; src_mask (B, S), True = a token, or None without padding."""

    @abstractmethod
    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        """Return a state of N = B * beams rows, those of one sentence adjacent, for up to max_len target tokens.

        With `max_len = 0`, a single `decode` call takes the whole target and no cache is kept (training, scoring).
        """

    @abstractmethod
    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Return the hidden states (N, T, D) of tokens (N, T), and advance the state by T."""

    def decode(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Return the logits (N, T, V) of the token after each of tokens (N, T), and advance the state by T."""
        logits: Tensor = self.output(self.decode_hidden(tokens, state))
        return logits

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """Teacher forcing: tgt_in (B, T) starts with BOS, and the hidden state at t predicts the token after it."""
        return self.decode_hidden(tgt_in, self.start(self.encode(src, src_mask), beams=1, max_len=0))


class LanguageModel(Model):
    """A model without an encoder.

    A prompt is the beginning of the target, `decoding.generate(..., prefix=[ids])`, or the source of a search, which
    then neither scores nor returns it.
    """

    embedding: Embedding

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        """Return an empty memory (B, 0, D) for an empty source (B, 0).

        Raises UsageError if the source is not empty.
        """
        if src.size(1):
            raise UsageError(
                f"a source of {src.size(1)} tokens for a model without encoder; pass src of shape ({src.size(0)}, 0) "
                "and the prompt as the prefix of the target"
            )
        return Memory(self.embedding.weight.new_zeros(src.size(0), 0, self.embedding.weight.size(1)), None)


class EncoderDecoder(Model):
    """A model of an encoder, a decoder and an output layer.

    encoder(src, src_mask) returns the states of the memory; decoder.start(memory, beams, max_len) returns a state and
    decoder(tokens, state) hidden states.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, output: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        return Memory(self.encoder(src, src_mask), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        state: DecodeState = self.decoder.start(memory, beams, max_len)  # type: ignore[operator]
        return state

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        hidden: Tensor = self.decoder(tokens, state)
        return hidden


class EncoderOnly(Network):
    """An encoder with an output layer: labels for words, masked words, or a class for a text (Devlin et al. 2019).

    encoder(src, src_mask) returns states (B, S, D).  output: (..., D) -> logits (..., labels).  head:
    applied to the pooled states, `nn.Identity` for none.
    """

    architecture = "encoder_only"

    def __init__(self, encoder: nn.Module, head: nn.Module, output: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.output = output
        self.pooling = pooling

    def pool(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Pool x (B, S, D), mask (B, S) True = a token, to (B, 1, D); the pooling "none" returns x.

        "first" selects the first position, where the data puts a class token; "mean" averages the tokens without
        padding; "last" is for recurrent encoders, see `RecurrentEncoderOnly`.
        """
        if self.pooling == "none":
            return x
        if self.pooling == "first":
            return x[:, :1]
        if mask is None:
            return x.mean(dim=1, keepdim=True)
        tokens = mask[..., None]  # (B, S, 1)
        return x.masked_fill(~tokens, 0).sum(dim=1, keepdim=True) / tokens.sum(dim=1, keepdim=True)

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """Return (B, S, D), or with pooling (B, 1, D), for src (B, S) and src_mask (B, S) or None; ignores tgt_in."""
        out: Tensor = self.head(self.pool(self.encoder(src, src_mask), src_mask))
        return out


@contextmanager
def evaluating(module: nn.Module) -> Generator[None, None, None]:
    """Put `module` into evaluation mode (no dropout) and restore its mode afterwards; gradients are unaffected."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
