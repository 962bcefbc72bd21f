"""Runs that have gone wrong go on from an earlier decision, by Python."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, ConflictError, JobFailed, UsageError
from mainspring.testing import in_memory


def test_a_run_is_reset_by_python() -> None:
    app = App()
    prices = [0, 9]
    calls: list[str] = []

    @app.task
    def reserve(number: int) -> int:
        calls.append("reserve")
        return number

    @app.task
    def charge(number: int) -> str:
        calls.append("charge")
        return f"{number}: {100 // prices.pop(0)}"

    @app.workflow
    async def order(number: int) -> str:
        return await charge.submit(await reserve.submit(number))

    with in_memory(app) as fleet:
        with pytest.raises(JobFailed):
            fleet.result(order.options(id="order-1").submit(1))
        run = app.runs.get("order-1")
        before = run.details()
        planned = run.reset(before="charge", dry_run=True)
        assert (planned.run, planned.results, planned.repeated) == (None, ["reserve#1"], ["charge#1"])
        assert run.details() == before, "a dry run changes nothing"
        forked = run.reset(before="charge", reason="there was no price")
        assert forked.handle is not None
        assert fleet.result(app.job(forked.handle)) == b'"1: 11"'
        assert calls == ["reserve", "charge", "charge"]
        new, old = app.runs.get("order-1").details(), app.runs.get(forked.source).details()
        assert (new["run"], new["status"], new["forked_from"]) == (forked.run, "completed", before["run"])
        assert (old["status"], old["forked_to"]) == ("failed", forked.run)
        with pytest.raises(UsageError, match="give one of event"):
            app.runs.get("order-1").reset()
        with pytest.raises(ConflictError, match="no completed decision"):
            app.runs.get("order-1").reset(event=3)

        async def plan() -> Any:
            planned = await app.runs.get("order-1").areset(first=True, dry_run=True)
            await app.aclose()
            return planned

        assert asyncio.run(plan()).repeated == ["reserve#1", "charge#1"]
