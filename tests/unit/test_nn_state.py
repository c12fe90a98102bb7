"""The decoder state: written at `length`, reordered and reduced by one call."""

from __future__ import annotations

import pytest
import torch

from dragoman.nn.state import CrossKeyValues, DecodeState, SelfKeyValues

ROWS, H, ROOM, DH = 6, 3, 5, 4


def filled(length: int) -> tuple[SelfKeyValues, torch.Tensor]:
    cache, keys = SelfKeyValues(ROWS, H, ROOM, (DH, DH), like=torch.zeros(1)), torch.randn(ROWS, H, length, DH)
    cache.append(keys, -keys)
    return cache, keys


def test_append_returns_everything_so_far() -> None:
    cache, keys = filled(2)
    more = torch.randn(ROWS, H, 1, DH)
    all_keys, all_values = cache.append(more, 2 * more)
    assert torch.equal(all_keys, torch.cat([keys, more], dim=2))
    assert torch.equal(all_values, torch.cat([-keys, 2 * more], dim=2))


def test_keys_and_values_of_different_size() -> None:
    cache = SelfKeyValues(ROWS, H, ROOM, (2, 7), like=torch.zeros(1))
    keys, values = torch.randn(ROWS, H, 3, 2), torch.randn(ROWS, H, 3, 7)
    assert cache.nbytes() == 4 * ROWS * H * ROOM * (2 + 7)
    assert all(torch.equal(*pair) for pair in zip(cache.append(keys, values), (keys, values), strict=True))


def test_append_past_the_end_is_refused() -> None:
    cache, keys = filled(4)
    with pytest.raises(ValueError, match="position 6 exceeds the max_len = 5"):
        cache.append(keys[:, :, :2], keys[:, :, :2])


@pytest.mark.parametrize("rows", [[5, 0, 0, 3, 2, 1], [1, 4], [3, 3, 3], list(range(ROWS))])
def test_select_keeps_the_rows_in_their_order(rows: list[int]) -> None:
    cache, keys = filled(3)
    cache.select(torch.tensor(rows), torch.tensor([]), 3)
    assert torch.equal(cache.keys[:, :, :3], keys[rows])
    assert torch.equal(cache.values[:, :, :3], -keys[rows])
    cache.select(torch.tensor([1]), torch.tensor([]), 3)
    assert torch.equal(cache.keys[:, :, :3], keys[rows[1:2]])


def test_select_of_a_state_reaches_memory_bias_and_carry() -> None:
    class Record:
        def __init__(self) -> None:
            self.cross = CrossKeyValues(torch.randn(3, H, 7, DH), torch.randn(3, H, 7, DH))
            self.asked: tuple[list[int], list[int], int] | None = None

        def select(self, rows: torch.Tensor, sentences: torch.Tensor, length: int) -> None:
            self.asked = rows.tolist(), sentences.tolist(), length
            self.cross.select(rows, sentences, length)

        def nbytes(self) -> int:
            return self.cross.nbytes()

    record, bias, carry = Record(), torch.randn(3, 1, 1, 7), torch.randn(6, 2)
    keys = record.cross.keys
    state = DecodeState([record], beams=2, memory_bias=bias, carry=carry)
    state.length = 4
    size = state.nbytes()
    state.select(torch.tensor([5, 4, 1, 1]))
    assert record.asked == ([5, 4, 1, 1], [2, 0], 4)
    assert torch.equal(record.cross.keys, keys[[2, 0]])
    assert state.memory_bias is not None and torch.equal(state.memory_bias, bias[[2, 0]])
    assert state.carry is not None and torch.equal(state.carry, carry[[5, 4, 1, 1]])
    assert state.nbytes() < size


def test_a_group_of_beams_is_of_one_sentence() -> None:
    state = DecodeState([], beams=3)
    with pytest.raises(ValueError, match="one sentence"):
        state.select(torch.tensor([0, 1, 4]))
