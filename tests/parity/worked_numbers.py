"""The computed numbers of the gallery, by this package: what `gallery_numbers.toml` records.

python tests/parity/worked_numbers.py       # prints that file
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import PRESETS, TransformerConfig
from dragoman.errors import UsageError
from dragoman.interpret.walkthrough.steps import read_data
from dragoman.models.build import assemble
from dragoman.nn.attention import AttentionTaps, CrossAttention, SelfAttention, Span, attend_explicit, causal_bias
from dragoman.nn.layers import EncoderLayer, FeedForward, LayerNorm, SubLayer
from dragoman.nn.positions import Learned, Positions, Rotary, sinusoids
from dragoman.nn.record import Tap, record
from dragoman.training.loss import cross_entropy

GIVEN = {
    name: [torch.tensor(x, dtype=torch.float64) for x in rows]
    if name == "ffn"
    else torch.tensor(rows, dtype=torch.float64)
    for name, rows in read_data("gallery.toml")["given"].items()
}
"""The matrices from which the numbers follow."""


@cache
def computed() -> dict[str, Tensor]:
    """Return the computed matrices by the names that the gallery uses, in float64."""
    found = short_examples()
    for compute in (three_vectors, encoder, decoder, norms, loss, backward_and_update):
        found |= compute()
    return found


def recorded(part: str, seen: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return the first call of each tap as a matrix; there is one sentence and one head."""
    return {f"{part}: {name}": calls[0].reshape(-1, calls[0].size(-1)) for name, calls in seen.items()}


def load(module: nn.Module, *values: Tensor) -> Any:
    """Load parameters, given in the order of the module, in float64; return the module."""
    module.double().load_state_dict(dict(zip(module.state_dict(), values, strict=True)))
    return module


def sub_layer(norm: Tensor) -> SubLayer:
    """Return a sub-layer whose norm has a negligible epsilon, because the source has none."""
    return SubLayer(load(LayerNorm(4, eps=1e-12), *norm), 0.0, "post")


def self_attention(*matrices: Tensor) -> Any:
    return load(SelfAttention(4, 1, bias=False), torch.eye(4), torch.cat([matrix.T for matrix in matrices]))


def cross_attention() -> Any:
    eye, kv = torch.eye(4), torch.cat([GIVEN["cross_W_K"], GIVEN["cross_W_V"]])
    return load(CrossAttention(4, 1, bias=False), eye, eye, kv)


def three_vectors() -> dict[str, Tensor]:
    x, w_q, w_k, w_v = (GIVEN[f"three_vectors{end}"] for end in ("", "_W_Q", "_W_K", "_W_V"))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scaled, _ = attend_explicit(q[None, None], k[None, None], v[None, None], None)
    # Scaling the queries by √3 undoes the division by √d_key.
    unscaled, weights = attend_explicit(q[None, None] * math.sqrt(3), k[None, None], v[None, None], None)
    return {
        "Q": q, "K": k, "V": v, "first scores": q[:1] @ k.T, "first weights": weights[0, 0, :1], "keys as columns": k.T,
        "summands": GIVEN["rounded_weights"].T * v, "rounded output": GIVEN["rounded_weights"] @ v,
        "unscaled outputs": unscaled[0, 0], "scaled outputs": scaled[0, 0],
    }  # fmt: skip


def encoder() -> dict[str, Tensor]:
    """Compute layer 1 and the attention of layer 2, which needs no matrices because its inputs are equal."""
    norms, pos = iter([GIVEN["norm_1"], GIVEN["norm_2"]]), torch.arange(2)
    first, second = self_attention(GIVEN["W_Q"], GIVEN["W_K"], GIVEN["W_V"]), self_attention(*[torch.eye(4)] * 3)
    ffn = load(FeedForward(4, 8, "relu"), *GIVEN["ffn"])
    layer = EncoderLayer(first, ffn, lambda: sub_layer(next(norms)))
    with torch.no_grad(), record(layer, "*") as seen, record(second, "weights") as seen_second:
        layer(GIVEN["tokens"][None], Span(Positions(), pos))
        second(GIVEN["layer_1_output"][None], Positions(), pos)
    found = recorded("encoder 1", seen) | recorded("encoder 2", seen_second)
    mean, std = found["encoder 1: around_ffn.norm.mean"], found["encoder 1: around_ffn.norm.std"]
    found["products"] = found["encoder 1: self_attn.queries"] @ found["encoder 1: self_attn.keys"].T
    found["mean and variance"] = torch.stack([mean[0, 0], std[0, 0].square()])[None]
    found["key size"] = torch.tensor([[first.d_key, math.sqrt(first.d_key)]], dtype=torch.float64)
    return found


def decoder() -> dict[str, Tensor]:
    """Compute masked attention from its products q · k (queries: rows; keys: unit vectors), and cross-attention."""
    q, k = nn.functional.pad(GIVEN["masked_products"], (0, 2))[None, None], torch.eye(2, 4).double()[None, None]
    bias = causal_bias(torch.arange(2), torch.arange(2), torch.float64)
    taps = {name: Tap("row", "head", "query", "key") for name in ("scores", "masked", "weights")}
    attention = cross_attention()
    with torch.no_grad(), record(nn.ModuleDict(taps), "*") as masked, record(attention, "*") as cross:
        attend_explicit(q, k, k, bias, None, AttentionTaps(**taps))
        memory = attention.project(GIVEN["memory"][None])
        norm = sub_layer(GIVEN["cross_norm"])(GIVEN["queries"][None], lambda x: attention(x, memory))[0]
    return recorded("masked attention", masked) | recorded("cross-attention", cross) | {"cross-attention: norm": norm}


def norms() -> dict[str, Tensor]:
    """Compute mean and variance before γ and β of norms whose inputs are unknown."""
    gamma, beta = GIVEN["masked_norm"]
    normed = {
        "encoder 2: mean and variance": GIVEN["memory"][:1],
        "masked attention: mean and variance": (GIVEN["queries"] - beta) / gamma,
        "decoder 1: mean and variance": GIVEN["decoder_1_output"],
    }
    return {name: torch.stack([x.mean(1), x.var(1, correction=0)], dim=1) for name, x in normed.items()}


def loss() -> dict[str, Tensor]:
    """Compute the loss.  A column for the tokens that the source omits gives the targets their printed probability."""
    targets, logits = torch.tensor([1, 2]), GIVEN["logits"]
    correct = logits.gather(1, targets[:, None])[:, 0].exp()
    others = (correct / GIVEN["probabilities"] - logits.exp().sum(1)).log()
    scores = torch.cat([logits, others[:, None]], dim=1)
    losses = [cross_entropy(scores[t : t + 1], targets[t : t + 1], 0.0)[1] for t in range(2)]
    return {"probabilities": scores.softmax(-1), "losses": torch.stack(losses)[None]}


def backward(through: str) -> tuple[Any, dict[str, Tensor]]:
    """Compute the gradients of one query's cross-attention from those of its "output", its "weights", or both."""
    attention, memory = cross_attention(), GIVEN["memory"][None].clone().requires_grad_()
    query = GIVEN["query"][None].clone().requires_grad_()
    with record(attention, "*", gradients=True) as seen:
        output = attention(query, attention.project(memory))
        values = {"output": output, "weights": seen["weights"][0]}
        sum((x * GIVEN[f"{name}_gradient"]).sum() for name, x in values.items() if name in through).backward()
        gradients = {"memory": memory.grad, "query": query.grad, "keys": seen.gradient("keys")}
        gradients |= {"scores": seen.gradient("scores"), "products": seen.gradient("scores") / 2}
    found = recorded("one query", {"scores": [seen["scores"][0].detach()]})
    return attention, found | recorded(f"gradient through {through}", {name: [x] for name, x in gradients.items()})


def backward_and_update() -> dict[str, Tensor]:
    attention, found = backward("output and weights")
    weight, index = attention.kv.weight, (4, 0)  # W_V[0, 0], below the four rows of W_K
    old, gradient, rate = weight.detach()[index].clone(), weight.grad[index].clone(), GIVEN["learning_rate"]
    torch.optim.SGD([weight], lr=float(rate)).step()
    found["update"] = torch.stack([old, rate, gradient, weight.detach()[index]])[None]
    return found | backward("output")[1] | backward("weights")[1]


# ------------------------------------------------------------------------------------------------------ short examples


def short_examples() -> dict[str, Tensor]:
    """Return the computed matrices by the names that `gallery.toml` uses, in float64."""
    frequency = sinusoids(torch.tensor([1]), 4)[0, 2].asin()  # of the second of two pairs: base^(-1/2)
    half_turn, quarter_turn = -1 + 0j, 1j
    x, normed = torch.arange(-2.0, 3.0).double(), LayerNorm(4).double()(torch.arange(4.0).double()).detach()
    table = Learned(768, 512).table
    longest = max(length for length in range(1, 600) if accepted(length, Learned(768, 512)))
    found = {
        "sums": [[nn.functional.one_hot(torch.tensor(2), 9).sum(), torch.tensor([2.0, 1.0, 0.0]).softmax(0).sum()]],
        "operations per number": [[312, 2, 4, 312e12 / (2e12 / 4)]],
        "heads of two features": [weights_and_divisor(heads) for heads in (1, 2)],
        "variances": [variances(size) for size in (1, 2, 4)],
        "feed-forward factor": [[PRESETS["base"]["d_ff"] / PRESETS["base"]["d_model"]]],
        "GELU": torch.stack([x, nn.functional.gelu(x), nn.functional.gelu(x, approximate="tanh")], dim=1).tolist(),
        "learned positions": [[*table.shape, longest, table.numel()]],
        "base": [[float(1 / frequency) ** 2]],
        "turns": [
            [(quarter_turn**2).real, math.degrees(cmath.phase(half_turn)), math.degrees(cmath.phase(quarter_turn))]
        ],
        "smallest rotation": [[smallest_rotation()]],
        "receptive field": [[receptive_field(layers) for layers in (1, 2)]],
        "shares of the feed-forward network": [feed_forward_shares()],
        "mean and variance of a norm": [[normed.mean(), normed.var(correction=0)]],
    }
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in found.items()}


def weights_and_divisor(heads: int, words: int = 3) -> list[float]:
    """Return the square of the divisor of the scores and the number of attention weights, for d = 2."""
    attention = SelfAttention(2, heads).double()
    x, pos = torch.arange(2.0 * words, dtype=torch.float64).reshape(1, words, 2), torch.arange(words)
    with torch.no_grad(), record(attention, "*") as seen:
        attention(x, Positions(), pos)
    products = seen["queries"][0] @ seen["keys"][0].transpose(-1, -2)
    ratio = (products.norm() / seen["scores"][0].norm()).item()
    return [ratio**2, seen["weights"][0].numel()]


def variances(size: int) -> list[float]:
    """Return the variance of q · k and of the score, over all vectors of ±1: mean 0, variance 1, independent."""
    vectors = torch.tensor([*product((-1.0, 1.0), repeat=size)], dtype=torch.float64)[None, None]
    scores = Tap("row", "head", "query", "key")
    seen: list[Tensor] = []
    scores.register_forward_hook(lambda module, inputs, output: seen.append(output))
    attend_explicit(vectors, vectors, vectors, None, None, AttentionTaps(scores, Tap(), Tap()))
    products = vectors @ vectors.transpose(-1, -2)
    return [float(x.var(correction=0)) for x in (products, seen[0])]


def accepted(length: int, positions: Learned) -> bool:
    try:
        positions.ensure_length(length, positions.table)
    except UsageError:
        return False
    return True


def smallest_rotation() -> int:
    """Return the smallest number of features that can be rotated."""
    with pytest.raises(UsageError):
        Rotary(0, 10_000.0)
    with pytest.raises(UsageError):
        Rotary(1, 10_000.0)
    return Rotary(2, 10_000.0).rotated


def receptive_field(layers: int) -> int:
    """Return how many inputs reach one output of a stack of convolutions with kernels of 3."""
    x = torch.zeros(1, 1, 15)
    x[..., 7] = 1
    for _ in range(layers):
        x = nn.functional.conv1d(x, torch.ones(1, 1, 3), padding=1)
    return int(x.count_nonzero())


def feed_forward_shares() -> list[float]:
    """Return the feed-forward network's share of the base model, and of the matrices of its two kinds of layers."""
    with torch.device("meta"):
        base = assemble(TransformerConfig.model_validate(PRESETS["base"]), 37_000, 37_000, shared=True)

    def matrices(part: str) -> tuple[int, int]:
        sizes = {name: p.numel() for name, p in base.named_parameters() if name.startswith(part) and p.dim() == 2}
        return sum(n for name, n in sizes.items() if ".ffn." in name), sum(sizes.values())

    layers = [matrices(f"{side}.layers.0.") for side in ("encoder", "decoder")]
    return [matrices("")[0] / base.parameter_count(), *(ffn / whole for ffn, whole in layers)]


def names() -> list[str]:
    """Return the names of the computed matrices, in the order of the gallery."""
    files = [read_data(name) for name in ("gallery.toml", "gallery_step.toml")]
    examples = [example for file in files for chapter in file["chapters"] for example in chapter["examples"]]
    return [example["computed"] for example in examples if "computed" in example]


if __name__ == "__main__":
    print("\n".join(f'"{name}" = {computed()[name].tolist()}' for name in names()))
