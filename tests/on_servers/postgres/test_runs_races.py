"""Three nodes change the same runs of workflows concurrently: no event is lost or doubled, and no locks deadlock."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.driver import Store, released
from tests.conformance.suite.flows import SECOND, Flows
from tests.conformance.suite.paging import answer, everything
from tests.engines import postgres_engine

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries import QueryJobs
from mainspring.workflows import store as ops
from mainspring.workflows.history import ChildPolicy, WorkflowExecutionSignaled
from mainspring.workflows.model import Definition, Key, Parked, Status, decision_function
from mainspring.workflows.requests import (
    CancelTimer,
    CompleteWorkflowExecution,
    Completion,
    ContinueAsNewWorkflowExecution,
    RequestCancelActivityTask,
    RequestCancelExternalWorkflowExecution,
    ScheduleActivityTask,
    Signal,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
)

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer

    from mainspring.storage.engine import Operation
    from mainspring.workflows.requests import Decision

UNIQUES = (b"u", b"v", b"w")
LONGEST = 1800.0
"""Seconds for one race."""
DEADLOCK = "deadlock detected"
COMMANDS: tuple[Decision, ...] = (
    *(ScheduleActivityTask(0, name, b"charge", input=b"x" * 50) for name in "abcd"),
    ScheduleActivityTask(0, "e", b"charge", schedule_to_start=2.0),
    *(RequestCancelActivityTask(0, name) for name in "abc"),
    *(StartTimer(0, name, 1.0) for name in "ab"),
    CancelTimer(0, "a"),
    StartChildWorkflowExecution(0, "", "order", ""),
    StartChildWorkflowExecution(1, "u", "order", "", child_policy=ChildPolicy.REQUEST_CANCEL),
    StartChildWorkflowExecution(2, "v", "ship", "", child_policy=ChildPolicy.ABANDON),
    *(SignalExternalWorkflowExecution(0, name.decode(), "external", 0, b"") for name in UNIQUES),
    RequestCancelExternalWorkflowExecution(0, "w"),
)
CLOSES: tuple[Decision | None, ...] = (
    *[None] * 6,
    CompleteWorkflowExecution(0, b"done"),
    ContinueAsNewWorkflowExecution(0, b"next"),
    ContinueAsNewWorkflowExecution(0, b"next", delay=1.0),
)


class Common:
    """Values of all nodes of a test."""

    def __init__(self, flows: Flows) -> None:
        self.flows = flows
        self.number = 0
        self.runs: list[int] = []
        """Root jobs and runs that clients know."""
        self.taken: dict[bytes, tuple[int, int]] = {}
        """The runs and numbers of the events of acknowledged signals, by their inputs."""
        self.waiting: set[bytes] = set()
        """The inputs of signals that were acknowledged before the begin of their runs."""


class Busy:
    """A node with its workers and clients."""

    def __init__(self, store: Store, chance: random.Random, common: Common) -> None:
        self.store = store
        self.chance = chance
        self.common = common
        self.held: list[Job] = []
        self.repeats = 0

    async def step(self) -> None:
        """Let a random group be committed, and note its outcomes."""
        chance = self.chance
        makers = chance.choices(
            [
                self.start, self.wait, self.begin, self.claim, self.decide, self.end, self.fuse, self.more, self.signal,
                self.named, self.ring, self.errands, self.cancel, self.terminate, self.cancel_job, self.park, self.unpark,
                self.lose, self.later,
            ],
            [2, 2, 2, 12, 12, 6, 5, 4, 8, 4, 4, 5, 1, 1, 2, 1, 2, 1, 1],
            k=chance.randrange(1, 5),
        )  # fmt: skip
        now_us = self.common.flows.now_us = self.common.flows.now_us + chance.randrange(SECOND // 20)
        group: list[tuple[Operation, Any]] = []
        for maker in makers:
            group += await maker(now_us)
        if group:
            outcomes = await self.store.committed([operation for operation, _ in group])
            for (_, note), outcome in zip(group, outcomes, strict=True):
                if note is not None:
                    note(outcome)

    # ---- starts ----

    def _new(self, function: bytes) -> Job:
        unique = self.chance.choice((b"", *UNIQUES))
        job = self.store.job(function, b"[1]", unique=unique, created_us=self.common.flows.now_us)
        self.common.runs.append(job.id)
        return job

    async def start(self, now_us: int) -> list[Any]:
        return [(ops.BeginRuns([ops.Start(self._new(self.chance.choice((b"order", b"ship"))))], now_us), None)]

    async def wait(self, now_us: int) -> list[Any]:
        del now_us
        return [(job_ops.Submit([self._new(self.chance.choice((b"order", b"ship", b"later")))]), None)]

    async def begin(self, now_us: int) -> list[Any]:
        return [(ops.BeginWaiting(name, 5, now_us), None) for name in (b"order", b"ship", b"later")]

    async def later(self, now_us: int) -> list[Any]:
        """Register a function as a workflow at some time."""
        return [(ops.SaveDefinitions([Definition("later")] if self.chance.random() < 0.5 else [], now_us), None)]

    # ---- workers ----

    async def claim(self, now_us: int) -> list[Any]:
        del now_us
        names = (decision_function("default", name, "1") for name in ("order", "ship", "later"))
        wants = [job_ops.ClaimRequest(function, 2) for function in (b"charge", *names)]

        def claimed(outcome: list[list[Job]]) -> None:
            self.held += [job for jobs in outcome for job in jobs]

        return [(job_ops.Claim(self.store.term, wants), claimed)]

    def _take(self, *, decision: bool) -> Job | None:
        found = [job for job in self.held if (job.function != b"charge") == decision]
        if not found:
            return None
        job = self.chance.choice(found)
        self.held.remove(job)
        return job

    async def _completion(self, job: Job, now_us: int, **values: Any) -> Completion:
        assert job.options is not None
        assert job.options.run is not None
        run = job.options.run[0]
        shown = await answer(self.store.engine, ops.ShowRun(Key(run=run)))
        seen = shown.row.events if isinstance(shown, ops.ShownRun) else 1
        decisions: list[Decision] = [self.chance.choice(COMMANDS) for _ in range(self.chance.randrange(4))]
        close = None if values.get("more") else self.chance.choice(CLOSES)
        if close is not None:
            decisions.append(close)
        return Completion(run, job.id, seen, now_us, decisions=tuple(decisions), **values)

    def _settled(self, job: Job, event: Event = Event.SUCCEED) -> job_ops.Settle:
        now_us = self.common.flows.now_us
        return job_ops.Settle([Settlement(job, event, job.attempt + 1, started_us=now_us, ended_us=now_us)])

    async def decide(self, now_us: int) -> list[Any]:
        job = self._take(decision=True)
        if job is None:
            return []
        completion = await self._completion(job, now_us)
        return [(self._settled(job), None), (ops.Decide([completion], now_us), None)]

    async def more(self, now_us: int) -> list[Any]:
        job = self._take(decision=True)
        if job is None:
            return []
        return [(ops.Decide([await self._completion(job, now_us, more=True)], now_us), None)]

    async def fuse(self, now_us: int) -> list[Any]:
        job = self._take(decision=False)
        if job is None:
            return []
        completion = (await self._completion(job, now_us, settled=[job.id]))._replace(job=0)
        return [(self._settled(job), None), (ops.Decide([completion], now_us), None)]

    async def park(self, now_us: int) -> list[Any]:
        job = self._take(decision=True)
        if job is None:
            return []
        completion = await self._completion(job, now_us)
        completion = completion._replace(decisions=(), parked=Parked("defect", "no"), build="b1")
        return [(self._settled(job), None), (ops.Decide([completion], now_us), None)]

    async def end(self, now_us: int) -> list[Any]:
        del now_us
        job = self._take(decision=False)
        return [] if job is None else [(self._settled(job, self.chance.choice((Event.SUCCEED, Event.FAIL))), None)]

    async def lose(self, now_us: int) -> list[Any]:
        del now_us
        job = self._take(decision=True)
        return [] if job is None else [(job_ops.Settle([released(job)]), None)]

    # ---- clients and operators ----

    def _key(self) -> Key:
        runs = self.common.runs
        return Key(job=self.chance.choice(runs[-12:])) if runs else Key(workflow_id="u")

    def _signals(self, keys: list[Key], now_us: int) -> list[Any]:
        common = self.common
        signals = []
        for key in keys:
            common.number += 1
            signals.append(Signal(key, "s", b"%d" % common.number))

        def note(reached: list[Any]) -> None:
            for signal, one in zip(signals, reached, strict=True):
                if one.verdict == "recorded" and one.event:
                    common.taken[signal.input] = one.run, one.event
                elif one.verdict == "recorded":
                    common.waiting.add(signal.input)

        return [(ops.SignalRuns(signals, now_us), note)]

    async def signal(self, now_us: int) -> list[Any]:
        return self._signals([self._key() for _ in range(self.chance.randrange(1, 4))], now_us)

    async def named(self, now_us: int) -> list[Any]:
        return self._signals([Key(workflow_id=self.chance.choice(UNIQUES).decode())], now_us)

    async def ring(self, now_us: int) -> list[Any]:
        (found,) = await self.store.committed([ops.FindAlarms(now_us, 20)])
        return [(ops.RingAlarms([run for run, _ in found.due], now_us), None)]

    async def errands(self, now_us: int) -> list[Any]:
        return [(ops.RunErrands(now_us), None)]

    async def cancel(self, now_us: int) -> list[Any]:
        return [(ops.RequestCancelRun(self._key(), "no more", now_us), None)]

    async def terminate(self, now_us: int) -> list[Any]:
        return [(ops.TerminateRun(self._key(), "enough", now_us), None)]

    async def unpark(self, now_us: int) -> list[Any]:
        return [(ops.UnparkRuns(now_us), None)]

    async def cancel_job(self, now_us: int) -> list[Any]:
        """Cancel a waiting job of a run by hand."""
        jobs = await everything(self.store.engine, QueryJobs(limit=200))
        waiting = [job.id for job in jobs if job.state == State.PENDING and job.options is not None and job.options.run]
        return [(job_ops.Cancel(self.chance.choice(waiting), b"{}", now_us), None)] if waiting else []


async def race(stores: list[Store], common: Common, seed: int, steps: int) -> None:
    async def work(one: Busy) -> None:
        for _ in range(steps):
            await one.step()

    nodes = [Busy(store, random.Random(seed * 10 + at), common) for at, store in enumerate(stores)]
    await asyncio.gather(*map(work, nodes))


def check_races(database: str, seed: int, steps: int) -> None:
    first = Store(lambda: postgres_engine(database))
    try:
        flows = Flows(first)
        flows.define(Definition("ship"))
        common = Common(flows)
        stores = [first, first.beside("n2"), first.beside("n3")]
        first.run(race(stores, common, seed, steps), LONGEST)
        flows.define(Definition("later"))
        for function in (b"order", b"ship", b"later"):
            flows.begin_waiting(function=function)
        while flows.run_errands():
            pass
        flows.check()
        inputs: list[bytes] = []
        runs = flows.list()
        for run in runs:
            inputs += [event.input for event in flows.history(run) if isinstance(event, WorkflowExecutionSignaled)]
        for data, (run, number) in common.taken.items():
            event = flows.history(run)[number - 1]
            assert isinstance(event, WorkflowExecutionSignaled), "a signal has the acknowledged place"
            assert event.input == data
        ended = {job.id for job in first.list() if State(job.state).ended}
        lost = common.waiting - set(inputs)
        assert not lost or ended, f"early signals are lost: {lost}"
        for run in runs:
            state = flows.shown(run).state
            if state.status == Status.OPEN:
                assert not state.externals, "each request to another run is answered"
    finally:
        first.close()


@pytest.mark.parametrize("seed", range(2))
def test_histories_stay_whole_between_nodes(postgres: PostgresServer, database: str, seed: int) -> None:
    deadlocks = postgres.log().count(DEADLOCK)
    check_races(database, seed, 60)
    assert postgres.log().count(DEADLOCK) == deadlocks


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 120))
def test_histories_stay_whole_between_nodes_for_long(postgres: PostgresServer, database: str, seed: int) -> None:
    deadlocks = postgres.log().count(DEADLOCK)
    check_races(database, seed, 800)
    assert postgres.log().count(DEADLOCK) == deadlocks
