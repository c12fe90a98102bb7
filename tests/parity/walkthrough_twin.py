"""The tiny Transformer in NumPy, forward and backward: a second implementation of each number of the walk-through.

It shares only names with the package.  Vectors are rows, matrices (in, out); each function returns its result and a
function from its gradient g to that of the input.  Shapes: n positions, H heads, D features, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Back = Callable[[Array], Any]  # gradient of the output -> gradient of the input (of a sub-layer: and of the memory)


class Twin:
    """values, gradients: by tap, without the row axis.  of: gradients by matrix.  losses: one per target."""

    def __init__(self, matrices: Mapping[str, Any], heads: int) -> None:
        self.m = {name: np.array(numbers, dtype=np.float64) for name, numbers in matrices.items()}
        self.of = {name: np.zeros_like(matrix) for name, matrix in self.m.items()}
        self.heads = heads
        self.values: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def step(self, src: Sequence[int], tgt_in: Sequence[int], targets: Sequence[int]) -> None:
        memory, back_source = self.stack("encoder", src, None)
        y, back_target = self.stack("decoder", tgt_in, memory)
        logits = self.values["output.logits"] = y @ self.m["output"]
        probs = self.values["output.probs"] = softmax(logits)
        right = np.arange(len(targets)), list(targets)
        self.losses = -np.log(probs[right])
        wrong = self.gradients["output.logits"] = probs.copy()
        wrong[right] -= 1
        self.of["output"] += y.T @ wrong
        back_source(back_target(wrong @ self.m["output"].T))

    def stack(self, name: str, ids: Sequence[int], memory: Array | None) -> tuple[Array, Back]:
        table, d = self.m[f"{name}.embedding"], self.m[f"{name}.embedding"].shape[1]
        x = self.values[f"{name}.embedded"] = np.sqrt(d) * table[list(ids)]
        x = self.values[f"{name}.positioned"] = x + sinusoids(len(ids), d)
        backs = []
        for layer in range(sum(key.startswith(f"{name}.") and key.endswith("ffn.inner") for key in self.m)):
            path = f"{name}.layers.{layer}"
            for part in ("self_attn", "cross_attn", "ffn") if name == "decoder" else ("self_attn", "ffn"):
                at, other = f"{path}.{part}", memory if part == "cross_attn" else x
                inner = self.feed_forward(at, x) if part == "ffn" else self.attend(at, x, other)
                x, back_part = self.around(path, part, x, *inner)
                backs.append((f"{path}.stream", back_part))
            self.values[f"{path}.stream"] = x

        def back(g: Array) -> Any:
            of_memory: Any = 0.0
            for stream, back_part in reversed(backs):
                self.gradients.setdefault(stream, g)  # the first on the way back is the last of the layer
                g, more = back_part(g)
                of_memory = of_memory + more
            self.gradients[f"{name}.positioned"] = self.gradients[f"{name}.embedded"] = g
            np.add.at(self.of[f"{name}.embedding"], list(ids), np.sqrt(d) * g)
            return of_memory

        return x, back

    def around(self, path: str, part: str, x: Array, update: Array, back_inner: Back) -> tuple[Array, Back]:
        """norm(x + f(x))"""
        tap, norm, gamma = f"{path}.around_{part}", f"{path}.around_{part}.norm", self.m[f"{path}.{part}.gamma"]
        self.values[f"{tap}.update"], self.values[f"{tap}.residual"] = update, x + update
        mean = self.values[f"{norm}.mean"] = (x + update).mean(-1)
        centred = x + update - mean[:, None]
        std = self.values[f"{norm}.std"] = np.sqrt((centred**2).mean(-1) + 1e-5)
        unit = centred / std[:, None]
        y = self.values[f"{norm}.normed"] = gamma * unit + self.m[f"{path}.{part}.beta"]

        def back(g: Array) -> tuple[Array, Any]:
            self.gradients[f"{norm}.normed"] = g
            self.of[f"{path}.{part}.gamma"] += (g * unit).sum(0)
            self.of[f"{path}.{part}.beta"] += g.sum(0)
            of_std = self.gradients[f"{norm}.std"] = -(g * gamma * centred).sum(-1) / std**2
            of_centred = g * gamma / std[:, None] + of_std[:, None] * centred / (std[:, None] * x.shape[1])
            of_mean = self.gradients[f"{norm}.mean"] = -of_centred.sum(-1)
            r = of_centred + of_mean[:, None] / x.shape[1]
            self.gradients[f"{tap}.residual"] = self.gradients[f"{tap}.update"] = r
            of_x, of_memory = back_inner(r)
            return r + of_x, of_memory

        return y, back

    def linear(self, name: str, x: Array) -> tuple[Array, Back]:
        def back(g: Array) -> Array:
            self.of[name] += x.T @ g
            self.of[f"{name}_bias"] += g.sum(0)
            return np.asarray(g @ self.m[name].T)

        return x @ self.m[name] + self.m[f"{name}_bias"], back

    def feed_forward(self, path: str, x: Array) -> tuple[Array, Back]:
        before, back_before = self.linear(f"{path}.inner", x)
        hidden = np.maximum(before, 0)
        self.values |= {f"{path}.before": before, f"{path}.hidden": hidden}
        out, back_hidden = self.linear(f"{path}.outer", hidden)

        def back(g: Array) -> tuple[Array, float]:
            of_hidden = self.gradients[f"{path}.hidden"] = back_hidden(g)
            of_before = self.gradients[f"{path}.before"] = of_hidden * (before > 0)
            return back_before(of_before), 0.0

        return out, back

    def attend(self, path: str, x: Array, other: Any) -> tuple[Array, Back]:
        """Queries from x, keys and values from `other`, in the decoder's own attention from no later position."""
        inputs = {"q": x, "k": other, "v": other}
        made = {name: self.linear(f"{path}.{name}", y) for name, y in inputs.items()}
        q, k, v = (y.reshape(len(y), self.heads, -1).swapaxes(0, 1) for y, _ in made.values())  # (H, n, D / H)
        scale = np.sqrt(q.shape[-1])
        scores = q @ k.swapaxes(1, 2) / scale
        causal = path.startswith("decoder") and other is x
        masked = scores + np.triu(np.full(scores.shape[1:], -np.inf), 1) if causal else scores
        weights = softmax(masked)
        out, back_out = self.linear(f"{path}.o", joined(weights @ v))
        names = [f"{path}.{name}" for name in ("queries", "keys", "values", "scores", "masked", "weights", "heads")]
        self.values |= dict(zip(names, (q, k, v, scores, masked, weights, weights @ v), strict=True))

        def back(g: Array) -> tuple[Array, Any]:
            of_z = back_out(g).reshape(len(g), self.heads, -1).swapaxes(0, 1)
            of_weights, of_v = of_z @ v.swapaxes(1, 2), weights.swapaxes(1, 2) @ of_z
            of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
            of_q, of_k = of_scores @ k / scale, of_scores.swapaxes(1, 2) @ q / scale
            found = (of_q, of_k, of_v, of_scores, of_scores, of_weights, of_z)
            self.gradients |= dict(zip(names, found, strict=True))
            of_x, of_keys, of_values = (made[n][1](joined(y)) for n, y in (("q", of_q), ("k", of_k), ("v", of_v)))
            return (of_x + of_keys + of_values, 0.0) if other is x else (of_x, of_keys + of_values)

        return out, back


def joined(x: Array) -> Array:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sinusoids(n: int, d: int) -> Array:
    angles = np.arange(n)[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, d)
