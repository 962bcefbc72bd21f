"""Chains of runs from end to end: a node on SQLite and workers in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow

from .test_workflows import TIMEOUT, node

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def adding_app(links: int) -> tuple[App, Any, Any]:
    """A workflow that adds signals, and continues as new after each that it has received."""
    app = App()
    added = app.signal("added", int)

    @app.workflow
    async def total(so_far: int = 0, received: int = 0) -> int:
        so_far += await added.receive()
        received += 1
        if received == links:
            return so_far
        raise workflow.continue_as_new(so_far, received=received)

    return app, total, added


def test_no_signal_is_lost_while_a_run_continues_as_new(tmp_path: Path) -> None:
    number = 400
    app, total, added = adding_app(number)

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app), fleet.worker(app):
            run = await total.options(unique="t").asubmit()
            by_id = total.get("t")
            await asyncio.gather(
                *((run if n % 2 else by_id).asignal(added, n, request=f"r{n % 300}") for n in range(number))
            )
            for n in range(300, number):  # the run ignored them: it knew the keys
                await run.asignal(added, n)
            assert await run.aresult(TIMEOUT) == sum(range(number))
            shown = await by_id.adetails()
            assert shown["status"] == "completed"
            previous = await fleet.call(app, "workflows.show", key=shown["previous_run"])
            assert (previous["status"], previous["next_run"]) == ("continued_as_new", shown["run"])

    asyncio.run(main())


def test_the_first_decision_of_a_link_goes_to_the_worker_of_the_one_before(tmp_path: Path) -> None:
    app = App()
    places: list[tuple[int, int]] = []

    @app.workflow
    async def loop(place: int, left: int) -> int:
        places.append((place, left))
        if left:
            raise workflow.continue_as_new(place, left - 1)
        return place

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app) as one, fleet.worker(app) as two:
            runs = [await loop.asubmit(place, 50) for place in range(4)]
            assert [await run.aresult(TIMEOUT) for run in runs] == [0, 1, 2, 3]
            assert sorted(places) == sorted((place, left) for place in range(4) for left in range(51))
            del one, two

    asyncio.run(main())
