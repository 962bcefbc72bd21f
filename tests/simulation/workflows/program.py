"""The workflows that the simulated workers decide, with their tasks, in builds that differ in one command or in the version.

Results are numbers that no two executions share. `results` computes the result of each kind of run from them.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from mainspring import App, HoldTimedOut, Retry, workflow
from mainspring.errors import JobCancelled, JobError

if TYPE_CHECKING:
    from mainspring.client.job import Job
    from mainspring.workflow_code.channels import Channel

FAILED = "failed"
CANCELLED = "cancelled"
TIMED_OUT = "timed out"
DONE = "done"
"""The signal that lets a run of ``inbox`` or ``until`` end."""
SHARED = "shared"
SLOTS = 2
"""The resource that runs of ``shares`` hold, and its slots."""
VERSIONS = {"a": "1", "b": "1", "c": "2"}
"""The builds, with the version of their workflows."""
KINDS = ("chain", "joint", "fan", "fused", "inbox", "until", "race", "careful", "sides")
WITH_HOLDS = ("shares",)
"""The kind of seeds in which runs share a resource."""
WITH_CHILDREN = ("family", "fused", "careful")
"""The kinds of seeds with children, which are seeds of their own: the others stay as they were."""


class Stage(Protocol):
    """The part of the world that steps and activities use."""

    async def execute(self, run: int, label: str, *, step: bool) -> int:
        """Execute a step or an activity of a run; return a number that no other execution has returned."""

    def side(self, run: int) -> int:
        """Execute a side effect."""


_stages: list[Stage] = []


def enter(stage: Stage) -> None:
    """Execute everything on this stage from now on."""
    _stages[:] = [stage]


async def settled(job: Job[Any]) -> Any:
    """Return the result of an activity or a step, or that it has failed or was cancelled by hand."""
    try:
        return await job
    except JobCancelled:
        return CANCELLED
    except JobError:
        return FAILED


def program(build: str) -> App:
    """Return the App of a build. ``b`` differs from ``a`` in ``chain``, and ``c`` in the version of all workflows."""
    app = App()
    define = app.workflow(version=VERSIONS[build])
    mail: Channel[Any] = app.signal("mail", Any)

    @app.task(retry=Retry(max_attempts=2, initial=0.2), timeout=timedelta(seconds=3))
    async def work(run: int, label: str) -> int:
        return await _stages[0].execute(run, label, step=False)

    @app.task
    async def measure(run: int, label: str) -> int:
        return await _stages[0].execute(run, label, step=True)

    @define
    async def chain(size: int) -> list[Any]:
        """Decide on steps, each recorded before the next, and on one activity."""
        run = workflow.info().run
        log: list[Any] = []
        for place in range(size):
            log.append(await settled(measure.step(run, f"s{place + 1}")))
            if build == "b" and not place:
                log.append(await settled(work.submit(run, "extra")))
        log.append(await settled(work.submit(run, "w1")))
        return log

    @define
    async def joint(size: int) -> list[Any]:
        """Decide on steps that are recorded together, on a timer, and on a step of its own."""
        run = workflow.info().run
        steps = (workflow.step(measure, run, f"s{place + 1}", record="together") for place in range(size))
        log = [await settled(step) for step in steps]
        await workflow.sleep(0.3)
        log.append(await settled(measure.step(run, f"s{size + 1}")))
        return log

    @define
    async def fan(size: int) -> list[Any]:
        """Decide on many activities and steps at once."""
        run = workflow.info().run
        jobs = [work.submit(run, f"w{place + 1}") for place in range(2 * size)]
        jobs += [measure.step(run, f"s{place + 1}") for place in range(size)]
        return list(await asyncio.gather(*map(settled, jobs)))

    @define
    async def fused(size: int) -> list[Any]:
        """Decide on activities one after the other."""
        run = workflow.info().run
        return [await settled(work.submit(run, f"w{place + 1}")) for place in range(size)]

    @define
    async def inbox(size: int) -> dict[str, Any]:
        """Receive signals until the last one, with timeouts, steps and activities between them."""
        run = workflow.info().run
        got: list[int] = []
        log: list[int | str] = []
        while True:
            try:
                value = await mail.receive(timeout=timedelta(seconds=size))
            except TimeoutError:
                log.append(TIMED_OUT)
                continue
            if value == DONE:
                return {"got": got, "log": log}
            got.append(value)
            if value % 3 == 1:
                log.append(await settled(measure.step(run, f"s{sum(one % 3 == 1 for one in got)}")))
            elif value % 3 == 2:
                log.append(await settled(work.submit(run, f"w{sum(one % 3 == 2 for one in got)}")))

    @define
    async def until(size: int) -> dict[str, Any]:
        """Wait for a number of signals that another task receives, or for a time."""
        got: list[Any] = []

        async def collect() -> None:
            async for value in mail:
                got.append(value)  # noqa: PERF401 - the condition looks at the list meanwhile

        task = asyncio.create_task(collect())
        try:
            await workflow.wait_until(lambda: len(got) >= size or DONE in got, timeout=timedelta(seconds=20))
            reached = True
        except TimeoutError:
            reached = False
        task.cancel()
        return {"got": got, "reached": reached}

    @define
    async def race(size: int) -> list[Any]:
        """Let activities race against timers, while a slow step runs."""
        run = workflow.info().run
        log: list[Any] = []
        slow = measure.step(run, "s1")
        for place in range(size):
            try:
                async with asyncio.timeout(0.5):
                    log.append(await settled(work.submit(run, f"w{place + 1}")))
            except TimeoutError:
                log.append(TIMED_OUT)
        return [*log, await settled(slow)]

    @define
    async def careful(size: int) -> list[Any]:
        """Sleep and work, and clean up if cancelled."""
        run = workflow.info().run
        log: list[Any] = []
        try:
            for place in range(size):
                log.append(await settled(measure.step(run, f"s{place + 1}")))
                await asyncio.gather(workflow.sleep(1), asyncio.sleep(0.5), settled(work.submit(run, f"w{place + 1}")))
        except asyncio.CancelledError:
            await settled(measure.step(run, "undo"))
            await settled(work.submit(run, "undo"))
            raise
        return log

    @define
    async def sides(size: int) -> list[Any]:
        """Use everything that replays repeat."""
        run = workflow.info().run
        log: list[Any] = []
        for _ in range(size):
            log += [workflow.side_effect(lambda: _stages[0].side(run)), str(workflow.uuid()), workflow.rng().random()]
            log.append(workflow.now().timestamp())
            await workflow.sleep(0.2)
        return log

    @define
    async def family(size: int) -> list[Any]:
        """Await children at once, and then one of another kind."""
        children: list[Job[Any]] = [fused.submit(1 + place % 2) for place in range(2 * size)]
        results = await asyncio.gather(*map(settled, children))
        return [*results, await settled(careful.submit(1))]

    return app


def relaying() -> App:
    """Return an App with a workflow that continues as new after a few signals."""
    app = App()
    mail: Channel[Any] = app.signal("mail", Any)

    @app.task(retry=Retry(max_attempts=2, initial=0.2), timeout=timedelta(seconds=3))
    async def work(run: int, label: str) -> int:
        return await _stages[0].execute(run, label, step=False)

    @app.task
    async def measure(run: int, label: str) -> int:
        return await _stages[0].execute(run, label, step=True)

    @app.workflow
    async def relay(size: int, got: list[int] | None = None) -> list[int]:
        """Receive signals until the last one, with a step or an activity after some, in a run for every few of them."""
        run, got, steps, works = workflow.info().run, got or [], 0, 0
        for _ in range(size):
            try:
                value = await mail.receive(timeout=timedelta(seconds=size))
            except TimeoutError:
                continue
            if value == DONE:
                return got
            got.append(value)
            if value % 3 == 1:
                steps += 1
                await settled(measure.step(run, f"s{steps}"))
            elif value % 3 == 2:
                works += 1
                await settled(work.submit(run, f"w{works}"))
        raise workflow.continue_as_new(size, got)

    return app


def sharing() -> App:
    """Return an App with a workflow whose runs share the slots of a resource."""
    app = App()
    shared = app.resource(SHARED, total=SLOTS)

    @app.task(retry=Retry(max_attempts=2, initial=0.2), timeout=timedelta(seconds=3))
    async def work(run: int, label: str) -> int:
        return await _stages[0].execute(run, label, step=False)

    @app.workflow
    async def shares(size: int) -> list[Any]:
        """Work with one slot and with two, by turns, and wait for them not too long."""
        run = workflow.info().run
        log: list[Any] = []
        for place in range(size):
            try:
                async with shared.hold(1 + place % SLOTS, timeout=timedelta(seconds=20)):
                    log.append(await settled(work.submit(run, f"w{place + 1}")))
            except HoldTimedOut:
                log.append(TIMED_OUT)
        return log

    return app


APPS = {build: program(build) for build in VERSIONS}
SHARING = sharing()
RELAY = relaying()
