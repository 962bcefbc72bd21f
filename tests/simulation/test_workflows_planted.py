"""The simulation of workflows detects planted faults: each test removes one guard, and one of the first seeds must fail.

None needs more seeds than the short form of `test_workflows` has.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.callbacks import CallInProgress
from mainspring.engines.memory import jobs as memory_jobs
from mainspring.engines.memory.holds import MemoryHolds
from mainspring.engines.memory.workflows import MemoryRuns
from mainspring.faces.gearman.decide_packets import DecisionReports
from mainspring.faces.gearman.peer import Peer
from mainspring.jobs.owners import Ended, note
from mainspring.workflow_code.workflow_jobs import LocalSteps
from mainspring.workflows import (
    draft,
    execution,
    history,
    other_runs,
    outbox,
    unit,
)
from mainspring.workflows.changes import RunJobs
from mainspring.workflows.cross_run import StartChild
from mainspring.workflows.decision_intake import CachedRuns, DecisionIntake
from mainspring.workflows.reading import RunCache
from mainspring.workflows.requests import Decided, Reached
from mainspring.workflows.service import RunRequests, WorkflowService
from mainspring.workflows.store import Begun, Start

from .stores import SimulationError
from .wires import wait_for_answers
from .workflows.program import WITH_CHILDREN, WITH_HOLDS
from .workflows.running import simulate_flows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.jobs.model import Job
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.cross_run import Errand
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.messages import DecideMessage
    from mainspring.workflows.requests import Completion, Ruling

Plant = pytest.MonkeyPatch


def is_caught(
    seeds: int, *, by: str, store: str = "memory", chains: bool = False, kinds: Sequence[str] = (), first: int = 0
) -> None:
    """Check that one of the seeds fails, the first one that does for the right reason."""
    for seed in range(first, first + seeds):
        try:
            simulate_flows(store, [seed], chains=chains, kinds=kinds)
        except SimulationError as error:
            if not re.search(by, str(error)):
                pytest.fail(f"another check has failed: {error}")
            return
    pytest.fail("no seed has detected the fault")


# ---- decisions ----


def test_taking_all_events_for_seen_is_detected(monkeypatch: Plant) -> None:
    complete = execution.complete

    def careless(draft: Draft, completion: Completion) -> Ruling:
        return complete(draft, completion._replace(seen=draft.state.last) if completion.job else completion)

    monkeypatch.setattr(unit, "complete", careless)
    is_caught(10, by="counts as seen|is recorded otherwise|after 150")


def test_taking_a_stale_decision_is_detected(monkeypatch: Plant) -> None:
    report = DecisionReports._report

    def careless(self: DecisionReports, message: DecideMessage, held: Any, done: Any) -> None:
        if message.handle and held is None:  # its lease has ended
            message = replace(message, handle=b"", token=b"")
        report(self, message, held, done)

    monkeypatch.setattr(DecisionReports, "_report", careless)
    monkeypatch.setattr(execution, "_fused_stale", _is_closed)
    monkeypatch.setattr(execution, "_malformed_steps", lambda *_: "")
    is_caught(
        30, by="is recorded otherwise|counts as seen|acknowledged and not recorded|the code differs from the history"
    )


def test_taking_a_stale_fused_decision_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(execution, "_fused_stale", _is_closed)
    is_caught(60, by="counts as seen")


def _is_closed(draft: Draft, _: Completion) -> str:
    return "the run is closed" if draft.state.status else ""


def test_losing_the_record_of_a_step_is_detected(monkeypatch: Plant) -> None:
    record = execution._record_steps

    def forgetful(draft: Draft, completion: Completion, seen: int) -> None:
        record(draft, completion._replace(steps=completion.steps[1:]), seen)

    monkeypatch.setattr(execution, "_record_steps", forgetful)
    is_caught(10, by="acknowledged and not recorded")


def test_starting_steps_before_the_records_of_others_is_detected(monkeypatch: Plant) -> None:
    take = LocalSteps.take_started

    def hasty(self: LocalSteps, *, unrecorded: bool, each_unrecorded: bool) -> Any:
        del unrecorded, each_unrecorded
        return take(self, unrecorded=False, each_unrecorded=False)

    monkeypatch.setattr(LocalSteps, "take_started", hasty)
    is_caught(20, by="begins before the records of all others")


# ---- acknowledgements ----


def test_acknowledging_a_start_before_the_commit_is_detected(monkeypatch: Plant) -> None:
    start = WorkflowService.start

    async def hasty(self: WorkflowService, one: Start) -> Begun:
        CallInProgress(start(self, one), lambda _: None, lambda _: None)
        return Begun({}, {})

    monkeypatch.setattr(WorkflowService, "start", hasty)
    is_caught(10, by="acknowledged and not begun")


def test_acknowledging_a_signal_before_the_commit_is_detected(monkeypatch: Plant) -> None:
    signal = RunRequests.signal

    async def hasty(self: RunRequests, one: Any) -> Reached:
        CallInProgress(signal(self, one), lambda _: None, lambda _: None)
        return Reached("recorded", one.key.job, one.key.job)

    monkeypatch.setattr(RunRequests, "signal", hasty)
    is_caught(10, by=r"\[0\] times there")


def test_acknowledging_a_decision_before_the_commit_is_detected(monkeypatch: Plant) -> None:
    report = DecisionIntake.report

    def hasty(
        self: DecisionIntake, completion: Completion, decision: Any, endings: Any, done: Any, worker: Any
    ) -> None:
        early = completion.more
        report(self, completion, decision, endings, (lambda _: None) if early else done, worker)
        if early:
            done(Decided("recorded"))

    monkeypatch.setattr(DecisionIntake, "report", hasty)
    is_caught(20, by="acknowledged and not recorded|the code differs from the history")


# ---- alarms and rows ----


def test_ringing_an_alarm_twice_is_detected(monkeypatch: Plant) -> None:
    folds: dict[Any, Any] = draft._FOLDS
    fire = folds[history.TimerFired]

    def twice(state: Any, event: Any) -> None:
        timer = state.timers[event.timer_id]
        fire(state, event)
        if timer.fire_us % 2 == 0:  # for the first time
            state.timers[event.timer_id] = replace(timer, fire_us=timer.fire_us | 1)

    monkeypatch.setitem(folds, history.TimerFired, twice)
    is_caught(10, by="the timer is not open")


def test_keeping_the_rows_of_a_closed_run_is_detected(monkeypatch: Plant) -> None:
    withdraw = RunJobs._withdraw

    async def keep(self: RunJobs, changed: Any) -> None:
        for found in changed:
            if not found.is_open:
                found.draft.withdrawn.clear()
                found.run.row.decision = 0
        await withdraw(self, changed)

    monkeypatch.setattr(RunJobs, "_withdraw", keep)
    is_caught(10, by="is closed, and its job")


def test_keeping_a_job_at_forget_is_detected(monkeypatch: Plant) -> None:
    enter = memory_jobs.enter_end

    def keep(tables: Any, job: Job, before: int, worker: str) -> None:
        if job.options is not None and job.options.forget:
            note(tables.notices, Ended.of(job, worker))
            job.options = None
        enter(tables, job, before, worker)

    monkeypatch.setattr(memory_jobs, "enter_end", keep)
    is_caught(10, by="is closed, and its job|ended jobs of runs are left")


# ---- the node's memory ----


def test_remembering_a_worker_that_is_gone_is_detected(monkeypatch: Plant) -> None:
    sent = CachedRuns.sent

    def late(self: CachedRuns, run: int, worker: Any, last: int) -> None:
        gone = worker not in self._connections
        if gone:
            self._connections[worker] = None  # type: ignore[assignment]
        sent(self, run, worker, last)
        if gone:
            del self._connections[worker]

    monkeypatch.setattr(CachedRuns, "sent", late)
    is_caught(20, by="by a worker that has gone|KeyError")


def plant_old_runs(monkeypatch: Plant) -> None:
    """Let the cache of the node's engine have some runs as they were before a transaction."""
    take, put = RunCache.take, RunCache.put
    before: dict[int, Any] = {}

    def copying(self: RunCache, run: int) -> Any:
        found = take(self, run)
        before[run] = deepcopy(found)
        return found

    def old(self: RunCache, runs: Any) -> None:
        for run in runs:
            row = run.row
            stale = before.get(row.id)
            put(self, [stale if row.events % 7 == 0 and row.status.open and stale is not None else run])

    monkeypatch.setattr(RunCache, "take", copying)
    monkeypatch.setattr(RunCache, "put", old)


def test_the_number_of_events_guards_a_run_that_the_node_has_wrongly_in_memory(monkeypatch: Plant) -> None:
    plant_old_runs(monkeypatch)
    is_caught(10, by="the number of events guards a run")


def test_dropping_the_guard_on_the_number_of_events_is_detected(monkeypatch: Plant) -> None:
    def change(self: MemoryRuns, one: Any) -> None:
        self._put(one.row, self._tables.workflows[one.row.id].due_us)

    plant_old_runs(monkeypatch)
    monkeypatch.setattr(MemoryRuns, "_change", change)
    is_caught(10, by=r"the row counts|comes after|\[0\] times there|not recorded")


def test_keeping_a_worker_that_has_ended_its_side_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Peer, "sends_no_more", wait_for_answers)
    is_caught(60, by="half open", first=35)


# ---- chains ----


def test_losing_unseen_signals_at_a_continuation_is_detected(monkeypatch: Plant) -> None:
    carried = other_runs.carried
    monkeypatch.setattr(other_runs, "carried", lambda events, unread, seen: carried(events, unread, seen + 10**6))
    is_caught(30, by="not each signal was received once|after 150", chains=True)


def test_losing_unread_signals_at_a_continuation_is_detected(monkeypatch: Plant) -> None:
    carried = other_runs.carried
    monkeypatch.setattr(other_runs, "carried", lambda events, _, seen: carried(events, (), seen))
    is_caught(30, by="not each signal was received once|after 150", chains=True)


def test_forgetting_the_keys_of_requests_at_a_continuation_is_detected(monkeypatch: Plant) -> None:
    begin = other_runs.begin_next

    def forgetful(draft: Draft, closed: Any, event: Any, along: Any) -> None:
        closed.requests.clear()
        begin(draft, closed, event, along)

    monkeypatch.setattr(other_runs, "begin_next", forgetful)
    is_caught(30, by="is .* times there|not each signal was received once", chains=True, first=25)


# ---- requests of runs to others ----


def test_losing_stored_requests_to_other_runs_is_detected(monkeypatch: Plant) -> None:
    async def forget(tables: Any, done: Any, new: Any) -> None:
        del new
        await change(tables, done, ())

    change = MemoryRuns.change_errands
    monkeypatch.setattr(MemoryRuns, "change_errands", forget)
    is_caught(10, by="after .* s: ", kinds=WITH_CHILDREN)


def test_doing_a_request_to_another_run_twice_is_detected(monkeypatch: Plant) -> None:
    run = outbox._run

    async def twice(changes: RunChanges, errand: Errand, now_us: int) -> None:
        await run(changes, errand, now_us)
        if isinstance(errand, StartChild):
            await run(changes, errand, now_us)

    monkeypatch.setattr(outbox, "_run", twice)
    is_caught(10, by="jobs are left", kinds=WITH_CHILDREN)


# ---- resources ----


def test_a_hold_that_is_kept_at_a_terminate_is_detected(monkeypatch: Plant) -> None:
    async def open_runs(_: MemoryHolds, runs: Collection[int]) -> Collection[int]:
        return runs

    monkeypatch.setattr(MemoryHolds, "open_runs", open_runs)
    is_caught(12, by="is closed, and holds a slot", kinds=WITH_HOLDS)


def test_a_grant_without_its_answer_is_detected(monkeypatch: Plant) -> None:
    async def answer_runs(*_: object) -> None:
        pass

    monkeypatch.setattr(MemoryHolds, "answer_runs", answer_runs)
    is_caught(12, by="has stood still", kinds=WITH_HOLDS)
