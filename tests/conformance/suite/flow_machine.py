"""A state machine for engines with workflows: random groups, failed groups, and ends of the process. Needs Hypothesis.

Derive from ``FlowMachine``, define ``make`` and ``cached``, and export ``TestCase`` for pytest, as for ``machine.EngineMachine``.
The model has the events of each run as a list. A history must only grow; each acknowledged signal must be in it once; a failed
group must change nothing; and the runs in the engine's memory must be as the store has them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mainspring.errors import StoreError
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State, failure
from mainspring.jobs.rules import Event
from mainspring.resources.rules import FunctionLimits, Limits
from mainspring.resources.store import SaveLimits
from mainspring.workflows import store as ops
from mainspring.workflows.forking import Change, Point
from mainspring.workflows.history import (
    DecisionTaskCompleted,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
)
from mainspring.workflows.model import Definition, Key, Parked, Status
from mainspring.workflows.requests import Completion, ContinueAsNewWorkflowExecution, Decided, Signal
from tests.conformance.suite.driver import Store, released
from tests.conformance.suite.flow_groups import EXTERNAL, LATER, NARROW, PARTS
from tests.conformance.suite.flows import SECOND, Flows

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Engine, Operation
    from mainspring.workflows.history import Event as HistoryEvent
    from mainspring.workflows.reading import Run


LIMITS: Final = Limits(concurrency=3, concurrency_per_key=2)
"""Of `NARROW`."""


class FlowMachine(RuleBasedStateMachine):
    """Runs random groups on an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.histories: dict[int, list[HistoryEvent]] = {}
        """The events of the runs that are stored."""
        self.signals: dict[int, list[bytes]] = {}
        """The inputs of acknowledged signals, by run."""
        self.along: dict[int, list[bytes]] = {}
        """The inputs of signals that runs have from the runs before them, in order."""
        self.unread: dict[int, tuple[int, ...]] = {}
        """The signals that the decider of a run has reported as unread when it continued the run as new."""
        self.early: list[int] = []
        """Jobs of a function that becomes a workflow later."""
        self.number = 0

    def make(self) -> Engine:
        """Return an engine on the content committed so far."""
        raise NotImplementedError

    def crash(self) -> None:
        """End the engine's process without closing it; the next ``make`` finds the committed content."""
        self.store.close()

    def cached(self, run: int) -> Run | None:
        """Return a run in the engine's memory; None if it is not there."""
        raise NotImplementedError

    def spoiled(self, engine: Engine) -> AbstractContextManager[None] | None:
        """Return a context in which large groups fail; None for an engine without one."""
        del engine
        return None

    @initialize()
    def open(self) -> None:
        """Open the first engine."""
        self.store = Store(self.make)
        self.flows = Flows(self.store)
        self.flows.define(Definition(NARROW.decode()))
        self.store.group(SaveLimits(FunctionLimits(NARROW, commanded=LIMITS)))
        for _ in range(3):
            self.flows.start()
        self.grow()

    def teardown(self) -> None:
        """Close the engine."""
        self.store.close()

    # ---- rules ----

    @rule(parts=PARTS, seconds=st.integers(0, 3))
    def group(self, parts: list[tuple[str, Any]], seconds: int) -> None:
        """Let time pass, and commit a group."""
        self.flows.wait(seconds * SECOND)
        operations, checks = self.build(parts)
        if operations:
            for check, outcome in zip(checks, self.store.group(*operations), strict=True):
                if check is not None:
                    check(outcome)
            self.grow()

    @rule(parts=PARTS)
    def group_at_once(self, parts: list[tuple[str, Any]]) -> None:
        """Commit a group: a second rule, so that most steps are groups."""
        self.group(parts, 0)

    @precondition(lambda self: self.spoiled(self.store.engine) is not None)
    @rule(parts=PARTS)
    def fail(self, parts: list[tuple[str, Any]]) -> None:
        """Have a group fail; everything stays as it was."""
        operations, _ = self.build(parts)
        operations.append(job_ops.Submit([self.store.job(b"big", b"x" * 100_000) for _ in range(50)]))
        context = self.spoiled(self.store.engine)
        assert context is not None
        with context, contextlib.suppress(StoreError):
            self.store.group(*operations)
            raise AssertionError("the group was to fail")
        assert self.stored() == self.histories

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """End the process, and begin the next one."""
        self.replace_process(killed=killed)
        self.grow()  # the recovery of a job with a stored request to stop ends its activity

    def replace_process(self, *, killed: bool) -> None:
        """End the process, or kill it; begin the next one, which recovers its jobs."""
        if killed:
            self.crash()
        else:
            self.store.close()
        self.store.open()
        self.store.recover()

    @rule()
    def drain(self) -> None:
        """Do all errands: then each open child is known to its parent, and each request is answered."""
        groups = 1
        while self.flows.run_errands():
            groups += 1
            assert groups < 1000, "an errand is there once"
        self.grow()
        for run in self.flows.list(status=(Status.OPEN,)):
            state = self.flows.shown(run).state
            assert not state.externals, "each request to another run is answered"
            for child in state.children.values():
                shown = self.flows.show(Key(job=child.run))
                assert child.started, "the begin of each child is known"
                assert shown is not None, "an open child is kept"
                assert shown.row.status.open, "the end of each child is known"

    # ---- the parts of a group ----

    def build(self, parts: list[tuple[str, Any]]) -> tuple[list[Operation], list[Any]]:
        """Return the operations of a group, and the checks of their outcomes."""
        operations: list[Operation] = []
        checks: list[Any] = []
        held = {job.id: job for job in self.held()}
        for kind, argument in parts:
            built: list[tuple[Operation, Any]] = getattr(self, f"_{kind}")(argument, held)
            for operation, check in built:
                operations.append(operation)
                checks.append(check)
        return operations, checks

    def held(self) -> list[Job]:
        """Claim all jobs; return those that are held."""
        functions = {job.function for job in self.store.list() if job.function not in {b"order", LATER, NARROW}}
        for function in functions:
            self.store.claim(function)
        return [job for job in self.store.list() if job.term == self.store.term and job.options is not None]

    def _run(self, pick: int) -> int:
        runs = sorted(self.histories)
        return runs[pick % len(runs)] if runs else 7

    def _job(self, pick: int, held: dict[int, Job], *, decision: bool) -> Job | None:
        """Take a held job out of those that the group may settle."""
        found = [job for job in held.values() if (job.function != b"charge") == decision]
        return held.pop(found[pick % len(found)].id) if found else None

    def _start(self, unique: bytes, held: dict[int, Job]) -> list[Any]:
        del held
        return [(self.flows.starting(self.flows.new(unique=unique)), None)]

    def _wait(self, unique: bytes, held: dict[int, Job]) -> list[Any]:
        del held
        return [(job_ops.Submit([self.flows.new(unique=unique)]), None)]

    def _begin(self, limit: int, held: dict[int, Job]) -> list[Any]:
        del held
        return [(ops.BeginWaiting(b"order", limit, self.flows.now_us), None)]

    def _signalling(self, key: Key, request: int) -> list[Any]:
        self.number += 1
        text = b"%d" % self.number

        def check(reached: Any) -> None:
            (one,) = reached
            if one.verdict == "recorded":
                self.signals.setdefault(one.run, []).append(text)

        return [(ops.SignalRuns([Signal(key, "s", text, request)], self.flows.now_us), check)]

    def _signal(self, argument: tuple[int, int], held: dict[int, Job]) -> list[Any]:
        del held
        return self._signalling(Key(job=self._run(argument[0])), argument[1])

    def _named(self, unique: bytes, held: dict[int, Job]) -> list[Any]:
        del held
        return self._signalling(Key(workflow_id=unique.decode() or "none"), 0)

    def _early(self, pick: int, held: dict[int, Job]) -> list[Any]:
        """Submit a job of a function that nobody has registered, or signal one."""
        del held
        if pick < 2 or not self.early:
            job = self.flows.new(LATER)
            self.early.append(job.id)
            return [(job_ops.Submit([job]), None)]
        return self._signalling(Key(job=self.early[-pick % len(self.early)]), pick)

    def _register(self, pick: int, held: dict[int, Job]) -> list[Any]:
        del held
        begin = ops.BeginWaiting(LATER, 2, self.flows.now_us)
        return (
            [(begin, None)]
            if pick
            else [(ops.SaveDefinitions([Definition("later")], self.flows.now_us), None), (begin, None)]
        )

    def _narrow(self, pick: int, held: dict[int, Job]) -> list[Any]:
        """Start a run of a workflow with limits."""
        del held
        return [(self.flows.starting(self.flows.new(NARROW, key=[b"", b"eu"][pick % 2], priority=pick % 3)), None)]

    def _fill(self, pick: int, held: dict[int, Job]) -> list[Any]:
        del held
        keys = [None, [b"eu"], [b""], [b"", b"eu"]][pick]
        return [(ops.FillPlaces(NARROW, 2, self.flows.now_us, keys), None)]

    def _cancel(self, pick: int, held: dict[int, Job]) -> list[Any]:
        del held
        return [(ops.RequestCancelRun(Key(job=self._run(pick)), "no more", self.flows.now_us), None)]

    def _fork(self, argument: tuple[int, Any, bool], held: dict[int, Job]) -> list[Any]:
        del held
        pick, kind, by_run = argument
        run = self._run(pick)
        if self.flows.row(run).type == NARROW.decode():
            return []  # a person's fork of a closed run needs no place
        change = Change() if kind == "rerun" else Change(Point(end=kind))

        def check(forked: ops.Forked) -> None:
            assert forked.verdict != "unread"
            assert (forked.run != 0) == (forked.verdict == "forked")

        return [(ops.ForkRun(Key(run=run) if by_run else Key(job=run), change, self.flows.now_us), check)]

    def _terminate(self, pick: int, held: dict[int, Job]) -> list[Any]:
        del held
        return [(ops.TerminateRun(Key(job=self._run(pick)), "enough", self.flows.now_us), None)]

    def _ring(self, seconds: int, held: dict[int, Job]) -> list[Any]:
        del held
        due = self.flows.alarms(self.flows.now_us + seconds * SECOND).due
        return [(ops.RingAlarms([run for run, _ in due], self.flows.now_us), None)]

    def _unpark(self, argument: None, held: dict[int, Job]) -> list[Any]:
        del argument, held
        return [(ops.UnparkRuns(self.flows.now_us), None)]

    def _pause(self, argument: tuple[int, int], held: dict[int, Job]) -> list[Any]:
        """Pause a run, for some seconds or until it is resumed."""
        del held
        pick, seconds = argument
        until_us = self.flows.now_us + seconds * SECOND if seconds else 0
        return [(ops.PauseRun(Key(job=self._run(pick)), self.flows.now_us, until_us=until_us), None)]

    def _resume(self, pick: int, held: dict[int, Job]) -> list[Any]:
        del held
        return [(ops.ResumeRun(Key(job=self._run(pick)), self.flows.now_us), None)]

    def _errands(self, argument: None, held: dict[int, Job]) -> list[Any]:
        del argument, held
        return [(ops.RunErrands(self.flows.now_us), None)]

    def _forget(self, limit: int, held: dict[int, Job]) -> list[Any]:
        del held
        return [(ops.ForgetRuns(self.flows.now_us + 1, limit), None)]

    def _completion(self, job: Job, commands: Any, close: Any, **values: Any) -> Completion:
        assert job.options is not None
        assert job.options.run is not None
        run = job.options.run[0]
        decisions = (*commands, *(() if close is None else (close,)))
        seen = max(len(self.histories[run]) - values.pop("behind", 0), 0)
        return Completion(run, job.id, seen, self.flows.now_us, decisions=decisions, **values)

    def _completed(self, completion: Completion) -> tuple[Operation, Any]:
        def check(decided: list[Decided]) -> None:
            (one,) = decided
            close = completion.decisions[-1] if completion.decisions else None
            if one.status is Status.CONTINUED_AS_NEW and isinstance(close, ContinueAsNewWorkflowExecution):
                self.unread[completion.run] = close.unread
            if one.verdict in {"recorded", "parked"}:
                events = self.flows.history(completion.run) if self.flows.show(Key(run=completion.run)) else None
                assert events is None or list(one.events) == events[completion.seen :], "the answer has all events"
            else:
                assert one.events == ()

        return ops.Decide([completion], self.flows.now_us), check

    def _decide(self, argument: Any, held: dict[int, Job]) -> list[Any]:
        pick, commands, close, behind = argument
        job = self._job(pick, held, decision=True)
        if job is None:
            return []
        completion = self._completion(job, commands, close, behind=behind)
        return [(job_ops.Settle([self.flows.settled(job)]), None), self._completed(completion)]

    def _more(self, argument: Any, held: dict[int, Job]) -> list[Any]:
        pick, commands, step = argument
        job = self._job(pick, held, decision=True)
        if job is None:
            return []
        self.number += 1
        steps = [self.flows.step(self.number, batch=self.number)] if step else []
        return [self._completed(self._completion(job, commands, None, steps=steps, more=True))]

    def _park(self, pick: int, held: dict[int, Job]) -> list[Any]:
        job = self._job(pick, held, decision=True) if pick < 2 else None
        if job is None:
            return []
        completion = self._completion(job, (), None, parked=Parked("defect", "no"), build=f"b{pick % 2}")
        return [(job_ops.Settle([self.flows.settled(job)]), None), self._completed(completion)]

    def _lose(self, pick: int, held: dict[int, Job]) -> list[Any]:
        job = self._job(pick, held, decision=True)
        if job is None:
            return []
        settlement = released(job) if pick % 3 == 0 else self.flows.settled(job, event=Event.LOSE)
        return [(job_ops.Settle([settlement]), None)]

    def _end(self, argument: Any, held: dict[int, Job]) -> list[Any]:
        pick, event = argument
        job = self._job(pick, held, decision=False)
        if job is None:
            return []
        error = failure("WorkFailed", "no") if event is Event.FAIL else b""
        return [(job_ops.Settle([self.flows.settled(job, event=event, error=error)]), None)]

    def _fuse(self, argument: Any, held: dict[int, Job]) -> list[Any]:
        pick, commands, close = argument
        job = self._job(pick, held, decision=False)
        if job is None:
            return []
        completion = self._completion(job, commands, close, settled=[job.id])._replace(job=0)
        return [(job_ops.Settle([self.flows.settled(job, b"done")]), None), self._completed(completion)]

    # ---- the model ----

    def stored(self) -> dict[int, list[HistoryEvent]]:
        """Return all histories."""
        return {run: self.flows.history(run) for run in self.flows.list()}

    def grow(self) -> None:
        """Take the new events over: those of before stay, and runs go only when they are closed."""
        stored = self.stored()
        for run, events in self.histories.items():
            if run in stored:
                assert stored[run][: len(events)] == events, "a history only grows"
        self.histories = stored
        for events in stored.values():
            self._continued(events)
            self._forked(events)

    def _continued(self, events: list[HistoryEvent]) -> None:
        """Note the signals that a closed run passes on to the run that continues it."""
        close = events[-1]
        if not isinstance(close, WorkflowExecutionContinuedAsNew) or close.new_run in self.along or close.reason:
            return
        started = events[0]
        assert isinstance(started, WorkflowExecutionStarted)
        unread = self.unread[started.run]
        seen = max(event.seen for event in events if isinstance(event, DecisionTaskCompleted))
        signals = [event for event in events if isinstance(event, WorkflowExecutionSignaled)]
        self.along[close.new_run] = [
            one.input for one in signals if one.id > seen or one.id in unread or close.attempt > 1
        ]

    def _forked(self, events: list[HistoryEvent]) -> None:
        """Note the signals that a fork has from the run before it: all."""
        started = events[0]
        if not isinstance(started, WorkflowExecutionStarted) or not started.forked_run or started.run in self.along:
            return
        before = self.histories.get(started.forked_run)  # None: it was deleted in the same group
        signals = [event.input for event in before or events if isinstance(event, WorkflowExecutionSignaled)]
        self.along[started.run] = signals

    @invariant()
    def keep_to_limits(self) -> None:
        """Check that no more runs are open than the limits let, and that none waits for a free place after a look."""
        if not hasattr(self, "flows"):
            return
        runs = self.flows.list(status=(Status.OPEN,), type=NARROW.decode())
        keys = [self.store.present(self.flows.row(run).root).key for run in runs]
        assert len(runs) <= 3, "the limit of the workflow holds"
        assert all(keys.count(key) <= 2 for key in keys), "the limit of each key holds"

    @rule()
    def fill_all(self) -> None:
        """Fill the places: then no start waits for one that is free."""
        while self.store.group(ops.FillPlaces(NARROW, 100, self.flows.now_us))[0].begun:
            pass
        self.grow()
        self.keep_to_limits()
        runs = self.flows.list(status=(Status.OPEN,), type=NARROW.decode())
        keys = [self.store.present(self.flows.row(run).root).key for run in runs]
        for job in self.store.list():
            if job.function == NARROW and job.state == State.PENDING:
                assert len(runs) == 3 or keys.count(job.key) == 2, "a start waits for a place"

    @invariant()
    def agree(self) -> None:
        """Compare the store with the model, and the engine's memory with the store."""
        if not hasattr(self, "flows"):
            return
        self.flows.check()
        others: set[tuple[int, int]] = set()
        for run, events in self.histories.items():
            signals = [event.input for event in events if isinstance(event, WorkflowExecutionSignaled)]
            along = self.along.get(run, [])
            assert signals[: len(along)] == along, "signals go along in their order"
            sent = [event for event in events if isinstance(event, WorkflowExecutionSignaled)][len(along) :]
            own = sorted(event.input for event in sent if event.input != EXTERNAL)
            received = [(event.external_run, event.external_initiated) for event in sent if event.external_run]
            assert len(set(received)) == len(received), "each signal of another run is there once"
            assert not set(received) & others, "and in no other run"
            others.update(received)
            assert own == sorted(self.signals.get(run, [])), "each acknowledged signal is there once"
            cached = self.cached(run)
            if cached is not None:
                shown = self.flows.shown(run)
                assert (cached.row, cached.state) == (shown.row, shown.state), "the memory is as the store"
                after = len(events) - len(cached.tail)
                assert cached.tail == events[after:], "the tail has the last events"
                assert after >= cached.state.seen, "and none that the decider was given"
