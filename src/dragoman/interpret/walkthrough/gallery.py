"""A page of worked examples from texts on the Transformer, each number beside the result of this package.

The longest example is one training step on "I am" -> "我 是".  The source of that step lacks its inputs, some matrices
and most parameters of its norms.  Those in `gallery.toml` were reconstructed from the printed numbers and reproduce all
that depend on them, backwards as well as forwards; the first feed-forward network is one of several that do.  The
walkthrough of a whole model with these matrices follows with every number of the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.interpret.walkthrough.build import compact
from dragoman.interpret.walkthrough.entries import Text, read_data
from dragoman.interpret.walkthrough.short_examples import short_examples
from dragoman.interpret.walkthrough.tiny_preset import WORKED_MATRICES, tiny_walkthrough
from dragoman.nn.attention import AttentionTaps, CrossAttention, SelfAttention, Span, attend_explicit, causal_bias
from dragoman.nn.layers import EncoderLayer, FeedForward, LayerNorm, SubLayer
from dragoman.nn.positions import Positions
from dragoman.nn.record import record
from dragoman.nn.taps import Tap
from dragoman.pages.page import render, write_page
from dragoman.training.loss import cross_entropy

Verdict = Literal["equal", "explained", "given"]
"""A printed number is the computed one within its last decimal, differs for the reason in the note, or is an input."""


@dataclass
class WorkedExample:
    """A computed matrix and the numbers that a source prints for it.

    printed: rows as in `computed`, None (in the data nan) for a number that is not printed; None if nothing is.
    mistake: whether the numbers rest on a mistake of the source, which the note names, even if they agree.
    given: whether the source states all numbers without a calculation that could be repeated, or the (row, column) of
    those that it does.  computed: None if all are given.  verdicts: one per printed number.  as_printed: the numbers in
    the notation of the source.  difference: the largest difference between a printed number and the computed one,
    except those of the verdict "explained".
    """

    title: Text
    formula: str
    computed: list[list[float]] | None = None
    printed: list[list[float | None]] | None = None
    note: Text | None = None
    given: bool | list[list[int]] = False
    mistake: bool = False
    verdicts: list[list[Verdict | None]] | None = field(default=None, init=False)
    as_printed: list[list[str]] | None = field(default=None, init=False)
    difference: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.printed is None:
            return
        source: list[list[Any]] = self.printed
        computed: list[list[Any]] = source if self.computed is None else self.computed
        pairs = [[*zip(*rows, strict=True)] for rows in zip(source, computed, strict=True)]
        self.verdicts = [[self._verdict((i, j), *pair) for j, pair in enumerate(row)] for i, row in enumerate(pairs)]
        compared = zip(chain(*pairs), chain(*self.verdicts), strict=True)
        close = [_distance(*pair) for pair, verdict in compared if verdict == "equal"]
        self.difference = max(close, default=None)
        self.as_printed = [[*map(_notation, row)] for row in source]
        self.printed = [[None if math.isnan(x) else float(x) for x in row] for row in source]

    def _verdict(self, index: tuple[int, int], printed: Any, computed: float) -> Verdict | None:
        if math.isnan(printed):
            return None
        if self.given is True or (self.given and [*index] in self.given):
            return "given"
        return "equal" if _distance(printed, computed) <= _half_unit(printed) + 1e-9 else "explained"


def _distance(printed: Decimal | int, computed: float) -> float:
    return 0.0 if float(printed) == computed else abs(float(printed) - computed)


def _notation(printed: Decimal | int) -> str:
    """Return a number as its source writes it; "…" if it is not printed."""
    if math.isnan(printed):
        return "…"
    return ("−∞" if printed == -math.inf else str(printed)).replace("-", "−")


def _half_unit(printed: Decimal | int) -> float:
    """Return half a unit of the last printed decimal; whole numbers are taken as exact to three decimals."""
    exponent = printed.as_tuple().exponent if isinstance(printed, Decimal) else 0
    return 0.5 * 10.0**exponent if isinstance(exponent, int) and exponent < 0 else 5e-4


@dataclass(frozen=True)
class GalleryChapter:
    title: Text
    text: Text
    examples: list[WorkedExample]

    @property
    def counts(self) -> dict[str, int]:
        """Number of printed numbers by verdict."""
        rows = [row for example in self.examples for row in example.verdicts or []]
        found = Counter(verdict for row in rows for verdict in row)
        return {verdict: found[verdict] for verdict in ("equal", "explained", "given")}


def gallery() -> list[GalleryChapter]:
    """Compute the worked examples."""
    data, step = (read_data(name, Decimal) for name in ("gallery.toml", "gallery_step.toml"))
    tensor = partial(torch.tensor, dtype=torch.float64)
    numbers = {name: _floats(x) for name, x in data["given"].items()}
    given = {name: [*map(tensor, x)] if name == "ffn" else tensor(x) for name, x in numbers.items()}
    computed: dict[str, Tensor] = short_examples()
    for compute in (_three_vectors, _encoder, _decoder, _norms, _loss, _backward_and_update):
        computed |= compute(given)
    chapters = []
    for chapter in [*data["chapters"], *step["chapters"]]:
        results = [
            computed[entry["computed"]].tolist() if "computed" in entry else None for entry in chapter["examples"]
        ]
        entries = [entry | {"computed": result} for entry, result in zip(chapter["examples"], results, strict=True)]
        chapters.append(GalleryChapter(**{**chapter, "examples": [WorkedExample(**entry) for entry in entries]}))
    return chapters


def write_gallery(path: str | Path, language: str = "auto") -> Path:
    """Write the page, which opens in `language` (see `render`), to `path` atomically and return `path`.

    Raises DragomanError if it cannot be written.
    """
    chapters = [{**asdict(chapter), "counts": chapter.counts} for chapter in gallery()]
    data = {"chapters": _with_infinity(chapters), "walkthrough": compact(tiny_walkthrough(WORKED_MATRICES))}
    title = "Dragoman: numbers worked out by hand"
    page = render("gallery.html", language=language, title=title, data=data, gallery=True)
    return write_page(Path(path), page)


def write_walkthrough(
    path: str | Path,
    walkthrough: Mapping[str, Any],
    language: str = "auto",
    *,
    worked: bool = False,
    replaced: Sequence[str] = (),
    heads: int = 1,
) -> Path:
    """Write a page with the walkthrough of the tiny model (`tiny_walkthrough`); as `write_gallery`.

    worked: whether its matrices are `WORKED_MATRICES`.  replaced: names of those that are the user's.  The page names
    both, the heads and the learning rate.
    """
    title, data = "Dragoman: one training step", {"chapters": [], "walkthrough": compact(walkthrough)}
    settings = {"worked": worked, "replaced": [*replaced], "heads": heads}
    page = render("gallery.html", language=language, title=title, data=data, gallery=False, **settings)
    return write_page(Path(path), page)


def _floats(x: Any) -> Any:
    return [*map(_floats, x)] if isinstance(x, list) else float(x)


def _with_infinity(data: Any) -> Any:
    """Return `data` with -inf, which JSON lacks, as a text."""
    if isinstance(data, dict):
        return {key: _with_infinity(value) for key, value in data.items()}
    if isinstance(data, list):
        return [*map(_with_infinity, data)]
    return "−∞" if data == -math.inf else data


# ------------------------------------------------------------------------------------------------ the computed matrices


def _recorded(part: str, seen: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return the first call of each tap as a matrix; there is one sentence and one head."""
    return {f"{part}: {name}": calls[0].reshape(-1, calls[0].size(-1)) for name, calls in seen.items()}


def _load(module: nn.Module, *values: Tensor) -> Any:
    """Load parameters, given in the order of the module, in float64; return the module."""
    module.double().load_state_dict(dict(zip(module.state_dict(), values, strict=True)))
    return module


def _sub_layer(norm: Tensor) -> SubLayer:
    """Return a sub-layer whose norm has a negligible epsilon, because the source has none."""
    return SubLayer(_load(LayerNorm(4, eps=1e-12), *norm), 0.0, "post")


def _self_attention(*matrices: Tensor) -> Any:
    return _load(SelfAttention(4, 1, bias=False), torch.eye(4), torch.cat([matrix.T for matrix in matrices]))


def _cross_attention(given: Mapping[str, Any]) -> Any:
    eye, kv = torch.eye(4), torch.cat([given["cross_W_K"], given["cross_W_V"]])
    return _load(CrossAttention(4, 1, bias=False), eye, eye, kv)


def _three_vectors(given: Mapping[str, Any]) -> dict[str, Tensor]:
    x, w_q, w_k, w_v = (given[f"three_vectors{end}"] for end in ("", "_W_Q", "_W_K", "_W_V"))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scaled, _ = attend_explicit(q[None, None], k[None, None], v[None, None], None)
    # Scaling the queries by √3 undoes the division by √d_key.
    unscaled, weights = attend_explicit(q[None, None] * math.sqrt(3), k[None, None], v[None, None], None)
    return {
        "Q": q, "K": k, "V": v, "first scores": q[:1] @ k.T, "first weights": weights[0, 0, :1], "keys as columns": k.T,
        "summands": given["rounded_weights"].T * v, "rounded output": given["rounded_weights"] @ v,
        "unscaled outputs": unscaled[0, 0], "scaled outputs": scaled[0, 0],
    }  # fmt: skip


def _encoder(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute layer 1 and the attention of layer 2, which needs no matrices because its inputs are equal."""
    norms, pos = iter([given["norm_1"], given["norm_2"]]), torch.arange(2)
    first, second = _self_attention(given["W_Q"], given["W_K"], given["W_V"]), _self_attention(*[torch.eye(4)] * 3)
    ffn = _load(FeedForward(4, 8, "relu"), *given["ffn"])
    layer = EncoderLayer(first, ffn, lambda: _sub_layer(next(norms)))
    with torch.no_grad(), record(layer, "*") as seen, record(second, "weights") as seen_second:
        layer(given["tokens"][None], Span(Positions(), pos))
        second(given["layer_1_output"][None], Positions(), pos)
    found = _recorded("encoder 1", seen) | _recorded("encoder 2", seen_second)
    mean, std = found["encoder 1: around_ffn.norm.mean"], found["encoder 1: around_ffn.norm.std"]
    found["products"] = found["encoder 1: self_attn.queries"] @ found["encoder 1: self_attn.keys"].T
    found["mean and variance"] = torch.stack([mean[0, 0], std[0, 0].square()])[None]
    found["key size"] = torch.tensor([[first.d_key, math.sqrt(first.d_key)]], dtype=torch.float64)
    return found


def _decoder(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute masked attention from its products q · k (queries: rows; keys: unit vectors), and cross-attention."""
    q, k = nn.functional.pad(given["masked_products"], (0, 2))[None, None], torch.eye(2, 4).double()[None, None]
    bias = causal_bias(torch.arange(2), torch.arange(2), torch.float64)
    taps = {name: Tap("row", "head", "query", "key") for name in ("scores", "masked", "weights")}
    attention = _cross_attention(given)
    with torch.no_grad(), record(nn.ModuleDict(taps), "*") as masked, record(attention, "*") as cross:
        attend_explicit(q, k, k, bias, None, AttentionTaps(**taps))
        memory = attention.project(given["memory"][None])
        norm = _sub_layer(given["cross_norm"])(given["queries"][None], lambda x: attention(x, memory))[0]
    return _recorded("masked attention", masked) | _recorded("cross-attention", cross) | {"cross-attention: norm": norm}


def _norms(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute mean and variance before γ and β of norms whose inputs are unknown."""
    gamma, beta = given["masked_norm"]
    normed = {
        "encoder 2: mean and variance": given["memory"][:1],
        "masked attention: mean and variance": (given["queries"] - beta) / gamma,
        "decoder 1: mean and variance": given["decoder_1_output"],
    }
    return {name: torch.stack([x.mean(1), x.var(1, correction=0)], dim=1) for name, x in normed.items()}


def _loss(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Compute the loss.  A column for the tokens that the source omits gives the targets their printed probability."""
    targets, logits = torch.tensor([1, 2]), given["logits"]
    correct = logits.gather(1, targets[:, None])[:, 0].exp()
    others = (correct / given["probabilities"] - logits.exp().sum(1)).log()
    scores = torch.cat([logits, others[:, None]], dim=1)
    losses = [cross_entropy(scores[t : t + 1], targets[t : t + 1], 0.0)[1] for t in range(2)]
    return {"probabilities": scores.softmax(-1), "losses": torch.stack(losses)[None]}


def _backward(given: Mapping[str, Any], through: str) -> tuple[Any, dict[str, Tensor]]:
    """Compute the gradients of one query's cross-attention from those of its "output", its "weights", or both."""
    attention, memory = _cross_attention(given), given["memory"][None].clone().requires_grad_()
    query = given["query"][None].clone().requires_grad_()
    with record(attention, "*", gradients=True) as seen:
        output = attention(query, attention.project(memory))
        values = {"output": output, "weights": seen["weights"][0]}
        sum((x * given[f"{name}_gradient"]).sum() for name, x in values.items() if name in through).backward()
        gradients = {"memory": memory.grad, "query": query.grad, "keys": seen.gradient("keys")}
        gradients |= {"scores": seen.gradient("scores"), "products": seen.gradient("scores") / 2}
    found = _recorded("one query", {"scores": [seen["scores"][0].detach()]})
    return attention, found | _recorded(f"gradient through {through}", {name: [x] for name, x in gradients.items()})


def _backward_and_update(given: Mapping[str, Any]) -> dict[str, Tensor]:
    attention, found = _backward(given, "output and weights")
    weight, index = attention.kv.weight, (4, 0)  # W_V[0, 0], below the four rows of W_K
    old, gradient, rate = weight.detach()[index].clone(), weight.grad[index].clone(), given["learning_rate"]
    torch.optim.SGD([weight], lr=float(rate)).step()
    found["update"] = torch.stack([old, rate, gradient, weight.detach()[index]])[None]
    return found | _backward(given, "output")[1] | _backward(given, "weights")[1]
