"""Positions by key, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.placement.heap import heapify, pop
from tests.placement.plain import plain


def taken(keys: list[float]) -> list[int]:
    """Positions in the order in which a heap gives them."""
    key, position = np.array(keys, np.float64), np.arange(len(keys))
    plain(heapify)(key, position)
    return [int(plain(pop)(key, position, size)) for size in range(len(keys), 0, -1)]


@given(keys=st.lists(st.integers(0, 5).map(float), max_size=40))
def test_a_heap_gives_positions_by_key_and_equal_keys_by_position(keys: list[float]) -> None:
    assert taken(keys) == sorted(range(len(keys)), key=lambda i: (keys[i], i))


@pytest.mark.parametrize("keys", [[], [1.0], [2.0, 1.0], [np.inf, -np.inf, 0.0]])
def test_short_heaps(keys: list[float]) -> None:
    assert taken(keys) == list(np.argsort(keys, kind="stable"))
