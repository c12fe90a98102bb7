"""Put a small Transformer into a larger one that computes the same function, to measure speed without a long training.

    python bench/wider_model.py runs/en-de models/base --d-model 512 --n-heads 8 --d-ff 2048 --layers 6

The features, heads and hidden units of the small model are the first ones of the large model; the weights of all
others are 0, and additional layers return their input.  Every product is computed in full, so the large model is as
fast as any model of its size, and its translations have the lengths of those of the small model.

The model must have the architecture that `dragoman new` writes: pre-norm, RMSNorm, rotary positions, gates, no biases,
one embedding.  Norm weights, queries and the embedding are rescaled for the larger size.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from dragoman.io.model_files import find_model
from dragoman.models.model_folder import build_for, load_network, read_profile, save_model, unique_tensors
from dragoman.tokenizers import load_vocabulary

NEEDED = {"order": "pre", "norm": "rms", "position": "rotary", "gated": True, "bias": False, "tie": "all",
          "n_kv_heads": None, "d_key": None}  # fmt: skip


def placed(x: Tensor, *shape: int) -> Tensor:
    """Return x as the first rows and columns of zeros of a shape."""
    larger = torch.zeros(shape)
    larger[tuple(slice(size) for size in x.shape)] = x
    return larger


def heads(x: Tensor, count: int, d_model: int, d_head: int, rotary: bool) -> Tensor:
    """Return the matrix (d_model, d_model) of `count` heads of x (count * small head, small model).

    rotary: a pair of features keeps its frequency, base^(-2k / head), in a larger head.
    """
    larger = torch.zeros(d_model // d_head, d_head // 2, 2, d_model)
    pairs = x.view(count, -1, 2, x.size(1))
    step = larger.size(1) // pairs.size(1) if rotary else 1
    larger[:count, : step * pairs.size(1) : step, :, : x.size(1)] = pairs
    return larger.view(d_model, d_model)


def widened(small: dict[str, Tensor], large: dict[str, Tensor], old: dict[str, int], new: dict[str, int]) -> None:
    """Fill the parameters of the large model.  old, new: d_model, n_heads and d_ff."""
    d, d_head = new["d_model"], new["d_model"] // new["n_heads"]
    ratio = math.sqrt(old["d_model"] / d)  # of root mean squares: large model / small model
    old_head = old["d_model"] // old["n_heads"]
    query_scale = math.sqrt(d_head / old_head)  # because scores are divided by the square root of the head size
    for name, target in large.items():
        x, kind = small.get(name), name.removesuffix(".weight").rpartition(".")[2]
        block = name.removesuffix(f".{kind}.weight").rpartition(".")[2]
        if x is None:
            if kind in ("out", "outer"):
                target.zero_()
        elif kind == "embedding":  # multiplied by sqrt(d_model) in the model; also the output matrix
            target.copy_(placed(x * ratio, *target.shape))
        elif kind.endswith("norm"):
            # The last norm keeps its weights, because the output matrix is scaled by the same ratio.
            target.copy_(placed(x * (1.0 if name.startswith("decoder.final") else ratio), d))
        elif kind in ("qkv", "q", "kv"):
            rotary = block == "self_attn"
            parts = x.split(old["d_model"])
            scales = [query_scale, 1.0, 1.0] if kind == "qkv" else [query_scale] if kind == "q" else [1.0, 1.0]
            turned = [rotary and i < 2 for i in range(len(parts))]
            made = [
                heads(part * scale, old["n_heads"], d, d_head, turn)
                for part, scale, turn in zip(parts, scales, turned, strict=True)
            ]
            target.copy_(torch.cat(made))
        elif kind == "out":
            target.copy_(heads(x.t().contiguous(), old["n_heads"], d, d_head, rotary=False).t())
        elif kind == "inner":  # W1, then W3
            target.copy_(torch.cat([placed(part, new["d_ff"], d) for part in x.split(old["d_ff"])]))
        else:
            target.copy_(placed(x, *target.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    for name, size in (("d-model", 512), ("n-heads", 8), ("d-ff", 2048), ("layers", 6)):
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args()
    model, _, config = load_network(given.model)
    section = config.model
    values = section.model_dump()
    found = {key: (values.get(key) or {}).get("kind") for key in ("norm", "position")}
    found = {key: values.get(key) for key in NEEDED} | found
    if wrong := {key: value for key, value in found.items() if value != NEEDED[key]}:
        sys.exit(f"{given.model}: {wrong}; accepted: the architecture that 'dragoman new' writes")
    old = {name: getattr(section, name) for name in ("d_model", "n_heads", "d_ff")}
    new = {name: getattr(given, name) for name in old}
    if new["d_model"] % (2 * new["n_heads"]) or new["d_model"] // new["n_heads"] % (old["d_model"] // old["n_heads"]):
        size = old["d_model"] // old["n_heads"]
        sys.exit(f"--d-model {new['d_model']} --n-heads {new['n_heads']}; accepted: heads of a multiple of {size}")
    layers = {"encoder_layers": given.layers, "decoder_layers": given.layers}
    config = config.model_copy(update={"model": section.model_copy(update={**new, **layers})})
    vocabulary = load_vocabulary(find_model(given.model))
    network = build_for(config, vocabulary)
    with torch.no_grad():
        widened(unique_tensors(model), unique_tensors(network), old, new)
    save_model(given.out, config, vocabulary, unique_tensors(network), {"step": 0}, profile=read_profile(given.model))
    print(f"{given.out}: {sum(x.numel() for x in unique_tensors(network).values()):,} weights")


if __name__ == "__main__":
    main()
