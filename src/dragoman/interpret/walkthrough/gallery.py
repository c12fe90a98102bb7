"""A page of numbers that texts about the Transformer have worked out by hand, each beside what our code computes.

Two examples: self-attention of three vectors, and one training step on "I am" -> "我 是" as far as its given numbers
determine it (`gallery_step`).  Below them the tiny preset goes through the same step with every number there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.interpret.walkthrough.gallery_step import Worked, worked_step
from dragoman.interpret.walkthrough.step import Text, text
from dragoman.interpret.walkthrough.tiny_preset import tiny_walkthrough
from dragoman.nn.attention import attend_explicit
from dragoman.pages.page import render, write_page

__all__ = ["Chapter", "gallery", "write_gallery"]


@dataclass(frozen=True)
class Chapter:
    title: Text
    what: Text
    items: list[Worked] = field(default_factory=list)


def gallery() -> list[Chapter]:
    """The worked examples, computed now."""
    return [
        Chapter(
            text("Self-attention of three vectors", "三个向量的自注意力"),
            text(
                "Three inputs of four numbers, three given matrices; vectors are rows. The text leaves out the "
                "division by √d_head and rounds the weights, so its outputs are round numbers.",
                "三个四维输入，三个给定矩阵，向量为行。原文省略了除以 √d_head，并对权重取整，所以输出是整齐的数。",
            ),
            three_vectors(),
        ),
        Chapter(
            text("One training step: “I am” → “我 是”", "一步训练：“I am” → “我 是”"),
            text(
                "A model of 2 + 2 layers with vectors of 4. The text has lost its inputs and some matrices; they were "
                "found again from the numbers that it kept. Its three decimals agree, but where a note says why not.",
                "2 + 2 层、向量四维的模型。原文丢失了输入和部分矩阵，这里由保留下来的数反推得到。"
                "原文的三位小数都一致，例外处有说明。",
            ),
            worked_step(),
        ),
    ]


def write_gallery(path: str | Path) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.  Raises DragomanError where it cannot be."""
    data = {"chapters": [_chapter_json(chapter) for chapter in gallery()], "walk": tiny_walkthrough()}
    return write_page(Path(path), render("gallery.html", title="Dragoman: numbers worked out by hand", data=data))


# ------------------------------------------------------------------------------------------------------- three vectors

_INPUTS = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
_W_Q = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
_W_K = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
_W_V = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]


def three_vectors() -> list[Worked]:
    x, w_q, w_k, w_v = (torch.tensor(rows, dtype=torch.float64) for rows in (_INPUTS, _W_Q, _W_K, _W_V))
    q, k, v = x @ w_q, x @ w_k, x @ w_v

    def attend(queries: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = attend_explicit(queries[None, None], k[None, None], v[None, None], None)
        return out[0, 0], weights[0, 0]

    # Queries √3 times as long undo the division by √d_head.
    out, weights = attend(q * math.sqrt(3))
    scaled, _ = attend(q)
    rounded = torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float64)
    return [
        Worked(text("Inputs", "输入"), "X", x, _INPUTS),
        Worked(text("Matrix of the keys", "键的矩阵"), "W_K", w_k, _W_K),
        Worked(text("Matrix of the values", "值的矩阵"), "W_V", w_v, _W_V),
        Worked(text("Matrix of the queries", "查询的矩阵"), "W_Q", w_q, _W_Q),
        Worked(text("Keys", "键"), "K = X W_K", k, [[0, 1, 1], [4, 4, 0], [2, 3, 1]]),
        Worked(text("Values", "值"), "V = X W_V", v, [[1, 2, 3], [2, 8, 0], [2, 6, 3]]),
        Worked(text("Queries", "查询"), "Q = X W_Q", q, [[1, 0, 2], [2, 2, 2], [2, 1, 3]]),
        Worked(text("Scores of the first query", "第一个查询的得分"), "q₁ Kᵀ", q[:1] @ k.T, [[2, 4, 4]]),
        Worked(
            text("Its weights", "它的权重"),
            "softmax(q₁ Kᵀ)",
            weights[:1],
            [[0.0, 0.5, 0.5]],
            text("The text rounds: e² is not nothing beside e⁴.", "原文取整：e² 相对 e⁴ 并非为零。"),
            rounding=0.07,
        ),
        Worked(
            text("First output, with the rounded weights", "第一个输出，用取整后的权重"),
            "[0, 0.5, 0.5] V",
            rounded @ v,
            [[2.0, 7.0, 1.5]],
        ),
        Worked(
            text("All outputs, with exact weights", "全部输出，权重不取整"),
            "softmax(Q Kᵀ) V",
            out,
            None,
            text("What the text's first row becomes without rounding.", "不取整时的结果，第一行对应原文。"),
        ),
        Worked(
            text("All outputs, as the paper has it", "全部输出，按论文公式"),
            "softmax(Q Kᵀ / √3) V",
            scaled,
            None,
            text("With the division, the weights are less sharp.", "除以 √3 后，权重没有那么尖锐。"),
        ),
    ]


# ---------------------------------------------------------------------------------------------------------------- JSON


def _chapter_json(chapter: Chapter) -> dict[str, Any]:
    return {
        "title": chapter.title,
        "what": chapter.what,
        "items": [
            {
                "title": item.title,
                "formula": item.formula,
                "note": item.note,
                "ours": item.ours.tolist(),
                "printed": item.printed,
                "difference": item.difference,
            }
            for item in chapter.items
        ],
    }
