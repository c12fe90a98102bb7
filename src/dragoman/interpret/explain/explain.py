"""One input through one model, opened up: what it said and how surely, where it looked, what each layer would have
said, how the search came to it, and the walk through it step by step.

Letters: T target positions, V vocabulary (or labels).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.config.section import Section
from dragoman.interpret.explain.cases import Case, Loaded, Side, read_text_case, refuse_search
from dragoman.interpret.explain.image_case import read_image_case
from dragoman.interpret.explain.lens import logits_after, streams
from dragoman.interpret.explain.maps import attention_maps, attention_names, state_names, states
from dragoman.interpret.explain.page import write_explanation
from dragoman.interpret.occlusion import drops, shares
from dragoman.interpret.walkthrough import Labels, walkthrough
from dragoman.models.model_folder import load_network
from dragoman.models.seq2seq import Network
from dragoman.nn.modes import evaluating
from dragoman.nn.record import Recording, record
from dragoman.pages.packing import packed

__all__ = ["Answer", "Explanation", "explain", "write_explanation"]

_ALTERNATIVES = 6
_SAID_A_LAYER = 3


@dataclass(frozen=True)
class Answer:
    """One thing that was said: a target token, a tag, a class.

    about: what it is said of (a word that got a tag, a mask), "" of a token.  log_prob: natural, given all that came
    before.  rank: its place among everything that could have been said there, from 1.  given: it was not said but
    given.  alternatives: the most probable things to say there, with their probabilities.
    """

    piece: str
    about: str
    log_prob: float
    rank: int
    given: bool
    alternatives: list[tuple[str, float]]


@dataclass(frozen=True)
class Explanation:
    """All that a page shows of one input (`write_explanation`).

    kind: "translation", "continuation", "tags", "class", "masked" or "image".  source, text: what went in and came
    out.  forced: the target was given, nothing was searched.  flags: as of `translate.Translation`.  sides: the tokens
    that maps have for rows and columns.  maps, states: see `maps`.  effect: of a model that reads a source and
    writes, a map of `leaving_out.shares` with the "drops" behind it.  lens: a row a layer, in it of each answer
    {"top": the most probable things to say, "prob": of what was said, "rank"}.  tree: see `beam_tree`.  image: its
    pixels and how many patches it is across.  walk: see `walkthrough`.
    """

    kind: str
    source: str
    text: str
    forced: bool
    flags: tuple[str, ...]
    model: dict[str, Any]
    sides: dict[str, Side]
    answers: list[Answer]
    maps: list[dict[str, Any]]
    states: list[dict[str, Any]]
    effect: dict[str, Any] | None
    lens: list[dict[str, Any]]
    tree: dict[str, Any] | None
    image: dict[str, Any] | None
    walk: dict[str, Any]

    @property
    def log_prob(self) -> float:
        """Of what was said: the sum over the answers that were not given."""
        return sum(answer.log_prob for answer in self.answers if not answer.given)

    def to_json(self) -> dict[str, Any]:
        """The same as plain lists and dictionaries."""
        return asdict(self)


def explain(
    model: str | Path | Loaded,
    source: Any,
    target: str | None = None,
    *,
    beam: int | None = None,
    device: str | torch.device = "cpu",
) -> Explanation:
    """Look into one input.

    model: a run or model folder, or what `load_network` gave.  source: a sentence; the beginning of a text for a
    language model; words with spaces between them for a tagger; an image's number, file or array (`read_image_case`).
    target: what is explained in place of what the model says itself (a translation, a text's continuation, a tag a
    word, a class).  beam: hypotheses kept a step; default: the model's.  Raises UsageError for what the model cannot
    take, nothing is cut; ModelFolderError, DataError.
    """
    named = isinstance(model, str | Path)
    loaded: Loaded = load_network(model, device) if isinstance(model, str | Path) else model
    network, _, config = loaded
    with evaluating(network):
        if config.data.kind == "images":
            refuse_search(beam, "this model gives labels and searches nothing")
            case = read_image_case(loaded, source, target)
        else:
            case = read_text_case(loaded, str(source), target, beam)
        logits, seen = _look(network, case)
        effect = _effect(network, case)
        walk = _walk(network, case)
    log_probs = _log_probs(logits, case)
    name = Path(str(model)).resolve().name if named else config.model.architecture
    return Explanation(
        kind=case.kind,
        source=case.source,
        text=case.text,
        forced=case.forced,
        flags=case.flags,
        model=_facts(name, loaded),
        sides=case.sides,
        answers=_answers(case, log_probs),
        maps=attention_maps(network, seen),
        states=states(network, seen),
        effect=effect,
        lens=_lens(network, case, seen),
        tree=case.tree,
        image=case.image,
        walk=walk,
    )


def _look(network: Network, case: Case) -> tuple[Tensor, Recording]:
    """The network's logits (1, T, V), and what passed on the way."""
    names = [*attention_names(network), *state_names(network), *streams(network)]
    with torch.no_grad(), record(network, *names) as seen:
        logits: Tensor = network(case.src, None, case.tgt_in)
    return logits, seen


def _log_probs(logits: Tensor, case: Case) -> Tensor:
    """Logits (1, T, V) -> natural log-probabilities of the answers (answers, V); what is no answer has -inf."""
    rows = logits[0, case.places].float()
    rows[:, : case.never] = float("-inf")
    return torch.log_softmax(rows, dim=-1).cpu()


def _top(case: Case, row: Tensor, count: int) -> list[tuple[str, float]]:
    """The most probable things to say by log-probabilities (V,)."""
    values, numbers = row.topk(min(count, row.numel() - case.never))
    return [(case.word(i), p) for i, p in zip(numbers.tolist(), values.exp().tolist(), strict=True)]


def _answers(case: Case, log_probs: Tensor) -> list[Answer]:
    answers = []
    for place, (target, row) in enumerate(zip(case.targets, log_probs, strict=True)):
        answers.append(
            Answer(
                piece=case.word(target),
                about=case.about[place] if case.about else "",
                log_prob=float(row[target]),
                rank=1 + int((row > row[target]).sum()),
                given=place < case.given,
                alternatives=_top(case, row, _ALTERNATIVES),
            )
        )
    return answers


def _lens(network: Network, case: Case, seen: Recording) -> list[dict[str, Any]]:
    layers = []
    for name, logits in logits_after(network, {name: seen.joined(name) for name in streams(network)}).items():
        log_probs = _log_probs(logits, case)
        said = [
            {
                "top": _top(case, row, _SAID_A_LAYER),
                "prob": float(row[target].exp()),
                "rank": 1 + int((row > row[target]).sum()),
            }
            for target, row in zip(case.targets, log_probs, strict=True)
        ]
        layers.append({"name": name, "shape": list(seen.joined(name).shape), "said": said})
    return layers


def _effect(network: Network, case: Case) -> dict[str, Any] | None:
    if case.kind != "translation":
        return None
    drop = drops(network, case.src, case.tgt_in, torch.tensor(case.targets, device=case.src.device))
    return {
        "rows": "output",
        "columns": "source",
        "weights": packed(shares(drop)[None]),
        "drops": [[round(x, 3) for x in row] for row in drop.tolist()],
    }


def _walk(network: Network, case: Case) -> dict[str, Any]:
    """The walk through one training step of this pair, with what was said as the target."""
    rows = 1 if case.kind in ("class", "image") else case.tgt_in.size(1) or case.src.size(1)
    targets = torch.zeros(1, rows, dtype=torch.long, device=case.src.device)
    targets[0, case.places] = torch.tensor(case.targets, device=case.src.device)
    sides = {name: [_readable(piece) for piece in side.pieces] for name, side in case.sides.items()}
    told = dict(zip(case.places, (_readable(case.word(target)) for target in case.targets), strict=True))
    width = case.src.size(1)
    labels = Labels(
        source=sides["source"][-width:] if width else [],  # of an image the patches, not the class token
        target_in=sides.get("input", []),
        targets=[told.get(row, "–") for row in range(rows)],
        words=lambda number: _readable(case.word(number)) if number >= case.never else "–",
    )
    return walkthrough(network, case.src, None, case.tgt_in, targets, labels)


def _readable(piece: str) -> str:
    """A piece without sentencepiece's sign for a space."""
    return piece.removeprefix("▁") or "␣"


def _facts(name: str, loaded: Loaded) -> dict[str, Any]:
    """What the page says of the model."""
    network, _, config = loaded
    section, data = dict(config.model), config.data
    whole = {key: value for key, value in section.items() if isinstance(value, int) and not isinstance(value, bool)}
    kinds = {key: str(getattr(value, "kind", "")) for key, value in section.items() if isinstance(value, Section)}
    return {
        "name": name,
        "architecture": config.model.architecture,
        "data": data.kind,
        "languages": [data.source_language, data.target_language] if data.kind == "parallel" else None,
        "parameters": network.parameter_count(),
        "sizes": whole,
        "kinds": kinds,
    }
