"""Columns and portions; groups that are too large for one statement."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.postgres import rows
from mainspring.engines.postgres.claiming import bitmap
from mainspring.ids import SLOTS
from mainspring.jobs import store as ops
from mainspring.jobs.model import State

from .a_fleet import ignore, node

if TYPE_CHECKING:
    import pytest


@given(sizes=st.lists(st.integers(0, 30)), most=st.integers(1, 40))
def test_portions_are_as_few_as_they_can_be(sizes: list[int], most: int) -> None:
    portions = list(rows.portions(sizes, lambda size: size, most))
    assert [size for portion in portions for size in portion] == sizes
    assert all(sum(portion) <= most or len(portion) == 1 for portion in portions)
    assert all(sum(one) + next_one[0] > most for one, next_one in pairwise(portions))


def test_a_column_of_nothing_is_sent_empty() -> None:
    assert rows.sparse([None, None]) == []
    assert rows.sparse([None, 0]) == [None, 0]


def test_ids_that_no_row_can_have_are_not_asked_for() -> None:
    assert rows.known_ids([5, -1, 0, 2**63, 5, 2**63 - 1]) == [5, 2**63 - 1]


@given(slots=st.frozensets(st.integers(0, SLOTS - 1)))
def test_a_bitmap_has_a_bit_for_each_slot(slots: frozenset[int]) -> None:
    bits = bitmap(slots)
    assert {slot for slot in range(SLOTS) if bits[slot // 8] >> slot % 8 & 1} == slots


def test_a_group_in_portions_is_as_good_as_one(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.portions, "__defaults__", (3,))

    async def test() -> None:
        async with node(database) as one:
            jobs = [one.job(unique=b"%d" % at if at % 3 else b"") for at in range(20)]
            assert await one.group(one.submit(*jobs)) == [{}]
            again = [one.job(unique=job.unique) for job in jobs if job.unique]
            (joined,) = await one.group(one.submit(*again))
            assert [joined[job.id].id for job in again] == [job.id for job in jobs if job.unique]
            ((claimed,),) = await one.group(one.claim())
            assert [job.id for job in claimed] == [job.id for job in jobs]
            assert await one.group(one.settle(*claimed[:10], one.job(), *claimed[10:])) != [set()]
            assert await one.states(*jobs) == [State.SUCCEEDED] * 20
            assert await one.group(ops.Find([jobs[0].id], ignore, ignore)) != [{}]

    asyncio.run(test())
