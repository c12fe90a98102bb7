"""One training step of a 2+2-layer model on "I am" -> "我 是", worked out by hand in a text, through our code.

The text has lost its inputs, some of its matrices and most parameters of its norms.  Those below were found from the
numbers that it has kept, all of which they give, backwards as well as forwards; the first layer's feed-forward network
is one of several that do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.interpret.walkthrough.step import Text, text
from dragoman.nn.attention import AttentionTaps, CrossAttention, SelfAttention, attend_explicit, causal_bias
from dragoman.nn.layers import EncoderLayer, FeedForward, LayerNorm, SubLayer
from dragoman.nn.positions import Positions
from dragoman.nn.record import record
from dragoman.nn.taps import Tap
from dragoman.training.loss import cross_entropy

__all__ = ["Worked", "worked_step"]


@dataclass(frozen=True)
class Worked:
    """A matrix that our code computed, and what a text prints for it.

    printed: rows as in `ours`, None for a number that is not printed; None where nothing is.  rounding: how far that of
    the text may carry.
    """

    title: Text
    formula: str
    ours: Tensor
    printed: Sequence[Sequence[float | None]] | None
    note: Text | None = None
    rounding: float = 5e-4

    @property
    def difference(self) -> float | None:
        """The largest between a printed number and ours; None where none is printed."""
        if self.printed is None:
            return None
        apart: float = max(
            abs(number - own)
            for row, ours in zip(self.printed, self.ours.tolist(), strict=True)
            for number, own in zip(row, ours, strict=True)
            if number is not None
        )
        return apart


def worked_step() -> list[Worked]:
    """From the scores of the first layer to the update."""
    return [*_first_layer(), *_equal_words(), *_masked(), *_cross(), *_loss(), *_backwards(), *_update()]


# -------------------------------------------------------------------------------------------------------- what is given

# Encoder layer 1, for row vectors: the first word is 1.1 (1, 2, 3, 4), the second one is 4.4 more everywhere.
_WORDS = [[1.1, 2.2, 3.3, 4.4], [5.5, 6.6, 7.7, 8.8]]
_W_Q = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 2, 0], [0, 1, 0, 2]]
_W_K = [[2, 0, 1, 0], [0, 2, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0]]
_W_V = [[0, 0, 1, 2], [0, 1, 0, 0], [2, 0, 1, 0], [0, 1, 0, 1]]
_NORM_1 = [1, 1, 1.2, 1.2], [0, 0, 0.5, 0.5]
_NORM_2 = [1.1, 1.1, 1, 1], [0.2, 0.2, 0, 0]
# As `nn.Linear` has them, a row an output.
_FFN = (
    [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [2, 0, 1, 0], [0, 2, 0, 1], [2, 0, 1, 0], [0, 2, 0, 1]],
    [0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2],
    [[1, 0, 1, 0, 1, 0, 1, 0], [1, 1, 1, 2, 1, 2, 1, 2], [1, 0, 1, 0, 1, 1, 1, 2], [1, 1, 1, 2, 1, 0, 1, 0]],
    [0.5, 0, 0.5, 0],
)
_ENCODED = [-1.028, 1.479, -0.187, -0.263]
_W_K_CROSS = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
_W_V_CROSS = [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
_QUERIES = [[0.997, -1.107, 1.2964, -0.9632], [0.816, 0, 1.0792, -1.8596]]
_RATE = 0.01


def _tensor(numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _put(parameter: Tensor, numbers: Any) -> None:
    with torch.no_grad():
        parameter.copy_(numbers if isinstance(numbers, Tensor) else _tensor(numbers))


def _around(gamma: Sequence[float], beta: Sequence[float]) -> SubLayer:
    """A sub-layer whose norm has these parameters and no epsilon to speak of: the text has none."""
    norm = LayerNorm(4, eps=1e-12).double()
    _put(norm.weight, gamma)
    _put(norm.bias, beta)
    return SubLayer(norm, 0.0, "post")


def _self_attention(*matrices: Any) -> SelfAttention:
    attention = SelfAttention(4, 1, bias=False).double()
    _put(attention.qkv.weight, torch.cat([_tensor(matrix).T for matrix in matrices]))
    _put(attention.out.weight, torch.eye(4))
    return attention


def _cross_attention() -> CrossAttention:
    attention = CrossAttention(4, 1, bias=False).double()
    _put(attention.q.weight, torch.eye(4))
    _put(attention.kv.weight, torch.cat([_tensor(_W_K_CROSS), _tensor(_W_V_CROSS)]))
    _put(attention.out.weight, torch.eye(4))
    return attention


# ------------------------------------------------------------------------------------------------------------ forwards


def _first_layer() -> list[Worked]:
    ffn, sublayers = FeedForward(4, 8, "relu").double(), iter([_around(*_NORM_1), _around(*_NORM_2)])
    for parameter, numbers in zip(ffn.parameters(), _FFN, strict=True):
        _put(parameter, numbers)
    layer = EncoderLayer(_self_attention(_W_Q, _W_K, _W_V), ffn, lambda: next(sublayers))
    with torch.no_grad(), record(layer, "*") as recorded:
        layer(_tensor(_WORDS)[None], Positions(), torch.arange(2), None)
    seen = {name: calls[0][0] for name, calls in recorded.items()}
    q, k = seen["self_attn.queries"][0], seen["self_attn.keys"][0]
    inner = [-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]
    box = text("Encoder 1: ", "编码器 1：")

    def worked(en: str, zh: str, formula: str, ours: Tensor, printed: Any, **more: Any) -> Worked:
        return Worked(text(box["en"] + en, box["zh"] + zh), formula, ours, printed, **more)

    norm = seen["around_ffn.norm.mean"], seen["around_ffn.norm.std"].square()
    rounds = text("The text adds rounded numbers.", "原文把取整后的数相加。")
    cut = text("The text cut −1.4376 to −1.437 on the way.", "原文途中把 −1.4376 截成了 −1.437。")
    return [
        worked("products", "内积", "Q Kᵀ", q @ k.T, [[112.53, 340.01], [281.93, 857.89]]),
        worked(
            "scores", "得分", "Q Kᵀ / √4", seen["self_attn.scores"][0], [[56.265, 170.005], [140.965, 428.945]]
        ),
        worked(
            "weights", "权重", "softmax", seen["self_attn.weights"][0], [[0, 1], [0, 1]],
            note=text("Not quite: e^−113.74 and e^−287.98 come first.", "并非恰好：第一列是 e^−113.74 和 e^−287.98。"),
        ),
        worked(
            "output", "输出", "Z = A V", seen["self_attn.heads"][0], None,
            note=text("Both are v₂, as the text says.", "两行都等于 v₂，与原文一致。"),
        ),
        worked(
            "norm", "归一化", "γ ⊙ (x − μ) / σ + β", seen["around_self_attn.norm.normed"],
            [[-0.686, -0.343, -0.3232, 2.558]] * 2,
        ),
        worked("feed-forward, inside", "前馈网络，内层", "Y W₁ + b₁", seen["ffn.before"], [inner] * 2),
        worked("ReLU", "ReLU", "max(0, U)", seen["ffn.hidden"], [[max(0.0, x) for x in inner]] * 2),
        worked("feed-forward", "前馈网络", "H W₂ + b₂", seen["around_ffn.update"], [[0.5, 15.233, 6.716, 6.945]] * 2),
        worked(
            "mean, variance", "均值、方差", "μ, σ²", torch.stack(norm, -1)[:1], [[7.65, 29.709]],
            note=rounds, rounding=1e-3,
        ),
        worked(
            "output", "输出", "norm(Y + FFN(Y))", seen["around_ffn.norm.normed"],
            [[-1.3807, 1.6608, -0.231, 0.34]] * 2, note=cut, rounding=1e-3,
        ),
    ]  # fmt: skip


def _equal_words() -> list[Worked]:
    attention = _self_attention(*[torch.eye(4).tolist()] * 3)
    with torch.no_grad(), record(attention, "weights") as seen:
        attention(_tensor([[-1.3807, 1.6608, -0.231, 0.34]] * 2)[None], Positions(), torch.arange(2))
    note = text("Equal inputs share the weight, whatever the matrices are.", "输入相同，权重均分，与矩阵无关。")
    title = text("Encoder 2: weights", "编码器 2：权重")
    return [Worked(title, "softmax", seen["weights"][0][0, 0], [[0.5, 0.5], [0.5, 0.5]], note)]


def _masked() -> list[Worked]:
    """Given are the products q . k: queries are their rows, keys unit vectors."""
    q = nn.functional.pad(_tensor([[13.28, 250.0], [64.98, 257.58]]), (0, 2))[None, None]
    k, pos = torch.eye(2, 4, dtype=torch.float64)[None, None], torch.arange(2)
    taps = nn.ModuleDict({name: Tap("row", "head", "query", "key") for name in ("scores", "masked", "weights")})
    with torch.no_grad(), record(taps, "*") as seen:
        inner = AttentionTaps(**{name: tap for name, tap in taps.items() if isinstance(tap, Tap)})
        attend_explicit(q, k, k, causal_bias(pos, pos, torch.float64), None, inner)
    scores, weights = seen["scores"][0][0, 0], seen["weights"][0][0, 0]
    note = text("The first word may not look at the second.", "第一个词不能看第二个词。")
    return [
        Worked(text("Decoder 1: scores", "解码器 1：得分"), "Q Kᵀ / √4", scores, [[6.64, 125], [32.49, 128.79]]),
        Worked(text("Decoder 1: weights", "解码器 1：权重"), "softmax(S + M)", weights, [[1, 0], [0, 1]], note),
    ]


def _cross() -> list[Worked]:
    attention, around = _cross_attention(), _around([1, 1, 1, 1], [0.1, 0.1, 0.1, 0.1])
    queries, memory = _tensor([_QUERIES]), _tensor([_ENCODED, _ENCODED])[None]
    with torch.no_grad(), record(attention, "*") as seen:
        projected = attention.project(memory)
        y = around(queries, lambda x: attention(x, projected))[0]
    box = text("Decoder 1, cross-attention: ", "解码器 1，交叉注意力：")
    v = [1.292, -1.291, -1.215, 1.216]
    cross = [[1.443, -1.377, 0.115, 0.218], [1.741, -0.917, -0.014, -0.411]]
    rows = [
        ("keys", "键", "K = M W_K", seen["keys"][0][0, 0], [[-1.291, 1.479, 1.292, -1.291]] * 2),
        ("values", "值", "V = M W_V", seen["values"][0][0, 0], [v] * 2),
        ("weights", "权重", "softmax", seen["weights"][0][0, 0], [[0.5, 0.5], [0.5, 0.5]]),
        ("output", "输出", "Z = A V", seen["heads"][0][0, 0], [v] * 2),
        ("norm", "归一化", "norm(Y + Z)", y, cross),
    ]
    return [Worked(text(box["en"] + en, box["zh"] + zh), formula, ours, given) for en, zh, formula, ours, given in rows]


def _loss() -> list[Worked]:
    """The last column stands for all words that the text leaves out; it is what brings the right word to its value."""
    logits, targets = [], torch.tensor([1, 2])
    for row, target, p in zip([[0.5, 3.5, 1.2], [0.8, 2.1, 4.0]], (1, 2), (0.67, 0.7), strict=True):
        logits.append([*row, math.log(math.exp(row[target]) / p - math.fsum(map(math.exp, row)))])
    scores = _tensor(logits)
    losses = [cross_entropy(scores[t : t + 1], targets[t : t + 1], 0.0)[1] for t in range(2)]
    note = text(
        "One printed number does not fit the others: beside 0.70 for the logit 4.0, the logit 0.8 has 0.03, not 0.04.",
        "原文有一个数与其余不符：得分 4.0 的概率为 0.70 时，得分 0.8 的概率是 0.03，而不是 0.04。",
    )
    printed = [[0.033, 0.67, 0.067, None], [None, 0.1, 0.7, None]]
    return [
        Worked(text("Probabilities", "概率"), "softmax(logits)", scores.softmax(-1), printed, note, rounding=6e-3),
        Worked(text("Loss of each word", "每个词的损失"), "−ln 0.670, −ln 0.70", torch.stack(losses)[None], None),
    ]


# ----------------------------------------------------------------------------------------------------------- backwards

_OF_OUT = [0.2, 0.1, -0.3, 0.1]


def _gradients(of_out: list[float], of_weights: list[float]) -> tuple[CrossAttention, dict[str, Tensor]]:
    """Backwards from sum(of_out * output) + sum(of_weights * weights) of one query at the two encoded words."""
    attention = _cross_attention()
    memory = _tensor([_ENCODED, _ENCODED])[None].requires_grad_()
    with record(attention, "*", gradients=True) as seen:
        out = attention(_tensor([[[1.64, -1.58, 1.64, -1.58]]]), attention.project(memory))
        ((out * _tensor(of_out)).sum() + (seen["weights"][0] * _tensor(of_weights)).sum()).backward()
    assert memory.grad is not None
    found = {name: seen.gradient(name)[0, 0] for name in ("scores", "keys", "values")}
    return attention, {**found, "memory": memory.grad[0]}


def _backwards() -> list[Worked]:
    """The text assumes a gradient [0.1, −0.1] of the scores: weights of a half have it if the loss goes by them."""
    nothing, assumed = [0.0, 0.0], [0.2, -0.2]
    both, values = _gradients(_OF_OUT, assumed)[1], _gradients(_OF_OUT, nothing)[1]
    keys = _gradients([0.0] * 4, assumed)[1]
    given = text("Assumed in the text.", "原文的假设值。")
    end = text(
        "Without that assumption nothing would come back here: equal values make one output, whatever the weights are.",
        "若无此假设，这里没有梯度：值相同，输出就与权重无关。",
    )
    k, total = [0.082, -0.079, 0.082, -0.079], [[-0.097, 0.153, 0.032, 0.103], [-0.103, 0.147, -0.132, 0.097]]
    v_path = [[-0.1, 0.15, -0.05, 0.1]] * 2
    k_path = [[0.003, 0.003, 0.082, 0.003], [-0.003, -0.003, -0.082, -0.003]]
    rows = [
        ("scores", "得分", "∂S", both["scores"], [[0.1, -0.1]], given),
        ("keys", "键", "∂K = ∂Sᵀ Q / √4", both["keys"], [k, [-x for x in k]], end),
        ("to the encoder through the values", "经由值传回编码器", "∂V W_Vᵀ", values["memory"], v_path, None),
        ("to the encoder through the keys", "经由键传回编码器", "∂K W_Kᵀ", keys["memory"], k_path, None),
        ("to the encoder, added up", "传回编码器的总梯度", "∂M = ∂V W_Vᵀ + ∂K W_Kᵀ", both["memory"], total, None),
    ]  # fmt: skip
    return [
        Worked(text(f"Gradient: {en}", f"梯度：{zh}"), formula, ours, printed, note)
        for en, zh, formula, ours, printed, note in rows
    ]


def _update() -> list[Worked]:
    attention, _ = _gradients(_OF_OUT, [0.2, -0.2])
    weight, place = attention.kv.weight, (4, 0)  # W_V[0, 0], behind the four rows of W_K
    assert weight.grad is not None
    old, gradient = weight.detach()[place].clone(), weight.grad[place].clone()
    torch.optim.SGD([weight], lr=_RATE).step()
    ours = torch.stack([old, gradient, weight.detach()[place]])[None]
    title = text("The update of W_V[0, 0]: old, gradient, new", "W_V[0, 0] 的更新：旧值、梯度、新值")
    return [Worked(title, "new = old − 0.01 · gradient", ours, [[0, -0.2056, 0.002056]], rounding=1e-9)]
