"""Tensors in, tensors out: attention, layers, positions, recurrent and convolutional parts.

Of the package, it imports only `errors` and `extras`.
"""

from typing import TYPE_CHECKING

from dragoman.extras import lazy_names

if TYPE_CHECKING:
    from dragoman.nn.attention import CrossAttention as CrossAttention
    from dragoman.nn.attention import SelfAttention as SelfAttention
    from dragoman.nn.attention import Span as Span
    from dragoman.nn.attention import attend_explicit as attend_explicit
    from dragoman.nn.attention import causal_bias as causal_bias
    from dragoman.nn.attention import padding_bias as padding_bias
    from dragoman.nn.fast import Dropout as Dropout
    from dragoman.nn.fast.dropout import seed_dropout as seed_dropout
    from dragoman.nn.layers import DecoderLayer as DecoderLayer
    from dragoman.nn.layers import Embedding as Embedding
    from dragoman.nn.layers import EncoderLayer as EncoderLayer
    from dragoman.nn.layers import FeedForward as FeedForward
    from dragoman.nn.layers import LayerNorm as LayerNorm
    from dragoman.nn.layers import OutputProjection as OutputProjection
    from dragoman.nn.layers import RMSNorm as RMSNorm
    from dragoman.nn.layers import SubLayer as SubLayer
    from dragoman.nn.linear_attention import LinearSelfAttention as LinearSelfAttention
    from dragoman.nn.positions import Learned as Learned
    from dragoman.nn.positions import Positions as Positions
    from dragoman.nn.positions import Rotary as Rotary
    from dragoman.nn.positions import Sinusoidal as Sinusoidal
    from dragoman.nn.ssru import SSRU as SSRU

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "dragoman.nn.attention": "CrossAttention SelfAttention Span attend_explicit causal_bias padding_bias",
        "dragoman.nn.fast": "Dropout",
        "dragoman.nn.fast.dropout": "seed_dropout",
        "dragoman.nn.layers": "DecoderLayer Embedding EncoderLayer FeedForward LayerNorm OutputProjection RMSNorm "
        "SubLayer",
        "dragoman.nn.linear_attention": "LinearSelfAttention",
        "dragoman.nn.positions": "Learned Positions Rotary Sinusoidal",
        "dragoman.nn.ssru": "SSRU",
    },
)
