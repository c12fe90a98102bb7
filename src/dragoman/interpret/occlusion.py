"""Occlusion: how much less probable each target token becomes when one source token is removed.

    drop(t, s) = log p(y_t | y_<t, x) - log p(y_t | y_<t, x without x_s)

It requires no attention and applies to every architecture, so that attention weights can be compared with it.

Letters: S source length, T target length, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models.seq2seq import Network

_MAX_LOGITS = 1 << 24


def occlusion_drops(network: Network, src: Tensor, tgt_in: Tensor, targets: Tensor) -> Tensor:
    """Return drops (T, S) in nats, for src (1, S) with S >= 2, tgt_in (1, T) and targets (T,).

    A negative drop means that the token becomes more probable without the source token.
    """
    s = src.size(1)
    kept = torch.arange(s - 1, device=src.device).expand(s, s - 1)
    kept = kept + (kept >= torch.arange(s, device=src.device)[:, None])  # row i: all indices except i
    with torch.no_grad():
        vocabulary = network(src, None, tgt_in[:, :1]).size(-1)
    rows = max(1, _MAX_LOGITS // (targets.numel() * vocabulary))
    occluded = [_log_probs(network, part, tgt_in, targets) for part in src[0, kept].split(rows)]
    return (_log_probs(network, src, tgt_in, targets) - torch.cat(occluded)).T


def _log_probs(network: Network, src: Tensor, tgt_in: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities (B, T) of the same targets given each source."""
    with torch.no_grad():
        logits = network(src, None, tgt_in.expand(src.size(0), -1))
        indices = targets[None, :, None].expand(src.size(0), -1, 1)
        found: Tensor = torch.log_softmax(logits.float(), dim=-1).gather(2, indices)[..., 0]
    return found


def normalized_drops(drops: Tensor) -> Tensor:
    """Return each row's positive drops divided by their sum, (T, S); a row without positive drops is 0."""
    costs = drops.clamp(min=0)
    return costs / costs.sum(1, keepdim=True).clamp(min=torch.finfo(costs.dtype).tiny)
