"""Where a word stands: one class whose methods do nothing, and each scheme overrides one or two.

Positions are explicit integer tensors, handed down, never inferred.  Attention never asks which scheme it has.  A
scheme is one module a stack: all layers of an encoder, or of a decoder, share it.

Letters: N rows, H heads, T positions, Tq/Tk query/key positions, D d_model, Dh head size.
"""

from __future__ import annotations

from dragoman.nn.positions.absolute import Learned, Sinusoidal, sinusoids
from dragoman.nn.positions.recurrent import RecurrentOverEmbeddings, RecurrentPositions
from dragoman.nn.positions.relative import T5, Alibi, Shaw, alibi_slopes, t5_bucket
from dragoman.nn.positions.rotary import Rotary
from dragoman.nn.positions.seam import Positions

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
