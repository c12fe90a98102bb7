"""An atlas of a model's heads: over a file, what each head of every attention does, and what it would cost to lose it.

Measured of every head, as means over the queries of the file (a query that sees one key only has no choice and does
not count; padding is neither query nor key):

    entropy      - sum_j w_j ln w_j, in nats; relative: divided by ln n, that of equal weights on the n keys in sight
    confidence   the largest weight (Voita et al. 2019)
    profile      the weight on the key at offset o = place of key - place of query, where that key is in sight
    same         the weight on other places that hold the same piece, of queries that see one
    end, first   the weight on the end of sentence of the source, and on the first key
    aer          alignment error rate of the strongest links against a given alignment (inside/alignment.py)
    cost         how much the loss rises, in nats a token, when the head says 0 (Michel et al. 2019)

A label says where at least half of a head's weight goes; `Head.label` has the rules.

Letters: N rows, H heads, Tq/Tk query/key positions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batching import Batch
from dragoman.data.tokenizer import EOS, PAD
from dragoman.errors import UsageError
from dragoman.interpret.ablation import (
    ablate_heads,
    attentions,
    queries_are_source,
    query_mask,
    sublayers,
    without_sublayers,
)
from dragoman.interpret.heads.alignment import Agreement
from dragoman.interpret.heads.probes import ProbeBatch
from dragoman.models.seq2seq import Network
from dragoman.nn.modes import evaluating
from dragoman.nn.record import record, replace
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.validation import mean_loss

__all__ = ["REACH", "Atlas", "Example", "Head", "SubLayerCost", "atlas", "examples", "removal_costs"]

REACH = 7
"""Offsets from -REACH to REACH are looked at."""
MOST = 0.5
"""The share of its weight by which a head is called after something."""
BROAD = 0.75
"""The share of the largest possible entropy from which a head is called broad."""
COST_LINES = 100
"""Each removal is one pass over a sample: there are as many passes as heads and sub-layers."""
_LONGEST_EXAMPLE = 40


@dataclass(frozen=True)
class Head:
    """One head, by its attention (`decoder.layers.0.cross_attn`) and its number from 0, and what was measured of it.

    profile: offsets -REACH to REACH, None where no query has such a key.  offset: the one with the most weight among
    those that at least half of the queries have, and at_offset that weight.  aer counts a row of weights for the word
    that is written there, or for the one that is read (the word before; Chen et al. 2020), whichever aligns better:
    `word`.  None: not measured, or it never occurred.
    """

    attention: str
    number: int
    entropy: float
    relative_entropy: float
    confidence: float
    profile: tuple[float | None, ...]
    offset: int | None
    at_offset: float | None
    same: float | None
    end: float | None
    first: float
    aer: float | None = None
    word: str | None = None
    cost: float | None = None

    @property
    def stack(self) -> str:
        """`decoder.cross_attn`: what heads of all layers have in common."""
        return re.sub(r"layers\.\d+\.", "", self.attention)

    @property
    def layer(self) -> int:
        """From 0."""
        (number,) = re.findall(r"layers\.(\d+)\.", self.attention)
        return int(number)

    @property
    def label(self) -> str:
        """`aligning`: AER of at most one half.  Else what has the most weight, at least half of it: `positional -1`
        (a fixed offset), `same token` (self-attention), `end of sentence`, `first token`.  Else `broad`: at least three
        quarters of the largest possible entropy.  Else `focused`: half of the weight on one key, chosen by what is
        there.  Else `mixed`.
        """
        if self.aer is not None and self.aer <= MOST:
            return "aligning"
        # A minus sign is typography; what a machine reads is the number.
        shares = {
            f"positional {self.offset:+d}" if self.offset else "positional 0": self.at_offset,
            # Of two languages few words are the same on both sides: to attend to those is a part of aligning.
            "same token": self.same if self.attention.endswith("self_attn") else None,
            "end of sentence": self.end,
            "first token": self.first,
        }
        name, share = max(((name, share or 0.0) for name, share in shares.items()), key=lambda item: item[1])
        if share >= MOST:
            return name
        if self.relative_entropy >= BROAD:
            return "broad"
        return "focused" if self.confidence >= MOST else "mixed"

    def to_json(self) -> dict[str, Any]:
        """All of it, for `json.dumps`."""
        return dataclasses.asdict(self) | {"label": self.label, "layer": self.layer, "stack": self.stack}


@dataclass(frozen=True)
class SubLayerCost:
    """How much the loss rises, in nats a token, without a sub-layer (`encoder.layers.1.ffn`)."""

    name: str
    cost: float


@dataclass(frozen=True)
class Atlas:
    """All heads, over `lines` lines of `tokens` target tokens.

    own: the targets are the model's own output.  loss: nats a target token.  aligned: lines with an alignment.
    sublayers: what each costs, measured as the heads' costs on `cost_lines` lines; empty where not asked for.
    """

    heads: tuple[Head, ...]
    lines: int
    tokens: int
    own: bool
    loss: float
    aligned: int = 0
    cost_lines: int = 0
    sublayers: tuple[SubLayerCost, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All of it, for `json.dumps`."""
        about = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        heads, parts = [head.to_json() for head in self.heads], [dataclasses.asdict(part) for part in self.sublayers]
        return about | {"heads": heads, "sublayers": parts}


@dataclass(frozen=True)
class Example:
    """One line and its maps: attention -> weights (H, Tq, Tk).

    source, written: pieces; read: what a decoder was given at each place, so that read[t] comes before written[t].
    """

    source: tuple[str, ...]
    written: tuple[str, ...]
    read: tuple[str, ...]
    maps: dict[str, Tensor]


def atlas(network: Network, material: ProbeBatch, cost: bool = False) -> Atlas:
    """Measure every head over the lines of `material`, a batch at a time.

    cost: remove each head and each sub-layer in turn, too, over a sample of at most COST_LINES lines.  Raises
    UsageError for a model without attention and for lines without a target.
    """
    names = attentions(network)
    sums = {name: _Sums(heads) for name, heads in names.items()}
    agreements = {name: (Agreement(), Agreement()) for name in names if name.endswith("cross_attn")}
    nll, tokens = 0.0, 0
    for batch, numbers in zip(material.batches, material.numbers, strict=True):
        moved = batch.to(network.device)
        with evaluating(network), torch.no_grad(), record(network, *(f"{name}.weights" for name in names)) as seen:
            loss: Loss = network(moved.src, moved.src_mask, moved.tgt_in, TokenLoss(moved.tgt_out, 0.0))
        nll, tokens = nll + float(loss.nll), tokens + loss.tokens
        for name in names:
            weights = seen.joined(f"{name}.weights")  # (N, H, Tq, Tk)
            sums[name].add(weights, *_sight(network, name, moved, weights, material.shared))
            if name in agreements and material.aligned:
                _align(agreements[name], weights, batch, numbers, material)
    if not tokens:
        raise UsageError("the lines hold no target token: give references, or texts that are not empty")
    heads = tuple(
        dataclasses.replace(head, **error)
        for name in names
        for head, error in zip(sums[name].heads(name), _errors(agreements.get(name), names[name]), strict=True)
    )
    found = Atlas(heads, material.lines, tokens, material.own, nll / tokens, material.aligned)
    return removal_costs(network, material, found) if cost else found


# ------------------------------------------------------------------------------------------------------------ measures


def _sight(
    network: Network, name: str, batch: Batch, weights: Tensor, shared: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What queries see: keys in sight, those with the query's own piece elsewhere, ends of sentence (N, Tq, Tk).

    The last two are None where pieces cannot be compared, as those of images.
    """
    queries, own = weights.size(-2), name.endswith("self_attn")
    words = query_mask(network, name, batch, queries)
    of_source, of_keys = queries_are_source(network, name), words if own else batch.src_mask
    if of_keys is None:
        of_keys = torch.ones_like(batch.src, dtype=torch.bool)
    visible = words[:, :, None] & of_keys[:, None, :]
    if own and not of_source:
        visible = visible.tril()
    ids = batch.src if of_source else batch.tgt_in if own else batch.tgt_out
    key_ids = ids if own else batch.src
    if key_ids.dtype != torch.long:  # patches
        return visible, None, None
    same = None
    if own or shared:
        same = visible & (ids[:, :, None] == key_ids[:, None, :]) & (ids > EOS)[:, :, None]
        if own:
            same = same & ~torch.eye(queries, dtype=torch.bool, device=same.device)
    return visible, same, visible & (key_ids == EOS)[:, None, :]


class _Sums:
    """What has been measured of the H heads of one attention, as sums over queries, and how many there were."""

    def __init__(self, heads: int) -> None:
        self.sums = {
            name: torch.zeros(heads, dtype=torch.float64)
            for name in ("entropy", "relative_entropy", "confidence", "same", "end", "first")
        }
        self.queries = {"same": 0, "end": 0, "all": 0}
        self.profile = torch.zeros(heads, 2 * REACH + 1, dtype=torch.float64)
        self.offsets = torch.zeros(2 * REACH + 1, dtype=torch.float64)

    def add(self, weights: Tensor, visible: Tensor, same: Tensor | None, ends: Tensor | None) -> None:
        """weights (N, H, Tq, Tk); the others (N, Tq, Tk)."""
        visible = visible & (visible.sum(-1, keepdim=True) > 1)
        w = weights.float() if weights.dtype != torch.float64 else weights
        w = w.masked_fill(~visible[:, None], 0)
        most = visible.sum(-1).clamp_min(2).log().to(w)  # (N, Tq)
        # The weights that linear attention implies may be below 0 where positions are rotary.
        entropy = torch.special.entr(w.clamp_min(0)).sum(-1)  # (N, H, Tq)
        self._sum("entropy", entropy)
        self._sum("relative_entropy", entropy / most[:, None])
        self._sum("confidence", w.amax(-1))
        self._sum("first", w[..., 0])
        self.queries["all"] += int(visible.any(-1).sum())
        for name, where in (("same", same), ("end", ends)):
            if where is not None:
                where = where & visible
                self._sum(name, (w * where[:, None]).sum(-1))
                self.queries[name] += int(where.any(-1).sum())
        for i, offset in enumerate(range(-REACH, REACH + 1)):
            if -w.size(-2) < offset < w.size(-1):
                self.profile[:, i] += w.diagonal(offset, -2, -1).sum((0, 2), dtype=torch.float64).cpu()
                self.offsets[i] += visible.diagonal(offset, -2, -1).sum().cpu()

    def _sum(self, name: str, values: Tensor) -> None:
        """values (N, H, Tq), 0 at what does not count."""
        self.sums[name] += values.sum((0, 2), dtype=torch.float64).cpu()

    def heads(self, attention: str) -> Iterator[Head]:
        """The means.  Raises UsageError where no query had a choice."""
        count = self.queries["all"]
        if not count:
            raise UsageError(f"{attention}: no query sees more than one key; give lines of more than one token")
        profile = (self.profile / self.offsets.clamp_min(1)).tolist()
        usual = [i for i, there in enumerate(self.offsets.tolist()) if 2 * there >= count]
        for number, own in enumerate(profile):
            mean = {name: float(total[number]) / count for name, total in self.sums.items()}
            for name in ("same", "end"):
                mean[name] *= count / max(1, self.queries[name])
            best = max(usual, key=own.__getitem__, default=None)
            yield Head(
                attention,
                number,
                mean["entropy"],
                mean["relative_entropy"],
                mean["confidence"],
                tuple(share if n else None for share, n in zip(own, self.offsets.tolist(), strict=True)),
                None if best is None else best - REACH,
                None if best is None else own[best],
                mean["same"] if self.queries["same"] else None,
                mean["end"] if self.queries["end"] else None,
                mean["first"],
            )


# ----------------------------------------------------------------------------------------------------------- alignment


def _align(
    agreements: tuple[Agreement, Agreement], weights: Tensor, batch: Batch, numbers: Sequence[int], material: ProbeBatch
) -> None:
    """Add the lines of a batch, taking each row of weights for the word written, and for the word read."""
    assert material.source_piece is not None and material.target_piece is not None
    for row, number in enumerate(numbers):
        gold = material.gold(number)
        if gold is None:
            continue
        source = [material.source_piece(token) for token in batch.src[row].tolist() if token != PAD]
        written = [material.target_piece(token) for token in batch.tgt_out[row].tolist() if token != PAD]
        own = weights[row, :, : len(written), : len(source)]
        for agreement, target in zip(agreements, (written, ["<s>", *written[:-1]]), strict=True):
            agreement.add(own, target, source, gold)


def _errors(agreements: tuple[Agreement, Agreement] | None, heads: int) -> list[dict[str, Any]]:
    """`aer` and `word` of each head; nothing where they are not known."""
    rates = [agreement.error_rates for agreement in agreements or ()]
    if not rates or rates[0] is None or rates[1] is None:
        return [{}] * heads
    pairs = zip(rates[0], rates[1], strict=True)
    return [{"aer": min(w, r), "word": "written" if w <= r else "read"} for w, r in pairs]


# --------------------------------------------------------------------------------------------------------------- costs


def removal_costs(network: Network, material: ProbeBatch, found: Atlas) -> Atlas:
    """The atlas with what each head and each sub-layer costs: the rise of the loss when it says 0, one at a time."""
    batches = list(material.sample(COST_LINES))
    before = mean_loss(network, batches)
    heads = []
    for head in found.heads:
        with replace(network, ablate_heads(network, {head.attention: [head.number]})):
            heads.append(dataclasses.replace(head, cost=mean_loss(network, batches) - before))
    costs = []
    for name in sublayers(network):
        with replace(network, without_sublayers(network, [name])):
            costs.append(SubLayerCost(name, mean_loss(network, batches) - before))
    lines = sum(batch.src.size(0) for batch in batches)
    return dataclasses.replace(found, heads=tuple(heads), sublayers=tuple(costs), cost_lines=lines)


# ------------------------------------------------------------------------------------------------------------ examples


def examples(network: Network, material: ProbeBatch, count: int = 3) -> list[Example]:
    """Lines of usual length with the maps of all heads, for a page."""
    sizes = {
        number: int(src) + int(tgt)
        for batch, numbers in zip(material.batches, material.numbers, strict=True)
        for number, src, tgt in zip(numbers, _lengths(batch), (batch.tgt_out != PAD).sum(1), strict=True)
    }
    middle = sorted(sizes.values())[len(sizes) // 2]
    usual = sorted(sizes, key=lambda n: (sizes[n] > 2 * _LONGEST_EXAMPLE, abs(sizes[n] - middle), n))
    return [_example(network, material, number) for number in usual[:count]]


def _lengths(batch: Batch) -> list[int]:
    if batch.src_mask is None:
        return [batch.src.size(1)] * batch.src.size(0)
    lengths: list[int] = batch.src_mask.sum(1).tolist()
    return lengths


def _example(network: Network, material: ProbeBatch, number: int) -> Example:
    batch = material.row(number)
    moved = batch.to(network.device)
    with (
        evaluating(network),
        torch.no_grad(),
        record(network, *(f"{name}.weights" for name in attentions(network))) as seen,
    ):
        network(moved.src, moved.src_mask, moved.tgt_in, lambda hidden, output: None)
    maps = {name.removesuffix(".weights"): seen.joined(name)[0].cpu() for name in seen}
    if material.source_piece is None:
        return Example((), (), (), maps)
    piece = material.target_piece
    source = tuple(material.source_piece(token) for token in batch.src[0].tolist())
    written = () if piece is None else tuple(piece(token) for token in batch.tgt_out[0].tolist())
    return Example(source, written, ("<s>", *written[:-1]) if written else (), maps)
