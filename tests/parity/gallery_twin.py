"""Every worked number of the gallery, transcribed from its text and computed again in NumPy.

This is a second implementation: it shares no code and no data with the package, and has its own rule for what agrees.

    python tests/parity/gallery_twin.py         # the table of docs/learn/numbers.md

Vectors are rows.  Printed numbers are strings, so that their last decimal is known; "?" is one that is not printed.
A number in parentheses is given: an input or an assumption, or a result of weights that its text does not print.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SIGNS = {"equal": "✓", "explained": "≠", "given": "○"}


@dataclass
class Row:
    """One quantity.  printed: rows separated by "/".  value: None where all is given.

    reason: of what differs.  remark: on numbers that agree or are given.
    """

    quantity: str
    printed: str
    value: Any = None
    reason: str = ""
    remark: str = ""

    def cells(self) -> list[list[str]]:
        return [row.split() for row in self.printed.split("/")] if self.printed else []

    def numbers(self) -> list[list[float]]:
        """The printed numbers; nan for those that are not printed."""
        return [[float(cell.strip("()").replace("?", "nan")) for cell in row] for row in self.cells()]

    def values(self) -> Array:
        return np.array(self.numbers() if self.value is None else self.value, dtype=np.float64)

    def verdicts(self) -> list[list[str | None]]:
        return [
            [verdict(cell, float(x)) for cell, x in zip(row, computed, strict=True)]
            for row, computed in zip(self.cells(), self.values() if self.printed else [], strict=True)
        ]


def verdict(cell: str, computed: float) -> str | None:
    """A number agrees if the computed one, rounded to as many decimals, is at most half a unit away."""
    if cell == "?":
        return None
    if cell.startswith("("):
        return "given"
    decimals = len(cell.partition(".")[2]) or 3
    same = float(cell) == computed or abs(float(cell) - computed) * 10**decimals <= 0.5 + 1e-6
    return "equal" if same else "explained"


# ------------------------------------------------------------------------------------------------------- small formulas


def softmax(scores: Any) -> Array:
    scores = np.array(scores, dtype=np.float64)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def norm(x: Any, gamma: Any = 1.0, beta: Any = 0.0) -> Array:
    x = np.array(x, dtype=np.float64)
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * np.array(gamma) + np.array(beta)


def mean_and_variance(x: Any) -> Array:
    x = np.array(x, dtype=np.float64)
    return np.stack([x.mean(-1), x.var(-1)], axis=-1)


def matrix(text: str) -> Array:
    return np.array([[float(x) for x in row.split()] for row in text.split("/")])


# --------------------------------------------------------------------------------------------------------- the chapters


def tokens() -> list[Row]:
    signs = [np.array([*itertools.product((-1, 1), repeat=d)]) for d in (1, 2, 4)]
    products = [(x @ x.T).astype(float) for x in signs]
    variances = [[p.var(), (p / math.sqrt(x.shape[1])).var()] for p, x in zip(products, signs, strict=True)]

    def gelu(x: float) -> list[float]:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return [x, x * (1 + math.erf(x / math.sqrt(2))) / 2, x * (1 + math.tanh(inner)) / 2]

    return [
        Row("Three tokens of a vocabulary", "(342) (645) (7544)"),
        Row("Sum of a one-hot vector, sum of probabilities", "1 1", [[np.eye(9)[2].sum(), softmax([2, 1, 0]).sum()]]),
        Row("A context vector and the text that it holds", "(2000) (1000)"),
        Row(
            "A GPU: 10¹² operations and 10¹² bytes per second, bytes per operation, operations per number read",
            "(312) (2) (4) 624", [[312, 2, 4, 312 * 4 / 2]],
        ),
        Row(
            "One head and two heads of d = 2: square of the divisor, attention weights of three words",
            "2 9 / 1 18", [[2 / heads, heads * 3 * 3] for heads in (1, 2)],
        ),
        Row("Variance of q · k for d = 1, 2, 4, and after the division", "1 1 / 2 1 / 4 1", variances),
        Row("Width of the feed-forward network", "4", [[2048 / 512]]),
        Row("Constants of the approximated GELU", "(0.5) (0.044715)"),
        Row("GELU and its approximation", "", [gelu(x) for x in (-2, -1, 0, 1, 2)]),
    ]  # fmt: skip


def three_vectors() -> list[Row]:
    x = matrix("1 0 1 0 / 0 2 0 2 / 1 1 1 1")
    q = x @ matrix("1 0 1 / 1 0 0 / 0 0 1 / 0 1 1")
    k = x @ matrix("0 0 1 / 1 1 0 / 0 1 0 / 1 1 0")
    v = x @ matrix("0 2 0 / 0 3 0 / 1 0 3 / 1 1 0")
    rounded = np.array([[0], [0.5], [0.5]])
    one = {7}
    two = {i + step for i in {place + step for place in one for step in (-1, 0, 1)} for step in (-1, 0, 1)}
    return [
        Row("Inputs", "(1) (0) (1) (0) / (0) (2) (0) (2) / (1) (1) (1) (1)"),
        Row("Key matrix", "(0) (0) (1) / (1) (1) (0) / (0) (1) (0) / (1) (1) (0)"),
        Row("Value matrix", "(0) (2) (0) / (0) (3) (0) / (1) (0) (3) / (1) (1) (0)"),
        Row("Query matrix", "(1) (0) (1) / (1) (0) (0) / (0) (0) (1) / (0) (1) (1)"),
        Row("Keys", "0 1 1 / 4 4 0 / 2 3 1", k),
        Row("Values", "1 2 3 / 2 8 0 / 2 6 3", v),
        Row("Queries", "1 0 2 / 2 2 2 / 2 1 3", q),
        Row("Keys as columns", "0 4 2 / 1 4 3 / 1 0 1", k.T),
        Row("Scores of the first query", "2 4 4", q[:1] @ k.T),
        Row("Weights of the first query", "0.0 0.5 0.5", softmax(q[:1] @ k.T), "0.063 has one decimal 0.1"),
        Row("Weighted values, with the rounded weights", "0.0 0.0 0.0 / 1.0 4.0 0.0 / 1.0 3.0 1.5", rounded * v),
        Row("First output, with the rounded weights", "2.0 7.0 1.5", rounded.T @ v),
        Row("All outputs, with exact weights", "", softmax(q @ k.T) @ v),
        Row("All outputs, by the formula of the paper", "", softmax(q @ k.T / math.sqrt(3)) @ v),
        Row(
            "Inputs seen by one output of one and of two convolutions with kernels of 3",
            "3 6", [[len({6, 7, 8}), len(two)]], "neighbouring kernels overlap",
        ),
    ]  # fmt: skip


def positions() -> list[Row]:
    table = np.zeros((512, 768))
    third_number = math.sin(10_000 ** (-2 / 4))  # of p_1 for d = 4
    turns = np.rad2deg([np.angle(-1 + 0j), np.angle(1j)])
    return [
        Row(
            "Learned positions: rows, columns, longest text, parameters",
            "512 768 512 ?", [[*table.shape, len(table), table.size]],
        ),
        Row("Base of the frequencies", "10000", [[math.asin(third_number) ** -2]]),
        Row("Complex numbers as rotations: i · i, degrees of −1 and of i", "-1 180 90", [[(1j * 1j).real, *turns]]),
        Row("Smallest vector for which the rotation is derived", "0", [[2]], "a misprint of 2: rotations need a pair"),
    ]  # fmt: skip


def parts() -> list[Row]:
    square = 512**2
    attention, network = 4 * (square + 512), 8 * square + 2048 + 512
    encoder, decoder = (n * (attention + 2 * 512) + network + 2 * 512 for n in (1, 2))  # a norm has 2 · 512
    whole = 37_000 * 512 + 6 * (encoder + decoder)
    centred = np.arange(4.0) - 1.5
    ours = centred / math.sqrt((centred**2).mean() + 1e-5)
    return [
        Row("Mean and variance of normalized features", "0 1", [[ours.mean(), (ours**2).mean()]]),
        Row(
            "Share of the feed-forward network: base model, encoder layer, decoder layer",
            "0.67 ? ?", [[12 * 8 * square / whole, 8 / (8 + 4), 8 / (8 + 2 * 4)]],
            "two thirds is the share of an encoder layer",
        ),
    ]  # fmt: skip


def twice(printed: str) -> str:
    return f"{printed} / {printed}"


def given(printed: str) -> str:
    return " ".join(cell if cell == "/" else f"({cell})" for cell in printed.split())


def encoder() -> list[Row]:
    """Layer 1.  Its inputs and its feed-forward network are reconstructed; see the gallery."""
    w_q, w_k = "1 0 1 0 / 0 1 0 1 / 1 0 2 0 / 0 1 0 2", "2 0 1 0 / 0 2 0 1 / 0 1 0 0 / 1 0 0 0"
    w_v = "0 0 1 2 / 0 1 0 0 / 2 0 1 0 / 0 1 0 1"
    x = 1.1 * np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    products = (x @ matrix(w_q)) @ (x @ matrix(w_k)).T
    weights = softmax(products / 2)
    heads = weights @ (x @ matrix(w_v))
    y = norm(x + heads, [1, 1, 1.2, 1.2], [0, 0, 0.5, 0.5])
    odd, even = np.array([1.0, 0, 1, 0]), np.array([0.0, 1, 0, 1])
    w_1 = np.stack([odd, even] * 2 + [odd + np.eye(4)[0], even + np.eye(4)[1]] * 2, axis=1)
    u = y @ w_1 + np.array([0.1] * 4 + [0.2] * 4)
    hidden = np.maximum(u, 0)
    columns = "1 0 1 0 1 0 1 0 / 1 1 1 2 1 2 1 2 / 1 0 1 0 1 1 1 2 / 1 1 1 2 1 0 1 0"
    update = hidden @ matrix(columns).T + np.array([0.5, 0, 0.5, 0])
    return [
        Row("Positions of the two tokens", "(0) (1)"),
        Row("Encoder 1: query matrix", given(w_q)),
        Row("Encoder 1: key matrix", given(w_k)),
        Row("Encoder 1: value matrix", given(w_v)),
        Row("Encoder 1: products", "112.53 340.01 / 281.93 857.89", products),
        Row("Key size and its square root", "4 2", [[4, math.sqrt(4)]]),
        Row("Encoder 1: scores", "56.265 170.005 / 140.965 428.945", products / 2),
        Row("Encoder 1: weights", "0 1 / 0 1", weights),
        Row("Encoder 1: attention output", "", heads),
        Row("Encoder 1: parameters of the norm", given("1.0 1.0 1.2 1.2 / 0.0 0.0 0.5 0.5")),
        Row("Encoder 1: layer normalization", twice("-0.686 -0.343 -0.3232 2.558"), y),
        Row("Encoder 1: feed-forward, first matrix", twice("-0.9092 2.315 " * 2 + "-1.4952 2.072 " * 2), u),
        Row("Encoder 1: ReLU", twice("0 2.315 0 2.315 0 2.072 0 2.072"), hidden),
        Row("Encoder 1: feed-forward, second matrix", twice("0.5 15.233 6.716 6.945"), update),
        Row("Encoder 1: mean and variance", "7.65 29.709", mean_and_variance(y + update)[:1], "sum of rounded numbers"),
        Row(
            "Encoder 1: output", twice("-1.3807 1.6608 -0.231 0.340"),
            norm(y + update, [1.1, 1.1, 1, 1], [0.2, 0.2, 0, 0]), "the text truncates −1.4376 to −1.437",
        ),
    ]  # fmt: skip


MEMORY = "-1.028 1.479 -0.187 -0.263"
QUERIES = "0.997 -1.107 1.2964 -0.9632 / 0.816 0 1.0792 -1.8596"
W_K_CROSS, W_V_CROSS = "1 0 0 1 / 0 1 1 0 / 0 0 1 0 / 1 0 0 1", "0 1 1 0 / 1 0 0 1 / 1 0 1 0 / 0 1 0 1"


def decoder() -> list[Row]:
    """Encoder layer 2, and decoder layer 1 as far as its weights are known."""
    memory, y = matrix(twice(MEMORY)), matrix(QUERIES)
    products = matrix("13.28 250 / 64.98 257.58")
    masked = np.where(np.tri(2) == 1, products / 2, -np.inf)
    k, v = memory @ matrix(W_K_CROSS), memory @ matrix(W_V_CROSS)
    query = np.array([[0.082, -0.079, 0.082, -0.079]]) / 0.05  # from the gradient of the keys, 0.05 q
    heads = softmax(y @ k.T / 2) @ v
    output = "1.581 -1.136 -0.460 0.016 / 1.617 -1.066 -0.494 -0.057"
    before = (y - np.array([0, 0, 0.1, 0.1])) / np.array([1, 1, 1.2, 1.2])
    return [
        Row("Encoder 2: weights", "0.5 0.5 / 0.5 0.5", softmax(np.zeros((2, 2)))),
        Row("Encoder 2: attention, after the norm", given(twice("-1.621 1.487 -0.426 0.160"))),
        Row("Encoder 2: output", given(twice(MEMORY))),
        Row("Encoder 2: mean and variance of its output", "", mean_and_variance(memory)[:1]),
        Row("Decoder 1: products", given("13.28 250 / 64.98 257.58")),
        Row("Decoder 1: scores", "6.64 125 / 32.49 128.79", products / 2),
        Row("Decoder 1: masked scores", "6.64 -inf / 32.49 128.79", masked),
        Row("Decoder 1: weights", "1 0 / 0 1", softmax(masked)),
        Row("Decoder 1: masked attention, after the norm", given(QUERIES)),
        Row("Decoder 1: mean and variance before γ and β", "", mean_and_variance(before)),
        Row("Decoder 1, cross-attention: keys", twice("-1.291 1.479 1.292 -1.291"), k),
        Row(
            "Decoder 1, cross-attention: scores of token 1", "-0.173 -0.173", query @ k.T / 2,
            "the query of the backward pass gives −0.148",
        ),
        Row("Decoder 1, cross-attention: scores of token 2", given("-0.173 -0.173")),
        Row("Decoder 1, cross-attention: weights", "0.5 0.5 / 0.5 0.5", softmax(y @ k.T / 2)),
        Row("Decoder 1, cross-attention: values", twice("1.292 -1.291 -1.215 1.216"), v),
        Row("Decoder 1, cross-attention: output", twice("1.292 -1.291 -1.215 1.216"), heads),
        Row(
            "Decoder 1, cross-attention: layer normalization",
            "1.443 -1.377 0.115 0.218 / 1.741 -0.917 -0.014 -0.411", norm(y + heads) + 0.1,
        ),
        Row("Decoder 1: output", given(output)),
        Row("Decoder 1: mean and variance of its output", "", mean_and_variance(matrix(output))),
    ]  # fmt: skip


def loss() -> list[Row]:
    logits, targets, right = matrix("0.5 3.5 1.2 / 0.8 2.1 4.0"), [1, 2], [0.67, 0.7]
    probabilities = []
    for row, target, p in zip(logits, targets, right, strict=True):
        known = np.exp(row - row[target]) * p  # relative to the target
        probabilities.append([*known, 1 - known.sum()])
    return [
        Row("Logits", given("0.5 3.5 1.2 / 0.8 2.1 4.0")),
        Row(
            "Probabilities", "0.033 (0.670) 0.067 ? / 0.04 0.10 (0.70) ?", probabilities,
            "beside 0.70 for the logit 4.0, the logit 0.8 has 0.03",
        ),
        Row("Targets", given("0 1 0 / 0 0 1")),
        Row("Loss of each token", "", [[-math.log(p) for p in right]]),
    ]  # fmt: skip


def backwards() -> list[Row]:
    """From the assumed gradients of the heads and of the scores, by the chain rule; both weights are 0.5."""
    memory, w_k, w_v = matrix(twice(MEMORY)), matrix(W_K_CROSS), matrix(W_V_CROSS)
    in_fact = "[in fact](errata.md#equal-values-send-no-gradient-to-the-scores)"
    of_heads, of_products = matrix("0.2 0.1 -0.3 0.1"), matrix("0.1 -0.1") / 2
    query = matrix("1.64 -1.58 1.64 -1.58")
    of_keys, of_query = of_products.T @ query, of_products @ (memory @ w_k)
    of_values = np.full((2, 1), 0.5) * of_heads
    through_values, through_keys = of_values @ w_v.T, of_keys @ w_k.T
    gradient = float((memory.T @ of_values)[0, 0])
    return [
        Row("Gradient: output of the cross-attention", given("0.2 0.1 -0.3 0.1")),
        Row("Gradient: scores", given("0.1 -0.1"), remark=f"assumed; {in_fact} 0"),
        Row("Gradient: products", "0.05 -0.05", of_products, remark=f"of the assumed ∂S; {in_fact} 0"),
        Row(
            "Gradient: keys", f"{given('0.082 -0.079 0.082 -0.079')} / -0.082 0.079 -0.082 0.079", of_keys,
            remark=f"of the assumed ∂S; {in_fact} 0",
        ),
        Row("Gradient: query", "", of_query),
        Row("Gradient: to the encoder through the values", twice("-0.1 0.15 -0.05 0.1"), through_values),
        Row(
            "Gradient: to the encoder through the keys",
            "0.003 0.003 0.082 0.003 / -0.003 -0.003 -0.082 -0.003", through_keys,
            remark=f"of the assumed ∂S; {in_fact} 0",
        ),
        Row(
            "Gradient: to the encoder, sum",
            "-0.097 0.153 0.032 0.103 / -0.103 0.147 -0.132 0.097", through_values + through_keys,
            remark=f"of the assumed ∂S; {in_fact} [−0.1, 0.15, −0.05, 0.1] in both rows",
        ),
        Row(
            "Update of W_V[0, 0]: old, rate, gradient, new", "(0) (0.01) -0.2056 0.002056",
            [[0, 0.01, gradient, 0 - 0.01 * gradient]],
            remark="[the gradient of one loss of two](errata.md#the-update-uses-the-gradient-of-one-loss)",
        ),
    ]  # fmt: skip


CHAPTERS = {
    "From tokens to the Transformer": tokens,
    "Self-attention of three vectors": three_vectors,
    "Positions": positions,
    "Recurrent networks to the Transformer": parts,
    "One training step: “I am” → “我 是”": lambda: encoder() + decoder() + loss() + backwards(),
}


def table() -> str:
    """The table as Markdown, one row per quantity with printed numbers."""

    def shown(x: float) -> str:
        return "−∞" if x == -math.inf else f"{0.0 if abs(x) < 1e-12 else x:.6g}".replace("-", "−")

    def typeset(cell: str) -> str:
        return cell.strip("()").replace("-inf", "−∞").replace("-", "−").replace("?", "…")

    def brackets(rows: list[list[str]], group: int) -> str:
        """Rows in brackets, which a narrow column breaks between rows and after every `group` numbers only."""
        spaces = [[" " if i % group == 0 else "\N{NO-BREAK SPACE}" for i in range(len(row))] for row in rows]
        pairs = (zip(row, space, strict=True) for row, space in zip(rows, spaces, strict=True))
        return " ".join(f"[{','.join(space + x for x, space in row).strip(' ')}]" for row in pairs)

    lines = []
    for chapter, rows in CHAPTERS.items():
        lines += [f"## {chapter}", "", "| quantity | printed | recomputed | verdict |", "|---|---|---|---|"]
        for row in (row for row in rows() if row.printed):
            found = [x for line in row.verdicts() for x in line]
            note = row.reason or row.remark
            counts = ", ".join(f"{sign} {found.count(kind)}" for kind, sign in SIGNS.items() if kind in found)
            printed = brackets([[typeset(cell) for cell in line] for line in row.cells()], 4)
            computed = (
                "" if row.value is None else brackets([[shown(float(x)) for x in line] for line in row.values()], 2)
            )
            lines.append(f"| {row.quantity} | {printed} | {computed} | {counts}{': ' * bool(note)}{note} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
