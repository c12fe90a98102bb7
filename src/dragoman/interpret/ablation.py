"""Replace something in a model and read what it does: to the loss, to BLEU, to every single translation.

A change is what `inside.record.replace` takes: the name of a tap and what stands in for its tensor.  The functions
here make the usual ones:

    ablate_heads       the output of a head becomes 0, or its mean (Michel et al. 2019; Voita et al. 2019)
    without_sublayers   a sub-layer adds nothing: x + 0
    patched             what another run had in a place (activation patching; Vig et al. 2020)
    with_weights        a head attends to what it is told

and several are one by `|`, as they are dictionaries.

Letters: N rows, H heads, T positions, Tq/Tk query/key positions, D d_model, Dh head size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.data.batching import Batch
from dragoman.data.tokenizer import PAD
from dragoman.errors import UsageError, nearest
from dragoman.evaluation.metrics import Evaluation, evaluate_texts
from dragoman.models.seq2seq import Model, Network
from dragoman.nn.modes import evaluating
from dragoman.nn.record import Change, Recording, record, replace, tap_names
from dragoman.pipelines.translation import Translator

__all__ = [
    "Changed",
    "Effect",
    "Shift",
    "ablate_heads",
    "attentions",
    "effect",
    "mean_outputs",
    "patched",
    "queries_are_source",
    "query_mask",
    "sublayers",
    "with_weights",
    "without_sublayers",
]

_ALONG = ("position", "query", "key")


# ------------------------------------------------------------------------------------------------ what can be changed


def attentions(model: nn.Module) -> dict[str, int]:
    """Name of every attention (`decoder.layers.0.cross_attn`) -> how many heads it has.

    Raises UsageError where there is none.
    """
    names = [name.removesuffix(".weights") for name in tap_names(model) if name.endswith("_attn.weights")]
    if not names:
        raise UsageError("this model has no attention: nothing in it is called *_attn.weights; choose one that has")
    return {name: int(getattr(model.get_submodule(name), "n_heads", 1)) for name in names}


def sublayers(model: nn.Module) -> dict[str, str]:
    """Name of every sub-layer that can be left out (`encoder.layers.1.ffn`) -> the tap of what it adds."""
    found = {}
    for tap in tap_names(model):
        for form in (r"(.*layers\.\d+\.)around_(\w+)\.update", r"(.*layers\.\d+\.)(conv)\.hidden",
                     r"(.*layers\.\d+\.)(cross_attn)\.context"):  # fmt: skip
            if match := re.fullmatch(form, tap):
                found[match[1] + match[2]] = tap
    return found


def queries_are_source(network: Network, name: str) -> bool:
    """Whether what attends is the source (an encoder, or a network without a decoder), and not the target."""
    return name.startswith("encoder.") or not isinstance(network, Model)


def query_mask(network: Network, name: str, batch: Batch, queries: int) -> Tensor:
    """(N, Tq) True where what attends is a word, padding False."""
    if not queries_are_source(network, name):
        return batch.tgt_out != PAD
    if batch.src_mask is not None:
        return batch.src_mask
    return torch.ones(batch.src.size(0), queries, dtype=torch.bool, device=batch.src.device)


# ----------------------------------------------------------------------------------------------------- making changes


def ablate_heads(
    model: nn.Module, heads: Mapping[str, Sequence[int]], means: Mapping[str, Tensor] | None = None
) -> dict[str, Change]:
    """Changes that silence heads: `{"decoder.layers.0.cross_attn": [0, 2]}`, numbers from 0.

    means: what a head says instead of 0, a vector a head (H, Dh), as `mean_outputs` gives it.  Attention of one head
    without a projection behind it (recurrent, convolutional) loses its context.  Raises UsageError for all attentions
    and heads that there are not, at once.
    """
    known = attentions(model)
    problems = [f"no attention is called {name!r}{nearest(name, known)}" for name in heads if name not in known]
    for name in heads.keys() & known.keys():
        wrong = [head for head in heads[name] if not 0 <= head < known[name]]
        problems += [f"{name} has no head {head}: accepted are 0 to {known[name] - 1}" for head in wrong]
        if means is not None and name not in means:
            problems.append(f"means holds nothing for {name}; make them with mean_outputs")
    if problems:
        raise UsageError(f"{'; '.join(sorted(problems))}; the attentions are: {', '.join(known)}")
    return {
        _output_tap(model, name): _silence(list(some), None if means is None else means[name])
        for name, some in heads.items()
        if some
    }


def _output_tap(model: nn.Module, attention: str) -> str:
    """The tap of what the heads say: (N, H, Tq, Dh), or of a single one the context (N, Tq, D)."""
    names = tap_names(model)
    return next(tap for tap in (f"{attention}.heads", f"{attention}.context") if tap in names)


def _silence(heads: list[int], means: Tensor | None) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        if x.dim() == 3:
            return torch.zeros_like(x) if means is None else means[0].to(x).expand_as(x)
        x = x.clone()
        x[:, heads] = 0 if means is None else means[heads][:, None].to(x)  # (heads, 1, Dh)
        return x

    return change


def without_sublayers(model: nn.Module, names: Sequence[str]) -> dict[str, Change]:
    """Changes that leave out sub-layers: `["encoder.layers.1.ffn", "decoder.layers.0.cross_attn"]`.

    What goes around it stays, the norm too.  Raises UsageError with all names that there are not.
    """
    known = sublayers(model)
    unknown = [f"no sub-layer is called {name!r}{nearest(name, known)}" for name in names if name not in known]
    if unknown:
        there = ", ".join(known) or "none, in this architecture"
        raise UsageError(f"{'; '.join(unknown)}; those that can be left out are: {there}")
    return {known[name]: torch.zeros_like for name in names}


def patched(recording: Recording, positions: Sequence[int] | None = None) -> dict[str, Change]:
    """Changes that put in everything that `record` saw in another run, or only some positions of it.

    With positions, the two runs may be of different length.  Patch one quantity of one sentence and read the output:
    where it turns into that of the other run, the quantity carries what makes the difference.  Targets must be given
    (teacher forcing), for a search decodes position by position; what an encoder does can be patched in a search too.
    """
    return {name: _put_in(name, recording, positions) for name in recording}


def _put_in(name: str, recording: Recording, positions: Sequence[int] | None) -> Change:
    calls = recording[name]
    if positions is None:
        return calls[0] if len(calls) == 1 else list(calls)
    if len(calls) > 1:
        raise UsageError(f"{name} came in {len(calls)} calls, a position each: patch it without positions")
    new = recording.joined(name)
    axes = recording.axes[name]
    along = next((i for i, axis in enumerate(axes) if axis in _ALONG), None)
    if along is None:
        raise UsageError(f"{name} has no positions, its axes are {', '.join(axes)}: patch it without positions")

    def change(x: Tensor) -> Tensor:
        shortest = min(x.size(along), new.size(along))
        wrong = [p for p in positions if not 0 <= p < shortest]
        if wrong:
            raise UsageError(f"{name}: there is no position {', '.join(map(str, wrong))} in both: 0 to {shortest - 1}")
        x, places = x.clone(), torch.tensor(list(positions), device=x.device)
        return x.index_copy_(along, places, new.index_select(along, places.to(new.device)).to(x))

    return change


def with_weights(model: nn.Module, attention: str, head: int, weights: Tensor) -> dict[str, Change]:
    """The change that makes a head attend as told.

    weights: (Tk,) for every query, or (Tq, Tk).  Raises UsageError for an attention or a head that there is not, and,
    when the model runs, for a shape that does not fit.
    """
    ablate_heads(model, {attention: [head]})  # says what is wrong with the two

    def change(x: Tensor) -> Tensor:  # (N, H, Tq, Tk)
        x = x.clone()
        try:
            x[:, head] = weights.to(x)
        except RuntimeError as error:
            raise UsageError(
                f"{attention}: weights of shape {tuple(weights.shape)} for {x.size(2)} queries and {x.size(3)} keys: "
                f"give ({x.size(3)},) or ({x.size(2)}, {x.size(3)})"
            ) from error
        return x

    return {f"{attention}.weights": change}


# --------------------------------------------------------------------------------------------------- running a network


def mean_outputs(network: Network, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Attention -> the mean of what each head says over all words, (H, Dh): what `ablate_heads` may put in its place.

    A head that always says the same can be silenced by 0 only at a cost, by its mean at none.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    taps = {name: _output_tap(network, name) for name in attentions(network)}
    for batch in batches:
        batch = batch.to(network.device)
        with evaluating(network), torch.no_grad(), record(network, *taps.values()) as seen:
            network(batch.src, batch.src_mask, batch.tgt_in, _nothing)
        for name, tap in taps.items():
            said = seen.joined(tap)
            said = said[:, None] if said.dim() == 3 else said  # (N, H, Tq, Dh)
            words = query_mask(network, name, batch, said.size(2))
            sums[name] = sums.get(name, 0) + said.transpose(1, 2)[words].double().sum(0)
            counts[name] = counts.get(name, 0) + int(words.sum())
    return {name: total / counts[name] for name, total in sums.items()}


def _nothing(hidden: Tensor, output: nn.Module) -> None:
    """A head that asks for no logits."""


# ------------------------------------------------------------------------------------------------------ reading effects


class Shift(NamedTuple):
    """A number without and with a change."""

    before: float
    after: float

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Changed:
    """A translation that is another one with the change; line counts from 1."""

    line: int
    source: str
    reference: str
    before: str
    after: str


@dataclass(frozen=True)
class Effect:
    """What a change does to `lines` lines.

    loss: nats a reference token (negative log-likelihood, ends of sentence included).  before, after: BLEU, chrF and
    TER of the translations; None where none were made, and `changed` is empty.
    """

    lines: int
    loss: Shift
    before: Evaluation | None
    after: Evaluation | None
    changed: tuple[Changed, ...]

    @property
    def bleu(self) -> Shift | None:
        """BLEU in per cent, without and with the change."""
        return self._shift("bleu")

    @property
    def chrf(self) -> Shift | None:
        """chrF2 in per cent, without and with the change."""
        return self._shift("chrf")

    def _shift(self, name: str) -> Shift | None:
        if self.before is None or self.after is None:
            return None
        return Shift(getattr(self.before, name).score, getattr(self.after, name).score)

    def to_json(self) -> dict[str, Any]:
        """All of it, for `json.dumps`."""
        return asdict(self) | {"loss": self.loss._asdict()}

    def __str__(self) -> str:
        """The loss, then a score a line with its signature, then how many translations changed."""
        lines = [f"loss {self.loss.before:.4f} -> {self.loss.after:.4f} ({self.loss.difference:+.4f} nats a token)"]
        if self.before is not None and self.after is not None:
            for name in ("bleu", "chrf"):
                old, new = getattr(self.before, name), getattr(self.after, name)
                lines.append(f"{old.name} {old.score:.2f} -> {new.score:.2f} ({old.signature})")
            lines.append(f"{len(self.changed):,} of {self.lines:,} translations changed")
        return "\n".join(lines)


def effect(
    translator: Translator,
    changes: Mapping[str, Change],
    sources: Sequence[str],
    references: Sequence[str],
    *,
    decode: bool = True,
    tokenize: str = "13a",
    **search: Any,
) -> Effect:
    """What changes to a model do to its loss on the references, and to its translations with their scores.

    decode: translate too, with the settings `search`; without, the loss only.  tokenize: BLEU's tokenizer, which
    `evaluate.bleu_tokenizer` chooses by language.  A tensor (not a function) stands for
    one call, so that it fits one line, and a search, which calls the decoder for each word, only in the encoder.
    Raises UsageError where lines or references are missing, and whatever `replace` refuses.
    """
    if not sources or len(sources) != len(references):
        raise UsageError(
            f"{len(sources)} sources and {len(references)} references: the effect of a change is read from a loss, so "
            "give at least one source, and a reference for each"
        )
    sources, references = list(sources), list(references)
    model = translator.to_torch().model  # both sides of the comparison on one backend and in one precision
    loss = _loss(translator, sources, references)
    texts = [t.text for t in translator.translate(sources, **search)] if decode else []
    with replace(model, changes):
        loss_after = _loss(translator, sources, references)
    if not decode:
        return Effect(len(sources), Shift(loss, loss_after), None, None, ())
    with replace(model, changes):  # opened again: what is given a call begins with the first
        others = [t.text for t in translator.translate(sources, **search)]
    changed = tuple(
        Changed(line, *row)
        for line, row in enumerate(zip(sources, references, texts, others, strict=True), start=1)
        if row[2] != row[3]
    )
    before, after = (evaluate_texts(some, [references], tokenize=tokenize) for some in (texts, others))
    return Effect(len(sources), Shift(loss, loss_after), before, after, changed)


def _loss(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> float:
    scores = translator.score(sources, references)
    return -sum(score.log_prob for score in scores) / sum(len(score.tokens) for score in scores)
