"""Streams of partial hypotheses: stable tokens do not change, and are as many as can be known."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from dragoman.decoding import ModelStepper, SearchSettings
from dragoman.decoding.pytorch.search import beam_search, sample, stream_tokens
from dragoman.decoding.pytorch.stepper import SearchRequest
from dragoman.decoding.search_types import PartialHypothesis
from dragoman.tokenizers import EOS
from toy_model import ToyModel


def watched(model: ToyModel, src: torch.Tensor, settings: SearchSettings) -> tuple[list[PartialHypothesis], list[int]]:
    """The partial hypotheses, and the tokens of the result with the end of sentence."""
    steps, paths = stream_tokens(ModelStepper(model), src, settings), []
    while True:
        try:
            paths.append(next(steps))
        except StopIteration as end:
            return paths, end.value[1].tokens


def common(hypotheses: list[list[int]]) -> int:
    """Length of the longest common prefix."""
    longest = min(map(len, hypotheses))
    return max(n for n in range(longest + 1) if all(h[:n] == hypotheses[0][:n] for h in hypotheses))


def hypotheses_that_may_win(model: ToyModel, src: torch.Tensor, settings: SearchSettings) -> list[list[list[int]]]:
    """Per step of the beam search: all unfinished hypotheses and the best complete one."""
    seen: list[list[list[int]]] = []
    finished: list[tuple[float, list[int]]] = []

    for step in beam_search(ModelStepper(model), SearchRequest.build(src, None, settings, None)):
        alive = []
        columns = step.beams.tokens[0].tolist(), step.beams.token_log_probs[0], step.beams.log_probs[0]
        for tokens, each, total in zip(*columns, strict=True):
            if not bool(total.isfinite()):
                continue
            if tokens[-1] == EOS:
                score = float(each.double().sum()) / ((5 + len(tokens)) / 6) ** settings.alpha
                finished.append((score, tokens[:-1]))
            else:
                alive.append(tokens)
        if step.active[0]:
            seen.append([*alive, *(tokens for _, tokens in sorted(finished)[-1:])])
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 2},
        {"beam": 3, "alpha": 1.2},
        {"beam": 2, "alpha": 0.0},
        {"beam": 3, "shrink_beam": True},
        {"beam": 3, "recombine": 1},
    ],
    ids=str,
)
def test_stable_tokens_are_the_common_prefix_of_all_hypotheses_that_may_win(settings: dict[str, Any]) -> None:
    asked = SearchSettings(max_extra=9, **settings)
    src, stable, after_an_end = torch.tensor([[4, 6, EOS]]), 0, 0
    for seed in range(25):
        model = ToyModel(7, sharpness=1.5, seed=seed)
        paths, outcome = watched(model, src, asked)
        rivals = hypotheses_that_may_win(model, src, asked)

        assert [path.stable for path in paths] == [common(own) for own in rivals]
        assert all(path.tokens[: path.stable] == outcome[: path.stable] for path in paths)
        stable += sum(path.stable for path in paths)
        after_an_end += sum(len(own[-1]) < len(path.tokens) for path, own in zip(paths, rivals, strict=True))
    assert stable > 25 and after_an_end > 15  # tokens are known early, and some steps have a complete hypothesis


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 3}, {"sample": True}], ids=str)
def test_gradients_are_disabled_in_the_steps_and_not_between_them(settings: dict[str, Any]) -> None:
    class Watched(ToyModel):
        def logits(self, source: list[int], prefix: list[int]) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            return super().logits(source, prefix)

    src, asked = torch.tensor([[4, 6, EOS]]), SearchSettings(max_extra=4, **settings)
    request = SearchRequest.build(src, None, asked, None)
    search = beam_search if asked.beam > 1 and not asked.sample else sample
    for steps in (search(ModelStepper(Watched(7)), request), stream_tokens(ModelStepper(Watched(7)), src, asked)):
        assert all(torch.is_grad_enabled() for _ in steps)
        assert torch.is_grad_enabled()


def test_each_step_may_run_in_another_thread() -> None:
    src, settings = torch.tensor([[4, 6, EOS]]), SearchSettings(beam=3, max_extra=6)
    wanted = list(stream_tokens(ModelStepper(ToyModel(7)), src, settings))
    steps, found = stream_tokens(ModelStepper(ToyModel(7)), src, settings), []
    for _ in wanted:
        with ThreadPoolExecutor(1) as thread:
            found.append(thread.submit(next, steps).result())
    assert found == wanted
