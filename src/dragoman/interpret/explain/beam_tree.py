"""The tree of a beam search: every hypothesis that was in the beam, its parent, and why it ended.

Letters: K beams, T tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from dragoman.decoding.pytorch.search import beam_search
from dragoman.decoding.pytorch.stepper import ModelStepper, SearchRequest
from dragoman.decoding.search_types import Hypothesis, SearchSettings, best, length_penalty
from dragoman.models.seq2seq import Model

ENDS = ("finished", "limit", "dropped", "beaten")
"""Why a hypothesis ended: the model produced the end of sentence; the length limit forced it; none of its continuations
was kept in the next step; or it was no longer good enough for the n-best list (`CompleteHypotheses.without_beaten`)."""


@dataclass(frozen=True)
class Node:
    """A hypothesis: its parent extended by one token.

    step: its number of tokens, from 1.  rank: its index among the nodes of its step, from 0.  parent: index of a node,
    -1 = the empty hypothesis.  log_prob: of its token.  total: of all its tokens.  end: one of `ENDS`, None if it was
    extended.  score: of a complete hypothesis its `Hypothesis.score`, of a beaten one the upper bound of the score;
    with `early_end`, its score if it ended with the next token.
    """

    step: int
    rank: int
    parent: int
    token: int
    log_prob: float
    total: float
    end: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class BeamTree:
    """nodes: in the order of the steps.  found: the n-best list, each as (node, Hypothesis).

    to_beat: the lowest score of the n-best list, which beaten ones do not exceed; None if the list is shorter.
    """

    settings: SearchSettings
    limit: int
    nodes: list[Node]
    found: list[tuple[int, Hypothesis]]
    to_beat: float | None

    def tokens(self, number: int) -> list[int]:
        """Return the tokens of a node, from the first to its own."""
        tokens: list[int] = []
        while number >= 0:
            tokens.append(self.nodes[number].token)
            number = self.nodes[number].parent
        return tokens[::-1]

    def to_json(self, piece: Callable[[int], str], text: Callable[[Sequence[int]], str]) -> dict[str, Any]:
        """Return plain data.  piece: converts a token for display; text: converts tokens to text."""
        nodes = [asdict(node) | {"token": piece(node.token)} for node in self.nodes]
        for number, node in enumerate(nodes):
            if node["end"] is not None:
                node["text"] = text(self.tokens(number))
        return {
            "beam": self.settings.beam, **asdict(self.settings.pruning), "alpha": self.settings.alpha,
            "limit": self.limit, "to_beat": self.to_beat, "best": [number for number, _ in self.found],
            "nodes": nodes,
        }  # fmt: skip


def search_tree(
    model: Model, src: Tensor, settings: SearchSettings, prefix: Sequence[int] = ()
) -> tuple[list[Hypothesis], BeamTree]:
    """Search one source (1, S); return the `settings.nbest` best hypotheses, as `generate` does, and the search tree.

    With `settings.beam` = 1, greedy search, the tree is a line.  Raises the errors of `generate`.
    """
    request = SearchRequest.build(src, None, settings, [prefix] if prefix else None)
    settings, (limit,) = request.settings, request.limits
    nodes: list[Node] = []
    complete: dict[int, Hypothesis] = {}
    slots: list[int] = [-1] * settings.beam  # the node in each of the K beams, -1 = none
    for step in beam_search(ModelStepper(model), request):
        length, parents, slots, rank = step.beams.tokens.size(2), slots, [], 0
        longest = length + 1 if settings.pruning.early_end else limit
        extended = step.extended[0].tolist()
        tokens, totals = step.beams.tokens[0, :, -1].tolist(), step.beams.log_probs[0].tolist()
        log_probs = step.beams.token_log_probs[0, :, -1].tolist()
        finished = {beam: hypothesis for _, beam, hypothesis in step.finished}
        for beam, (origin, token, total) in enumerate(zip(step.origins[0].tolist(), tokens, totals, strict=True)):
            if total == float("-inf"):  # an empty slot
                slots.append(-1)
                continue
            slots.append(len(nodes))
            node = Node(length, rank, parents[origin], token, log_probs[beam], total)
            rank += 1
            if beam in finished:
                hypothesis = complete[len(nodes)] = finished[beam]
                node = replace(node, end="limit" if hypothesis.truncated else "finished", score=hypothesis.score)
            elif not extended[beam]:
                node = replace(node, end="beaten", score=total / length_penalty(longest, settings.alpha))
            nodes.append(node)
    continued = {node.parent for node in nodes}
    for number, node in enumerate(nodes):
        if node.end is None and number not in continued:
            nodes[number] = replace(node, end="dropped")
    found = best(list(complete.values()), settings.nbest)
    numbers = {tuple(hypothesis.tokens): number for number, hypothesis in complete.items()}
    to_beat = found[-1].score if len(found) == settings.nbest else None
    return found, BeamTree(settings, limit, nodes, [(numbers[tuple(h.tokens)], h) for h in found], to_beat)
