"""The words of a Transformer's story: what each step does, its formula forwards and backwards, and where it is from.

Vectors are rows, as in the paper: X W.  ∂X is short for ∂L/∂X, ⊙ multiplies element by element, ⟨ ⟩ is a mean.
"""

from __future__ import annotations

from dragoman.interpret.walkthrough.step import Phrase, text

__all__ = ["ACTIVATION_FORMULAS", "BIASES", "NORMS", "PHRASES", "POSITIONS"]

_PAPER = "Vaswani et al. 2017, "

PHRASES: dict[str, Phrase] = {
    "source": Phrase(
        text("The source and its numbers", "源句与编号"),
        "word → id",
        f"{_PAPER}section 3.4",
        text(
            "The text is cut into pieces of the vocabulary. From here on a piece is its number.",
            "文本被切成词表里的词元；从这里起，一个词元就是一个编号。",
        ),
    ),
    "target": Phrase(
        text("The target, one place later", "右移一位的目标"),
        "word → id",
        f"{_PAPER}section 3.1",
        text(
            "Teacher forcing: all places are trained at once. Each is told the words before and has to tell the next.",
            "teacher forcing：所有位置同时训练。每个位置看到前面的词，要说出下一个词。",
        ),
    ),
    "patches": Phrase(
        text("The image in patches", "图像切成小块"),
        "image → patches, row by row",
        "Dosovitskiy et al. 2021, section 3.1",
        text("A patch is to an image what a word is to a sentence.", "小块之于图像，如同词之于句子。"),
    ),
    "embedding": Phrase(
        text("Embedding", "词嵌入"),
        "X = √d_model · E[id]",
        f"{_PAPER}section 3.4",
        text(
            "Each number picks a row of the table E. The factor √d_model brings it to the size of the positions.",
            "每个编号取出表 E 的一行；乘以 √d_model，使它与位置编码大小相当。",
        ),
        own="∂E[id] = √d_model · ∂X",
        back_note=text(
            "The rows of a word that stands several times add up. Where E is the output's matrix too, so does that.",
            "同一个词出现在多处时，各处的梯度相加；若 E 同时是输出矩阵，也包含那一份。",
        ),
    ),
    "patch embedding": Phrase(
        text("Patches become vectors", "小块变成向量"),
        "X = [class; patches · W + b]",
        "Dosovitskiy et al. 2021, equation 1",
        text(
            "One matrix for all patches, and a learned vector in front that will tell the class.",
            "所有小块共用一个矩阵；最前面加一个学到的向量，由它给出类别。",
        ),
        own="∂W = patchesᵀ ∂X    ∂b = Σₜ ∂Xₜ",
    ),
    "projections": Phrase(
        text("Queries, keys, values", "查询、键、值"),
        "Q = X W_Q + b_Q    K = X W_K + b_K    V = X W_V + b_V",
        f"{_PAPER}section 3.2.2",
        text(
            "The same three matrices for all words at once. Each head takes its own columns.",
            "同一组三个矩阵同时作用于所有词；每个头取其中自己的几列。",
        ),
        ("∂Q W_Qᵀ + ∂K W_Kᵀ + ∂V W_Vᵀ",),
        "∂W_Q = Xᵀ ∂Q    ∂W_K = Xᵀ ∂K    ∂W_V = Xᵀ ∂V",
        back_note=text(
            "Xᵀ ∂Q is a sum over words: in a shared matrix the gradients of all positions add up.",
            "Xᵀ ∂Q 是对所有词求和：在共享的矩阵里，各位置的梯度相加。",
        ),
    ),
    "cross projections": Phrase(
        text("Queries from the target, keys and values from the source", "查询来自目标，键和值来自源句"),
        "Q = X W_Q + b_Q    K = M W_K + b_K    V = M W_V + b_V",
        f"{_PAPER}section 3.2.3",
        text(
            "M is what the encoder handed on, the same for every layer of the decoder.",
            "M 是编码器的输出，解码器每一层用的都是它。",
        ),
        ("∂Q W_Qᵀ", "∂K W_Kᵀ + ∂V W_Vᵀ"),
        "∂W_Q = Xᵀ ∂Q    ∂W_K = Mᵀ ∂K    ∂W_V = Mᵀ ∂V",
        back_note=text(
            "Keys and values carry the gradient over to the encoder; those of all layers add up there.",
            "梯度经由键和值传回编码器；各层的梯度在那里相加。",
        ),
    ),
    "scores": Phrase(
        text("Scores", "注意力得分"),
        "S = Q Kᵀ / √d_head",
        f"{_PAPER}equation 1",
        text(
            "How well a query meets each key. Divided by √d_head, so that the softmax does not saturate.",
            "每个查询与每个键的匹配程度；除以 √d_head，以免 softmax 饱和。",
        ),
        ("∂S K / √d_head", "∂Sᵀ Q / √d_head"),
        keeps="others",
        back_note=text(
            "The sum goes along a row: a weight that rises takes from all others of its row.",
            "一个权重上升，同一行的其他权重就要下降：求和项就是这个意思。",
        ),
    ),
    "mask": Phrase(
        text("Mask", "掩码"),
        "S + M,   M ∈ {0, −∞}",
        f"{_PAPER}section 3.2.3",
        text("", ""),
    ),
    "weights": Phrase(
        text("Weights", "注意力权重"),
        "A = softmax(S)",
        f"{_PAPER}equation 1",
        text(
            "Row by row: e^S, divided by the sum of its row. Each row sums to 1.",
            "逐行计算：e^S 除以该行之和；每一行的和为 1。",
        ),
        ("A ⊙ (∂A − Σₙ Aₙ ∂Aₙ)",),
        keeps="out",
    ),
    "linear weights": Phrase(
        text("Weights without a softmax", "没有 softmax 的权重"),
        "Aₜₙ = φ(qₜ) · ψ(kₙ) / Σₘ φ(qₜ) · ψ(kₘ)",
        "Katharopoulos et al. 2020, equation 4",
        text(
            "The model never makes this matrix; it is what its sums amount to. Its rank is at most d_head.",
            "模型本身不构造这个矩阵，这是它的求和所等价的权重；其秩不超过 d_head。",
        ),
        ("∂A · ∂A/∂Q", "∂A · ∂A/∂K"),
    ),
    "heads": Phrase(
        text("Output of each head", "每个头的输出"),
        "Z = A V",
        f"{_PAPER}equation 1",
        text("A weighted mean of the values.", "值的加权平均。"),
        ("∂Z Vᵀ", "Aᵀ ∂Z"),
        keeps="others",
    ),
    "joined": Phrase(
        text("Heads side by side, through W_O", "各头拼接后乘 W_O"),
        "O = [Z₁ … Z_H] W_O + b_O",
        f"{_PAPER}section 3.2.2",
        text("What this sub-layer wants to add to each word.", "这个子层要加到每个词上的内容。"),
        ("∂O W_Oᵀ",),
        "∂W_O = [Z₁ … Z_H]ᵀ ∂O    ∂b_O = Σₜ ∂Oₜ",
    ),
    "residual": Phrase(
        text("Residual connection", "残差连接"),
        "R = X + f(X)",
        f"{_PAPER}section 5.4",
        text("What came in, plus what the sub-layer found.", "输入，加上子层的结果。"),
        ("∂R", "∂R"),
        back_note=text(
            "A sum hands its gradient on unchanged, to both sides: the way past the sub-layer never fades.",
            "加法把梯度原样传给两边：绕过子层的那条路不会衰减。",
        ),
    ),
    "before": Phrase(
        text("Feed-forward, first matrix", "前馈网络第一层"),
        "U = X W₁ + b₁",
        f"{_PAPER}equation 2",
        text("The same for every word, each by itself.", "对每个词各自做同样的计算。"),
        ("∂U W₁ᵀ",),
        "∂W₁ = Xᵀ ∂U    ∂b₁ = Σₜ ∂Uₜ",
    ),
    "gated before": Phrase(
        text("Feed-forward, first matrices", "前馈网络第一层（门控）"),
        "U = X W₁ + b₁    U = [A G]",
        "Shazeer 2020, equation 5",
        text(
            "The second half, G, decides what of the first, A, gets through.",
            "后一半 G 决定前一半 A 能通过多少。",
        ),
        ("∂U W₁ᵀ",),
        "∂W₁ = Xᵀ ∂U    ∂b₁ = Σₜ ∂Uₜ",
    ),
    "hidden": Phrase(
        text("Activation", "激活函数"),
        "H = f(U)",
        f"{_PAPER}equation 2",
        text("The one place where features are not just added and scaled.", "只有这里不是单纯的相加与缩放。"),
        ("∂H ⊙ f′(U)",),
        keeps="self",
    ),
    "update": Phrase(
        text("Feed-forward, second matrix", "前馈网络第二层"),
        "F = H W₂ + b₂",
        f"{_PAPER}equation 2",
        text("What this sub-layer wants to add to each word.", "这个子层要加到每个词上的内容。"),
        ("∂F W₂ᵀ",),
        "∂W₂ = Hᵀ ∂F    ∂b₂ = Σₜ ∂Fₜ",
    ),
    "logits": Phrase(
        text("Logits", "输出得分"),
        "logits = Y W_out",
        f"{_PAPER}section 3.4",
        text("A number for each word of the vocabulary.", "词表里每个词一个数。"),
        ("∂logits W_outᵀ",),
        "∂W_out = Yᵀ ∂logits",
        back_note=text(
            "T has a 1 at the right word: too much probability is pushed down, the right word is pulled up. "
            "∂X is short for ∂L/∂X throughout.",
            "T 在正确的词处为 1：给多了的概率往下压，正确的词往上拉。以下 ∂X 均为 ∂L/∂X 的简写。",
        ),
    ),
    "probs": Phrase(
        text("Probabilities", "概率"),
        "P = softmax(logits)",
        f"{_PAPER}section 3.4",
        text("Positive, and 1 in sum over all words.", "均为正，对所有词求和为 1。"),
        ("P − T",),
        keeps="out",
    ),
    "loss": Phrase(
        text("Loss", "损失"),
        "Lₜ = −ln Pₜ[yₜ]    L = Σₜ Lₜ",
        f"{_PAPER}section 5.4",
        text(
            "How surprised the model is by each right word; training divides the sum by the number of words.",
            "模型对每个正确词的惊讶程度；训练时总和再除以词数。",
        ),
    ),
    "smoothed loss": Phrase(
        text("Loss, smoothed", "标签平滑的损失"),
        "Lₜ = −(1 − ε) ln Pₜ[yₜ] − ε/V · Σᵥ ln Pₜ[v]    L = Σₜ Lₜ",
        "Szegedy et al. 2016, section 7",
        text(
            "A part ε of the target is spread over all V words; training divides the sum by the number of words.",
            "目标中的 ε 平均分给全部 V 个词；训练时总和再除以词数。",
        ),
    ),
}

NORMS: dict[str, Phrase] = {
    "LayerNorm": Phrase(
        text("Norm", "层归一化"),
        "Y = γ ⊙ (R − μ) / σ + β    μ = ⟨R⟩    σ² = ⟨(R − μ)²⟩ + ε",
        "Ba et al. 2016, equation 4",
        text("⟨ ⟩ is the mean over the features of one word.", "⟨ ⟩ 表示对同一个词的各维求平均。"),
        ("(g − ⟨g⟩ − x ⟨g ⊙ x⟩) / σ,   g = γ ⊙ ∂Y,   x = (R − μ) / σ",),
        "∂γ = Σₜ ∂Y ⊙ (R − μ) / σ    ∂β = Σₜ ∂Y    ∂μ = −Σ γ ⊙ ∂Y / σ    ∂σ = −Σ γ ⊙ ∂Y ⊙ (R − μ) / σ²",
    ),
    "RMSNorm": Phrase(
        text("Norm", "均方根归一化"),
        "Y = γ ⊙ R / σ    σ² = ⟨R²⟩ + ε",
        "Zhang and Sennrich 2019, equation 4",
        text(
            "⟨ ⟩ is the mean over the features of one word, which is not taken away here.",
            "⟨ ⟩ 表示对同一个词的各维求平均；这里不减去均值。",
        ),
        ("(g − x ⟨g ⊙ x⟩) / σ,   g = γ ⊙ ∂Y,   x = R / σ",),
        "∂γ = Σₜ ∂Y ⊙ R / σ    ∂σ = −Σ γ ⊙ ∂Y ⊙ R / σ²",
    ),
    "BatchNorm": Phrase(
        text("Norm", "批归一化"),
        "Y = γ ⊙ (R − μ) / σ + β",
        "Ioffe and Szegedy 2015, algorithm 2",
        text(
            "μ and σ of each feature are those that training has kept.",
            "每一维的 μ 和 σ 用的是训练中累积的值。",
        ),
        ("γ ⊙ ∂Y / σ",),
        "∂γ = Σₜ ∂Y ⊙ (R − μ) / σ    ∂β = Σₜ ∂Y",
    ),
}
"""By class."""


def _position(en: str, zh: str, formula: str, source: str) -> Phrase:
    return Phrase(text("Position", "位置"), f"X′ = {formula}", source, text(en, zh), ("∂X′",))


POSITIONS: dict[str, Phrase] = {
    "Positions": _position("This model is not told where a word stands.", "这个模型不知道词的位置。", "X", "–"),
    "Sinusoidal": _position(
        "Each place has its own vector of sines and cosines.",
        "每个位置有自己的正弦、余弦向量。",
        "X + PE,   PE(p, 2i) = sin(p / 10000^(2i/d_model)),   PE(p, 2i+1) = cos(p / 10000^(2i/d_model))",
        f"{_PAPER}section 3.5",
    ),
    "Learned": _position(
        "Each place has a trained vector.",
        "每个位置有一个训练出来的向量。",
        "X + P[p]",
        "Gehring et al. 2017, section 3.1",
    ),
    "RecurrentOverEmbeddings": _position(
        "A recurrent network reads the words in order and marks each by what came before.",
        "循环网络按顺序读词，用之前的内容标记每个词。",
        "X + h,   hₜ = GRU(xₜ, hₜ₋₁)",
        "Cho et al. 2014",
    ),
    "RecurrentPositions": _position(
        "Each position vector is made from the one before.",
        "每个位置向量由前一个位置向量生成。",
        "X + p,   pₜ = tanh(W pₜ₋₁ + b)",
        "a recurrence without input",
    ),
    "Shaw": _position(
        "Nothing here: distances enter in the scores and in the values.",
        "此处不变：距离在得分和值里起作用。",
        "X",
        "Shaw et al. 2018",
    ),
    "T5": _position(
        "Nothing here: a number for each distance is added to the scores.",
        "此处不变：每种距离的一个数会加到得分上。",
        "X",
        "Raffel et al. 2020, section 2.1",
    ),
    "Alibi": _position(
        "Nothing here: the scores fade with the distance.",
        "此处不变：得分随距离减小。",
        "X",
        "Press et al. 2022, section 3",
    ),
    "Rotary": _position(
        "Nothing here: queries and keys are turned by an angle that grows with the place.",
        "此处不变：查询和键会按位置旋转一个角度。",
        "X",
        "Su et al. 2021, section 3.2",
    ),
}
"""By class."""

BIASES = {
    "causal": text(
        "No word may look at a later one: it would see what it has to tell.",
        "任何词都不能看后面的词，否则就看到了答案。",
    ),
    "padding": text("Nobody looks at padding.", "不看填充的位置。"),
    "T5": text("A trained number for each distance is added.", "每种距离加上一个训练出来的数。"),
    "Alibi": text("A number that falls with the distance is added.", "加上一个随距离减小的数。"),
    "Shaw": text(
        "The query's product with a trained vector of the distance is added.",
        "加上查询与该距离的训练向量的内积。",
    ),
}
"""What is added to the scores."""

ACTIVATION_FORMULAS = {
    "relu": "max(0, u)",
    "gelu": "u · Φ(u)",
    "gelu_tanh": "0.5 u (1 + tanh(√(2/π) (u + 0.044715 u³)))",
    "silu": "u / (1 + e^−u)",
    "sigmoid": "1 / (1 + e^−u)",
}
