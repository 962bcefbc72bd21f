"""Limits of the open runs of a workflow: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Options, Priority, State
from mainspring.jobs.run_places import Filled
from mainspring.resources.rules import FunctionLimits, Limits, Rate
from mainspring.resources.store import SaveLimits
from mainspring.workflows import store as ops
from mainspring.workflows.history import (
    ChildPolicy,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionCompleted,
    WorkflowExecutionSignaled,
)
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import RequestCancelExternalWorkflowExecution, Signal
from tests.conformance.suite.child_flows import parent_of
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conformance.suite.flows import Flows

A_SECOND = Rate(1, SECOND, 2)


def limit(
    flows: Flows, limits: Limits | None = None, function: bytes = b"order", *, version: int = 0, paused: bool = False
) -> None:
    """Store the limits of a workflow."""
    (stored,) = flows.group(SaveLimits(FunctionLimits(function, commanded=limits, version=version, paused=paused)))
    assert stored.version == version + 1


def fill(
    flows: Flows,
    keys: Sequence[bytes] | None = None,
    most: int = 100,
    function: bytes = b"order",
    after: bytes | None = None,
) -> Filled:
    """Fill the places of a workflow."""
    (filled,) = flows.group(ops.FillPlaces(function, most, flows.now_us, keys, after))
    assert isinstance(filled, Filled)
    return filled


def starts(flows: Flows, number: int, function: bytes = b"order", **values: Any) -> list[int]:
    """Start runs, in one group; return their ids."""
    jobs = [flows.new(function, **values) for _ in range(number)]
    (begun,) = flows.group(ops.BeginRuns([ops.Start(job) for job in jobs], flows.now_us))
    assert begun == ops.Begun({}, {})
    return [job.id for job in jobs]


def open_runs(flows: Flows) -> list[int]:
    """Return the open runs, the oldest first."""
    return flows.list(status=(int(Status.OPEN),))[::-1]


class PlaceFlows:
    """Tests of limits of open runs."""

    def test_a_start_without_a_place_waits(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=2))
        one, two, three = starts(flows, 3)
        assert open_runs(flows) == [one, two]
        waiting = flows.store.present(three)
        assert (waiting.state, waiting.term, waiting.started_us) == (State.PENDING, 0, 0)
        assert flows.unbegun(Key(job=three)) == [(three, True)]
        flows.check()

    def test_the_end_of_a_run_frees_its_place(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        one, two, three = starts(flows, 3)
        assert fill(flows) == Filled()
        flows.running(one, flows.close())
        assert fill(flows) == Filled(1)
        assert open_runs(flows) == [two]
        flows.terminate(Key(run=two))
        assert flows.begin_waiting() == 1
        assert open_runs(flows) == [three]
        assert fill(flows) == Filled()
        flows.check()

    def test_no_start_overtakes_another_one(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        one, two, three = starts(flows, 3)
        flows.running(one, flows.close())  # a place is free
        (four,) = starts(flows, 1)
        assert open_runs(flows) == [two]
        high = starts(flows, 2, priority=Priority.HIGH)
        begun = []
        for run in (two, *high, three, four):
            begun += open_runs(flows)
            flows.running(run, flows.close())
            fill(flows)
        assert begun == [two, *high, three, four]
        assert open_runs(flows) == []

    def test_places_survive_a_restart(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1, rate=Rate(1, 100 * SECOND, 1)))
        one, two = starts(flows, 2)
        flows.store.reopen()
        assert fill(flows) == Filled()
        flows.running(one, flows.close())
        flows.store.reopen()
        filled = fill(flows)
        assert filled.begun == 0
        assert filled.next_us
        assert open_runs(flows) == []
        assert flows.unbegun(Key(job=two)) == [(two, True)]

    def test_a_chain_keeps_its_place(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        one, two = starts(flows, 2)
        following = flows.chained(one)
        assert fill(flows) == Filled()
        assert open_runs(flows) == [following]
        flows.running(following, flows.close())
        assert fill(flows) == Filled(1)
        assert open_runs(flows) == [two]

    def test_an_end_and_a_fill_of_one_group(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=2))
        one, two, three, four = starts(flows, 4)
        following = flows.chained(two)
        terminate, starting = ops.TerminateRun(Key(run=one), "", flows.now_us), flows.starting(flows.new())
        flows.group(terminate, starting, ops.FillPlaces(b"order", 10, flows.now_us))
        assert len(open_runs(flows)) <= 2  # the end may be recorded behind the fill
        fill(flows)
        assert open_runs(flows) == [three, following]
        assert flows.unbegun(Key(job=four)) == [(four, True)]
        flows.check()

    def test_each_key_has_its_places(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency_per_key=1))
        eu, us, none = starts(flows, 2, key=b"eu"), starts(flows, 2, key=b"us"), starts(flows, 2)
        assert open_runs(flows) == [eu[0], us[0], none[0]]
        flows.terminate(Key(run=us[0]))
        flows.terminate(Key(run=none[0]))
        assert fill(flows, [b"eu"]) == Filled()
        assert fill(flows) == Filled(2)
        assert open_runs(flows) == [eu[0], us[1], none[1]]
        flows.terminate(Key(run=eu[0]))
        assert fill(flows, [b"us", b"eu"]) == Filled(1)
        assert open_runs(flows) == [eu[1], us[1], none[1]]
        flows.check()

    def test_keys_share_the_places_of_the_workflow_in_order(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=2, concurrency_per_key=1))
        (first, second), (third,) = starts(flows, 2, key=b"z"), starts(flows, 1, key=b"a")
        (fourth,) = starts(flows, 1, key=b"b", priority=Priority.HIGH)
        assert open_runs(flows) == [first, third]
        flows.terminate(Key(run=first))
        flows.terminate(Key(run=third))
        assert fill(flows) == Filled(2)
        assert sorted(open_runs(flows)) == [second, fourth]

    def test_it_goes_from_key_to_key(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency_per_key=1))
        keys = [b"k%03d" % number for number in range(300)]
        for key in keys:
            starts(flows, 2, key=key)
        for run in open_runs(flows):
            flows.terminate(Key(run=run))
        begun, after = 0, None
        while True:
            filled = fill(flows, most=1_000, after=after)
            begun, after = begun + filled.begun, filled.after
            if after is None:
                break
        assert begun == len(open_runs(flows)) == 300

    def test_an_operation_begins_at_most_its_limit(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        waiting = starts(flows, 6)[1:]
        limit(flows, Limits(concurrency=9), version=1)
        assert fill(flows, most=2) == Filled(2, more=True)
        limit(flows, Limits(concurrency_per_key=9), version=2)
        assert fill(flows, most=2) == Filled(2, more=True)
        assert fill(flows) == Filled(1)
        assert open_runs(flows)[1:] == waiting

    def test_a_rate_spreads_the_begins(self, flows: Flows) -> None:
        limit(flows, Limits(rate=Rate(1, 600 * SECOND, 2)))
        one, two, three = starts(flows, 3)
        assert open_runs(flows) == [one, two]
        filled = fill(flows)
        assert filled.begun == 0
        assert filled.next_us > flows.now_us
        flows.terminate(Key(run=one))  # an end gives no token back
        assert fill(flows).begun == 0
        assert flows.unbegun(Key(job=three)) == [(three, True)]

    def test_each_key_has_its_rate(self, flows: Flows) -> None:
        limit(flows, Limits(rate_per_key=Rate(1, 600 * SECOND, 1)))
        eu, us = starts(flows, 2, key=b"eu"), starts(flows, 2, key=b"us")
        assert open_runs(flows) == [eu[0], us[0]]
        filled = fill(flows)
        assert (filled.begun, filled.next_us > 0) == (0, True)

    def test_signals_wait_with_the_start(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        one, two = starts(flows, 2, key=b"k")
        (reached,) = flows.signal(Signal(Key(job=two), "paid", b"1"))
        assert reached.verdict == "recorded"
        assert open_runs(flows) == [one]
        flows.terminate(Key(run=one))
        fill(flows)
        assert flows.last_event(two, WorkflowExecutionSignaled).input == b"1"

    def test_a_delayed_start_begins_with_no_signal(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        (one,) = starts(flows, 1)
        later = flows.new(due_us=flows.now_us + SECOND, state=State.SCHEDULED)
        flows.group(job_ops.Submit([later]))
        flows.signal(Signal(Key(job=later.id), "paid", b"1"))
        assert open_runs(flows) == [one]

    def test_a_repeated_workflow_id_joins_the_start_that_waits(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        starts(flows, 1)
        (two,) = starts(flows, 1, unique=b"order-17")
        (begun,) = flows.group(flows.starting(flows.new(unique=b"order-17")))
        assert [found.id for found in begun.joined.values()] == [two]
        flows.check()

    def test_a_start_that_waits_is_cancelled(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        one, two, three = starts(flows, 3)
        assert flows.cancel(Key(job=two)).verdict == "recorded"
        flows.terminate(Key(run=one))
        fill(flows)
        assert open_runs(flows) == [three]
        assert flows.store.present(two).state == State.CANCELLED

    def test_the_version_and_the_timeout_of_a_start_wait_with_it(self, flows: Flows) -> None:
        flows.define(Definition("order", "2"))
        limit(flows, Limits(concurrency=1))
        starts(flows, 1)
        job = flows.new(options=Options(tags=("a",)))
        flows.group(flows.starting(job, version="1", timeout=60.0))
        flows.terminate(Key(run=open_runs(flows)[0]))
        fill(flows)
        shown = flows.shown(job.id)
        assert (shown.row.version, shown.state.tags) == ("1", ("a",))
        assert shown.state.close_by_us == shown.row.started_us + 60 * SECOND

    def test_a_lower_limit_ends_no_run(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=3))
        runs = starts(flows, 4)
        limit(flows, Limits(concurrency=1), version=1)
        assert fill(flows) == Filled()
        assert open_runs(flows) == runs[:3]
        for run in runs[:2]:
            flows.terminate(Key(run=run))
            assert fill(flows) == Filled()
        flows.terminate(Key(run=runs[2]))
        assert fill(flows) == Filled(1)

    def test_without_limits_all_begin(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1))
        runs = starts(flows, 4)
        limit(flows, None, version=1)
        assert fill(flows) == Filled(3)
        assert open_runs(flows) == runs

    def test_a_pause_keeps_starts_waiting(self, flows: Flows) -> None:
        limit(flows, Limits(concurrency=1), paused=True)
        starts(flows, 1)
        assert open_runs(flows) == []
        assert fill(flows) == Filled()

    def test_runs_that_began_before_the_limit_count(self, flows: Flows) -> None:
        runs = [flows.start(), flows.start(key=b"k")]
        limit(flows, Limits(concurrency=2, concurrency_per_key=1))
        starts(flows, 1, key=b"k")
        starts(flows, 1, key=b"l")
        assert open_runs(flows) == runs
        flows.terminate(Key(run=runs[0]))
        fill(flows)
        assert len(open_runs(flows)) == 2
        assert flows.store.present(open_runs(flows)[-1]).key == b"l"

    def test_other_workflows_are_not_limited(self, flows: Flows) -> None:
        flows.define(Definition("other", "1"))
        limit(flows, Limits(concurrency=1))
        runs = [*starts(flows, 2, b"other"), *starts(flows, 2)]
        assert open_runs(flows) == runs[:3]

    # ---- children ----

    def test_a_child_waits_for_a_place(self, flows: Flows) -> None:
        flows.define(Definition("part", "1"))
        limit(flows, Limits(concurrency=1), b"part")
        (other,) = starts(flows, 1, b"part")
        parent, child = parent_of(flows, type="part", input=b"[3]", tags=("mainspring:child",))
        assert open_runs(flows) == [other, parent]
        assert flows.kinds(parent)[-2:] == ["StartChildWorkflowExecutionInitiated", "ChildWorkflowExecutionStarted"]
        flows.store.reopen()
        flows.terminate(Key(run=other))
        fill(flows, function=b"part")
        shown = flows.shown(child)
        assert (shown.state.parent_run, shown.state.tags, shown.row.type) == (parent, ("mainspring:child",), "part")
        flows.running(child, flows.close(b"[9]"))
        assert flows.last_event(parent, ChildWorkflowExecutionCompleted).result == b"[9]"
        flows.check()

    def test_a_parent_learns_that_its_waiting_child_was_cancelled(self, flows: Flows) -> None:
        flows.define(Definition("part", "1"))
        limit(flows, Limits(concurrency=1), b"part")
        starts(flows, 1, b"part")
        parent, child = parent_of(flows, type="part")
        flows.group(job_ops.Cancel(child, b"", flows.now_us))  # as `mainspring jobs cancel` does
        assert flows.last_event(parent, ChildWorkflowExecutionCanceled).run == child
        parent, child = parent_of(flows, type="part")
        (number,) = (one.number for one in flows.shown(parent).state.children.values())
        flows.signal(Signal(Key(run=parent), "stop", b""))
        flows.running(parent, RequestCancelExternalWorkflowExecution(900, "", child=number))
        assert flows.last_event(parent, ChildWorkflowExecutionCanceled).run == child
        assert flows.store.present(child).state == State.CANCELLED
        flows.check()

    def test_a_waiting_child_ends_with_its_parent(self, flows: Flows) -> None:
        flows.define(Definition("part", "1"))
        limit(flows, Limits(concurrency=1), b"part")
        starts(flows, 1, b"part")
        for policy in (ChildPolicy.TERMINATE, ChildPolicy.REQUEST_CANCEL):
            parent, child = parent_of(flows, type="part", child_policy=policy)
            flows.terminate(Key(run=parent))
            assert flows.store.present(child).state == State.CANCELLED
        parent, child = parent_of(flows, type="part", child_policy=ChildPolicy.ABANDON)
        flows.terminate(Key(run=parent))
        assert flows.store.present(child).state == State.PENDING
        flows.check()

    def test_a_child_begins_at_once_where_there_is_a_place(self, flows: Flows) -> None:
        flows.define(Definition("part", "1"))
        limit(flows, Limits(concurrency=1), b"part")
        parent, child = parent_of(flows, type="part", workflow_id="part-7")
        assert open_runs(flows) == [parent, child]
        assert flows.row(child).workflow_id == "part-7"
        _, second = parent_of(flows, type="part", workflow_id="part-8")
        other = flows.start()
        flows.running(other, flows.child("part", workflow_id="part-8"))
        assert "StartChildWorkflowExecutionFailed" in flows.kinds(other)
        assert flows.unbegun(Key(job=second)) == [(second, True)]
        flows.check()
