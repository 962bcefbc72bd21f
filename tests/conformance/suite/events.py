"""The log of events: what is recorded, numbered, read and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.access.audit import RecordActs
from mainspring.access.caller import Act
from mainspring.bulk.rules import Action, BulkOperation, Spec
from mainspring.bulk.store import BeginBulk, StepBulk
from mainspring.event_log import types
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import (
    AllInterests,
    Event,
    ListEvents,
    MoveCursor,
    NumberEvents,
    SaveInterests,
    ShowInterests,
    ShowLogEnds,
    StoredInterest,
    SweepEvents,
)
from mainspring.event_log.types import types_of
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State, failure
from mainspring.jobs.rules import Settlement
from mainspring.namespaces import key
from mainspring.resources.rules import FunctionLimits
from mainspring.resources.store import SaveLimits
from mainspring.schedules import store as ops_of_schedules
from mainspring.schedules.model import Overlap
from mainspring.storage.engine import Budget
from mainspring.workflows.model import Key, Parked
from tests.conformance.suite.driver import NOW, Make, Store, done, released
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import Flows
from tests.conformance.suite.scheduling import Scheduling

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

ERROR = failure("ValueError", "no such bank\nat all")
LATER = NOW + 60_000_000
ACT = Act("jobs.retry", "ann")


def want(store: Store, *patterns: str, name: str = "one", until_us: int = 0, **criteria: Any) -> AllInterests:
    """Ask for events of some types."""
    interest = Interest(types_of(patterns or ("*",)), **criteria)
    (interests,) = store.group(SaveInterests(now_us=NOW, saved=[StoredInterest(name, interest, until_us)]))
    assert isinstance(interests, AllInterests)
    return interests


def numbered(store: Store, **criteria: Any) -> list[Event]:
    """Number the events, and return all that match."""
    while store.group(NumberEvents(limit=3))[0].more:
        pass
    return store.all_of(ListEvents(limit=10_000, **criteria))


def brief(store: Store, **criteria: Any) -> list[tuple[str, int]]:
    """Return the types of the events with the jobs that they are about."""
    return [(event.type, event.job) for event in numbered(store, **criteria)]


def failed(job: Job, *, retry: bool = False) -> Settlement:
    """Return the settlement of a failed attempt."""
    event = rules.Event.RETRY if retry else rules.Event.FAIL
    settlement = Settlement(
        job, event, job.attempt + 1, due_us=LATER if retry else 0, started_us=NOW - 9, ended_us=NOW, error=ERROR
    )
    settlement.outcome = rules.Outcome.FAILED
    settlement.ran_us = 9
    return settlement


def read_since(interests: AllInterests) -> dict[str, int]:
    """Return the number from which on each interest is complete."""
    return {one.id: one.since for one in interests.interests}


class EventSuite(StoreFixtures):
    """The contract of ``mainspring.event_log.store``."""

    # ---- interests ----

    def test_without_an_interest_nothing_is_recorded(self, store: Store) -> None:
        store.settle(failed(store.leased()))
        want(store, "job.succeeded")
        store.settle(failed(store.leased()))
        assert brief(store) == []
        job = store.leased()
        store.end(job)
        assert brief(store) == [(types.SUCCEEDED, job.id)]

    def test_names_may_have_any_characters(self, store: Store) -> None:
        want(store)
        store.settle(failed(store.leased(function=b"a\0b")))
        cancel = ops.Cancel(store.submitted().id, b"", NOW)
        cancel.act = Act("jobs.cancel", "ann", object="x\0y")
        store.group(cancel)
        assert {(event.function, event.subject) for event in numbered(store)} >= {("a\ufffdb", ""), ("", "x\ufffdy")}

    def test_an_interest_stays_until_it_is_removed(self, store: Store) -> None:
        first = want(store, "job.failed")
        store.reopen()
        assert store.read(ShowInterests()).interests == first.interests
        job = store.leased()
        store.settle(failed(job))
        (after,) = store.group(SaveInterests(now_us=NOW, removed=["one", "unknown"]))
        assert (after.interests, after.version > first.version) == ([], True)
        store.settle(failed(store.leased()))
        assert brief(store) == [(types.FAILED, job.id)]

    def test_an_interest_may_end_by_itself(self, store: Store) -> None:
        want(store, name="short", until_us=NOW + 1)
        want(store, "job.failed", name="long")
        job = store.leased()
        store.end(job)
        (after,) = store.group(SaveInterests(now_us=NOW + 1))
        assert [one.id for one in after.interests] == ["long"]
        store.end(store.leased())
        assert brief(store) == [(types.SUCCEEDED, job.id)]

    def test_an_interest_has_a_namespace_functions_and_tags(self, store: Store) -> None:
        want(store, name="a", namespace="team", functions=("pay*",))
        want(store, name="b", namespace="default", tags=("big", "red"))
        paid, big = (
            store.leased(function=key("team", b"payroll")),
            store.leased(options=Options(tags=("big", "new", "red"))),
        )
        others = [
            store.leased(function=b"payroll"),
            store.leased(function=key("team", b"mail")),
            store.leased(function=b"g", options=Options(tags=("big",))),
        ]
        for job in (paid, big, *others):
            store.end(job)
        found = numbered(store)
        assert [(one.namespace, one.function, one.job) for one in found] == [
            ("team", "payroll", paid.id),
            ("default", "f", big.id),
        ]
        assert [*found[1].fields["tags"]] == ["big", "new", "red"]

    def test_a_reader_begins_at_a_number_that_no_event_has(self, store: Store) -> None:
        want(store, name="webhook")
        first = want(store, name="reader:a", until_us=NOW + 10)
        assert read_since(first) == {"webhook": 1, "reader:a": 1}
        assert store.read(ShowLogEnds()).last == 1
        store.end(store.leased())
        (event,) = numbered(store)
        assert event.number == 2
        renewed = want(store, name="reader:a", until_us=NOW + 20)
        assert read_since(renewed) == read_since(first)
        (after,) = store.group(SaveInterests(now_us=NOW + 20))
        assert [one.id for one in after.interests] == ["webhook"]
        anew = want(store, name="reader:a", until_us=NOW + 30)
        assert read_since(anew) == {"webhook": 1, "reader:a": 3}
        store.end(store.leased())
        assert [one.number for one in numbered(store)] == [2, 4]
        wider = want(store, "job.failed", name="reader:a", until_us=NOW + 30)
        assert read_since(wider)["reader:a"] == 5
        assert store.read(ShowLogEnds()).last == 5
        store.reopen()
        assert read_since(store.read(ShowInterests())) == read_since(wider)

    def test_a_cursor_keeps_its_place_and_moves_forward_alone(self, store: Store) -> None:
        want(store, "job.*", name="cursor:default/c")
        for _ in range(3):
            store.end(store.leased())
        numbers = [one.number for one in numbered(store)]
        place = store.read(ShowInterests()).interests[0].place
        assert place == numbers[0] - 1
        moved = store.group(MoveCursor("cursor:default/c", numbers[1]), MoveCursor("cursor:default/x", 1))
        assert moved == [numbers[1], None]
        assert store.group(MoveCursor("cursor:default/c", numbers[0])) == [numbers[1]]
        (changed,) = want(store, "job.failed", name="cursor:default/c").interests
        assert (changed.place, changed.since) == (numbers[1], numbers[-1] + 1)

    def test_a_saved_interest_replaces_that_of_its_id(self, store: Store) -> None:
        want(store, "job.*")
        want(store, "job.failed")
        store.end(store.leased())
        assert brief(store) == []

    # ---- causes ----

    def test_the_ends_of_attempts(self, store: Store) -> None:
        want(store, "job.*")
        jobs = [store.leased(function=b"f%d" % number) for number in range(6)]
        won, lost, failing, snoozed, back, gone = jobs
        missed = rules.Settlement(gone, rules.Event.LOSE, 1)
        missed.outcome = rules.Outcome.LOST
        store.settle(
            done(won),
            failed(lost),
            failed(failing, retry=True),
            Settlement(snoozed, rules.Event.SNOOZE, 0, due_us=LATER),
            released(back),
            missed,
        )
        assert sorted(brief(store), key=lambda one: one[1]) == [
            (types.SUCCEEDED, won.id),
            (types.FAILED, lost.id),
            (types.ATTEMPT_FAILED, failing.id),
            (types.SNOOZED, snoozed.id),
            (types.ATTEMPT_FAILED, gone.id),
        ]
        fields = {one.job: one.fields for one in numbered(store)}
        assert fields[lost.id] == {"attempt": 1, "error_type": "ValueError", "error": "no such bank", "ran_us": 9}
        assert (fields[failing.id]["due_us"], fields[snoozed.id]["due_us"]) == (LATER, LATER)
        assert fields[gone.id] == {"attempt": 1, "lost": True}

    def test_a_stale_settlement_has_no_event(self, store: Store) -> None:
        want(store)
        job = store.leased()
        stale = replace(job, term=job.term + 1000)
        assert store.settle(done(stale)) == {job.id}
        store.end(job)
        assert store.settle(done(job)) == {job.id}
        assert brief(store) == [(types.SUCCEEDED, job.id)]

    def test_the_first_of_two_settlements_of_a_job_has_its_event(self, store: Store) -> None:
        want(store, "job.*")
        job, other, stale = store.leased(), store.leased(), store.leased()
        store.end(stale)
        late = replace(other, term=other.term + 1000)
        settled = store.settle(failed(job), done(late), failed(other), done(job), done(stale))
        assert settled == {job.id, other.id, stale.id}
        found = sorted(brief(store), key=lambda one: one[1])
        assert found == [(types.FAILED, job.id), (types.FAILED, other.id), (types.SUCCEEDED, stale.id)]

    def test_requests_about_waiting_jobs(self, store: Store) -> None:
        want(store, "job.*")
        job = store.submitted()
        store.group(ops.Reschedule(job.id, NOW, due_us=LATER, act=ACT))
        store.group(ops.Reschedule(job.id, NOW, priority=0))
        store.group(ops.Cancel(job.id, ERROR, NOW, act=ACT))
        store.group(ops.Cancel(job.id, ERROR, NOW, act=ACT))  # it has ended
        store.group(ops.Redrive(job.id, act=ACT))
        found = numbered(store)
        assert [one.type for one in found] == [types.SNOOZED, types.CANCELLED, types.RETRIED]
        assert [one.fields["by"] for one in found] == ["ann"] * 3
        assert found[1].fields["error_type"] == "ValueError"

    def test_jobs_that_expire(self, store: Store) -> None:
        want(store)
        job = store.submitted(expires_us=NOW + 5)
        store.wake(NOW + 6)
        assert brief(store) == [(types.EXPIRED, job.id)]
        assert store.state(job.id) is State.EXPIRED

    def test_attempts_that_are_lost_with_their_node(self, store: Store) -> None:
        want(store, "job.*")
        ran, waited = store.leased(), store.leased()
        store.assign(ran)
        store.reopen()
        if store.engine.shared:
            store.end_term(ran.term)
            store.group(ops.Recover(store.term, [ran.term]))
        else:
            store.recover()
        assert brief(store) == [(types.ATTEMPT_FAILED, ran.id)], f"{waited.id} may never have reached a worker"

    def test_decisions_and_runs_have_no_events_of_jobs(self, store: Store) -> None:
        want(store)
        store.end(store.leased(function=b"\x1fd\x1fdefault\x1fw\x1f1"))
        assert brief(store) == []

    def test_schedules(self, make: Make, store: Store) -> None:
        want(store)
        s = Scheduling(make, store)
        s.add("a", tags=("red",))
        s.add("b", parents=("a",))
        assert s.save(ops_of_schedules.Change("pause", "a")).error is None
        assert s.save(ops_of_schedules.Change("pause", "nobody")).error is not None
        s.change("resume", "a")
        s.fire("a")
        s.run("a", rules.Event.FAIL)
        found = [one for one in numbered(store) if one.type.startswith("schedule.")]
        assert [(one.type, one.subject) for one in found] == [
            (types.SCHEDULE_PAUSED, "a"),
            (types.SCHEDULE_RESUMED, "a"),
            (types.FIRED, "a"),
            (types.MISSED, "b"),
        ]
        fired, missed = found[2:]
        (row,) = s.history("a")
        assert (fired.job, fired.function, fired.fields["fire_us"]) == (row.job, "a", row.fire_us)
        assert [*fired.fields["tags"]] == ["red"]
        assert missed.fields["reason"] == "parent"

    def test_a_fire_time_that_waits_has_an_event_when_it_begins(self, make: Make, store: Store) -> None:
        want(store, types.FIRED)
        s = Scheduling(make, store)
        s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        s.at(1)
        s.fire()
        assert len(numbered(store)) == 1
        s.run("a")
        assert len(numbered(store)) == 2
        assert {one.job for one in numbered(store)} == {row.job for row in s.history("a")}

    def test_functions(self, store: Store) -> None:
        want(store)
        limits = FunctionLimits(b"f", paused=True, pause_reason="the bank is away", until_us=LATER)
        store.group(SaveLimits(limits, act=ACT))
        store.group(SaveLimits(FunctionLimits(b"f", paused=True), act=ACT))  # the first one was quicker
        store.group(SaveLimits(FunctionLimits(b"f", paused=True, version=1), was_paused=True))
        store.group(SaveLimits(FunctionLimits(b"f", version=2), was_paused=True))
        found = [one for one in numbered(store) if one.type != types.ACTED]
        assert [(one.type, one.function) for one in found] == [
            (types.FUNCTION_PAUSED, "f"),
            (types.FUNCTION_RESUMED, "f"),
        ]
        assert found[0].fields == {"reason": "the bank is away", "until_us": LATER, "by": "ann"}

    def test_operations_on_many_jobs(self, store: Store) -> None:
        jobs = [store.leased() for _ in range(2)]
        store.settle(*map(failed, jobs))
        want(store)
        ids = [job.id for job in jobs]
        spec = Spec(action=Action.RETRY, ids=tuple(ids))
        (bulk,) = store.group(BeginBulk(BulkOperation(id=store.new_id(), created_us=NOW, spec=spec)))
        store.group(StepBulk(bulk, ids, 2, NOW, is_last=True))
        found = numbered(store)
        assert [(one.type, one.job) for one in found[:-1]] == [(types.RETRIED, job_id) for job_id in ids]
        assert (found[-1].type, found[-1].subject) == (types.OPERATION_ENDED, f"op-{bulk.id}")
        assert found[-1].fields == {"action": "retry", "status": "done", "done": 2, "by": "local"}

    def test_acts(self, store: Store) -> None:
        want(store, types.ACTED)
        store.group(RecordActs([ACT], act=ACT))
        job = store.submitted()
        store.group(ops.Cancel(job.id, b"", NOW, act=ACT))
        store.group(ops.Cancel(job.id, b"", NOW, act=ACT))  # it changes nothing
        (event,) = numbered(store)
        assert event.fields == {"what": "jobs.retry", "by": "ann"}

    def test_runs(self, store: Store) -> None:
        want(store, "run.*")
        flows = Flows(store)
        run = flows.start()
        flows.running(run, flows.close())
        parked = flows.start()
        flows.park(parked, Parked("defect", "ValueError: no"))
        flows.unpark()
        flows.terminate(Key(job=flows.shown(parked).row.root), "enough")
        chain = flows.start()
        flows.chained(chain)
        found = numbered(store)
        begun = [(one.type, one.fields["run"]) for one in found]
        assert begun == [
            (types.RUN_STARTED, run),
            (types.RUN_COMPLETED, run),
            (types.RUN_STARTED, parked),
            (types.RUN_PARKED, parked),
            (types.RUN_UNPARKED, parked),
            (types.RUN_TERMINATED, parked),
            (types.RUN_STARTED, chain),
        ]
        assert {one.function for one in found} == {"order"}
        assert found[0].job == flows.shown(run).row.root
        assert (found[3].fields["error_type"], found[3].fields["error"]) == ("defect", "ValueError: no")
        assert "enough" in found[5].fields["error"]

    def test_a_run_has_the_tags_of_its_root_job(self, store: Store) -> None:
        want(store, name="red", tags=("red",))
        flows = Flows(store)
        waiting = store.submitted(function=b"order", options=Options(tags=("late", "red")))
        assert flows.begin_waiting() == 1
        flows.terminate(Key(job=waiting.id), "enough")
        run = flows.start(options=Options(tags=("mainspring:map-part", "red")))
        flows.start(options=Options(tags=("blue",)))
        chain = flows.chained(run)
        flows.terminate(Key(job=flows.shown(run).row.root), "enough")
        found = [(one.type, one.fields["run"], [*one.fields["tags"]]) for one in numbered(store)]
        assert found == [
            (types.RUN_STARTED, waiting.id, ["late", "red"]),
            (types.RUN_TERMINATED, waiting.id, ["late", "red"]),
            (types.RUN_STARTED, run, ["red"]),
            (types.RUN_TERMINATED, chain, ["red"]),
        ]

    def test_ends_of_activities(self, store: Store) -> None:
        flows = Flows(store)
        run = flows.start()
        activity = flows.held_activity(run)
        want(store, "job.*")
        store.settle(done(activity))
        (event,) = numbered(store)
        assert (event.type, event.function, event.fields["run"]) == (types.SUCCEEDED, "charge", run)

    # ---- the log ----

    def _caused(self, store: Store, number: int = 7) -> list[Job]:
        want(store, "job.*")
        jobs = [store.leased(function=b"f%d" % (place % 2)) for place in range(number)]
        for job in jobs:
            store.end(job)
        numbered(store)
        return jobs

    def test_both_directions(self, store: Store) -> None:
        jobs = [job.id for job in self._caused(store)]
        forward = store.all_of(ListEvents())
        assert [one.job for one in forward] == jobs
        assert [one.number for one in forward] == sorted({one.number for one in forward})
        third = forward[2].number
        assert [one.job for one in store.all_of(ListEvents(after=third, limit=2))] == jobs[3:5]
        assert [one.job for one in store.all_of(ListEvents(backward=True))] == jobs[::-1]
        assert [one.job for one in store.all_of(ListEvents(backward=True, after=third))] == jobs[1::-1]

    def test_filters(self, store: Store) -> None:
        jobs = [job.id for job in self._caused(store)]
        job = store.leased(function=key("team", b"f0"), options=Options(tags=("red",)))
        store.settle(failed(job))
        assert brief(store, namespace="team") == brief(store, tag="red") == [(types.FAILED, job.id)]
        assert brief(store, types=frozenset({types.FAILED})) == [(types.FAILED, job.id)]
        assert [one for _, one in brief(store, function="f0", namespace="default")] == jobs[::2]
        assert brief(store, job=jobs[3]) == brief(store, job=jobs[3], backward=True) == [(types.SUCCEEDED, jobs[3])]
        assert brief(store, job=jobs[3], namespace="team") == []
        assert brief(store, subject="n9") == []

    @pytest.mark.parametrize("backward", [False, True])
    def test_a_read_ends_with_its_budget(self, store: Store, backward: bool) -> None:
        jobs = [job.id for job in self._caused(store)]
        page = store.read(ListEvents(backward=backward), Budget(rows=4, seconds=60.0, part=2))
        assert [one.job for one in page.items] == (jobs[::-1] if backward else jobs)[:4]
        assert page.next == page.items[-1].number

    def test_events_are_swept_by_age_and_by_number(self, store: Store) -> None:
        jobs = [job.id for job in self._caused(store)]
        before = store.all_of(ListEvents())
        assert store.group(SweepEvents(before_us=0, most=5))[0] == 2
        assert [one.job for one in store.all_of(ListEvents())] == jobs[2:]
        assert store.read(ShowLogEnds())[:2] == (before[-1].number, before[1].number)
        assert store.group(SweepEvents(before_us=before[-1].at_us + 1, most=100, limit=3))[0] == 3
        assert store.group(SweepEvents(before_us=before[-1].at_us + 1, most=100, limit=3))[0] == 2
        assert store.group(SweepEvents(before_us=before[-1].at_us + 1, most=100, limit=3))[0] == 0
        ends = store.read(ShowLogEnds())
        assert ends.last == ends.swept == before[-1].number
        store.reopen()
        job = store.leased()
        store.end(job)
        (event,) = numbered(store)
        assert (event.job, event.number > before[-1].number) == (job.id, True), "numbers are not given again"
