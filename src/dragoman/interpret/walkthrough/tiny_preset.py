"""A Transformer small enough for pen and paper, and "I am" -> "我 是" through one step of its training.

Two layers on each side, vectors of 4, a vocabulary of 8, float64.  Its matrices are given: halves and ones that a
reader can multiply in his head, chosen so that no softmax is saturated.  Any of them can be replaced by his own:

    walkthrough = tiny_walkthrough({"encoder.layers.0.self_attn.q": [[1, 0, 1, 0], [0, 1, 0, 1], ...]})

Matrices are for row vectors, (in, out), as the paper and most texts write X W.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.config import TransformerConfig
from dragoman.data.tokenizer import BOS
from dragoman.errors import UsageError, nearest
from dragoman.interpret.walkthrough import Labels, walkthrough
from dragoman.models.build import build_model
from dragoman.models.transformer import Transformer

__all__ = ["TINY_MATRICES", "TINY_PAIR", "TINY_WORDS", "TinyPair", "tiny_model", "tiny_walkthrough"]

D_MODEL, D_FF, LAYERS = 4, 6, 2
TINY_WORDS = ("<pad>", "<unk>", "<s>", "</s>", "I", "am", "我", "是")


@dataclass(frozen=True)
class TinyPair:
    """Ids (1, S), (1, T), (1, T), and the words beside them."""

    src: Tensor
    tgt_in: Tensor
    targets: Tensor
    labels: Labels


TINY_PAIR = TinyPair(
    torch.tensor([[4, 5]]),
    torch.tensor([[BOS, 6]]),
    torch.tensor([[6, 7]]),
    Labels(("I", "am"), ("<s>", "我"), ("我", "是"), lambda word: TINY_WORDS[word]),
)

# A row a line, rows apart by "/".  What is not here is 1 (gamma) or 0 (biases, beta).
_GIVEN = {
    "encoder.embedding": "0 0 0 0 / 0 0 0 0 / 0 0 .5 0 / .5 0 0 0 / .5 0 1 .5 / 0 1 .5 1 / 1 0 .5 0 / 0 .5 0 1",
    "decoder.embedding": "0 0 0 0 / 0 0 0 0 / 0 .5 0 1 / .5 0 0 0 / 0 0 1 .5 / .5 1 0 0 / 1 0 .5 .5 / 0 1 1 0",
    "encoder.layers.0.self_attn.q": ".5 0 .5 0 / 0 .5 0 .5 / .5 0 0 0 / 0 .5 0 -.5",
    "encoder.layers.0.self_attn.k": ".5 0 0 .5 / 0 .5 0 0 / 0 -.5 .5 0 / .5 0 0 .5",
    "encoder.layers.0.self_attn.v": "0 0 .5 1 / 0 1 0 0 / 1 0 .5 0 / 0 .5 0 .5",
    "encoder.layers.0.self_attn.o": "1 0 0 .5 / 0 1 0 0 / 0 .5 1 0 / 0 0 0 1",
    "encoder.layers.0.ffn.inner": "1 0 .5 0 -1 0 / 0 1 0 .5 0 -1 / .5 0 -1 0 1 0 / 0 -.5 0 1 0 .5",
    "encoder.layers.0.ffn.inner_bias": ".1 .1 .1 .2 .2 .2",
    "encoder.layers.0.ffn.outer": ".5 0 0 1 / 0 1 0 -.5 / 1 0 .5 0 / 0 .5 -1 0 / -.5 0 1 0 / 0 0 .5 1",
    "encoder.layers.0.ffn.outer_bias": ".5 0 .5 0",
    "encoder.layers.0.self_attn.gamma": "1 1 1.2 1.2",
    "encoder.layers.0.self_attn.beta": "0 0 .5 .5",
    "encoder.layers.1.self_attn.q": "1 0 0 .5 / 0 .5 0 0 / 0 0 1 0 / .5 0 0 .5",
    "encoder.layers.1.self_attn.k": ".5 0 .5 0 / 0 1 0 0 / 0 0 .5 .5 / 0 -.5 0 1",
    "encoder.layers.1.self_attn.v": "1 0 0 0 / .5 .5 0 0 / 0 0 -1 .5 / 0 1 0 .5",
    "encoder.layers.1.self_attn.o": "0 1 0 0 / 1 0 0 0 / 0 0 0 1 / 0 0 1 .5",
    "encoder.layers.1.ffn.inner": "0 1 0 -1 .5 0 / 1 0 .5 0 0 -1 / 0 -.5 1 0 1 0 / .5 0 0 1 0 1",
    "encoder.layers.1.ffn.inner_bias": "0 .1 0 .1 0 .1",
    "encoder.layers.1.ffn.outer": "0 .5 0 1 / 1 0 -.5 0 / 0 1 .5 0 / .5 0 1 0 / 0 -1 0 .5 / 1 0 0 .5",
    "decoder.layers.0.self_attn.q": "1 0 .5 0 / 0 .5 0 1 / .5 0 0 0 / 0 0 .5 0",
    "decoder.layers.0.self_attn.k": "0 .5 0 0 / .5 0 0 .5 / 0 0 1 0 / .5 0 0 -.5",
    "decoder.layers.0.self_attn.v": "1 0 .5 0 / 0 1 0 .5 / .5 0 -1 0 / 0 .5 0 1",
    "decoder.layers.0.self_attn.o": "1 0 0 0 / 0 0 1 0 / 0 1 0 .5 / .5 0 0 1",
    "decoder.layers.0.cross_attn.q": ".5 0 0 1 / 0 1 .5 0 / 0 0 1 0 / 1 0 0 -.5",
    "decoder.layers.0.cross_attn.k": "1 0 0 0 / 0 .5 0 .5 / 0 0 .5 0 / 0 1 0 .5",
    "decoder.layers.0.cross_attn.v": "0 1 1 0 / 1 0 0 .5 / .5 0 1 0 / 0 .5 0 1",
    "decoder.layers.0.cross_attn.o": "1 0 0 0 / 0 1 0 .5 / .5 0 -1 0 / 0 0 0 1",
    "decoder.layers.0.ffn.inner": "1 0 0 .5 0 -1 / 0 1 -.5 0 0 1 / 0 0 1 0 .5 0 / -1 .5 0 0 1 0",
    "decoder.layers.0.ffn.inner_bias": ".1 0 .1 0 .1 0",
    "decoder.layers.0.ffn.outer": "1 0 .5 0 / 0 .5 0 1 / 0 1 -1 0 / .5 0 0 .5 / 0 0 1 0 / -.5 1 0 0",
    "decoder.layers.1.self_attn.q": ".5 0 0 0 / 0 1 0 .5 / 0 .5 .5 0 / 1 0 0 .5",
    "decoder.layers.1.self_attn.k": "1 0 0 .5 / 0 .5 0 0 / .5 0 .5 0 / 0 0 0 1",
    "decoder.layers.1.self_attn.v": "0 .5 0 1 / 1 0 .5 0 / 0 1 0 -.5 / .5 0 1 0",
    "decoder.layers.1.self_attn.o": "0 0 1 0 / 0 1 0 0 / 1 0 0 .5 / 0 .5 0 1",
    "decoder.layers.1.cross_attn.q": "1 0 .5 0 / 0 .5 0 0 / 0 0 .5 1 / .5 0 0 .5",
    "decoder.layers.1.cross_attn.k": "0 1 0 .5 / .5 0 0 1 / 1 0 .5 0 / 0 -.5 0 0",
    "decoder.layers.1.cross_attn.v": "1 0 0 .5 / 0 .5 1 0 / 0 0 -.5 1 / .5 1 0 0",
    "decoder.layers.1.cross_attn.o": "0 1 0 0 / 1 0 .5 0 / 0 0 1 0 / .5 0 0 -1",
    "decoder.layers.1.ffn.inner": "0 1 0 .5 -1 0 / .5 0 1 0 0 1 / 1 0 0 -.5 0 .5 / 0 -1 .5 0 1 0",
    "decoder.layers.1.ffn.inner_bias": "0 .1 .1 0 0 .1",
    "decoder.layers.1.ffn.outer": "0 1 0 .5 / .5 0 1 0 / 1 0 0 -.5 / 0 .5 0 1 / -1 0 .5 0 / 0 0 1 .5",
    "output": "0 0 .5 -.5 0 .5 1 -1 / 0 -.5 0 .5 .5 0 .5 1 / -.5 0 0 1 0 .5 1 .5 / 0 .5 -.5 0 1 0 -.5 1",
}


_LINEARS = {
    "self_attn": {"q": ("qkv", 0), "k": ("qkv", 1), "v": ("qkv", 2), "o": ("out", 0)},
    "cross_attn": {"q": ("q", 0), "k": ("kv", 0), "v": ("kv", 1), "o": ("out", 0)},
    "ffn": {"inner": ("inner", 0), "outer": ("outer", 0)},
}
"""Matrix of a sub-layer -> the layer that holds it, and as which of its parts."""


def _slots() -> Iterator[tuple[str, str, slice]]:
    """Name for a reader, name of the parameter, and which of its rows (out) it is."""
    whole = slice(None)
    yield "encoder.embedding", "encoder.embedding.weight", whole
    yield "decoder.embedding", "decoder.embedding.weight", whole
    for stack, layer, part in itertools.product(("encoder", "decoder"), range(LAYERS), _LINEARS):
        if (stack, part) == ("encoder", "cross_attn"):
            continue
        path = f"{stack}.layers.{layer}"
        for letter, (linear, nth) in _LINEARS[part].items():
            name, parameter = f"{path}.{part}.{letter}", f"{path}.{part}.{linear}"
            size = _shape(name)[-1]
            rows = slice(size * nth, size * (nth + 1))
            yield name, f"{parameter}.weight", rows
            yield f"{name}_bias", f"{parameter}.bias", rows
        yield f"{path}.{part}.gamma", f"{path}.around_{part}.norm.weight", whole
        yield f"{path}.{part}.beta", f"{path}.around_{part}.norm.bias", whole
    yield "output", "output.weight", whole


def _read(given: str) -> list[Any]:
    rows = [[float(x) for x in row.split()] for row in given.split("/")]
    return rows if len(rows) > 1 else rows[0]


def _shape(name: str) -> tuple[int, ...]:
    """(in, out) of a matrix, (out,) of a bias."""
    last = name.rpartition(".")[2]
    if last == "embedding":
        return len(TINY_WORDS), D_MODEL
    if last == "output":
        return D_MODEL, len(TINY_WORDS)
    if last in ("inner", "outer"):
        return (D_MODEL, D_FF) if last == "inner" else (D_FF, D_MODEL)
    if last == "inner_bias":
        return (D_FF,)
    return (D_MODEL, D_MODEL) if last in "qkvo" else (D_MODEL,)


def _default(name: str) -> list[Any]:
    if name in _GIVEN:
        return _read(_GIVEN[name])
    return [1.0 if name.endswith("gamma") else 0.0] * _shape(name)[-1]


TINY_MATRICES: dict[str, list[Any]] = {name: _default(name) for name, _, _ in _slots()}
"""Every parameter of the preset by its name: matrices (in, out), biases and norms (out,)."""


def tiny_model(matrices: Mapping[str, Any] | None = None, *, heads: int = 1) -> Transformer:
    """The preset in float64, with a reader's own numbers in the place of some of its matrices.

    matrices: name -> nested lists, names and shapes as in `TINY_MATRICES`.  heads: 1, 2 or 4.  Raises UsageError with
    all names, shapes and numbers that do not fit.
    """
    own = _checked(matrices or {}, heads)
    config = TransformerConfig(
        d_model=D_MODEL, d_ff=D_FF, n_heads=heads, encoder_layers=LAYERS, decoder_layers=LAYERS, dropout=0.0, tie="none"
    )
    model = build_model(config, len(TINY_WORDS), len(TINY_WORDS), shared=False).double().eval()
    assert isinstance(model, Transformer)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter, rows in _slots():
            numbers = own.get(name, torch.tensor(TINY_MATRICES[name], dtype=torch.float64))
            part = parameters[parameter][rows]
            part.copy_(numbers if name.endswith("embedding") else numbers.T if numbers.dim() == 2 else numbers)
    return model


def tiny_walkthrough(
    matrices: Mapping[str, Any] | None = None, *, heads: int = 1, learning_rate: float = 0.01
) -> dict[str, Any]:
    """`walkthrough` of `TINY_PAIR` through the preset; shown whole, and with the source's choice of an update."""
    pair = TINY_PAIR
    return walkthrough(
        tiny_model(matrices, heads=heads),
        pair.src,
        None,
        pair.tgt_in,
        pair.targets,
        pair.labels,
        learning_rate=learning_rate,
        parameter=("decoder.layers.0.cross_attn.kv.weight", D_MODEL, 0),  # W_V[0, 0], behind the rows of W_K
    )


def _checked(matrices: Mapping[str, Any], heads: int) -> dict[str, Tensor]:
    problems, found = [], {}
    if heads not in (1, 2, 4):
        problems.append(f"heads = {heads}: accepted are 1, 2 and 4, which divide d_model = {D_MODEL}")
    for name, numbers in matrices.items():
        if name not in TINY_MATRICES:
            problems.append(f"no matrix is called {name!r}{nearest(name, TINY_MATRICES)}; TINY_MATRICES has them all")
            continue
        try:
            found[name] = torch.as_tensor(numbers, dtype=torch.float64).clone()
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"{name}: {error}; accepted are numbers in lists of equal length, shape {_shape(name)}")
            continue
        if tuple(found[name].shape) != _shape(name):
            problems.append(f"{name} has the shape {tuple(found[name].shape)}; accepted is {_shape(name)}")
        elif not bool(found[name].isfinite().all()):
            bad = next(x for x in found[name].flatten().tolist() if not math.isfinite(x))
            problems.append(f"{name} holds {bad}; accepted are finite numbers")
    if problems:
        raise UsageError("\n".join(["these matrices do not fit the tiny model", *(f"  - {p}" for p in problems)]))
    return found
