"""Chains of runs from end to end: a node on SQLite and workers in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, JobCancelled, JobFailed, Retry, current_job, workflow

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
            run = await total.options(id="t").asubmit()
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


def test_jobs_lead_to_their_runs(tmp_path: Path) -> None:
    app = App()
    found: list[dict[str, Any]] = []

    @app.task
    async def note(number: int) -> None:
        shown = await app.connections.aio().call("jobs.show", {"handle": current_job().handle})
        found.append(await app.connections.aio().call("workflows.show", {"key": shown["run"]}))

    @app.workflow
    async def noted(number: int = 0) -> None:
        await note.submit(number)
        if not number:
            raise workflow.continue_as_new(number + 1)

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await noted.options(id="n").asubmit()
            await run.aresult(TIMEOUT)
            last = await noted.get("n").adetails()
            assert [one["run"] for one in found] == [last["previous_run"], last["run"]]
            assert (await fleet.call(app, "jobs.show", handle=run.handle))["run"] == run.handle
            task = await note.asubmit(0)
            with pytest.raises(JobFailed):  # no run has no key
                await task.aresult(TIMEOUT)
            assert (await fleet.call(app, "jobs.show", handle=task.handle))["run"] is None

    asyncio.run(main())


def test_a_chain_stays_with_the_worker_that_continues_it(tmp_path: Path) -> None:
    def app_of(name: str) -> tuple[App, Any]:
        app = App()

        @app.workflow
        async def loop(links: list[str]) -> list[str]:
            if len(links) < 50:
                raise workflow.continue_as_new([*links, name])
            return links

        return app, loop

    async def main() -> None:
        (one, loop), (two, _) = app_of("one"), app_of("two")
        async with node(tmp_path) as fleet, fleet.worker(one), fleet.worker(two):
            runs = [await loop.asubmit([]) for _ in range(4)]
            for run in runs:
                links = await run.aresult(TIMEOUT)
                assert len(links) == 50
                assert len(set(links)) == 1

    asyncio.run(main())


def test_a_failed_run_is_begun_again_with_its_signals(tmp_path: Path) -> None:
    app = App()
    paid = app.signal("paid", int)
    later = app.signal("later", int)
    attempts: list[int] = []

    @app.workflow(retry=Retry(max_attempts=3, initial=0.05, jitter=0))
    async def order() -> list[int]:
        cents = await paid.receive()
        attempts.append(workflow.info().attempt)
        if len(attempts) < 3:
            raise OSError("the disk is full")
        return [cents, await later.receive()]

    @app.workflow(retry=Retry(max_attempts=2, initial=0.05, never=(KeyError,)))
    async def wrong() -> None:
        attempts.append(workflow.info().attempt)
        raise KeyError if len(attempts) % 2 == 0 else OSError

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.options(id="o").asubmit()
            await run.asignal(paid, 50)
            await run.asignal(later, 7)
            assert await run.aresult(TIMEOUT) == [50, 7]
            assert attempts == [1, 2, 3]
            shown = await run.adetails()
            assert (shown["attempt"], shown["failure"]) == (3, "OSError: the disk is full")
            before = await fleet.call(app, "workflows.show", key=shown["previous_run"])
            assert (before["status"], before["failure"], before["error"]) == (
                "continued_as_new",
                "OSError: the disk is full",
                None,
            )
            attempts.clear()
            with pytest.raises(JobFailed, match="KeyError"):
                await (await wrong.asubmit()).aresult(TIMEOUT)
            assert attempts == [1, 2]

    asyncio.run(main())


def test_a_run_that_waits_for_its_next_attempt_is_shown_and_cancelled(tmp_path: Path) -> None:
    app = App()

    @app.workflow(retry=Retry(initial="2h", maximum="2h", jitter=0))
    async def order() -> None:
        raise OSError("the disk is full")

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            runs = [await order.options(id=name).asubmit() for name in "abc"]
            *_, shown = [await fleet.until(app, name, attempt=2) for name in "abc"]
            assert (shown["status"], shown["waits_for"]) == ("open", "attempt 2 in 1h59m")
            assert (shown["failure"], shown["begins_at"][:2]) == ("OSError: the disk is full", "20")
        async with node(tmp_path) as fleet:
            listed = (await fleet.call(app, "workflows.list", open=True))["items"]
            assert {one["waits_for"] for one in listed} == {"attempt 2 in 1h59m"}
            assert await runs[0].acancel() == "cancelled"
            with pytest.raises(JobCancelled):
                await runs[0].aresult(TIMEOUT)
            await order.get("b").aterminate("enough")
            with pytest.raises(JobFailed, match="enough"):
                await runs[1].aresult(TIMEOUT)
            assert await runs[2].astate() == "running"

    asyncio.run(main())


def test_a_chain_moves_to_another_version(tmp_path: Path) -> None:
    app = App()

    @app.workflow
    async def order(number: int) -> str:
        raise workflow.continue_as_new(number + 1).options(version="2")

    @order.version("2")
    async def order_2(number: int) -> str:
        if number < 4:
            raise workflow.continue_as_new(number + 1)
        return f"version {workflow.info().version}, {number}"

    async def main() -> None:
        async with node(tmp_path) as fleet, fleet.worker(app):
            run = await order.options(version="1").asubmit(1)
            assert await run.aresult(TIMEOUT) == "version 2, 4"

    asyncio.run(main())
