"""Taps and parameters as a step shows them: with a name, a symbol, and labels along their axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dragoman.interpret.walkthrough.training_step import RecordedStep
from dragoman.models.vision import Vision
from dragoman.tokenizers import PAD


@dataclass(frozen=True)
class Quantity:
    """A tensor as matrices (heads, rows, columns), one per head, or a single one without heads.

    name: the tap, or the parameter as a Python expression.  value, gradient: (H or 1, rows, columns), along the
    vocabulary only the tokens shown.  along: the axes of rows and columns; size: how many of them the whole tensor has.
    shape, axes: of the tensor called `name`.  rows, columns: labels, None for numbers from 0.  mark: row and column
    of the value that the step is about.  nominal: the numbers are names, such as token ids, of which none is larger.
    per_head: the tensor is a matrix with the columns of all heads side by side, or has an axis "head".
    """

    name: str
    symbol: str
    value: Tensor
    gradient: Tensor | None
    along: tuple[str, str]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    size: tuple[int, int]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    mark: tuple[int, int] | None = None
    nominal: bool = False
    per_head: bool = False


@dataclass(frozen=True)
class Labels:
    """Labels of the positions: S source tokens (or patches), T tokens of the decoder's input, T targets.

    words: target id -> its token or label.
    """

    source: Sequence[str]
    target_in: Sequence[str]
    targets: Sequence[str]
    words: Callable[[int], str]


class Quantities:
    """The results of a training step by name; max_tokens: number of tokens of the vocabulary shown."""

    def __init__(self, recorded: RecordedStep, labels: Labels, max_tokens: int) -> None:
        self.recorded = recorded
        self.network = recorded.network
        self.pair = recorded.pair
        self.labels = labels
        # All ids of a small vocabulary, otherwise the targets and then the most probable tokens.
        logits, self.shown_ids = self.recorded.values.get("output.logits"), list[int]()
        if logits is not None:
            self.shown_ids = list(range(logits.size(-1)))
            if logits.size(-1) > max_tokens:
                targets = [target for target in self.pair.targets[0].tolist() if target != PAD]
                probable = logits.softmax(-1).amax(0).argsort(descending=True)[: 2 * max_tokens].tolist()
                self.shown_ids = list(dict.fromkeys([*targets, *probable]))[:max_tokens]

    def described(self, description: str, parent: str, inner: str) -> Quantity | None:
        """Return the tensor of a `tensors` entry ("W_Q qkv.weight[0]", see `steps.toml`), None if the model lacks it.

        Its name is relative to the module `parent`, or else to `inner`.
        """
        symbol, _, reference = description.rpartition(" ")
        relative, _, index = reference.rstrip("]").partition("[")
        for name in (child(parent, relative), child(inner, relative)):
            if name in self.recorded.values:
                return self._tap(name, symbol)
            if name in self.recorded.parameters and index in ("ids", ":"):
                return self._rows(name, symbol, index, parent)
            if name in self.recorded.parameters:
                return self._parameter(name, symbol, index, parent, inner)
        return None

    def _tap(self, name: str, symbol: str) -> Quantity:
        axes, value = self.recorded.axes[name], self.recorded.values[name]
        rows, columns = axes[-2:] if len(axes) > 1 else ("one", *axes) if axes == ("feature",) else (*axes, "one")
        as_row = rows == "one"
        quantity = _quantity(
            name, symbol, (value, self.recorded.gradients.get(name)), (rows, columns),
            lambda x: x if x.dim() > 1 else x[None] if as_row else x[:, None],
            shape=(1, *value.shape), axes=("row", *axes), per_head="head" in axes,
            rows=self._axis_labels(name, rows), columns=self._axis_labels(name, columns),
        )  # fmt: skip
        return self._shown_tokens(quantity) if columns == "word" else quantity

    def _parameter(self, name: str, symbol: str, index: str, parent: str, inner: str) -> Quantity:
        # The columns of W_Q, W_K, W_V and their biases are those of all heads side by side.
        result = {"Q": "queries", "K": "keys", "V": "values"}.get(symbol.partition("_")[2], "")
        projected = (self.recorded.values.get(child(path, result)) for path in (parent, inner))
        heads = next((x.size(0) for x in projected if x is not None and x.dim() == 3), 1)
        tensors, part, label = self._with_gradient(name), slice(None), name
        if index:
            parts = self.network.get_submodule(inner).parts
            assert isinstance(parts, tuple)
            first = sum(parts[: int(index)])
            part = slice(first, first + parts[int(index)])
            label = f"{name}[{part.start}:{part.stop}]"
        if tensors[0].dim() == 1:
            size = tensors[0][part].size(0)
            bias = _quantity(
                label, symbol, tensors, ("one", "output"), lambda x: x[part].reshape(heads, 1, -1), rows=[""],
                shape=(size,), axes=("output",),
            )  # fmt: skip
            return replace(bias, per_head=heads > 1)
        # Weights are stored as (out, in); the formulas have X W, so (in, out).
        along = ("input", "word" if name == "output.weight" else "output")
        rows, columns = tensors[0][part].size(1), tensors[0][part].size(0)
        matrix = _quantity(
            f"{label}.T", symbol, tensors, along, lambda x: x[part].T.reshape(rows, heads, -1).transpose(0, 1),
            shape=(rows, columns), axes=along,
        )  # fmt: skip
        return self._shown_tokens(matrix) if along[1] == "word" else replace(matrix, per_head=heads > 1)

    def _rows(self, name: str, symbol: str, index: str, parent: str) -> Quantity:
        """Return the rows of an embedding matrix for the token ids, or of a table for the positions."""
        tap = child(parent, "positioned" if index == ":" else "embedded")
        if index == ":":
            ids = torch.arange(self.recorded.values[tap].size(0))
            argument = f":{len(ids)}"
        else:
            side = "src" if name.startswith("encoder.") else "tgt_in"
            ids, argument = getattr(self.pair, side)[0], f"{side}[0]"
        tensors, labels = self._with_gradient(name), self._axis_labels(tap, "position")
        return _quantity(f"{name}[{argument}]", symbol, tensors, ("position", "feature"), lambda x: x[ids], rows=labels)

    def _with_gradient(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self.recorded.parameters[name], self.recorded.of_parameters.get(name)

    def patches(self, name: str, patches: Tensor, labels: Sequence[str]) -> Quantity:
        axes, shape = ("row", "position", "feature"), (1, *patches.shape)
        return _quantity(name, "patches", (patches, None), axes[1:], axes=axes, shape=shape, rows=labels)

    def column(self, name: str, symbol: str, values: Tensor, labels: Sequence[str], nominal: bool = False) -> Quantity:
        """Return a column with one number per position, values (T,)."""
        labelled: dict[str, Any] = {"rows": labels, "columns": [""], "nominal": nominal}
        return _quantity(name, symbol, (values[:, None], None), ("position", "one"), **labelled)

    def number(self, name: str, symbol: str, value: float) -> Quantity:
        matrix = torch.tensor([[value]], dtype=torch.float64)
        return _quantity(name, symbol, (matrix, None), ("one", "one"), rows=[""], columns=[""])

    def _shown_tokens(self, quantity: Quantity) -> Quantity:
        """Return the columns of the tokens shown, with their labels."""
        gradient = None if quantity.gradient is None else quantity.gradient[..., self.shown_ids]
        labels = [self.labels.words(token) for token in self.shown_ids]
        return replace(quantity, value=quantity.value[..., self.shown_ids], gradient=gradient, columns=labels)

    def _axis_labels(self, name: str, axis: str) -> Sequence[str] | None:
        """Return the tokens along an axis of a tap; None for a numbered axis."""
        if axis not in ("position", "query", "key"):
            return [""] if axis == "one" else None
        source = self.labels.source
        if ".back." in name:  # reads from the last token; padding stays in place
            end = len(source) if self.pair.src_mask is None else int(self.pair.src_mask.sum())
            return [*reversed(source[:end]), *source[end:]]
        if name.startswith(("output.", "head.")):
            return self.labels.targets
        if name.startswith("encoder.") or (axis == "key" and ".cross_attn." in name):
            return source
        if isinstance(self.network, Vision):
            return ["[class]", *source]
        read = self.labels.target_in  # as queries, positions are named after the token read and the one predicted
        return read if axis == "key" else [" → ".join(pair) for pair in zip(read, self.labels.targets, strict=True)]


def child(parent: str, name: str) -> str:
    """Return the path of `name` in the module `parent` ("" for the model itself)."""
    return f"{parent}.{name}" if parent else name


def _quantity(
    name: str,
    symbol: str,
    tensors: tuple[Tensor, Tensor | None],
    along: tuple[str, str],
    view: Callable[[Tensor], Tensor] = lambda x: x,
    **fields: Any,
) -> Quantity:
    """Return the `view` of a value and its gradient, ([heads,] rows, columns); the tensor has no axis "one"."""
    value, gradient = (None if x is None else view(x) if view(x).dim() == 3 else view(x)[None] for x in tensors)
    assert value is not None
    size = (value.size(1), value.size(2))
    axes = {axis: count for axis, count in zip(along, size, strict=True) if axis != "one"}
    quantity = Quantity(name, symbol, value, gradient, along, tuple(axes.values()), tuple(axes), size)
    return replace(quantity, **fields)
