"""Batches: every pair once, within the budget, in an order that follows from (seed, epoch)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.data.batching import EpochPlan, collate, collate_source, read_batch
from dragoman.data.corpus import corpus_spec
from dragoman.data.store.build import build_store
from dragoman.data.store.reader import Store
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import BOS, EOS, PAD
from small_run import small_config, write_corpus


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    config = small_config(write_corpus(folder, train=170))
    return build_store(config, [corpus_spec(config, config.data.train[0])], folder / "cache", Reporter())


def batches(store: Store, budget: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    plan = EpochPlan(store, [weight for _, weight in store.parts], budget, seed, epoch)
    return [batch for block in range(len(plan)) for batch in plan.batches(block)]


def test_collate() -> None:
    batch = collate([([7, 8, EOS], [9, EOS]), ([5, EOS], [6, 4, 11, EOS])])
    assert batch.src.tolist() == [[7, 8, EOS], [5, EOS, PAD]]
    assert batch.src_mask is not None and batch.src_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tgt_out.tolist() == [[9, EOS, PAD, PAD], [6, 4, 11, EOS]]
    assert batch.tgt_in.tolist() == [[BOS, 9, PAD, PAD], [BOS, 6, 4, 11]]
    assert (batch.src_tokens, batch.tgt_tokens) == (5, 6)
    assert batch.to(torch.device("cpu")) is batch


def test_no_mask_where_nothing_is_padded() -> None:
    src, mask = collate_source([[7, 8, EOS], [5, 6, EOS]])
    assert mask is None and src.shape == (2, 3)


@pytest.mark.parametrize("budget", [16, 90, 400, 100_000])
def test_every_pair_once_and_within_the_budget(store: Store, budget: int) -> None:
    plan = batches(store, budget, 1, 2)
    assert sorted(np.concatenate(plan).tolist()) == list(range(170))
    src, tgt = store.lengths()
    for numbers in plan:
        padded = len(numbers) * (src[numbers].max() + tgt[numbers].max())
        assert padded <= budget or len(numbers) == 1
    if budget == 400:
        used = sum(src[n].sum() + tgt[n].sum() for n in plan)
        held = sum(len(n) * (src[n].max() + tgt[n].max()) for n in plan)
        assert used / held > 0.8, "like lengths come together"


def test_a_batch_may_be_exactly_as_large_as_the_budget(store: Store) -> None:
    src, tgt = store.lengths()
    longest = int(src.max() + tgt.max())
    full = [len(n) * int(src[n].max() + tgt[n].max()) for n in batches(store, 4 * longest, 1, 2)]
    assert max(full) == 4 * longest


def test_the_order_follows_from_seed_and_epoch(store: Store) -> None:
    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [n.tolist() for n in batches(store, 220, seed, epoch)]

    assert plan(3, 4) == plan(3, 4)
    assert plan(3, 4) != plan(3, 5)
    assert plan(3, 4) != plan(4, 4)
    groups = [{frozenset(b) for b in plan(3, epoch)} for epoch in (4, 5)]
    assert len(groups[0] & groups[1]) < len(groups[0]), "neighbours change from epoch to epoch"


def test_read_batch_with_and_without_sampling(store: Store) -> None:
    numbers = np.array([12, 3, 44])
    plain = read_batch(store, numbers, store.tokenizer, (0.0, 0.0), seed=1)
    assert plain.src[0].tolist()[: len(store.pair(12)[0])] == store.pair(12)[0]
    one, same, other = (read_batch(store, numbers, store.tokenizer, (0.4, 0.4), seed) for seed in (8, 8, 9))
    assert one.src.tolist() == same.src.tolist() != other.src.tolist()
    assert one.src_tokens > plain.src_tokens
    for row, number in zip(one.tgt_out.tolist(), numbers, strict=True):
        assert store.tokenizer.decode_target(row) == store.text(int(number))[1]
