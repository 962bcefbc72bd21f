"""Nodes with schedules on an ensemble in memory, and a race of two operations step by step."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.conformance.suite.paging import everything

from mainspring.engines.zookeeper import changing, master, paths, queries, records, schedule_places
from mainspring.engines.zookeeper.schedule_handlers import ZookeeperScheduleSlice
from mainspring.engines.zookeeper.sessions import Completion
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import Every, Fire, FireState, Schedule

from . import a_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.schedules.reconcile import Stored

    from .a_session import Node

MINUTE = 60_000_000
START = 1_700_000_040_000_000
"""A full minute."""
EVERYTHING = 1_000_000
HANDLERS: dict[type, Any] = {
    **a_session.HANDLERS,
    **changing.HANDLERS,
    **ZookeeperScheduleSlice.handlers,
}


class Scheduler:
    """A node of the fleet, with its operations on schedules."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now_us = START
        self.was_met = False
        """Whether the other node has acted before this one's last write."""
        self.lifecycle = node.noted

    async def ask(self, operation: Any) -> Any:
        (outcome,) = await HANDLERS[type(operation)](self.node.session, [operation])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def save(self, *changes: ops.Change) -> ops.Saved:
        saved: ops.Saved = await self.ask(ops.SaveSchedules(changes, self.now_us))
        return saved

    async def add(self, name: str, **fields: Any) -> Schedule:
        """Add a schedule; without a trigger and parents it fires every minute."""
        defaults = {"function": name.encode(), "trigger": None if fields.get("parents") else Every(MINUTE)}
        schedule = Schedule(name=name, **{**defaults, **fields})
        saved = await self.save(ops.Change("put", name, 0, schedule))
        assert saved.error is None, saved.error
        return schedule

    async def due(self, until_us: int | None = None, limit: int = EVERYTHING) -> ops.Upcoming:
        until_us = self.now_us if until_us is None else until_us
        upcoming: ops.Upcoming = await self.ask(ops.FindDue(until_us, limit))
        return upcoming

    async def firing(self, limit: int = 1000) -> ops.FireSchedules:
        """Return the operation that fires due schedules."""
        return ops.FireSchedules([one for one, _ in (await self.due()).due], self.now_us, limit)

    async def fire(self) -> dict[str, ops.Fired]:
        fired: dict[str, ops.Fired] = await self.ask(await self.firing())
        return fired

    async def mend(self) -> int:
        number: int = await self.ask(ops.RepairSchedules(self.now_us))
        return number

    async def schedules(self, *names: str) -> dict[str, Stored]:
        stored = await everything(self.node, ops.ListSchedules(limit=EVERYTHING, names=names or None))
        return {one.schedule.name: one for one in stored}

    async def rows(self, name: str, **which: Any) -> list[Fire]:
        """Return the rows of a schedule, the oldest first."""
        rows = await everything(self.node, ListFires(name, **{"limit": EVERYTHING, **which}))
        return rows[::-1]

    async def states(self, name: str) -> list[str]:
        """Return one word for each fire time of a schedule: its outcome, reason or state."""
        return [
            str(row.reason) if row.state is FireState.SKIPPED else row.outcome or row.state.value
            for row in await self.rows(name)
        ]

    # ---- jobs ----

    async def pending(self, function: str) -> list[Job]:
        """Return the jobs of a function that are pending."""
        jobs = await self.node.listed(function=function.encode())
        return sorted((job for job in jobs if job.state == State.PENDING), key=lambda job: job.id)

    async def claim(self, function: str) -> Job:
        """Assign the one pending job of a function to this node."""
        (job,) = await self.pending(function)
        return await self.node.assign_to(job, self.node)

    def settlement(self, job: Job, event: Event = Event.SUCCEED) -> Settlement:
        return Settlement(job, event, job.attempt + 1, worker="w", started_us=self.now_us - 1, ended_us=self.now_us)

    async def end(self, job: Job, event: Event = Event.SUCCEED) -> set[int]:
        """Settle a job, and return the stale ones."""
        stale: set[int] = await self.ask(job_ops.Settle([self.settlement(job, event)]))
        return stale

    async def publish(self) -> None:
        """Publish all completed tasks, as a master does for other nodes."""
        tree = self.node.tree
        for bucket in paths.BUCKETS:
            for task in await tree.children(f"{paths.COMPLETED}/{bucket}") or ():
                completed, name = await tree.get_many([paths.completed(task), paths.name(task)])
                assert completed is not None
                record = records.decode(completed.data)
                one = Completion(task, records.decode_job(record), record["handle"], completed.data)
                result = await tree.get(one.result)
                assert result is not None
                assert name is not None
                found = queries.name_of(name)
                entry = master.entry(one, result.version, found if found.id == one.job.id else None)
                assert await self.node.session.committer.commit([entry]) == [None]

    # ---- invariants ----

    async def check(self, *others: Scheduler) -> None:
        """Check the invariants of a store: the rows, their jobs, the index nodes, and the notifications of the nodes."""
        content = self.node.tree.content
        jobs = {job.id: job for job in await self.node.listed()}
        names = content.names(paths.FIRES) or []
        owned: dict[int, Fire] = {}
        marks: set[str] = set()
        for stored in (await self.schedules()).values():
            name, state = stored.schedule.name, stored.state
            assert name in names
            rows = await self.rows(name)
            assert state.queued == sum(row.state is FireState.WAITING for row in rows)
            marks.update(
                filter(None, [schedule_places.due(name, state), schedule_places.queued(name) if state.queued else None])
            )
            for row in rows:
                assert (row.job != 0) == (row.state in {FireState.FIRED, FireState.JOINED})
                if not row.finished:
                    marks.add(f"{schedule_places.unfinished(name)}/{row.fire_us}")
                marks.update(filter(None, [schedule_places.repair_mark(row)]))
                if row.state is FireState.FIRED:
                    assert row.job not in owned, "a job belongs to one fire time"
                    owned[row.job] = row
        deep = (path for path in content.paths() if path.count("/") == 4)
        found = {
            path
            for path in deep
            if path.startswith((schedule_places.DUE, schedule_places.REPAIRS, schedule_places.UNFINISHED))
        }
        assert found == marks
        for job in jobs.values():
            assert job.options is not None
            row = owned.pop(job.id)
            assert (job.options.schedule, job.options.fire_us) == (row.schedule, row.fire_us)
            assert (row.outcome != "") == State(job.state).ended
        assert not owned, "each row that has fired has its job"
        for scheduler in (self, *others):
            assert sorted(scheduler.lifecycle.live) == sorted(scheduler.lifecycle.committed)
        notified = sorted(job_id for scheduler in (self, *others) for job_id in scheduler.lifecycle.committed)
        assert notified == sorted(jobs)
        await self.node.counts()


@asynccontextmanager
async def schedulers(*names: str) -> AsyncIterator[list[Scheduler]]:
    """Give a test nodes with schedules."""
    async with a_session.fleet() as nodes:
        yield [Scheduler(await nodes.join(name)) for name in names]


# ---- interleaving ----


class Race:
    """Runs two operations: the second one as a whole between two steps of the first."""

    def __init__(self, first: Scheduler, steps: int) -> None:
        """The first one stops after ``steps`` of its tree, until the second has ended."""
        self._left = steps
        self._second = asyncio.Event()
        self._met = asyncio.Event()
        tree = first.node.tree
        ask = tree.ask

        async def stepped(*args: Any, **more: Any) -> Any:
            """Stop before a request, once."""
            if not self._second.is_set():
                if self._left == 0:
                    self._met.set()
                    await self._second.wait()
                self._left -= 1
            return await ask(*args, **more)

        tree.ask = stepped  # type: ignore[method-assign]
        self._tree = tree

    @property
    def was_met(self) -> bool:
        """Whether the first one has reached that step."""
        return self._met.is_set()

    async def run(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Run both, and return their outcomes."""
        running = asyncio.ensure_future(first)
        met = asyncio.ensure_future(self._met.wait())
        await asyncio.wait({running, met}, return_when=asyncio.FIRST_COMPLETED)
        met.cancel()
        two = await second
        self._second.set()
        one = await running
        del self._tree.ask
        return one, two
