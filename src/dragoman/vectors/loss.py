"""What word2vec minimises and what it draws from, written out (Mikolov et al. 2013a, b).

The training itself is a library's (`train_vectors`); this is the same mathematics in plain torch, to be read and tried.
Every word has two vectors: v when it stands in the middle (these are kept) and u when it stands in a window.

Letters: B pairs or places in the text, K negatives, W words of a window, D size of a vector, V vocabulary; s(x) is the
logistic function 1 / (1 + exp(-x)).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["cbow_loss", "keep_probability", "noise_probability", "skip_gram_loss"]


def skip_gram_loss(centre: Tensor, context: Tensor, negatives: Tensor) -> Tensor:
    """Mean over pairs of -log s(u . v) - sum_k log s(-u_k . v) (2013b, equation 4): the middle tells its window.

    centre (B, D): v of the middle.  context (B, D): u of a word of its window.  negatives (B, K, D): u_k of drawn ones.
    The gradient has one factor a word, how wrong it was: (s(u . v) - 1) u + sum_k s(u_k . v) u_k for v.
    """
    true = (context * centre).sum(-1)  # (B,)
    drawn = (negatives @ centre[..., None]).squeeze(-1)  # (B, K)
    return -(F.logsigmoid(true) + F.logsigmoid(-drawn).sum(-1)).mean()


def cbow_loss(window: Tensor, mask: Tensor, target: Tensor, negatives: Tensor) -> Tensor:
    """The same with the mean of the window in the middle's place (2013a, section 3.1): the window tells its middle.

    window (B, W, D): vectors of the words around.  mask (B, W): True = a word, at least one a row.  target (B, D): u of
    the middle.  negatives (B, K, D): u_k of drawn words.
    """
    there = mask[..., None].to(window.dtype)
    mean = (window * there).sum(1) / there.sum(1)  # (B, D)
    return skip_gram_loss(mean, target, negatives)


def keep_probability(counts: Tensor, threshold: float = 1e-3) -> Tensor:
    """How often an occurrence of a word is kept: min(1, sqrt(t / f) + t / f), f its share of the text.

    counts (V,) -> (V,).  The paper has sqrt(t / f) (2013b, equation 5); its authors' program adds t / f.
    """
    ratio = threshold / (counts / counts.sum())
    return (ratio.sqrt() + ratio).clamp(max=1.0)


def noise_probability(counts: Tensor) -> Tensor:
    """From what the negatives are drawn: counts^0.75 / sum (2013b, section 2.2).  counts (V,) -> (V,)."""
    powers: Tensor = counts**0.75
    return powers / powers.sum()
