"""The PyTorch backend holds a bounded number of logits at once when it scores given targets."""

from __future__ import annotations

import pytest

from dragoman.decoding.pytorch import backend as module
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built

VOCAB = 83


@pytest.mark.parametrize(("at_once", "positions"), [(3 * VOCAB * 4, 4), (3 * VOCAB * 5 - 1, 4), (1, 1), (1 << 24, 9)])
def test_logits_at_once(at_once: int, positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pairs with targets of nine tokens: positions per chunk, and scores that do not depend on the chunks."""
    model = built(TRANSLATORS["paper"], VOCAB)
    pairs = [([5 + i, 6, EOS], [*range(10 + i, 18 + i), EOS]) for i in range(3)]
    whole = TorchBackend(model).score(pairs, 4000)
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(module, "_LOGITS_AT_ONCE", at_once)
    model.output.register_forward_hook(lambda layer, given, logits: shapes.append(tuple(logits.shape)))  # type: ignore[union-attr]
    parts = TorchBackend(model).score(pairs, 4000)

    assert max(shape[1] for shape in shapes if shape[0] == 3) == positions
    assert sum(shape[1] for shape in shapes if shape[0] == 3) == 9
    assert parts == [pytest.approx(row, abs=1e-12) for row in whole]
