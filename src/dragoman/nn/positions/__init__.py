"""Position schemes: `Positions` does nothing, and each scheme overrides one or two of its methods.

Positions are explicit integer tensors passed down by the caller.  Attention does not depend on the scheme.  Each stack
has one scheme, shared by all of its layers.

Shapes: N rows, H heads, T positions, Tq/Tk query/key positions, D d_model, Dh head size.
"""

from __future__ import annotations

from dragoman.nn.positions.absolute import Learned, Sinusoidal, sinusoids
from dragoman.nn.positions.recurrent import RecurrentOverEmbeddings, RecurrentPositions
from dragoman.nn.positions.relative import T5, Alibi, Shaw, alibi_slopes, t5_bucket
from dragoman.nn.positions.rotary import Rotary
from dragoman.nn.positions.scheme import Positions

__all__ = [
    "T5",
    "Alibi",
    "Learned",
    "Positions",
    "RecurrentOverEmbeddings",
    "RecurrentPositions",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "alibi_slopes",
    "sinusoids",
    "t5_bucket",
]
