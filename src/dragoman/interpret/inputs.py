"""Inputs of networks that predict labels, and batches whose targets are the network's own predictions."""

from __future__ import annotations

import dataclasses
import re

import torch
from torch import Tensor

from dragoman.config import Config, EncoderOnlyConfig, RecurrentEncoderConfig
from dragoman.data.batching import Batch
from dragoman.data.readers.labelled import tagged_row, text_source
from dragoman.data.turns import encode_turns, turns_of_text
from dragoman.errors import UsageError, nearest
from dragoman.models.seq2seq import Network, evaluating
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer

_ROLE = re.compile(r"\s*(\w{1,20})\s*:(?:\s|$)")
"""The beginning of a turn."""

Ids = tuple[list[int], list[int]]
"""Source and target ids, each with its end of sentence; PAD in the target marks positions without a target."""


def dialogue_ids(tokenizer: Tokenizer, text: str) -> tuple[list[int], str]:
    """Return the ids of the turns in a text with lines `ROLE: text` and of the role that answers; and this role.

    It is the role of a last line without text, otherwise another role than that of the last turn.  Raises UsageError
    for an unknown role.
    """
    roles = list(tokenizer.roles)
    for line in text.split("\n"):
        match = _ROLE.match(line)
        if match and match[1] not in roles:
            raise UsageError(
                f"{match[1]!r}: not a role of this model{nearest(match[1], roles)}; accepted: {', '.join(roles)}"
            )
    turns = turns_of_text(text, roles)
    if turns and not turns[-1].text:
        role = turns.pop().role
    else:
        role = next((name for name in roles if turns and name != turns[-1].role), roles[0])
    ids = [token for turn in encode_turns(tokenizer, turns) for token in turn.inputs]
    return [*ids, tokenizer.roles[role]], role


def label_row(tokenizer: Tokenizer, config: Config, text: str) -> Ids:
    """Return the source ids of a text, and 1 at each output position that predicts a label."""
    if config.data.kind == "tagged":
        words = text.split()
        return tagged_row([tokenizer.encode_word(word) for word in words], [1] * len(words))
    if config.data.kind == "masked":
        ids = tokenizer.masked_source(tokenizer.encode_source(text))
        return ids, [int(token not in (BOS, EOS)) for token in ids]
    assert isinstance(config.model, EncoderOnlyConfig | RecurrentEncoderConfig)
    return text_source(tokenizer.encode_source(text), config.model.pooling), [1]


def with_predictions(network: Network, batch: Batch, first: int = 1) -> Batch:
    """Return the batch with the most probable output, from id `first` on, in place of each target except PAD."""
    moved = batch.to(network.device)
    with evaluating(network), torch.no_grad():
        logits: Tensor = network(moved.src, moved.src_mask, moved.tgt_in)
    predicted = logits[..., first:].argmax(-1).cpu() + first
    return dataclasses.replace(batch, tgt_out=torch.where(batch.tgt_out != PAD, predicted, PAD))
