"""The story of any other model: its taps in the order in which something first passed them, box by box."""

from __future__ import annotations

import itertools
import re

from torch import nn

from dragoman.interpret.walkthrough.blocks import step, words_step
from dragoman.interpret.walkthrough.quantities import Quantities
from dragoman.interpret.walkthrough.step import Phrase, Step, Text, text

__all__ = ["in_order"]


def in_order(network: nn.Module, quantities: Quantities) -> list[Step]:
    """The steps forwards, up to the last hidden states."""
    steps = [words_step(quantities, side) for side in ("source", "target")]
    names = [name for name in quantities.run.values if not name.startswith("output.")]
    for parent, inner in itertools.groupby(names, key=lambda name: name.rpartition(".")[0]):
        taps = list(inner)
        module = network.get_submodule(parent)
        found = [quantities.tap(name, _SYMBOLS.get(_last(name), _last(name))) for name in taps]
        steps.append(step(taps[0], _box(parent), _phrase(module, taps), *found))
    return steps


def _last(name: str) -> str:
    return name.rpartition(".")[2]


_SYMBOLS = {
    "embedded": "X", "positioned": "X", "stream": "Y", "input_gate": "i", "forget_gate": "f", "output_gate": "o",
    "reset_gate": "r", "update_gate": "z", "candidate": "n", "cell": "c", "hidden": "h", "gate": "σ(B)", "queries": "d",
    "scores": "e", "weights": "α", "context": "c", "summary": "h",
}  # fmt: skip

_NAMES = {
    "encoder": text("Encoder", "编码器"),
    "decoder": text("Decoder", "解码器"),
    "ahead": text("read from the first word", "从第一个词读起"),
    "back": text("read from the last word", "从最后一个词读起"),
    "cell": text("cell", "循环单元"),
    "cross_attn": text("attention", "注意力"),
    "conv": text("convolution", "卷积"),
    "bridge": text("first state", "初始状态"),
    "embedding": text("words", "词"),
}


def _box(parent: str) -> Text:
    """`decoder.layers.0.cross_attn` -> Decoder layer 1 · attention."""
    parts = re.sub(r"\.?layers\.(\d+)", r" \1", parent).split(".")
    english, chinese = [], []
    for part in parts:
        name, _, layer = part.partition(" ")
        known = _NAMES.get(name, text(name, name))
        english.append(known["en"] + (f" layer {int(layer) + 1}" if layer else ""))
        chinese.append(known["zh"] + (f"第 {int(layer) + 1} 层" if layer else ""))
    return text(" · ".join(english), " · ".join(chinese))


def _phrase(module: nn.Module, taps: list[str]) -> Phrase:
    names = ", ".join(_last(name) for name in taps)
    kind = type(module).__name__
    # A layer's own tap is what it hands on, except where its class says more.
    return _PHRASES.get(kind) or (_HANDED_ON if names == "stream" else Phrase(text(names, names), "", "", text("", "")))


_HANDED_ON = Phrase(
    text("What the layer hands on", "这一层的输出"),
    "",
    "",
    text("One vector a word.", "每个词一个向量。"),
)

_STEPS = text("One word after the other: each row needs the row before.", "一个词接一个词：每一行都要等前一行。")

_CELL = text("The recurrent cell", "循环单元")

_PHRASES = {
    "RecurrentEncoder": Phrase(
        text("Embedding", "词嵌入"),
        "x = √d_model · E[id]",
        "Bahdanau et al. 2015, appendix A.2.1",
        text("Each number picks a row of a table.", "每个编号取出表中的一行。"),
        own="∂E[id] = √d_model · ∂x, summed over the places of the word",
    ),
    "VanillaRNN": Phrase(
        _CELL,
        "hₜ = f(W xₜ + U hₜ₋₁ + b)",
        "Elman 1990",
        _STEPS,
        own="∂hₜ₋₁ = Uᵀ (∂hₜ ⊙ f′)",
        back_note=text(
            "At each step back the same matrix and f′: after many steps little is left, or far too much.",
            "每退一步都乘同一个矩阵和 f′：多步之后，梯度或消失，或爆炸。",
        ),
    ),
    "GRU": Phrase(
        _CELL,
        "r = σ(W_r x + U_r h)    z = σ(W_z x + U_z h)    n = tanh(W_n x + r ⊙ U_n h)    h′ = (1 − z) ⊙ n + z ⊙ h",
        "Cho et al. 2014, section 2.3",
        _STEPS,
        own="∂h = z ⊙ ∂h′ + what comes back through the gates",
        back_note=text("Where z is near 1, the gradient passes unharmed.", "z 接近 1 处，梯度几乎原样通过。"),
    ),
    "LSTM": Phrase(
        _CELL,
        "i, f, o = σ(W x + U h)    n = tanh(W x + U h)    c′ = f ⊙ c + i ⊙ n    h′ = o ⊙ tanh(c′)",
        "Hochreiter and Schmidhuber 1997; Gers et al. 2000",
        _STEPS,
        own="∂c = f ⊙ ∂c′ + what comes back through the gates",
        back_note=text(
            "Where the forget gate is open, the gradient passes unharmed.", "遗忘门打开处，梯度几乎原样通过。"
        ),
    ),
    "Bridge": Phrase(
        text("From the encoder to the decoder", "从编码器到解码器"),
        "s₀ = tanh(W h + b)",
        "Bahdanau et al. 2015, appendix A.2.2",
        text(
            "h is what each direction knew when it had read the whole sentence.",
            "h 是每个方向读完整句后的状态。",
        ),
        own="∂h = Wᵀ (∂s₀ ⊙ (1 − s₀²))",
    ),
    "AdditiveAttention": Phrase(
        text("Where to look", "看哪里"),
        "eⱼ = v · tanh(W s + U hⱼ + b)    α = softmax(e)    c = Σ αⱼ hⱼ",
        "Bahdanau et al. 2015, appendix A.1.2",
        text("One row a target word, one column a source word.", "每行一个目标词，每列一个源词。"),
        own="∂hⱼ = αⱼ ∂c + …    ∂e = α ⊙ (∂α − Σ α ⊙ ∂α)",
    ),
    "PositionedEmbedding": Phrase(
        text("Embedding and position", "词嵌入与位置"),
        "x = E[id] + P[p]",
        "Gehring et al. 2017, section 3.1",
        text("Each place has a trained vector.", "每个位置有一个训练出来的向量。"),
        own="∂E[id] = ∂P[p] = ∂x",
    ),
    "GatedConvolution": Phrase(
        text("Gated convolution", "门控卷积"),
        "[A B] = W window + b    h = A ⊙ σ(B)",
        "Gehring et al. 2017, section 3.2",
        text("A word and its neighbours; the decoder's are all behind it.", "一个词和它的邻居；解码器只看前面的。"),
        own="∂A = ∂h ⊙ σ(B)    ∂B = ∂h ⊙ A ⊙ σ(B) ⊙ (1 − σ(B))",
    ),
    "MultiStepAttention": Phrase(
        text("Where to look", "看哪里"),
        "d = W h + b + g    e = d · z    α = softmax(e)    c = √m Σ αⱼ (zⱼ + xⱼ)",
        "Gehring et al. 2017, equations 1 and 2",
        text(
            "z is the encoder's output, x and g are the embeddings of source and target, m counts the source words.",
            "z 是编码器的输出，x 与 g 是源与目标的词嵌入，m 是源句词数。",
        ),
        own="∂e = α ⊙ (∂α − Σ α ⊙ ∂α)    ∂d = Σ ∂eⱼ zⱼ",
    ),
    "BahdanauLayer": Phrase(
        text("What the layer hands on", "这一层的输出"),
        "y = tanh(W_o [s; c; x] + b)",
        "Bahdanau et al. 2015, appendix A.2.2",
        text("The state, what was seen, and the word before.", "状态、所看到的内容和前一个词。"),
    ),
    "LuongLayer": Phrase(
        text("What the layer hands on", "这一层的输出"),
        "y = tanh(W_c [c; s])",
        "Luong et al. 2015, equation 5",
        text("It is fed into the next step too.", "它也输入到下一步。"),
    ),
}
"""By class of the module that holds the taps."""
_PHRASES["RecurrentDecoder"] = _PHRASES["RecurrentEncoder"]
for _kind, _score in (("DotAttention", "eⱼ = s · hⱼ"), ("GeneralAttention", "eⱼ = s · W hⱼ")):
    _PHRASES[_kind] = Phrase(
        text("Where to look", "看哪里"),
        f"{_score}    α = softmax(e)    c = Σ αⱼ hⱼ",
        "Luong et al. 2015, equation 8",
        text("One row a target word, one column a source word.", "每行一个目标词，每列一个源词。"),
        own="∂hⱼ = αⱼ ∂c + …    ∂e = α ⊙ (∂α − Σ α ⊙ ∂α)",
    )
