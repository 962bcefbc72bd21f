"""A driver of an engine's runs of workflows for tests: it decides for them, as a worker does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import Event as JobEvent
from mainspring.jobs.rules import Settlement
from mainspring.workflows import store as ops
from mainspring.workflows.draft import fold
from mainspring.workflows.model import Definition, Key, Status, decision_function
from mainspring.workflows.pausing import HELD_US
from mainspring.workflows.requests import (
    CompleteWorkflowExecution,
    Completion,
    ContinueAsNewWorkflowExecution,
    Decided,
    Reached,
    ScheduleActivityTask,
    Signal,
    StartChildWorkflowExecution,
    StartTimer,
    StepResult,
)
from tests.conformance.suite.driver import NO_LIMIT, NOW, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.storage.engine import Operation
    from mainspring.workflows.history import ChildPolicy, Event
    from mainspring.workflows.model import Limits, Parked
    from mainspring.workflows.model import State as RunState
    from mainspring.workflows.requests import Decision
    from tests.conformance.suite.driver import Make

E = TypeVar("E", bound="Event")

SECOND = 1_000_000
MINUTE = 60 * SECOND
MOST_GROUPS = 1000
"""Groups in which all stored errands are done."""
DEFINITION = Definition("order", "1", timeout=86_400.0)
DECISIONS = decision_function("default", "order", "1")


class Flows:
    """An open store with a workflow ``order`` in version 1, and a time of day that the test moves."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_us = NOW
        self._numbers = itertools.count(1)
        self._claimed: dict[int, Job] = {}
        self.define(DEFINITION)

    # ---- operations ----

    def group(self, *operations: Operation) -> list[Any]:
        """Commit a group, and do the errands that it has left to later groups, where all are left to them."""
        outcomes = self.store.group(*operations)
        if self.store.engine.shared and not any(isinstance(one, ops.RunErrands) for one in operations):
            groups = 1
            while self.run_errands():
                groups += 1
                assert groups < MOST_GROUPS, "an errand is there once"
        return outcomes

    def wait(self, microseconds: int) -> None:
        """Let time pass."""
        self.now_us += microseconds

    def limit(self, limits: Limits) -> None:
        """Give runs other limits, which a node's settings can do."""
        engine: Any = self.store.engine
        for one in engine.slices:
            if hasattr(one, "_limits"):
                one._limits = limits

    def define(self, *definitions: Definition) -> list[Definition]:
        """Register definitions; return all."""
        (found,) = self.group(ops.SaveDefinitions(definitions, self.now_us))
        assert isinstance(found, list)
        return found

    def starting(self, job: Job, **values: Any) -> ops.BeginRuns:
        """Return the operation that starts a run for a new job."""
        return ops.BeginRuns([ops.Start(job, **values)], self.now_us)

    def new(self, function: bytes = b"order", payload: bytes = b"[17]", **values: Any) -> Job:
        """Return a new job for a run."""
        return self.store.job(function, payload, created_us=self.now_us, **values)

    def start(self, function: bytes = b"order", **values: Any) -> int:
        """Start a run; return its id."""
        job = self.new(function, **values)
        (begun,) = self.group(self.starting(job))
        assert begun == ops.Begun({}, {})
        return job.id

    def begin_waiting(self, limit: int = NO_LIMIT, function: bytes = b"order") -> int:
        """Begin runs for pending jobs; return their number."""
        (number,) = self.group(ops.BeginWaiting(function, limit, self.now_us))
        assert isinstance(number, int)
        return number

    def signal(self, *signals: Signal) -> list[Reached]:
        """Send signals."""
        (reached,) = self.group(ops.SignalRuns(list(signals), self.now_us))
        assert isinstance(reached, list)
        return reached

    def cancel(self, key: Key, reason: str = "", request: int = 0) -> Reached:
        """Ask a run to cancel itself."""
        (reached,) = self.group(ops.RequestCancelRun(key, reason, self.now_us, request))
        assert isinstance(reached, Reached)
        return reached

    def terminate(self, key: Key, reason: str = "", children: ChildPolicy | None = None) -> Reached:
        """End a run at once."""
        (reached,) = self.group(ops.TerminateRun(key, reason, self.now_us, children=children))
        assert isinstance(reached, Reached)
        return reached

    def ring(self, *runs: int) -> dict[int, int]:
        """Ring the alarms of runs; return the next ones."""
        (rung,) = self.group(ops.RingAlarms(list(runs), self.now_us))
        assert isinstance(rung, dict)
        return rung

    def unpark(self, **values: Any) -> int:
        """Let parked runs go on; return their number."""
        (number,) = self.group(ops.UnparkRuns(self.now_us, **values))
        assert isinstance(number, int)
        return number

    def pause(self, run: int, **values: Any) -> Reached:
        """Pause a run."""
        (reached,) = self.group(ops.PauseRun(Key(run=run), self.now_us, **values))
        assert isinstance(reached, Reached)
        return reached

    def resume(self, run: int) -> Reached:
        """Resume a run."""
        (reached,) = self.group(ops.ResumeRun(Key(run=run), self.now_us))
        assert isinstance(reached, Reached)
        return reached

    def forget(self, limit: int = 100) -> int:
        """Delete all closed runs; return their number."""
        (number,) = self.group(ops.ForgetRuns(self.now_us + 1, limit))
        assert isinstance(number, int)
        return number

    def alarms(self, until_us: int | None = None, limit: int = NO_LIMIT) -> ops.Alarms:
        """Return the runs that are due."""
        (found,) = self.group(ops.FindAlarms(self.now_us if until_us is None else until_us, limit))
        assert isinstance(found, ops.Alarms)
        return found

    # ---- deciders and workers ----

    def task(self, run: int) -> Job:
        """Return the decision task of a run, claimed now or earlier."""
        row = self.row(run)
        function = decision_function(row.namespace, row.type, row.version)
        self._claimed |= {job.id: job for job in self.store.claim(function)}
        job = self._claimed.pop(row.decision)
        assert (job.term, job.payload) == (self.store.term, b"")
        assert job.options is not None
        assert job.options.run == self.of(run)
        return job

    def tasks(self) -> list[Job]:
        """Claim all decision tasks."""
        return self.store.claim(DECISIONS)

    def of(self, run: int) -> tuple[int, int]:
        """Return the option of the jobs of a run."""
        return (run, self.row(run).slot)

    def settled(
        self, job: Job, result: bytes = b"", event: JobEvent = JobEvent.SUCCEED, error: bytes = b""
    ) -> Settlement:
        """Return the settlement of a held job."""
        return Settlement(
            job, event, job.attempt + 1, started_us=self.now_us, ended_us=self.now_us, result=result, error=error
        )

    def completing(self, run: int, job: Job | None, *decisions: Decision, **values: Any) -> Completion:
        """Return a completion for a decision task's job; without one it is fused."""
        seen = values.pop("seen", self.row(run).events)
        return Completion(run, 0 if job is None else job.id, seen, self.now_us, decisions=decisions, **values)

    def decide(self, run: int, job: Job, *decisions: Decision, **values: Any) -> Decided:
        """Complete a decision task; with ``more`` the job stays held."""
        completion = self.completing(run, job, *decisions, **values)
        operation = ops.Decide([completion], self.now_us)
        if completion.more:
            (decided,) = self.group(operation)[0]
        else:
            (decided,) = self.group(job_ops.Settle([self.settled(job)]), operation)[1]
        assert isinstance(decided, Decided)
        return decided

    def fuse(self, run: int, activity: Job, *decisions: Decision, result: bytes = b"done", **values: Any) -> Decided:
        """Settle an activity and go on deciding in the same group."""
        completion = self.completing(run, None, *decisions, settled=[activity.id], **values)
        settle = job_ops.Settle([self.settled(activity, result)])
        stale, (decided,) = self.group(settle, ops.Decide([completion], self.now_us))
        assert stale == set()
        assert isinstance(decided, Decided)
        return decided

    def park(self, run: int, parked: Parked, build: str = "b1") -> Decided:
        """Park a run by its decider."""
        return self.decide(run, self.task(run), parked=parked, build=build)

    def activity(self, function: bytes = b"charge", **values: Any) -> ScheduleActivityTask:
        """Return the decision that schedules an activity."""
        number = next(self._numbers)
        return ScheduleActivityTask(number, str(number), function, **{"input": b"x", **values})

    def timer(self, seconds: float) -> StartTimer:
        """Return the decision that starts a timer."""
        number = next(self._numbers)
        return StartTimer(number, str(number), seconds)

    def close(self, result: bytes = b"result") -> CompleteWorkflowExecution:
        """Return the decision that closes a run."""
        return CompleteWorkflowExecution(next(self._numbers), result)

    def continuing(self, payload: bytes = b"", **values: Any) -> ContinueAsNewWorkflowExecution:
        """Return the decision that continues a run as new."""
        return ContinueAsNewWorkflowExecution(next(self._numbers), payload, **values)

    def chained(self, run: int, payload: bytes = b"") -> int:
        """Continue a run as new; return the next run."""
        self.running(run, self.continuing(payload))
        return self.shown(run).state.new_run

    def last(self, root: int) -> int:
        """Return the last run of a root job's chain."""
        shown = self.show(Key(job=root))
        assert shown is not None
        return shown.row.id

    def step(self, number: int, batch: int = 1, result: bytes = b"r", digest: int = 7) -> StepResult:
        """Return the result of a local step."""
        return StepResult(number, batch, "price", result, digest)

    def running(self, run: int, *decisions: Decision) -> None:
        """Decide once for a run."""
        assert self.decide(run, self.task(run), *decisions).verdict == "recorded"

    def held_activity(self, run: int, function: bytes = b"charge") -> Job:
        """Decide to schedule an activity, and claim it."""
        self.running(run, self.activity(function))
        (job,) = self.store.claim(function)
        return job

    def child(self, type: str = "order", **values: Any) -> StartChildWorkflowExecution:  # noqa: A002 - SWF's name
        """Return the decision that starts a child."""
        return StartChildWorkflowExecution(next(self._numbers), values.pop("workflow_id", ""), type, "", **values)

    def run_errands(self) -> bool:
        """Do the first stored errands; return whether there may be more."""
        (ran,) = self.group(ops.RunErrands(self.now_us))
        assert isinstance(ran, ops.RanErrands)
        return ran.left

    # ---- reads ----

    def children(self, run: int) -> list[int]:
        """Return the open children of a run, in order."""
        return [child.run for child in self.shown(run).state.children.values()]

    def last_event(self, run: int, kind: type[E]) -> E:
        """Return the last event of a type of a run."""
        return [event for event in self.history(run) if isinstance(event, kind)][-1]

    def show(self, key: Key) -> ops.ShownRun | None:
        """Return the run that a key names."""
        shown = self.store.read(ops.ShowRun(key))
        return shown if isinstance(shown, ops.ShownRun) else None

    def unbegun(self, key: Key) -> list[tuple[int, bool]]:
        """Return the waiting jobs that a key names without naming a run, and whether they are of workflows."""
        shown = self.store.read(ops.ShowRun(key))
        return [(one.job.id, one.is_workflow) for one in shown] if isinstance(shown, list) else []

    def shown(self, run: int) -> ops.ShownRun:
        """Return a run, which must be present."""
        shown = self.show(Key(run=run))
        assert shown is not None
        return shown

    def row(self, run: int) -> ops.RunRow:
        """Return the row of a run."""
        return self.shown(run).row

    def status(self, run: int) -> Status:
        """Return the status of a run."""
        return self.row(run).status

    def history(self, run: int, **which: Any) -> list[Event]:
        """Return the events of a run."""
        return self.store.all_of(ops.ReadHistory(run=run, **{"limit": NO_LIMIT, **which}))

    def kinds(self, run: int) -> list[str]:
        """Return the names of the types of a run's events."""
        return [type(event).__name__ for event in self.history(run)]

    def list(self, **which: Any) -> list[int]:
        """Return the ids of the runs that match."""
        found = self.store.all_of(ops.ListRuns(**{"limit": NO_LIMIT, **which}))
        return [shown.row.id for shown in found]

    def root(self, run: int) -> Job:
        """Return the root job of a run."""
        return self.store.present(self.row(run).root)

    # ---- invariants ----

    def check(self) -> None:
        """Check every run: rows, states, histories and jobs agree."""
        wanted: set[int] = set()
        wanted_held: set[int] = set()
        for shown in self.store.all_of(ops.ListRuns(limit=NO_LIMIT)):
            row, state = shown.row, shown.state
            events = self.history(row.id)
            assert [event.id for event in events] == list(range(1, row.events + 1)), "numbers are dense"
            assert fold(events) == state, "the state is the fold of all events"
            assert (row.status, row.type, row.version) == (state.status, state.type, state.version)
            assert row.workflow_id == state.workflow_id
            root = self.store.present(row.root)
            if row.status.open:
                assert (root.state, root.term, root.payload) == (State.RUNNING, -1, b"")
                unseen = state.last_trigger > state.seen
                assert state.scheduled or state.begin_us or not unseen, "unseen events ask for a decision"
                needed = bool(state.scheduled) and row.parked is None
                if row.parking.pause is None:
                    assert bool(row.decision) == needed, "a decision task has a job, unless the run is parked"
                else:
                    self._check_pause(row, state, needed=needed)
                wanted |= {activity.job for activity in state.activities.values()}
                wanted |= {row.decision} - {0}
                if row.parking.pause is not None:
                    wanted_held |= {
                        one.job for one in state.activities.values() if one.scheduled in row.parking.pause.held
                    }
            else:
                chain = self.shown(self.last(row.root)).row
                assert State(root.state).ended == (not chain.status.open), "the root job ends with its chain"
                assert chain.id == row.id or row.status is Status.CONTINUED_AS_NEW
                assert (row.decision, row.due_us, row.parked, row.paused_us) == (0, 0, None, 0)
        held = {job.id for job in self.store.list() if job.due_us == HELD_US and job.state == State.SCHEDULED}
        assert held <= wanted_held, "a pause alone holds jobs"
        jobs = {job.id for job in self.store.list() if job.options is not None and job.options.run is not None}
        assert jobs == wanted, "each job of a run does something for it"
        self.store.counts()

    def _check_pause(self, row: ops.RunRow, state: RunState, *, needed: bool) -> None:
        """Check that nothing of a paused run waits for a worker."""
        if row.decision:
            assert needed, "a decision task that a worker has is one of the run"
            assert self.store.present(row.decision).state >= State.LEASED, "no decision waits to be handed out"
        for activity in state.activities.values():
            job = self.store.present(activity.job)
            waits = job.state == State.PENDING or (job.state == State.SCHEDULED and job.due_us != HELD_US)
            assert activity.abandoned or not waits, "no activity waits to be started"


def kinds(events: Sequence[Event]) -> list[str]:
    """Return the names of the types of events."""
    return [type(event).__name__ for event in events]


class FlowFixtures:
    """A driver with an open store. After each test all runs are checked."""

    @pytest.fixture
    def flows(self, make: Make) -> Iterator[Flows]:
        """Open a store, and check its content after the test."""
        store = Store(make)
        flows = Flows(store)
        yield flows
        flows.check()
        store.close()
