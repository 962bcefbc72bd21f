"""Columns and portions."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres import transaction
from mainspring.engines.postgres.claiming import bitmap
from mainspring.ids import SLOTS


@given(sizes=st.lists(st.integers(0, 30)), most=st.integers(1, 40))
def test_portions_are_as_few_as_they_can_be(sizes: list[int], most: int) -> None:
    portions = list(transaction.portions(sizes, lambda size: size, most))
    assert [size for portion in portions for size in portion] == sizes
    assert all(sum(portion) <= most or len(portion) == 1 for portion in portions)
    assert all(sum(one) + next_one[0] > most for one, next_one in pairwise(portions))


def test_a_column_of_nulls_is_sent_empty() -> None:
    assert transaction.sparse([None, None]) == []
    assert transaction.sparse([None, 0]) == [None, 0]


def test_ids_that_no_row_can_have_are_left_out() -> None:
    assert transaction.known_ids([5, -1, 0, 2**63, 5, 2**63 - 1]) == [5, 2**63 - 1]


@given(slots=st.frozensets(st.integers(0, SLOTS - 1)))
def test_a_bitmap_has_a_bit_for_each_slot(slots: frozenset[int]) -> None:
    bits = bitmap(slots)
    assert {slot for slot in range(SLOTS) if bits[slot // 8] >> slot % 8 & 1} == slots
