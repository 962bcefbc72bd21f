"""Deadlines: their rows, the events of what is late, and what moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines, Upcoming
from mainspring.event_log import types
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.lateness import DueRow, Kind, has_begun, overdue_since
from mainspring.jobs.model import Options, State, encode_options
from mainspring.jobs.rules import Settlement
from mainspring.schedules.model import Every, Overlap
from mainspring.schedules.store import RingAbsences
from mainspring.workflows.model import PART_TAG
from mainspring.workflows.store import ListRuns
from tests.conformance.suite.driver import NOW, Store, released
from tests.conformance.suite.events import failed, numbered, want
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import Flows
from tests.conformance.suite.scheduling import MINUTE, SECOND, START, Scheduling

if TYPE_CHECKING:
    from mainspring.event_log.store import Event
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Make

START_BY = NOW + 5 * SECOND
END_BY = NOW + 60 * SECOND
DATED = Options(start_us=START_BY, deadline_us=END_BY)


def due(store: Store, until_us: int = 2**62, limit: int = 10_000) -> list[tuple[Item, int]]:
    """Return the rows that are due up to a time."""
    (found,) = store.group(FindDeadlines(until_us, limit))
    assert isinstance(found, Upcoming)
    return found.due


def ring(store: Store, now_us: int) -> list[Item]:
    """Ring all that is due at a time; return what is left."""
    (left,) = store.group(RingDeadlines([item for item, _ in due(store, now_us)], now_us))
    assert isinstance(left, list)
    return left


def overdue(store: Store) -> list[tuple[int, str, int, bool]]:
    """Return the events of overdue jobs: the job, the option, its time, and whether the job runs."""
    return [
        (event.job, event.fields["kind"], event.fields["due_us"], event.fields.get("running", False))
        for event in numbered(store, types=frozenset({types.OVERDUE}))
    ]


def redate(store: Store, job: Job, **times: Any) -> Job | None:
    """Change the times of a job."""
    (changed,) = store.group(ops.Redate(job.id, **times))
    assert changed is None or changed.id == job.id
    return changed  # type: ignore[no-any-return]


class DeadlineSuite(StoreFixtures):
    """The contract of ``mainspring.deadlines.store`` for jobs and their runs."""

    # ---- rows ----

    def test_only_jobs_with_times_have_rows(self, store: Store) -> None:
        store.submitted(options=Options(tags=("a",)))
        store.submitted(unique=b"u")
        one = store.submitted(options=DATED)
        two = store.submitted(unique=b"v", options=Options(deadline_us=END_BY + 1))
        assert due(store) == [
            (Item(one.id, Kind.START), START_BY),
            (Item(one.id, Kind.END), END_BY),
            (Item(two.id, Kind.END), END_BY + 1),
        ]
        assert sorted(store.lifecycle.rows) == [
            DueRow(one.id, Kind.START, START_BY),
            DueRow(one.id, Kind.END, END_BY),
            DueRow(two.id, Kind.END, END_BY + 1),
        ]

    def test_a_job_that_joins_another_one_has_no_rows(self, store: Store) -> None:
        first = store.submitted(unique=b"u")
        second = store.job(unique=b"u", options=DATED)
        assert store.submit(second)[second.id].id == first.id
        assert due(store) == []

    def test_rows_are_read_ahead_and_in_parts(self, store: Store) -> None:
        jobs = [store.submitted(options=Options(deadline_us=END_BY + number // 2)) for number in range(5)]
        times = [END_BY + number // 2 for number in range(5)]
        found = [(Item(job.id, Kind.END), at) for job, at in zip(jobs, times, strict=True)]
        for until_us, limit, following in ((END_BY, 9, END_BY + 1), (END_BY + 1, 3, END_BY + 1), (END_BY + 2, 9, None)):
            (outcome,) = store.group(FindDeadlines(until_us, limit))
            expected = [one for one in found if one[1] <= until_us][:limit]
            assert outcome == Upcoming(expected, following)
        assert store.group(FindDeadlines(NOW, 9)) == [Upcoming([], END_BY)]

    def test_rows_outlive_the_node(self, store: Store) -> None:
        want(store)
        job = store.submitted(options=DATED)
        store.reopen()
        assert len(due(store)) == 2
        assert ring(store, END_BY) == []
        assert overdue(store) == [(job.id, "start_within", START_BY, False), (job.id, "deadline", END_BY, False)]

    # ---- jobs that are late ----

    def test_a_job_that_has_not_begun_is_late_once(self, store: Store) -> None:
        want(store)
        job = store.submitted(options=DATED)
        ring(store, START_BY - 1)
        assert overdue(store) == []
        ring(store, START_BY)
        store.group(RingDeadlines([Item(job.id, Kind.START)], START_BY + 9))
        ring(store, START_BY + 9)
        assert overdue(store) == [(job.id, "start_within", START_BY, False)]
        assert due(store) == [(Item(job.id, Kind.END), END_BY)]

    def test_a_leased_job_has_not_begun_and_a_running_one_has(self, store: Store) -> None:
        want(store)
        waits, runs = store.submitted(options=DATED), store.submitted(options=DATED)
        claimed = {job.id: job for job in store.claim()}
        store.assign(claimed[runs.id])
        ring(store, START_BY)
        assert overdue(store) == [(waits.id, "start_within", START_BY, False)]
        ring(store, END_BY)
        assert overdue(store)[1:] == [(waits.id, "deadline", END_BY, True), (runs.id, "deadline", END_BY, True)]

    def test_a_job_that_waits_for_another_attempt_has_begun(self, store: Store) -> None:
        want(store)
        tried, back = store.leased(options=DATED), store.leased(options=DATED)
        store.settle(failed(tried, retry=True), released(back))
        ring(store, START_BY)
        assert overdue(store) == [(back.id, "start_within", START_BY, False)]

    def test_a_job_that_was_lost_while_it_ran_has_begun(self, store: Store) -> None:
        want(store)
        ran, waited = store.leased(options=DATED), store.leased(options=DATED)
        store.assign(ran)
        store.reopen()
        store.recover()
        ring(store, START_BY)
        assert overdue(store) == [(waited.id, "start_within", START_BY, False)]

    @pytest.mark.parametrize("event", [rules.Event.SUCCEED, rules.Event.FAIL, rules.Event.CANCEL])
    def test_a_job_that_has_ended_is_not_late(self, store: Store, event: rules.Event) -> None:
        want(store)
        store.end(store.leased(options=DATED), event)
        ring(store, END_BY)
        assert (overdue(store), due(store)) == ([], [])

    def test_a_job_that_ends_in_the_same_group_is_not_late(self, store: Store) -> None:
        want(store)
        job = store.leased(options=DATED)
        settlement = rules.succeeded(job, b"r", NOW, END_BY)
        store.group(RingDeadlines([Item(job.id, Kind.END)], END_BY), ops.Settle([settlement]))
        assert (overdue(store), due(store)) == ([], [])

    def test_a_job_that_is_gone_is_not_late(self, store: Store) -> None:
        want(store)
        store.end(store.leased(options=replace(DATED, forget=True)))
        ring(store, END_BY)
        assert (overdue(store), due(store)) == ([], [])

    def test_an_event_has_what_the_job_is(self, store: Store) -> None:
        want(store)
        options = Options(deadline_us=END_BY, tags=("big",), schedule="nightly", run=(7, 3))
        job = store.submitted(function=b"report", key=b"k", options=options)
        ring(store, END_BY)
        (event,) = numbered(store)
        assert (event.type, event.namespace, event.function, event.job) == (types.OVERDUE, "default", "report", job.id)
        assert event.fields == {
            "kind": "deadline",
            "due_us": END_BY,
            "tags": ["big"],
            "key": "k",
            "schedule": "nightly",
            "run": 7,
        } | ({"tags": ("big",)} if isinstance(event.fields["tags"], tuple) else {})

    def test_without_an_interest_the_rows_go_in_silence(self, store: Store) -> None:
        want(store, "job.succeeded")
        job = store.submitted(options=DATED)
        ring(store, END_BY)
        want(store)
        ring(store, END_BY)
        assert (overdue(store), due(store)) == ([], [])
        assert overdue_since(store.present(job.id), END_BY) == START_BY

    def test_many_are_late_once_each(self, store: Store) -> None:
        want(store)
        jobs = [store.job(options=Options(deadline_us=END_BY)) for _ in range(700)]
        store.submit(*jobs)
        ring(store, END_BY)
        assert [one[0] for one in overdue(store)] == [job.id for job in jobs]

    # ---- changes ----

    def test_times_change_and_go(self, store: Store) -> None:
        want(store)
        job = store.submitted(options=replace(DATED, tags=("a",)), key=b"k")
        changed = redate(store, job, deadline_us=END_BY + 5)
        assert changed is not None
        assert changed.options == replace(DATED, tags=("a",), deadline_us=END_BY + 5)
        assert due(store) == [(Item(job.id, Kind.START), START_BY), (Item(job.id, Kind.END), END_BY + 5)]
        redate(store, job, start_us=0)
        stored = store.present(job.id)
        assert (stored.options, stored.key) == (Options(tags=("a",), deadline_us=END_BY + 5), b"k")
        assert due(store) == [(Item(job.id, Kind.END), END_BY + 5)]
        ring(store, END_BY)
        assert overdue(store) == []

    def test_a_job_gets_times_while_it_runs(self, store: Store) -> None:
        want(store)
        job = store.leased()
        store.assign(job)
        redate(store, job, deadline_us=END_BY)
        ring(store, END_BY)
        redate(store, job, deadline_us=END_BY + 5)
        ring(store, END_BY + 5)
        assert overdue(store) == [(job.id, "deadline", END_BY, True), (job.id, "deadline", END_BY + 5, True)]

    def test_the_same_time_again_has_no_second_event(self, store: Store) -> None:
        want(store)
        job = store.submitted(options=DATED)
        ring(store, END_BY)
        redate(store, job, deadline_us=END_BY)
        assert due(store) == []

    def test_an_ended_job_and_one_of_another_namespace_get_no_times(self, store: Store) -> None:
        job = store.leased()
        store.end(job)
        ended = redate(store, job, deadline_us=END_BY)
        assert ended is not None
        assert ended.state == State.SUCCEEDED
        other = store.submitted()
        assert store.group(ops.Redate(other.id, deadline_us=END_BY, namespace="team")) == [None]
        assert due(store) == []

    def test_times_move_with_the_start_of_a_waiting_job(self, store: Store) -> None:
        job = store.submitted(options=DATED, state=State.SCHEDULED, due_us=NOW + SECOND)
        store.group(ops.Reschedule(job.id, NOW, due_us=NOW + 11 * SECOND))
        by = 10 * SECOND
        assert store.present(job.id).options == Options(start_us=START_BY + by, deadline_us=END_BY + by)
        assert due(store) == [(Item(job.id, Kind.START), START_BY + by), (Item(job.id, Kind.END), END_BY + by)]
        store.group(ops.Reschedule(job.id, NOW, priority=2))
        assert due(store) == [(Item(job.id, Kind.START), START_BY + by), (Item(job.id, Kind.END), END_BY + by)]

    def test_times_that_come_with_a_new_start_are_not_moved(self, store: Store) -> None:
        job = store.submitted(options=DATED, state=State.SCHEDULED, due_us=NOW + SECOND)
        store.group(ops.Reschedule(job.id, NOW, due_us=NOW + 11 * SECOND, deadline_us=END_BY + 7))
        assert store.present(job.id).options == Options(start_us=START_BY + 10 * SECOND, deadline_us=END_BY + 7)
        assert due(store) == [(Item(job.id, Kind.START), START_BY + 10 * SECOND), (Item(job.id, Kind.END), END_BY + 7)]
        store.group(ops.Reschedule(job.id, NOW, priority=2, start_us=0))
        assert due(store) == [(Item(job.id, Kind.END), END_BY + 7)]
        without = store.submitted()
        store.group(ops.Reschedule(without.id, NOW, priority=0, start_us=START_BY))
        stored = store.present(without.id)
        assert (stored.options, stored.priority) == (Options(start_us=START_BY), 0)

    def test_a_job_that_has_begun_gets_no_time_with_a_new_start(self, store: Store) -> None:
        job = store.leased()
        store.assign(job)
        store.group(ops.Reschedule(job.id, NOW, due_us=NOW + SECOND, deadline_us=END_BY))
        assert (due(store), store.present(job.id).options) == ([], None)

    def test_a_job_that_was_due_at_its_submit_moves_from_there(self, store: Store) -> None:
        job = store.submitted(options=DATED)
        store.group(ops.Reschedule(job.id, NOW + SECOND, due_us=NOW + 3 * SECOND))
        assert due(store)[1] == (Item(job.id, Kind.END), END_BY + 3 * SECOND)

    def test_a_job_that_was_late_may_be_late_again_after_a_move(self, store: Store) -> None:
        want(store)
        job = store.submitted(options=Options(deadline_us=END_BY))
        ring(store, END_BY)
        store.group(ops.Reschedule(job.id, END_BY + 9, due_us=NOW + 1))  # it stays late
        assert due(store) == []
        store.group(ops.Reschedule(job.id, END_BY + 9, due_us=NOW + MINUTE))
        ring(store, END_BY + 2 * MINUTE)
        assert [one[2] for one in overdue(store)] == [END_BY, END_BY + MINUTE]

    def test_a_snooze_moves_the_deadline_by_its_delay(self, store: Store) -> None:
        want(store)
        job, other = store.leased(options=DATED), store.leased(options=Options(deadline_us=END_BY))
        redate(store, other, deadline_us=END_BY + 7)  # the node does not know of it
        for one in (job, other):
            store.assign(one)
            settlement = Settlement(one, rules.Event.SNOOZE, 0, due_us=NOW + MINUTE, started_us=NOW)
            settlement.postponed_us = MINUTE - SECOND
            store.settle(settlement)
        by = MINUTE - SECOND
        assert store.present(job.id).options == Options(start_us=START_BY, deadline_us=END_BY + by)
        assert store.present(other.id).options == Options(deadline_us=END_BY + 7 + by)
        assert due(store) == [
            (Item(job.id, Kind.START), START_BY),
            (Item(job.id, Kind.END), END_BY + by),
            (Item(other.id, Kind.END), END_BY + 7 + by),
        ]
        ring(store, START_BY)
        assert overdue(store) == []

    def test_a_redriven_job_keeps_the_deadline_that_is_not_over(self, store: Store) -> None:
        want(store)
        job = store.leased(options=Options(deadline_us=END_BY))
        store.end(job, rules.Event.FAIL)
        store.redrive(job.id)
        ring(store, END_BY)
        assert overdue(store) == [(job.id, "deadline", END_BY, False)]

    # ---- what is shown ----

    def test_a_job_is_overdue_until_it_begins_and_ends(self, store: Store) -> None:
        job = store.submitted(options=DATED)
        assert overdue_since(store.present(job.id), START_BY - 1) == 0
        assert overdue_since(store.present(job.id), END_BY) == START_BY
        (claimed,) = store.claim()
        store.assign(claimed)
        running = store.present(job.id)
        assert has_begun(running)
        assert (overdue_since(running, END_BY - 1), overdue_since(running, END_BY + 5)) == (0, END_BY)
        store.end(claimed)
        assert overdue_since(store.present(job.id), END_BY + 5) == 0

    # ---- runs ----

    def test_a_child_has_times_of_its_own_or_of_its_workflow(self, flows: Flows) -> None:
        store = flows.store
        want(store)
        parent, other = flows.start(), flows.start()
        store.lifecycle.times = Options(deadline_us=END_BY)
        flows.running(parent, flows.child(), flows.child(tags=(PART_TAG,)))
        store.lifecycle.times = None
        flows.running(other, flows.child(start_within=5.0, deadline=9.0), flows.child())
        children = [*flows.children(parent), *flows.children(other)]
        dated, part, own, without = map(flows.root, children)
        assert dated.options == Options(deadline_us=END_BY)
        assert (part.options, without.options) == (None, None), "a part of a map is no run of its own"
        assert own.options == Options(start_us=flows.now_us + 5 * SECOND, deadline_us=flows.now_us + 9 * SECOND)
        ring(store, flows.now_us + 20 * SECOND)
        assert {(job, kind) for job, kind, *_ in overdue(store)} >= {(own.id, "start_within"), (own.id, "deadline")}
        assert {job for job, *_ in overdue(store)} <= {own.id, dated.id}

    def test_a_run_is_late_by_its_root_job(self, flows: Flows) -> None:
        store = flows.store
        want(store)
        options = Options(start_us=flows.now_us + 5, deadline_us=flows.now_us + 9, tags=("a",))
        late, decided = (flows.start(options=options) for _ in range(2))
        flows.decide(decided, flows.task(decided), flows.timer(60.0))
        ring(store, flows.now_us + 20)
        assert overdue(store) == [
            (flows.root(late).id, "start_within", flows.now_us + 5, False),
            (flows.root(late).id, "deadline", flows.now_us + 9, True),
            (flows.root(decided).id, "deadline", flows.now_us + 9, True),
        ]
        (found,) = [one.options for one in store.all_of(ListRuns(limit=9)) if one.row.id == late]
        assert found is not None
        assert (found.start_us, found.deadline_us) == (flows.now_us + 5, flows.now_us + 9)
        assert all(event.fields["run"] == event.job for event in numbered(store, types=frozenset({types.OVERDUE})))

    def test_a_run_that_has_ended_is_not_late(self, flows: Flows) -> None:
        store = flows.store
        want(store)
        run = flows.start(options=Options(start_us=flows.now_us + 5, deadline_us=flows.now_us + 9))
        flows.decide(run, flows.task(run), flows.close())
        ring(store, flows.now_us + 20)
        assert (overdue(store), due(store)) == ([], [])

    def test_a_chain_of_runs_has_one_deadline(self, flows: Flows) -> None:
        store = flows.store
        want(store)
        run = flows.start(options=Options(start_us=flows.now_us + 5, deadline_us=flows.now_us + 9))
        flows.chained(run)
        ring(store, flows.now_us + 20)
        assert overdue(store) == [(flows.root(run).id, "deadline", flows.now_us + 9, True)]

    def test_an_activity_has_the_times_from_its_schedule_on(self, flows: Flows) -> None:
        store = flows.store
        want(store)
        run = flows.start()
        flows.wait(7)
        options = encode_options(Options(timeout=9.0, start_within=5.0, deadline=60.0))
        flows.decide(run, flows.task(run), flows.activity(options=options))
        base = flows.now_us
        rows = [(item.kind, at) for item, at in due(store)]
        assert rows == [(Kind.START, base + 5 * SECOND), (Kind.END, base + 60 * SECOND)]
        ring(store, base + 5 * SECOND)
        ((job, kind, at, _),) = overdue(store)
        assert (kind, at) == ("start_within", base + 5 * SECOND)
        stored = store.present(job).options
        assert stored is not None
        assert (stored.timeout, stored.start_within, stored.deadline) == (9.0, None, None)

    @pytest.fixture
    def flows(self, store: Store) -> Flows:
        """Return a driver of runs."""
        return Flows(store)

    # ---- schedules ----

    @pytest.fixture
    def plans(self, make: Make, store: Store) -> Scheduling:
        """Return a driver of schedules, whose events are wanted."""
        want(store)
        plans = Scheduling(make, store)
        plans.at(0.1)
        return plans

    def test_jobs_of_a_schedule_have_its_times(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0, deadline=9.0)
        plans.at(1)
        plans.fire()
        ring(plans.store, START + MINUTE + 20 * SECOND)
        assert [one[1:3] for one in overdue(plans.store)] == [
            ("start_within", START + MINUTE + 5 * SECOND),
            ("deadline", START + MINUTE + 9 * SECOND),
        ]

    def test_a_schedule_that_starts_its_jobs_is_not_late(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        for minute in range(1, 5):
            plans.at(minute)
            plans.fire()
            assert absences(plans) == [START + (minute + 1) * MINUTE + 5 * SECOND]
            ring_absences(plans, START + minute * MINUTE + 6 * SECOND)
        assert late(plans) == []

    def test_a_schedule_that_nobody_fires_is_late_once(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        expected = ("a", START + MINUTE, START + MINUTE + 5 * SECOND, "not_fired")
        ring_absences(plans, START + MINUTE + 5 * SECOND - 1)
        assert late(plans) == []
        ring_absences(plans, START + MINUTE + 5 * SECOND)
        plans.group(RingAbsences(["a"], START + 9 * MINUTE))
        assert (late(plans), absences(plans)) == ([expected], [])
        plans.at(9)
        plans.fire()  # the missed times are one stretch
        assert (late(plans), absences(plans)) == ([expected], [START + 10 * MINUTE + 5 * SECOND])
        ring_absences(plans, START + 12 * MINUTE)
        assert len(late(plans)) == 2

    def test_a_schedule_that_starts_late_was_late(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        plans.at(3.5)
        plans.group(plans.firing(), RingAbsences(["a"], plans.now_us))
        assert late(plans) == [("a", START + MINUTE, START + MINUTE + 5 * SECOND, "misfire")]
        assert absences(plans) == [START + 4 * MINUTE + 5 * SECOND]

    def test_a_schedule_that_starts_late_with_nobody_there_was_late(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        plans.store.reopen()
        plans.attend()
        plans.at(1.5)
        plans.fire()
        assert late(plans) == [("a", START + MINUTE, START + MINUTE + 5 * SECOND, "not_fired")]
        ring_absences(plans, START + 2 * MINUTE)
        assert len(late(plans)) == 1

    def test_skipped_times_are_no_starts(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0, overlap=Overlap.FORBID)
        plans.at(1)
        plans.fire()
        for minute in (2, 3):
            plans.at(minute)
            plans.fire()
        assert absences(plans) == [START + 2 * MINUTE + 5 * SECOND]
        ring_absences(plans, START + 3 * MINUTE)
        assert late(plans) == [("a", START + 2 * MINUTE, START + 2 * MINUTE + 5 * SECOND, "overlap")]

    def test_a_start_by_hand_is_a_start(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        plans.at(0.5)
        plans.trigger("a")
        ring_absences(plans, START + MINUTE + SECOND)
        assert late(plans) == []
        ring_absences(plans, START + 2 * MINUTE)
        plans.at(2.5)
        plans.trigger("a")
        assert len(late(plans)) == 1
        assert absences(plans) == [START + MINUTE + 5 * SECOND]  # its next fire time is undecided still

    def test_a_paused_schedule_is_not_late(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        plans.change("pause", "a")
        ring_absences(plans, START + 9 * MINUTE)
        assert (late(plans), absences(plans)) == ([], [])
        plans.at(9.5)
        plans.change("resume", "a")
        plans.fire()
        assert late(plans) == []
        ring_absences(plans, START + 10 * MINUTE + 5 * SECOND)
        assert len(late(plans)) == 1

    def test_a_late_schedule_that_is_paused_and_resumed_may_be_late_again(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        ring_absences(plans, START + 2 * MINUTE)
        plans.at(2.5)
        plans.change("pause", "a")
        assert plans.stored("a").state.late_us == 0, "a pause ends the lateness"
        plans.at(9.5)
        plans.change("resume", "a")
        plans.store.reopen()
        plans.attend()
        plans.fire()  # the catch-up after the pause
        times = absences(plans)
        assert times == [START + 10 * MINUTE + 5 * SECOND], "from the next fire time on"
        ring_absences(plans, times[0])
        assert [one[1] for one in late(plans)] == [START + MINUTE, START + 10 * MINUTE]

    def test_a_late_schedule_stays_silent_over_a_restart_until_it_starts(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        ring_absences(plans, START + 2 * MINUTE)
        plans.store.reopen()
        plans.attend()
        plans.at(5.5)
        plans.fire()  # the catch-up starts a job
        assert len(late(plans)) == 1
        assert absences(plans) == [START + 6 * MINUTE + 5 * SECOND]

    def test_a_schedule_that_is_gone_is_not_late(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        plans.change("remove", "a")
        ring_absences(plans, START + 9 * MINUTE)
        assert (late(plans), absences(plans)) == ([], [])

    def test_new_times_of_a_schedule_count_from_now(self, plans: Scheduling) -> None:
        plans.add("a", start_within=5.0)
        ring_absences(plans, START + 2 * MINUTE)
        plans.at(2.5)
        plans.add("a", start_within=5.0, trigger=Every(10 * MINUTE))
        assert len(late(plans)) == 1
        (at,) = absences(plans)
        assert at - 5 * SECOND == plans.stored("a").state.next_us
        plans.add("a", trigger=Every(10 * MINUTE))
        ring_absences(plans, at)
        assert (len(late(plans)), absences(plans)) == (1, [])

    def test_a_clock_that_was_set_back_brings_the_time_forward(self, plans: Scheduling) -> None:
        plans.at(100)
        plans.add("a", start_within=5.0)
        plans.at(0)
        plans.change("rewind", "a")
        assert absences(plans) == [START + MINUTE + 5 * SECOND]


def absences(plans: Scheduling) -> list[int]:
    """Return the times by which schedules should start a job."""
    return [at for item, at in due(plans.store) if item.schedule]


def ring_absences(plans: Scheduling, now_us: int) -> None:
    """Ring the schedules that are due at a time."""
    names = [item.schedule for item, _ in due(plans.store, now_us) if item.schedule]
    if names:
        plans.group(RingAbsences(names, now_us))


def late(plans: Scheduling) -> list[tuple[str, int, int, str]]:
    """Return the events of overdue schedules: name, fire time, time, cause."""
    found: list[Event] = numbered(plans.store, types=frozenset({types.SCHEDULE_OVERDUE}))
    return [(one.subject, one.fields["fire_us"], one.fields["due_us"], one.fields["why"]) for one in found]
