"""Taps and parameters as a step shows them: with a name, a symbol, and the words along their sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.tokenizer import PAD
from dragoman.interpret.walkthrough.run import Pair, Run
from dragoman.interpret.walkthrough.step import Quantity
from dragoman.models.seq2seq import Network
from dragoman.models.vision import Vision

__all__ = ["Labels", "Quantities"]


@dataclass(frozen=True)
class Labels:
    """What is written beside positions: S source words (or patches), T words told to the decoder, T targets.

    words: target id -> its word or label.
    """

    source: Sequence[str]
    target_in: Sequence[str]
    targets: Sequence[str]
    words: Callable[[int], str]


class Quantities:
    """What a run computed, by name.

    Each method gives None for what this network does not have, so that a story can ask for all that there might be.
    """

    def __init__(self, network: Network, run: Run, pair: Pair, labels: Labels, most: int) -> None:
        """most: how many words of the vocabulary are shown."""
        self.network = network
        self.run = run
        self.pair = pair
        self.labels = labels
        self.shown_words = self._choose_words(most)

    # ------------------------------------------------------------------------------------------------------------ taps

    def tap(self, name: str, symbol: str) -> Quantity | None:
        """What passed the tap of that name."""
        if name not in self.run.values:
            return None
        axes, along = self.run.axes[name], _along(self.run.axes[name])
        whole, columns = _matrices(self.run.values[name], axes), self._beside(name, along[1])
        gradient = None if name not in self.run.gradients else _matrices(self.run.gradients[name], axes)
        value = whole
        if along[1] == "word":
            value, columns = value[..., self.shown_words], self._words()
            gradient = None if gradient is None else gradient[..., self.shown_words]
        return Quantity(
            name,
            symbol,
            (1, *self.run.values[name].shape),
            ("row", *axes),
            value,
            gradient,
            (whole.size(1), whole.size(2)),
            along,
            self._beside(name, along[0]),
            columns,
            by_head=axes[:1] == ("head",),
        )

    def same(self, one: str, other: str) -> bool:
        """Whether two taps saw the same numbers."""
        return torch.equal(self.run.values[one], self.run.values[other])

    # ------------------------------------------------------------------------------------------------------ parameters

    def matrix(self, name: str, symbol: str, rows: tuple[int, int] | None = None) -> Quantity | None:
        """A weight (out, in), or some rows of it, turned to (in, out), as the paper writes X W."""
        if name not in self.run.parameters:
            return None
        value, gradient = self._parameter(name, rows)
        return Quantity(
            f"{name}{_cut(rows)}.T",
            symbol,
            (value.size(1), value.size(0)),
            ("input", "output"),
            value.T[None],
            None if gradient is None else gradient.T[None],
            (value.size(1), value.size(0)),
            ("input", "output"),
        )

    def vector(self, name: str, symbol: str, rows: tuple[int, int] | None = None) -> Quantity | None:
        """A bias, or the parameters of a norm, as one row."""
        if name not in self.run.parameters:
            return None
        value, gradient = self._parameter(name, rows)
        row = None if gradient is None else gradient[None, None]
        return Quantity(
            f"{name}{_cut(rows)}",
            symbol,
            tuple(value.shape),
            ("output",),
            value[None, None],
            row,
            (1, value.size(0)),
            ("one", "output"),
            rows=[""],
        )

    def rows(self, name: str, symbol: str, ids: Tensor, argument: str, words: Sequence[str] | None) -> Quantity | None:
        """The rows of a table that some ids pick; argument: how Python names the ids."""
        if name not in self.run.parameters:
            return None
        table, gradient = self._parameter(name, None)
        size = (ids.numel(), table.size(1))
        return Quantity(
            f"{name}[{argument}]",
            symbol,
            size,
            ("position", "feature"),
            table[ids][None],
            None if gradient is None else gradient[ids][None],
            size,
            ("position", "feature"),
            words,
        )

    def output_matrix(self) -> Quantity | None:
        """The last matrix (D, V), the columns of the words that are shown."""
        if "output.weight" not in self.run.parameters:
            return None
        value, gradient = self._parameter("output.weight", None)
        shape = (value.size(1), value.size(0))
        shown = self.shown_words
        return Quantity(
            "output.weight.T",
            "W_out",
            shape,
            ("input", "word"),
            value[shown].T[None],
            None if gradient is None else gradient[shown].T[None],
            shape,
            ("input", "word"),
            columns=self._words(),
        )

    def _parameter(self, name: str, rows: tuple[int, int] | None) -> tuple[Tensor, Tensor | None]:
        cut = slice(*rows) if rows else slice(None)
        gradient = self.run.of_parameters.get(name)
        return self.run.parameters[name][cut], None if gradient is None else gradient[cut]

    # ---------------------------------------------------------------------------------------------------- plain numbers

    def column(self, name: str, symbol: str, values: Tensor, words: Sequence[str] | None) -> Quantity:
        """One number a position (T,)."""
        return Quantity(
            name,
            symbol,
            tuple(values.shape),
            ("position",),
            values[None, :, None],
            None,
            (values.numel(), 1),
            ("position", "one"),
            words,
            [""],
        )

    def number(self, name: str, symbol: str, value: float) -> Quantity:
        one = torch.tensor([[[value]]], dtype=torch.float64)
        return Quantity(name, symbol, (), (), one, None, (1, 1), ("one", "one"), [""], [""])

    # ----------------------------------------------------------------------------------------------------------- words

    def _choose_words(self, most: int) -> list[int]:
        """Ids of the vocabulary that are shown: all of a small one, else the right words and then the most probable."""
        logits = self.run.values.get("output.logits")
        if logits is None or logits.size(-1) <= most:
            return [] if logits is None else list(range(logits.size(-1)))
        right = [target for target in self.pair.targets[0].tolist() if target != PAD]
        probable = logits.softmax(-1).amax(0).argsort(descending=True)[: 2 * most].tolist()
        return list(dict.fromkeys([*right, *probable]))[:most]

    def _words(self) -> list[str]:
        return [self.labels.words(word) for word in self.shown_words]

    def _beside(self, name: str, axis: str) -> Sequence[str] | None:
        """The words along an axis of a tap; None where it is numbered."""
        if axis == "one":
            return [""]
        if axis not in ("position", "query", "key"):
            return None
        if ".back." in name:  # reads from the last word
            return self._turned()
        if name.startswith("output."):
            return self.labels.targets
        if name.startswith("encoder.") or (axis == "key" and ".cross_attn." in name):
            return self.labels.source
        return ["[class]", *self.labels.source] if isinstance(self.network, Vision) else self.labels.target_in

    def _turned(self) -> list[str]:
        mask, words = self.pair.src_mask, list(self.labels.source)
        end = len(words) if mask is None else int(mask.sum())
        return [*reversed(words[:end]), *words[end:]]


def _along(axes: tuple[str, ...]) -> tuple[str, str]:
    """What rows and columns of a tap go along."""
    if len(axes) > 1:
        return axes[-2], axes[-1]
    return ("one", axes[0]) if axes[0] == "feature" else (axes[0], "one")


def _matrices(value: Tensor, axes: tuple[str, ...]) -> Tensor:
    """(H or 1, rows, columns)"""
    if len(axes) == 1:
        return value[None, None] if axes[0] == "feature" else value[None, :, None]
    return value if len(axes) == 3 else value[None]


def _cut(rows: tuple[int, int] | None) -> str:
    return f"[{rows[0]}:{rows[1]}]" if rows else ""
