"""The tree of a beam search: every hypothesis that was in the beam, where it came from, and why it ended.

Letters: K beams, T tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dragoman.data.tokenizer import EOS
from dragoman.decoding.hypothesis import Hypothesis, complete, length_penalty
from dragoman.decoding.pytorch.beam import BeamStep, beam_search
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings
from dragoman.models.seq2seq import Model

__all__ = ["ENDS", "BeamTree", "Node", "search_tree"]

ENDS = ("finished", "limit", "dropped", "beaten")
"""Why a hypothesis ended: it said the end of sentence; the length limit said it; none of its continuations was among
the K best of the next step; or the search was over, as nothing that went on could still be one of the n best."""


@dataclass(frozen=True)
class Node:
    """One hypothesis: its parent's and one more token.

    step: tokens in it, from 1.  place: its rank in the beam, from 0.  parent: number of a node, -1 = the empty one.
    log_prob: of its token; total: of all its tokens.  end: one of `ENDS`, None where it went on.  score: of a complete
    one (as `Hypothesis.score`), or of a beaten one the best that it could still have reached.
    """

    step: int
    place: int
    parent: int
    token: int
    log_prob: float
    total: float
    end: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class BeamTree:
    """nodes: step by step.  found: the n best, best first, each as (node, Hypothesis).

    to_beat: the score of the last of the n best, which what was beaten could not reach; None before there are n.
    """

    settings: SearchSettings
    limit: int
    nodes: list[Node]
    found: list[tuple[int, Hypothesis]]
    to_beat: float | None

    def tokens(self, number: int) -> list[int]:
        """The tokens of a node, its own last."""
        tokens: list[int] = []
        while number >= 0:
            tokens.append(self.nodes[number].token)
            number = self.nodes[number].parent
        return tokens[::-1]

    def to_json(self, piece: Callable[[int], str], text: Callable[[Sequence[int]], str]) -> dict[str, Any]:
        """As plain data.  piece: one token as it is shown; text: tokens as text."""
        nodes = [asdict(node) | {"token": piece(node.token)} for node in self.nodes]
        for number, node in enumerate(nodes):
            if node["end"] is not None:
                node["text"] = text(self.tokens(number))
        return {
            "beam": self.settings.beam,
            "alpha": self.settings.alpha,
            "limit": self.limit,
            "to_beat": self.to_beat,
            "best": [number for number, _ in self.found],
            "nodes": nodes,
        }


def search_tree(
    model: Model, src: Tensor, settings: SearchSettings, prefix: Sequence[int] = ()
) -> tuple[list[Hypothesis], BeamTree]:
    """The `settings.nbest` best hypotheses of one source (1, S), as `generate` gives them, and the tree behind them.

    With `settings.beam` = 1, greedy search, the tree is a line.  Raises what `generate` raises.
    """
    task = SearchRequest.build(src, None, settings, [prefix] if prefix else None)
    planted = _Planted(task)
    with torch.no_grad():
        (found,) = beam_search(ModelStepper(model), task, planted.watch)
    return found, planted.tree(found)


@dataclass
class _Planted:
    """The tree while it grows.  last: the number of the node at each of the K places, -1 where there is none."""

    task: SearchRequest
    nodes: list[Node] = field(default_factory=list)
    complete: dict[int, Hypothesis] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)

    def watch(self, step: BeamStep, answers: list[bool]) -> None:
        grown, origins = step.grown, step.origins[0].tolist()
        tokens, totals = grown.tokens[0, :, -1].tolist(), grown.log_probs[0].tolist()
        log_probs = grown.token_log_probs[0, :, -1].tolist()
        before, self.last = self.last, []
        for place, (origin, token, total) in enumerate(zip(origins, tokens, totals, strict=True)):
            if total == float("-inf"):  # an empty place
                self.last.append(-1)
                continue
            self.last.append(len(self.nodes))
            parent = before[origin] if before else -1
            self.nodes.append(Node(grown.tokens.size(2), place, parent, token, log_probs[place], total))
            if token == EOS:
                self._complete(step, place)

    def _complete(self, step: BeamStep, place: int) -> None:
        """Exactly what the search's pool makes of it."""
        tokens = step.grown.tokens[0, place, :-1].tolist()
        log_probs = step.grown.token_log_probs[0, place].tolist()
        hypothesis = complete(tokens, log_probs, self.task.settings.alpha, bool(step.truncated[0, place]))
        number = len(self.nodes) - 1
        self.complete[number] = hypothesis
        self._ends(number, "limit" if hypothesis.truncated else "finished", hypothesis.score)

    def _ends(self, number: int, end: str, score: float | None) -> None:
        self.nodes[number] = replace(self.nodes[number], end=end, score=score)

    def tree(self, found: Sequence[Hypothesis]) -> BeamTree:
        """The tree, now that nothing grows any more, and each of the n best with its node."""
        settings, (limit,) = self.task.settings, self.task.limits
        parents = {node.parent for node in self.nodes}
        last_step = self.nodes[-1].step
        for number, node in enumerate(self.nodes):
            if node.end is None and number not in parents:
                beaten = node.step == last_step
                bound = node.total / length_penalty(limit, settings.alpha)
                self._ends(number, "beaten" if beaten else "dropped", bound if beaten else None)
        numbers = {tuple(hypothesis.tokens): number for number, hypothesis in self.complete.items()}
        best = [(numbers[tuple(hypothesis.tokens)], hypothesis) for hypothesis in found]
        to_beat = found[-1].score if len(found) == settings.nbest else None
        return BeamTree(settings, limit, self.nodes, best, to_beat)
