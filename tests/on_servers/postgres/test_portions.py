"""Groups that are too large for one statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.postgres import transaction
from mainspring.jobs import store as ops
from mainspring.jobs.model import State

from .a_fleet import node

if TYPE_CHECKING:
    import pytest


def test_a_group_in_portions_has_the_same_results(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction.portions, "__defaults__", (3,))

    async def test() -> None:
        async with node(database) as one:
            jobs = [one.job(unique=b"%d" % at if at % 3 else b"") for at in range(20)]
            assert await one.group(one.submit(*jobs)) == [{}]
            repeated = [one.job(unique=job.unique) for job in jobs if job.unique]
            (joined,) = await one.group(one.submit(*repeated))
            assert [joined[job.id].id for job in repeated] == [job.id for job in jobs if job.unique]
            ((claimed,),) = await one.group(one.claim())
            assert [job.id for job in claimed] == [job.id for job in jobs]
            assert await one.group(one.settle(*claimed[:10], one.job(), *claimed[10:])) != [set()]
            assert await one.states(*jobs) == [State.SUCCEEDED] * 20
            assert await one.group(ops.Find([jobs[0].id])) != [{}]

    asyncio.run(test())
