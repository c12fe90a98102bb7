"""A page of worked examples from texts on the Transformer, each number beside the result of this package.

The examples are the self-attention of three vectors, and one training step on "I am" -> "我 是".  The source of that
step lacks its inputs, some matrices and most parameters of its norms.  Those in `gallery.toml` were reconstructed from
the printed numbers and reproduce all of them, backwards as well as forwards; the first feed-forward network is one of
several that do.  The walkthrough of the tiny preset follows with every number of such a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.interpret.walkthrough.entries import Text, read_data
from dragoman.interpret.walkthrough.tiny_preset import tiny_walkthrough
from dragoman.nn.attention import AttentionTaps, CrossAttention, SelfAttention, attend_explicit, causal_bias
from dragoman.nn.layers import EncoderLayer, FeedForward, LayerNorm, SubLayer
from dragoman.nn.positions import Positions
from dragoman.nn.record import record
from dragoman.nn.taps import Tap
from dragoman.pages.page import render, write_page
from dragoman.training.loss import cross_entropy

__all__ = ["GalleryChapter", "WorkedExample", "gallery", "write_gallery"]


@dataclass
class WorkedExample:
    """A computed matrix and the numbers that a source prints for it.

    printed: rows as in `computed`, None (in the data nan) for a number that is not printed; None if nothing is.
    rounding: the largest difference that the rounding of the source explains.  difference: the largest one between a
    printed number and the computed one.
    """

    title: Text
    formula: str
    computed: list[list[float]]
    printed: list[list[float | None]] | None = None
    note: Text | None = None
    rounding: float = 5e-4
    difference: float | None = None

    def __post_init__(self) -> None:
        if self.printed is not None:
            self.printed = [[None if x is None or math.isnan(x) else x for x in row] for row in self.printed]
            rows = zip(self.printed, self.computed, strict=True)
            pairs = [pair for printed, computed in rows for pair in zip(printed, computed, strict=True)]
            self.difference = max(abs(printed - computed) for printed, computed in pairs if printed is not None)


@dataclass(frozen=True)
class GalleryChapter:
    title: Text
    text: Text
    examples: list[WorkedExample]


def gallery() -> list[GalleryChapter]:
    """Compute the worked examples."""
    data = read_data("gallery.toml")
    tensor = partial(torch.tensor, dtype=torch.float64)
    given = {name: [*map(tensor, x)] if name == "ffn" else tensor(x) for name, x in data["given"].items()}
    computed: dict[str, Tensor] = {}
    for compute in (_three_vectors, _encoder, _decoder, _loss, _backward_and_update):
        computed |= compute(given)
    chapters = []
    for chapter in data["chapters"]:
        entries = [{**entry, "computed": computed[entry["computed"]].tolist()} for entry in chapter["examples"]]
        chapters.append(GalleryChapter(**{**chapter, "examples": [WorkedExample(**entry) for entry in entries]}))
    return chapters


def write_gallery(path: str | Path, language: str = "auto") -> Path:
    """Write the page, which opens in `language` (see `render`), to `path` atomically and return `path`.

    Raises DragomanError if it cannot be written.
    """
    data = {"chapters": [asdict(chapter) for chapter in gallery()], "walkthrough": tiny_walkthrough()}
    title = "Dragoman: numbers worked out by hand"
    return write_page(Path(path), render("gallery.html", language=language, title=title, data=data))


# ------------------------------------------------------------------------------------------------ the computed matrices


def _recorded(part: str, seen: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return the first call of each tap as a matrix; there is one sentence and one head."""
    return {f"{part}: {name}": calls[0].reshape(-1, calls[0].size(-1)) for name, calls in seen.items()}


def _load(module: nn.Module, *values: Tensor) -> Any:
    """Load parameters, given in the order of the module, in float64; return the module."""
    module.double().load_state_dict(dict(zip(module.state_dict(), values, strict=True)))
    return module


def _sub_layer(norm: Tensor) -> SubLayer:
    """Return a sub-layer whose norm has a negligible epsilon, because the source has none."""
    return SubLayer(_load(LayerNorm(4, eps=1e-12), *norm), 0.0, "post")


def _self_attention(*matrices: Tensor) -> Any:
    return _load(SelfAttention(4, 1, bias=False), torch.eye(4), torch.cat([matrix.T for matrix in matrices]))


def _cross_attention(given: Mapping[str, Any]) -> Any:
    eye, kv = torch.eye(4), torch.cat([given["cross_W_K"], given["cross_W_V"]])
    return _load(CrossAttention(4, 1, bias=False), eye, eye, kv)


def _three_vectors(given: Mapping[str, Any]) -> dict[str, Tensor]:
    x, w_q, w_k, w_v = (given[f"three_vectors{end}"] for end in ("", "_W_Q", "_W_K", "_W_V"))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scaled, _ = attend_explicit(q[None, None], k[None, None], v[None, None], None)
    # Scaling the queries by √3 undoes the division by √d_key.
    unscaled, weights = attend_explicit(q[None, None] * math.sqrt(3), k[None, None], v[None, None], None)
    return {
        "X": x, "W_Q": w_q, "W_K": w_k, "W_V": w_v, "Q": q, "K": k, "V": v, "first scores": q[:1] @ k.T,
        "first weights": weights[0, 0, :1], "rounded output": given["rounded_weights"] @ v,
        "unscaled outputs": unscaled[0, 0], "scaled outputs": scaled[0, 0],
    }  # fmt: skip


def _encoder(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute layer 1 and the attention of layer 2, which needs no matrices because its inputs are equal."""
    norms, pos = iter([given["norm_1"], given["norm_2"]]), torch.arange(2)
    first, second = _self_attention(given["W_Q"], given["W_K"], given["W_V"]), _self_attention(*[torch.eye(4)] * 3)
    ffn = _load(FeedForward(4, 8, "relu"), *given["ffn"])
    layer = EncoderLayer(first, ffn, lambda: _sub_layer(next(norms)))
    with torch.no_grad(), record(layer, "*") as seen, record(second, "weights") as seen_second:
        layer(given["tokens"][None], Positions(), pos, None)
        second(given["layer_1_output"][None], Positions(), pos)
    found = _recorded("encoder 1", seen) | _recorded("encoder 2", seen_second)
    mean, std = found["encoder 1: around_ffn.norm.mean"], found["encoder 1: around_ffn.norm.std"]
    found["products"] = found["encoder 1: self_attn.queries"] @ found["encoder 1: self_attn.keys"].T
    found["mean and variance"] = torch.stack([mean[0, 0], std[0, 0].square()])[None]
    return found


def _decoder(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute masked attention from its products q · k (queries: rows; keys: unit vectors), and cross-attention."""
    q, k = nn.functional.pad(given["masked_products"], (0, 2))[None, None], torch.eye(2, 4).double()[None, None]
    bias = causal_bias(torch.arange(2), torch.arange(2), torch.float64)
    taps = {name: Tap("row", "head", "query", "key") for name in ("scores", "masked", "weights")}
    attention = _cross_attention(given)
    with torch.no_grad(), record(nn.ModuleDict(taps), "*") as masked, record(attention, "*") as cross:
        attend_explicit(q, k, k, bias, None, AttentionTaps(**taps))
        memory = attention.project(given["memory"][None])
        norm = _sub_layer(given["cross_norm"])(given["queries"][None], lambda x: attention(x, memory))[0]
    return _recorded("masked attention", masked) | _recorded("cross-attention", cross) | {"cross-attention: norm": norm}


def _loss(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute the loss.  A column for the tokens that the source omits gives the targets their printed probability."""
    targets, logits = torch.tensor([1, 2]), given["logits"]
    correct = logits.gather(1, targets[:, None])[:, 0].exp()
    others = (correct / given["probabilities"] - logits.exp().sum(1)).log()
    scores = torch.cat([logits, others[:, None]], dim=1)
    losses = [cross_entropy(scores[t : t + 1], targets[t : t + 1], 0.0)[1] for t in range(2)]
    return {"probabilities": scores.softmax(-1), "losses": torch.stack(losses)[None]}


def _backward(given: Mapping[str, Any], through: str) -> tuple[Any, dict[str, Tensor]]:
    """Compute the gradients of one query's cross-attention from those of its "output", its "weights", or both."""
    attention, memory = _cross_attention(given), given["memory"][None].clone().requires_grad_()
    with record(attention, "*", gradients=True) as seen:
        output = attention(given["query"][None], attention.project(memory))
        values = {"output": output, "weights": seen["weights"][0]}
        sum((x * given[f"{name}_gradient"]).sum() for name, x in values.items() if name in through).backward()
        found = {name: [seen.gradient(name)] for name in ("scores", "keys") if "weights" in through}
    return attention, _recorded(f"gradient through {through}", {"memory": [memory.grad], **found})


def _backward_and_update(given: Mapping[str, Any]) -> dict[str, Tensor]:
    attention, found = _backward(given, "output and weights")
    weight, index = attention.kv.weight, (4, 0)  # W_V[0, 0], below the four rows of W_K
    old, gradient = weight.detach()[index].clone(), weight.grad[index].clone()
    torch.optim.SGD([weight], lr=float(given["learning_rate"])).step()
    found["update"] = torch.stack([old, gradient, weight.detach()[index]])[None]
    return found | _backward(given, "output")[1] | _backward(given, "weights")[1]
