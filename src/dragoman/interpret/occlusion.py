"""What each source token is worth to each target token: leave it out, and see how much less probable the target is.

    drop(t, s) = log p(y_t | y_<t, x) - log p(y_t | y_<t, x without x_s)

It asks the model itself, whatever its architecture, and so it can say which attention head looks at what matters.

Letters: S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models.seq2seq import Network

__all__ = ["drops", "shares"]

_LOGITS_AT_ONCE = 1 << 24


def drops(network: Network, src: Tensor, tgt_in: Tensor, targets: Tensor) -> Tensor:
    """src (1, S), S >= 2, tgt_in (1, T), targets (T,) -> (T, S) in nats; below 0 where a token was in the way."""
    s = src.size(1)
    kept = torch.arange(s - 1, device=src.device).expand(s, s - 1)
    kept = kept + (kept >= torch.arange(s, device=src.device)[:, None])  # row i: all places but i
    without = src[0, kept]  # (S, S - 1)
    with torch.no_grad():
        width = network(src, None, tgt_in[:, :1]).size(-1)
    size = max(1, _LOGITS_AT_ONCE // (targets.numel() * width))
    each = [_log_probs(network, rows, tgt_in, targets) for rows in without.split(size)]
    return (_log_probs(network, src, tgt_in, targets) - torch.cat(each)).T


def _log_probs(network: Network, src: Tensor, tgt_in: Tensor, targets: Tensor) -> Tensor:
    """(B, T) natural log-probabilities of the same targets for every source."""
    with torch.no_grad():
        logits = network(src, None, tgt_in.expand(src.size(0), -1))
        words = targets[None, :, None].expand(src.size(0), -1, 1)
        found: Tensor = torch.log_softmax(logits.float(), dim=-1).gather(2, words)[..., 0]
    return found


def shares(drop: Tensor) -> Tensor:
    """(T, S) from 0 to 1: of all that leaving single tokens out costs a target, the part of each; a row sums to 1, or
    to 0 where nothing costs anything."""
    costs = drop.clamp(min=0)
    return costs / costs.sum(1, keepdim=True).clamp(min=torch.finfo(costs.dtype).tiny)
