"""The story of everything built of Transformer layers: sub-layer by sub-layer, in the order of the paper's figure 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from dragoman.interpret.walkthrough.phrases import ACTIVATION_FORMULAS, BIASES, NORMS, PHRASES, POSITIONS
from dragoman.interpret.walkthrough.quantities import Quantities
from dragoman.interpret.walkthrough.step import Phrase, Quantity, Step, Text, Use, text
from dragoman.models.decoder_only import DecoderOnly
from dragoman.models.encoder_only import EncoderOnly
from dragoman.models.transformer import Decoder, Encoder, Transformer
from dragoman.models.vision import Vision
from dragoman.nn.attention import CrossAttention, MultiHead, SelfAttention
from dragoman.nn.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, FeedForward, SubLayer
from dragoman.nn.linear_attention import LinearSelfAttention

__all__ = ["BLOCKS", "blocks", "step", "words_step"]

BLOCKS = (Transformer, DecoderOnly, EncoderOnly, Vision)
"""The architectures whose story this is."""

_ENCODER = text("Encoder", "编码器")
_DECODER = text("Decoder", "解码器")
_PARTS = {
    "self_attn": text("self-attention", "自注意力"),
    "cross_attn": text("cross-attention", "交叉注意力"),
    "ffn": text("feed-forward", "前馈网络"),
}


def blocks(network: nn.Module, quantities: Quantities) -> list[Step]:
    """The steps forwards, up to the last hidden states."""
    story = _Blocks(quantities)
    match network:
        case Transformer():
            story.tell("encoder.", network.encoder, _ENCODER)
            story.tell("decoder.", network.decoder, _DECODER)
        case EncoderOnly():
            story.tell("encoder.", network.encoder, _ENCODER)
        case DecoderOnly():
            story.tell("", network, _DECODER)
        case Vision():
            story.tell("", network, _ENCODER)
    return story.steps


def step(name: str, box: Text, phrase: Phrase, *quantities: Quantity | None, uses: Sequence[str] = ()) -> Step:
    """A step forwards, of the quantities that there are."""
    there = tuple(quantity for quantity in quantities if quantity is not None)
    return Step(name, box, phrase, there, uses=tuple(Use(used) for used in uses))


def words_step(quantities: Quantities, side: str) -> Step:
    """The words of a side ("source" or "target") and their ids, or the patches of an image."""
    pair, labels = quantities.pair, quantities.labels
    ids, words = (pair.src[0], labels.source) if side == "source" else (pair.tgt_in[0], labels.target_in)
    name, box = ("src", text("Source", "源句")) if side == "source" else ("tgt_in", text("Target", "目标"))
    if ids.dim() == 2:
        patches = Quantity(
            name, "patches", (1, *ids.shape), ("row", "position", "feature"), ids[None], None,
            (ids.size(0), ids.size(1)), ("position", "feature"), words,
        )  # fmt: skip
        return step(name, box, PHRASES["patches"], patches)
    return step(name, box, PHRASES[side], quantities.column(name, "id", ids, words))


class _Blocks:
    """Collects the steps of one stack after the other.

    at: the tap that holds what the next operation takes.  memory: what the encoder handed on.
    """

    def __init__(self, quantities: Quantities) -> None:
        self.q = quantities
        self.steps: list[Step] = []
        self.positions = "Positions"
        self.causal = False
        self.at = ""
        self.memory = ""

    def add(
        self, name: str, box: Text, phrase: Phrase, *found: Quantity | None, uses: Sequence[str] | None = None
    ) -> None:
        """A step; what it takes is, unless said otherwise, what the last one made."""
        self.steps.append(step(name, box, phrase, *found, uses=[self.at] if uses is None else uses))
        self.at = name

    def tell(self, prefix: str, stack: Encoder | Decoder | DecoderOnly | Vision, name: Text) -> None:
        self.positions = type(stack.positions).__name__
        self.causal = isinstance(stack, Decoder | DecoderOnly)
        self.memory = self.at
        self._words(prefix, stack, name)
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            self._layer(f"{prefix}layers.{number}", layer, _of_layer(name, number + 1))
        if not isinstance(stack.final_norm, nn.Identity):
            box = text(f"{name['en']} · last norm", f"{name['zh']} · 最后的归一化")
            self._norm(f"{prefix}final_norm", stack.final_norm, box)

    # ----------------------------------------------------------------------------------------------------------- words

    def _words(self, prefix: str, stack: Encoder | Decoder | DecoderOnly | Vision, name: Text) -> None:
        q = self.q
        side = "target" if self.causal else "source"
        self.steps.append(words_step(q, side))
        box = text(f"{name['en']} · words", f"{name['zh']} · 词")
        embedded = q.tap(f"{prefix}embedded", "X")
        if isinstance(stack, Vision):
            linear = q.matrix("embedding.weight", "W"), q.vector("embedding.bias", "b")
            front = q.vector("class_token", "class")
            self.add("embedded", box, PHRASES["patch embedding"], *linear, front, embedded, uses=["src"])
        else:
            told, argument = (q.pair.tgt_in[0], "tgt_in[0]") if self.causal else (q.pair.src[0], "src[0]")
            words = q.labels.target_in if self.causal else q.labels.source
            rows = q.rows(f"{prefix}embedding.weight", "E[id]", told, argument, words)
            ids = "tgt_in" if self.causal else "src"
            self.add(f"{prefix}embedded", box, PHRASES["embedding"], rows, embedded, uses=[ids])
        vectors = None
        if self.positions in ("Sinusoidal", "Learned"):
            places = torch.arange(q.run.values[f"{prefix}positioned"].size(0))
            symbol = "PE" if self.positions == "Sinusoidal" else "P"
            beside = None if embedded is None else embedded.rows
            vectors = q.rows(f"{prefix}positions.table", symbol, places, f":{len(places)}", beside)
        self.add(f"{prefix}positioned", box, POSITIONS[self.positions], vectors, q.tap(f"{prefix}positioned", "X′"))

    # ----------------------------------------------------------------------------------------------------------- layers

    def _layer(self, path: str, layer: EncoderLayer | DecoderLayer, box_of: Callable[[Text], Text]) -> None:
        for part, title in _PARTS.items():
            inner = getattr(layer, part, None)
            if inner is None:
                continue
            around: SubLayer = getattr(layer, f"around_{part}")
            if part == "self_attn" and self.causal:
                title = text("masked self-attention", "带掩码的自注意力")
            box, here, came_in = box_of(title), f"{path}.around_{part}", self.at
            if around.order == "pre":
                self._norm(f"{here}.norm", around.norm, box)
            if isinstance(inner, FeedForward):
                self._feed_forward(f"{path}.{part}", here, inner, box)
            else:
                self._attention(f"{path}.{part}", here, inner, box)
            both = self.q.tap(f"{here}.residual", "R")
            self.add(f"{here}.residual", box, PHRASES["residual"], both, uses=[came_in, f"{here}.update"])
            if around.order == "post":
                self._norm(f"{here}.norm", around.norm, box)

    def _norm(self, path: str, norm: nn.Module, box: Text) -> None:
        q = self.q
        parameters = q.vector(f"{path}.weight", "γ"), q.vector(f"{path}.bias", "β")
        kept = q.tap(f"{path}.mean", "μ"), q.tap(f"{path}.std", "σ")
        self.add(f"{path}.normed", box, NORMS[type(norm).__name__], *kept, *parameters, q.tap(f"{path}.normed", "Y"))

    def _attention(self, path: str, around: str, attention: MultiHead, box: Text) -> None:
        q, met = self.q, [f"{path}.queries", f"{path}.keys"]
        self._projections(path, attention, box)
        if q.tap(f"{path}.scores", "S") is not None:
            self.add(f"{path}.scores", box, PHRASES["scores"], q.tap(f"{path}.scores", "S"), uses=met)
            if not q.same(f"{path}.scores", f"{path}.masked"):
                self._mask(path, box)
        linear = isinstance(attention, LinearSelfAttention)
        softmax, weights = PHRASES["linear weights" if linear else "weights"], q.tap(f"{path}.weights", "A")
        self.add(f"{path}.weights", box, softmax, weights, uses=met if linear else None)
        heads = PHRASES["heads"]
        if self.positions == "Shaw" and "self_attn" in path:
            heads = replace(heads, formula="Z = A V + Σ A · a_V[distance]", source="Shaw et al. 2018, equation 3")
        mixed = [f"{path}.weights", f"{path}.values"]
        self.add(f"{path}.heads", box, heads, q.tap(f"{path}.heads", "Z"), uses=mixed)
        out = q.matrix(f"{path}.out.weight", "W_O"), q.vector(f"{path}.out.bias", "b_O")
        self.add(f"{around}.update", box, _told("joined", out[1]), *out, q.tap(f"{around}.update", "O"))

    def _projections(self, path: str, attention: MultiHead, box: Text) -> None:
        q = self.q
        kind, uses = "projections", [self.at]
        matrices: list[tuple[str, str, tuple[int, int] | None]] = []
        parts: tuple[int, ...]
        if isinstance(attention, CrossAttention):
            kind, parts, fused = "cross projections", attention.parts, "kv"
            matrices.append(("q", "Q", None))
            uses.append(self.memory)
        else:
            assert isinstance(attention, SelfAttention | LinearSelfAttention)
            parts, fused = attention.parts, "qkv"
        end = 0
        for letter, rows in zip(fused.upper(), parts, strict=True):
            matrices.append((fused, letter, (end, end + rows)))
            end += rows
        weights = [q.matrix(f"{path}.{linear}.weight", f"W_{letter}", rows) for linear, letter, rows in matrices]
        biases = [q.vector(f"{path}.{linear}.bias", f"b_{letter}", rows) for linear, letter, rows in matrices]
        taps = [q.tap(f"{path}.{tap}", tap[0].upper()) for tap in ("queries", "keys", "values")]
        phrase = _told(kind, biases[0])
        if self.positions == "Rotary" and kind == "projections":
            turned = text("Queries and keys are then turned by their places.", "查询和键随后按位置旋转。")
            phrase = replace(phrase, note=_joined(phrase.note, turned))
        self.add(f"{path}.queries", box, phrase, *weights, *biases, *taps, uses=uses)

    def _mask(self, path: str, box: Text) -> None:
        """What was added to the scores."""
        own = "self_attn" in path
        said = [BIASES[self.positions]] if own and self.positions in BIASES else []
        if own and self.causal:
            said.append(BIASES["causal"])
        elif self.q.pair.src_mask is not None and not bool(self.q.pair.src_mask.all()):
            said.append(BIASES["padding"])
        phrase = PHRASES["mask"]
        for note in said:
            phrase = replace(phrase, note=_joined(phrase.note, note))
        masked = self.q.tap(f"{path}.masked", "S + M")
        assert masked is not None
        self.add(f"{path}.masked", box, phrase, replace(masked, gradient=None))  # the same as that of the scores

    def _feed_forward(self, path: str, around: str, ffn: FeedForward, box: Text) -> None:
        q = self.q
        first = q.matrix(f"{path}.inner.weight", "W₁"), q.vector(f"{path}.inner.bias", "b₁")
        before = _told("gated before" if ffn.gated else "before", first[1])
        self.add(f"{path}.before", box, before, *first, q.tap(f"{path}.before", "U"))
        kind = next((name for name, function in ACTIVATIONS.items() if function is ffn.activation), "")
        formula = "H = f(A) ⊙ G" if ffn.gated else "H = f(U)"
        hidden = replace(PHRASES["hidden"], formula=f"{formula},   f(u) = {ACTIVATION_FORMULAS.get(kind, '…')}")
        if ffn.gated:
            hidden = replace(hidden, terms=("[∂H ⊙ G ⊙ f′(A), ∂H ⊙ f(A)]",))
        self.add(f"{path}.hidden", box, hidden, q.tap(f"{path}.hidden", "H"))
        second = q.matrix(f"{path}.outer.weight", "W₂"), q.vector(f"{path}.outer.bias", "b₂")
        self.add(f"{around}.update", box, _told("update", second[1]), *second, q.tap(f"{around}.update", "F"))


def _of_layer(stack: Text, number: int) -> Callable[[Text], Text]:
    return lambda part: text(
        f"{stack['en']} layer {number} · {part['en']}", f"{stack['zh']}第 {number} 层 · {part['zh']}"
    )


def _joined(one: Text, two: Text) -> Text:
    return text(f"{one['en']} {two['en']}".strip(), one["zh"] + two["zh"])


def _told(kind: str, bias: Quantity | None) -> Phrase:
    """The phrase, without biases where there are none."""
    phrase = PHRASES[kind]
    if bias is not None:
        return phrase
    own = re.sub(r" +∂b\w* = Σₜ ∂\w+", "", phrase.own)
    return replace(phrase, formula=re.sub(r" \+ b\w*", "", phrase.formula), own=own)
