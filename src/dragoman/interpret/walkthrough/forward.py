"""The forward steps: each tap that has an entry makes a step, in the order in which the model reached the taps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from dragoman.interpret.walkthrough.entries import BOXES, ENTRIES, StepEntry, Text, WalkthroughStep, substituted
from dragoman.interpret.walkthrough.quantities import Quantities, child
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.transformer import Decoder
from dragoman.models.vision import Vision
from dragoman.nn.layers import ACTIVATIONS, FeedForward
from dragoman.nn.recurrent import Cell, ContextLayer


def forward_steps(q: Quantities, smoothing: float) -> list[WalkthroughStep]:
    """Return the forward steps, from the token ids to the loss."""
    steps: list[WalkthroughStep] = []
    for name in q.recorded.values:
        site = _TapSite(q.network, name)
        entry = next((ENTRIES[key] for key in site.keys if key in ENTRIES), None)
        values = q.recorded.values
        if entry is None or (
            entry.unless_equal and torch.equal(values[name], values[child(site.parent, entry.unless_equal)])
        ):
            continue
        if site.tap == "embedded":
            steps.append(_input_step(q, site))
        steps.append(_tap_step(q, site, entry.under(site.conditions(q, smoothing)), steps))
    return [*steps, _loss_step(q, smoothing, steps[-1].name)]


class _TapSite:
    """Where a tap is: `parent`.`tap`.

    inner: the path of the function inside the sub-layer, else the parent; module: the module there.  keys: the names
    that match it in `taps`.  stack: the encoder, the decoder, or the model if it is a single stack.
    """

    def __init__(self, network: nn.Module, name: str) -> None:
        self.network = network
        self.parent, _, self.tap = name.rpartition(".")
        self.inner = re.sub(r"around_(\w+)$", r"\1", self.parent)
        self.module = network.get_submodule(self.inner)
        self.keys = [f"{type(m).__name__}.{self.tap}" for m in (self.module, network.get_submodule(self.parent))]
        self.sublayer = network.get_submodule(self.parent)
        self.stack = network.get_submodule(self.parent.partition("layers.")[0].rstrip("."))
        self.in_self_attention = "self_attn" in self.parent
        self.is_causal = self.in_self_attention and isinstance(self.stack, Decoder | DecoderOnly)

    def box(self, entry: StepEntry) -> Text:
        """Return a readable path: `decoder.layers.0.around_cross_attn.norm` -> Decoder layer 1 · cross-attention."""
        module, path = self.network, re.sub(r"around_(\w+)(\.norm)?$", r"\1", self.parent)
        names = [BOXES[type(module).__name__]] if type(module).__name__ in BOXES else []
        for attribute in path.split(".") if path else ():
            module = module.get_submodule(attribute)
            if attribute.isdigit():
                names[-1] = substituted(BOXES["layer"], stack=names[-1], number=str(int(attribute) + 1))
            elif attribute != "layers":
                keys = (f"causal {attribute}" if self.is_causal else "", type(module).__name__, attribute)
                names.append(next((BOXES[key] for key in keys if key in BOXES), {"en": attribute, "zh": attribute}))
        names += [] if entry.part is None else [entry.part]
        return {language: " · ".join(name[language] for name in names) for language in ("en", "zh")}

    def conditions(self, q: Quantities, smoothing: float) -> set[str]:
        """Return the conditions of `when` that hold."""
        mask, positions = q.pair.src_mask, type(getattr(self.stack, "positions", None)).__name__
        holds = {
            type(self.module).__name__: True,
            positions: self.in_self_attention or self.tap in ("embedded", "positioned"),
            "gated": isinstance(self.module, FeedForward) and self.module.gated,
            "unscaled": getattr(getattr(self.stack, "embedding", None), "scale", None) == 1,
            "causal": self.is_causal,
            "padding": not self.is_causal and mask is not None and not bool(mask.all()),
            "masked": self.tap == "weights" and self._is_masked(q),
            "post": getattr(self.sublayer, "order", None) == "post",
            "pre": getattr(self.sublayer, "order", None) == "pre",
            "smoothed": smoothing > 0,
            "learned": isinstance(self.module, Cell) and len(self.module.initial) > 0,
            "every step": self.tap == "summary" and any(isinstance(m, ContextLayer) for m in self.network.modules()),
            **{kind: getattr(self.module, "activation", None) is function for kind, function in ACTIVATIONS.items()},
        }
        return {condition for condition, value in holds.items() if value}

    def _is_masked(self, q: Quantities) -> bool:
        scores, masked = (q.recorded.values.get(child(self.parent, name)) for name in ("scores", "masked"))
        return scores is not None and masked is not None and not torch.equal(scores, masked)


def _tap_step(q: Quantities, site: _TapSite, entry: StepEntry, before: Sequence[WalkthroughStep]) -> WalkthroughStep:
    found = {tensor: q.described(tensor, site.parent, site.inner) for tensor in entry.tensors}
    if any(tensor.startswith("b") and quantity is None for tensor, quantity in found.items()):
        parameter_gradients = re.sub(r" +∂b\w* = Σₜ ∂\w+", "", entry.parameter_gradients)
        entry = replace(entry, formula=re.sub(r" \+ b\w*", "", entry.formula), parameter_gradients=parameter_gradients)
    quantities = [quantity for quantity in found.values() if quantity is not None]
    if not entry.gradient:
        quantities = [replace(quantity, gradient=None) for quantity in quantities]
    if not entry.box["en"]:
        entry = replace(entry, box=site.box(entry))
    uses = [(_used(q, site, use, entry.box, before), "value") for use in entry.uses]
    return WalkthroughStep(child(site.parent, site.tap), entry, tuple(quantities), tuple(uses))


def _used(q: Quantities, site: _TapSite, use: str, box: Text, before: Sequence[WalkthroughStep]) -> str:
    """Return the name of the quantity that the entry calls `use`."""
    match use:
        case "previous":
            return before[-1].name
        case "input":
            return next(step.name for step in reversed(before) if step.entry.box != box)
        case "memory":
            return next(step.name for step in reversed(before) if step.name.startswith("encoder."))
    return next(name for name in (child(site.parent, use), child(site.inner, use)) if name in q.recorded.values)


def _input_step(q: Quantities, site: _TapSite) -> WalkthroughStep:
    """Return the step of the token ids that an embedding reads, or of the patches of an image."""
    if isinstance(q.network, Vision):
        return WalkthroughStep("src", ENTRIES["patches"], (q.patches("src", q.pair.src[0], q.labels.source),))
    if site.parent.startswith("encoder"):
        return WalkthroughStep(
            "src", ENTRIES["source"], (q.column("src", "id", q.pair.src[0], q.labels.source, nominal=True),)
        )
    ids = q.column("tgt_in", "id", q.pair.tgt_in[0], q.labels.target_in, nominal=True)
    return WalkthroughStep("tgt_in", ENTRIES["target"], (ids,))


def _loss_step(q: Quantities, smoothing: float, probabilities: str) -> WalkthroughStep:
    entry = ENTRIES["loss"].under({"smoothed"} if smoothing else ()).filled(smoothing=f"{smoothing:g}")
    positions = list(q.recorded.losses)
    labels = [q.labels.targets[position] for position in positions]
    losses = torch.tensor(list(q.recorded.losses.values()), dtype=torch.float64)
    quantities = [q.column("loss of each token", "Lₜ", losses, labels), q.number("loss", "L", q.recorded.loss)]
    if probabilities == "output.probs":
        rows, ids = q.recorded.values[probabilities][positions], q.pair.targets[0, positions]
        correct = rows.gather(1, ids[:, None])[:, 0]
        quantities.insert(0, q.column("output.probs[0, t, target]", "P(correct)", correct, labels))
    return WalkthroughStep("loss", entry, tuple(quantities), ((probabilities, "value"),))
