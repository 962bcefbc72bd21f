"""A run with the longest history that there may be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from mainspring import App, ConflictError, JobFailed, workflow

from .test_workflows import node

if TYPE_CHECKING:
    from pathlib import Path

    from .test_workflows import Fleet

pytestmark = pytest.mark.system

EVENTS = 25_000
RESERVED = 1_000
WARNED = 10_000
FIRST = EVENTS - RESERVED - 200
SECOND = FIRST + 400
"""Steps after which the history takes no signals."""


class Counting(NamedTuple):
    """The code of one worker."""

    app: App
    workflow: Any
    more: Any
    taken: list[int]
    """The steps that it has executed."""
    held: asyncio.Event
    """Whether the run waits for `release`."""
    release: asyncio.Event


def counting_app(each: int) -> Counting:
    """Return code that takes `FIRST` steps, waits for a signal, takes steps up to `SECOND`, and goes on without an end."""
    app = App()
    more = app.signal("more", int)
    taken: list[int] = []
    held, release = asyncio.Event(), asyncio.Event()

    async def step(number: int) -> int:
        taken.append(number)
        return number

    async def take(done: int, end: int) -> None:
        for first in range(done, end, each):
            calls = (
                workflow.step(step, one, record="together", name="step") for one in range(first, min(first + each, end))
            )
            await asyncio.gather(*calls)

    @app.task
    async def hold() -> None:
        held.set()
        await release.wait()

    @app.workflow
    async def counting() -> None:
        await take(0, FIRST)
        second = await more.receive()
        await take(FIRST, second)
        await hold.submit()
        await take(second, 2 * EVENTS)

    return Counting(app, counting, more, taken, held, release)


@pytest.mark.parametrize("each", [1_000, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_of_the_greatest_length(tmp_path: Path, each: int) -> None:
    """``each``: steps that run at the same time; one after the other they have a batch each."""
    with capture_logs() as lines:
        asyncio.run(lead_to_the_limit(tmp_path, each))
    (warning,) = (line["problem"] for line in lines if line["event"] == "the history of a run is long")
    events = int(warning.removeprefix("the history has ").partition(" ")[0])
    assert WARNED <= events < EVENTS - RESERVED, "long before its end"


async def lead_to_the_limit(directory: Path, each: int) -> None:
    async with node(directory) as fleet:
        warm = counting_app(each)
        async with fleet.worker(warm.app):
            await warm.workflow.options(id="long").asubmit()
            await until_it_receives(fleet, warm.app)
        assert warm.taken == list(range(FIRST))
        cold = counting_app(each)
        async with fleet.worker(cold.app):
            run = cold.workflow.get("long")
            await run.asignal(cold.more, SECOND)
            await cold.held.wait()
            assert cold.taken == list(range(FIRST, SECOND)), "it replays the first steps, and executes none of them"
            with pytest.raises(ConflictError, match="the last 1000 are"):
                await run.asignal(cold.more, 0)
            cold.release.set()
            with pytest.raises(JobFailed, match="the limit is 25000"):
                await run.aresult(60)
            shown = await fleet.call(cold.app, "workflows.show", key="long")
            last = shown["events"]
            assert shown["status"] == "terminated"
            assert EVENTS - RESERVED < last <= EVENTS, "the steps that do not fit are not recorded"
            (end,) = (await fleet.call(cold.app, "workflows.history", key="long", **{"from": last}))["items"]
            assert end["workflowExecutionTerminatedEventAttributes"]["cause"] == "EVENT_LIMIT_EXCEEDED"


async def until_it_receives(fleet: Fleet, app: App) -> None:
    """Wait until the run waits for its signal: no event reports it."""
    while not (await fleet.call(app, "workflows.show", key="long"))["receives"]:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
