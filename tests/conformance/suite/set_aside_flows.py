"""Runs and errands that a node cannot read: they are set aside, and all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pytest

from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event as JobEvent
from mainspring.workflows import store as ops
from mainspring.workflows.history import WorkflowExecutionSignaled, decode_events, encode_events
from mainspring.workflows.model import Key, Parked, Status
from mainspring.workflows.outbox import MOST
from mainspring.workflows.reading import ReadLatest
from mainspring.workflows.requests import (
    RequestCancelExternalWorkflowExecution,
    Signal,
    SignalExternalWorkflowExecution,
)
from tests.conformance.suite.flows import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.observers import Changed
    from mainspring.workflows.reading import Unread
    from tests.conformance.suite.flows import Flows

NEWER = msgspec.msgpack.encode([[99, 3, 0, "of a newer version"]])
"""A block with an event of a type that this version does not know."""
DAMAGED = b"\x93\xc1"


class Content(Protocol):
    """The stored bytes of an engine, which a test changes behind its back."""

    def blocks(self, run: int) -> dict[int, bytes]:
        """Return the blocks of a history by their first events."""

    def set_blocks(self, run: int, blocks: dict[int, bytes]) -> None:
        """Replace the history of a run, and forget what the node has of it in memory."""

    def set_status(self, run: int, status: int) -> None:
        """Replace the status of a run; skip the test where rows are no bytes."""

    def set_snapshot(self, run: int, state: bytes) -> None:
        """Replace the stored state of a run, if there is one, and forget what the node has of it in memory."""

    def errands(self) -> dict[int, bytes]:
        """Return the stored errands."""

    def set_errand(self, number: int, errand: bytes) -> None:
        """Replace a stored errand."""


class Named:
    """An observer of runs that keeps the faults of those that were left as they are."""

    def __init__(self) -> None:
        self.faults: dict[int, str] = {}

    def errands_stored(self) -> None:
        """Do nothing: the tests do errands themselves."""

    def holds_asked(self) -> None:
        """Do nothing: so it is with the decisions about resources."""

    def appended(self, runs: Sequence[Changed]) -> None:
        """Forget the faults of runs that go on."""
        for one in runs:
            self.faults.pop(one.run, None)

    def not_read(self, runs: Sequence[Unread]) -> None:
        """Keep the faults."""
        self.faults |= {one.row.id: one.fault for one in runs}


def named(flows: Flows) -> Named:
    """Return an observer of the engine that is open now."""
    observer = Named()
    engine: Any = flows.store.engine
    (workflows,) = (one for one in engine.slices if one.kind == "workflows")
    workflows.subscribe(observer)
    return observer


def spoil(content: Content, run: int, last: bytes = NEWER) -> Callable[[], None]:
    """Make a run unreadable: replace the last block of its history. Return a function that repairs it."""
    blocks = content.blocks(run)
    content.set_blocks(run, blocks | {max(blocks): last})
    return lambda: content.set_blocks(run, blocks)


def do_errands(flows: Flows) -> None:
    """Do all stored errands that are not set aside."""
    while flows.run_errands():
        pass


def try_errands(flows: Flows) -> ops.RanErrands:
    """Try all stored errands, also those that are set aside."""
    (ran,) = flows.group(ops.RunErrands(flows.now_us, from_first=True))
    assert isinstance(ran, ops.RanErrands)
    do_errands(flows)
    return ran


def sent(flows: Flows, run: int) -> list[str]:
    """Return the names of the signals that a run has, in order."""
    return [event.name for event in flows.history(run) if isinstance(event, WorkflowExecutionSignaled)]


class SettingAsideFlows:
    """Tests of runs and errands that cannot be read."""

    @pytest.fixture
    def content(self, flows: Flows) -> Content:
        """Return the stored bytes."""
        return self.content_of(flows)

    def content_of(self, flows: Flows) -> Content:
        """Return the stored bytes of an engine."""
        pytest.skip("the bytes of this engine cannot be changed")

    # ---- alarms ----

    def test_the_alarms_of_all_others_ring(self, flows: Flows, content: Content) -> None:
        runs = [flows.start() for _ in range(6)]
        for run in runs:
            flows.running(run, flows.timer(60))
        first, newer, damaged, cut, foreign, last = runs
        repairs = [spoil(content, newer), spoil(content, damaged, DAMAGED), spoil(content, cut, encode_events([]))]
        repairs.append(spoil(content, foreign, encode_events(decode_events(content.blocks(first)[1])[:1])))
        observer = named(flows)
        flows.now_us += MINUTE
        due = flows.alarms()
        assert len(due.due) == 6
        job = flows.store.job(b"beside")
        rung, _ = flows.group(ops.RingAlarms(runs, flows.now_us), job_ops.Submit([job]))
        assert rung.keys() == {first, last}
        assert flows.store.present(job.id).id == job.id
        assert [flows.kinds(run)[-2] for run in (first, last)] == ["TimerFired"] * 2
        assert observer.faults.keys() == {newer, damaged, cut, foreign}
        assert "99" in observer.faults[newer]
        assert "ends with event" in observer.faults[cut]
        assert [run for run, _ in flows.alarms().due] == [newer, damaged, cut, foreign], "they are tried again"
        for repair in repairs:
            repair()
        assert flows.ring(newer).keys() == {newer}, "one alone is read otherwise than several"
        assert flows.ring(*runs).keys() == {*runs}
        assert [flows.kinds(run).count("TimerFired") for run in runs] == [1] * 6
        assert not observer.faults

    def test_a_state_that_cannot_be_read_is_computed_from_the_history(self, flows: Flows, content: Content) -> None:
        run = flows.start()
        flows.signal(Signal(Key(run=run), "data", b"x" * 10_000))
        flows.running(run, flows.timer(60))
        content.set_snapshot(run, DAMAGED)
        flows.now_us += MINUTE
        flows.ring(run)
        assert flows.kinds(run)[-2] == "TimerFired"

    # ---- jobs ----

    def test_the_ends_of_its_jobs_are_kept(self, flows: Flows, content: Content) -> None:
        unread, other = flows.start(), flows.start()
        activities = [flows.held_activity(unread, b"charge"), flows.held_activity(other, b"ship")]
        flows.now_us += SECOND
        repair = spoil(content, unread)
        observer = named(flows)
        settled = [flows.settled(job, b"%d" % job.id) for job in activities]
        assert flows.group(job_ops.Settle(settled)) == [set()]
        assert flows.kinds(other)[-3:] == ["ActivityTaskStarted", "ActivityTaskCompleted", "DecisionTaskScheduled"]
        assert observer.faults.keys() == {unread}
        assert len(content.errands()) == 1
        do_errands(flows)
        repair()
        if flows.store.engine.durable:
            flows.store.reopen()  # another process tries all of them
            do_errands(flows)
        else:
            try_errands(flows)
        assert flows.kinds(unread)[-3:] == ["ActivityTaskStarted", "ActivityTaskCompleted", "DecisionTaskScheduled"]
        assert flows.history(unread)[-2].result == b"%d" % activities[0].id  # type: ignore[attr-defined]
        assert not content.errands()

    def test_its_timeouts_do_not_overtake_the_ends_of_its_jobs(self, flows: Flows, content: Content) -> None:
        run = flows.start()
        flows.running(run, flows.activity(b"charge", schedule_to_close=60.0))
        (activity,) = flows.store.claim(b"charge")
        repair = spoil(content, run)
        flows.group(job_ops.Settle([flows.settled(activity)]))
        do_errands(flows)
        repair()
        observer = named(flows)
        flows.now_us += MINUTE
        assert flows.ring(run) == {}
        assert observer.faults.keys() == {run}
        try_errands(flows)
        flows.ring(run)
        assert "ActivityTaskTimedOut" not in flows.kinds(run)
        assert flows.kinds(run)[-2] == "ActivityTaskCompleted"

    def test_its_decision_is_made_again(self, flows: Flows, content: Content) -> None:
        run, other = flows.start(), flows.start()
        task, beside = flows.task(run), flows.task(other)
        completions = [flows.completing(one, job, flows.timer(9)) for one, job in ((run, task), (other, beside))]
        repair = spoil(content, run)
        settle = job_ops.Settle([flows.settled(task), flows.settled(beside)])
        _, (unread, decided) = flows.group(settle, ops.Decide(completions, flows.now_us))
        assert (unread.verdict, decided.verdict) == ("stale", "recorded")
        assert "99" in unread.why
        do_errands(flows)
        repair()
        try_errands(flows)
        assert flows.row(run).decision not in {0, task.id}
        flows.running(run, flows.timer(9))

    def test_a_lost_attempt_of_its_decision_is_not_counted(self, flows: Flows, content: Content) -> None:
        run = flows.start()
        task = flows.task(run)
        repair = spoil(content, run)
        flows.group(job_ops.Settle([flows.settled(task, event=JobEvent.LOSE)]))
        assert not content.errands(), "an unreadable run does not fill the store"
        repair()
        assert flows.row(run).parking.losses == 0
        flows.running(run)

    def test_its_events_are_left_out_of_the_reads_for_others(self, flows: Flows, content: Content) -> None:
        runs = [flows.start() for _ in range(3)]
        repair = spoil(content, runs[1], DAMAGED)
        found = flows.store.read(ReadLatest(tuple((run, 1) for run in runs)))
        assert [isinstance(found[run], str) for run in runs] == [False, True, False]
        repair()

    # ---- requests ----

    def test_requests_to_it_are_refused_alone(self, flows: Flows, content: Content) -> None:
        unread, other = flows.start(unique=b"unread"), flows.start()
        repair = spoil(content, unread)
        observer = named(flows)
        for key in (Key(run=unread), Key(job=unread), Key(workflow_id="unread")):
            refused, reached = flows.signal(Signal(key, "a", b""), Signal(Key(run=other), "a", b""))
            assert (refused.verdict, refused.run, reached.verdict) == ("unread", unread, "recorded")
            assert "99" in refused.fault
            assert flows.cancel(key).verdict == "unread"
            assert flows.terminate(key).verdict == "unread"
            (moved,) = flows.group(ops.MoveRun(key, "2", flows.now_us))
            assert (moved.verdict, moved.fault) == ("unread", refused.fault)
        assert observer.faults == {unread: refused.fault}
        repair()
        assert flows.signal(Signal(Key(run=unread), "a", b""))[0].verdict == "recorded"

    def test_it_is_listed_with_its_fault(self, flows: Flows, content: Content) -> None:
        runs = [flows.start() for _ in range(3)]
        repair = spoil(content, runs[1])
        listed = {one.row.id: one.fault for one in flows.store.all_of(ops.ListRuns())}
        assert [bool(listed[run]) for run in runs] == [False, True, False]
        shown = flows.shown(runs[1])
        assert shown.fault == listed[runs[1]]
        assert shown.row.type == "order"
        repair()
        assert not flows.shown(runs[1]).fault

    def test_parked_runs_go_on_without_it(self, flows: Flows, content: Content) -> None:
        runs = [flows.start() for _ in range(3)]
        for run in runs:
            flows.park(run, Parked("mismatch", "no"))
        repair = spoil(content, runs[0])
        assert flows.unpark(definition=("default", "order", "1"), build="b2") == 2
        repair()
        assert flows.unpark(definition=("default", "order", "1"), build="b2") == 1

    def test_old_events_are_read_before_anything_is_recorded(self, flows: Flows, content: Content) -> None:
        """A stored state spares the reading of earlier events, until a decision needs one of them."""
        run, other = flows.start(), flows.start()
        flows.signal(Signal(Key(run=run), "first", b""))
        flows.running(run)
        flows.signal(Signal(Key(run=run), "data", b"x" * 10_000))
        task, beside = flows.task(run), flows.task(other)
        blocks = content.blocks(run)
        content.set_blocks(run, blocks | {sorted(blocks)[1]: DAMAGED})
        completions = [
            flows.completing(run, task, flows.continuing(unread=(3,)), seen=flows.row(run).events),
            flows.completing(other, beside, flows.timer(9)),
        ]
        settle = job_ops.Settle([flows.settled(task), flows.settled(beside)])
        _, (unread, decided) = flows.group(settle, ops.Decide(completions, flows.now_us))
        assert (unread.verdict, decided.verdict) == ("stale", "recorded")
        content.set_blocks(run, blocks)

    # ---- errands ----

    def test_errands_to_it_wait_and_the_others_go_on(self, flows: Flows, content: Content) -> None:
        source = flows.start()
        unread, other = flows.start(unique=b"unread"), flows.start(unique=b"other")
        repair = spoil(content, unread)
        observer = named(flows)
        flows.running(source, SignalExternalWorkflowExecution(1, "unread", "1"))
        do_errands(flows)
        for name in ("2", "3"):
            flows.signal(Signal(Key(run=source), "again", b""))
            flows.running(
                source,
                SignalExternalWorkflowExecution(1, "unread", name),
                SignalExternalWorkflowExecution(2, "other", name),
                RequestCancelExternalWorkflowExecution(3, "other"),
            )
            do_errands(flows)
        assert sent(flows, other) == ["2", "3"]
        assert len(content.errands()) == 3
        assert observer.faults.keys() == {unread}
        repair()
        flows.running(source, SignalExternalWorkflowExecution(1, "unread", "4"))
        do_errands(flows)
        assert sent(flows, unread) == [], "no signal overtakes an earlier one"
        assert try_errands(flows).aside.after == 0
        assert sent(flows, unread) == ["1", "2", "3", "4"]
        assert not content.errands()
        flows.running(source, SignalExternalWorkflowExecution(1, "unread", "5"))
        assert sent(flows, unread)[-1] == "5", "at once again"

    def test_many_errands_at_the_front_keep_no_other_behind_them(self, flows: Flows, content: Content) -> None:
        source, parent = flows.start(), flows.start()
        unread, other = flows.start(unique=b"unread"), flows.start(unique=b"other")
        repair = spoil(content, unread)
        names = [str(number) for number in range(2 * MOST + 3)]
        flows.running(source, *(SignalExternalWorkflowExecution(1, "unread", name) for name in names))
        flows.running(parent, SignalExternalWorkflowExecution(1, "other", "go"), flows.child())
        do_errands(flows)
        assert sent(flows, other) == ["go"]
        assert len(flows.children(parent)) == 1
        assert try_errands(flows).aside.after > 0
        assert len(content.errands()) == len(names)
        repair()
        try_errands(flows)
        assert sent(flows, unread) == names

    def test_what_it_has_caused_waits_for_it(self, flows: Flows, content: Content) -> None:
        """The answers to its requests are recorded in its own history."""
        source, other = flows.start(), flows.start(unique=b"other")
        unread = flows.start(unique=b"unread")
        repair_other = spoil(content, other)
        flows.running(unread, SignalExternalWorkflowExecution(1, "other", "go"))
        do_errands(flows)
        repair_other()
        repair = spoil(content, unread)
        flows.running(source, flows.child())
        try_errands(flows)
        assert sent(flows, other) == []
        assert len(flows.children(source)) == 1
        repair()
        try_errands(flows)
        assert sent(flows, other) == ["go"]
        assert "ExternalWorkflowExecutionSignaled" in flows.kinds(unread)

    def test_the_end_of_a_child_waits_for_its_parent(self, flows: Flows, content: Content) -> None:
        parent = flows.start()
        flows.running(parent, flows.child(), flows.child())
        first, second = flows.children(parent)
        repair = spoil(content, parent)
        flows.running(first, flows.close(b"1"))
        assert flows.status(first) is Status.COMPLETED
        do_errands(flows)
        repair()
        try_errands(flows)
        assert flows.kinds(parent).count("ChildWorkflowExecutionCompleted") == 1
        repair = spoil(content, second)
        flows.terminate(Key(run=parent))
        do_errands(flows)
        repair()
        try_errands(flows)
        assert flows.status(second) is Status.TERMINATED

    def test_an_errand_that_cannot_be_read_keeps_its_place(self, flows: Flows, content: Content) -> None:
        source, parent = flows.start(), flows.start()
        other = flows.start(unique=b"other")
        repair = spoil(content, other)
        flows.running(source, SignalExternalWorkflowExecution(1, "other", "go"))
        (number,) = content.errands()
        errand = content.errands()[number]
        repair()
        content.set_errand(number, msgspec.msgpack.encode([99, "of a newer version"]))
        ran = try_errands(flows)
        assert (ran.aside.after, [*ran.aside.faults]) == (number, [number])
        flows.running(parent, flows.child())
        assert len(flows.children(parent)) == 1, "the others are done at once"
        assert [*content.errands()] == [number]
        content.set_errand(number, errand)
        assert try_errands(flows).done == [number]
        assert sent(flows, other) == ["go"]

    # ---- retention ----

    def test_old_runs_are_deleted_without_it(self, flows: Flows, content: Content) -> None:
        runs = [flows.start() for _ in range(3)]
        for run in runs:
            flows.running(run, flows.close())
            flows.now_us += SECOND
        content.set_status(runs[0], 99)
        observer = named(flows)
        listed = {one.row.id: one.fault for one in flows.store.all_of(ops.ListRuns())}
        assert [bool(listed[run]) for run in runs] == [True, False, False]
        assert "99" in listed[runs[0]]
        assert flows.signal(Signal(Key(run=runs[0]), "a", b""))[0].verdict == "unread"
        assert flows.forget() == 2
        assert observer.faults.keys() == {runs[0]}
        assert flows.list() == [runs[0]]
        content.set_status(runs[0], Status.COMPLETED)
        assert flows.forget() == 1
        assert flows.list() == []
