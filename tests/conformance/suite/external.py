"""Work that runs elsewhere: the rows of its submissions, and the jobs that cancel those that must not go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.external.store import (
    MOST_SHOWN,
    SHOWN_FOR,
    BeginWork,
    End,
    EndWork,
    FindWork,
    LookAtWork,
    Looked,
    Record,
    RecordWork,
    Starting,
    Status,
    Work,
)
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.resources.hold_store import BETWEEN_LEASES, REFUSED, AskHolds, FindKept, Got
from mainspring.resources.holds import Line, Waits, counted
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.holds import ask, define, holding, lease, request, slots

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

ENDS = [event for event in Event if State.LEASED in rules.sources(event) and rules.target(event).ended]
"""The events that end a held job."""
HAND_BACK = sorted(rules.GIVES_BACK)
META = '{"id":"j-1"}'
CANCEL = b"f.cancel"


def begin(store: Store, job: Job, key: str = "k1", now: int = NOW, **values: Any) -> Work:
    """Begin the work of a job."""
    ((work,),) = store.group(BeginWork([Starting(job.id, job.function, key, b'["x"]', values.get("attempt", 0))], now))
    assert isinstance(work, Work)
    return work


def record(store: Store, job: Job, number: int = 1, meta: str = META) -> set[tuple[int, int]]:
    """Record the answer to a submission."""
    (recorded,) = store.group(RecordWork([Record(job.id, number, meta)]))
    assert isinstance(recorded, set)
    return recorded


def end(store: Store, job: Job, status: Status, number: int = 1) -> None:
    store.group(EndWork([End(job.id, number, int(status))]))


def look(store: Store, now: int = NOW) -> Looked:
    (looked,) = store.group(LookAtWork(now))
    assert isinstance(looked, Looked)
    return looked


def shown(store: Store, job: Job) -> list[tuple[int, Status, str]]:
    """Return number, state and answer of each submission of a job."""
    return [(work.number, Status(work.status), work.meta) for work in store.read(FindWork(job.id))]


def cancellations(store: Store) -> list[Any]:
    """Lease the jobs that cancel work, and return their arguments."""
    return [json.loads(job.payload) for job in sorted(store.claim(CANCEL), key=lambda job: job.id)]


def submitted(store: Store) -> Job:
    """Return a held job whose work is submitted, and recorded."""
    job = store.leased()
    begin(store, job)
    record(store, job)
    return job


def printing(store: Store) -> tuple[Job, Job, Got]:
    """Return a job whose work has the only slot, another one that waits for it, and the grant."""
    define(store, "l", counted(1))
    job, other = submitted(store), store.leased()
    (got,) = ask(store, request(job, Line("l")))
    assert isinstance(got, Got)
    assert isinstance(ask(store, request(other, Line("l")))[0], Waits)
    return job, other, got


def release(store: Store, job: Job, event: Event = Event.RELEASE, turn: int = 1, *, is_taken: bool = False) -> None:
    """Put a job back into the queue, as a node does that gives its slots back in the same group."""
    due_us = NOW if event in {Event.RETRY, Event.SNOOZE} else 0
    taken = {lease(job)} if is_taken else set()
    settle = ops.Settle([Settlement(store.present(job.id), event, 0, due_us=due_us)])
    store.group(settle, AskHolds([], NOW, [(lease(job), turn)], taken=taken))


def is_waiting(store: Store, job: Job, now: int = NOW) -> bool:
    """Ask for the slot; return whether another job has it."""
    return isinstance(ask(store, request(job, Line("l")), now=now)[0], Waits)


BETWEEN_US = round(BETWEEN_LEASES * 1_000_000)


class WorkSuite(StoreFixtures):
    """The contract of ``mainspring.external.store``."""

    # ---- slots of resources ----

    @pytest.mark.parametrize("event", HAND_BACK)
    def test_the_next_lease_has_the_slots_of_work_that_goes_on(self, store: Store, event: Event) -> None:
        job, other, got = printing(store)
        release(store, job, event)
        assert is_waiting(store, other)
        assert holding(store, "l") == {job.id: 1}
        store.wake(NOW)
        (job,) = store.claim()
        assert is_waiting(store, other), "its next lease has not asked yet"
        (inherited,) = ask(store, request(job, Line("l"), turn=2))
        assert isinstance(inherited, Got)
        assert [hold.number for hold in inherited.holds] == [hold.number for hold in got.holds]
        assert store.read(FindKept(((lease(job), 1), (lease(job), 2)))) == {(lease(job), 2)}
        assert is_waiting(store, other, NOW + 2 * BETWEEN_US), "what is taken over has no time"
        store.group(AskHolds([], NOW, [(lease(job), 1)]))
        assert holding(store, "l") == {job.id: 1}, "a late return of the last lease gives nothing back"
        store.end(job)
        assert not is_waiting(store, other)

    def test_the_slots_of_work_outlive_the_node(self, store: Store) -> None:
        job, other, got = printing(store)
        before = request(job, Line("l"))
        store.reopen()
        store.recover()
        leased = {one.id: one for one in store.claim()}
        assert is_waiting(store, leased[other.id])
        assert ask(store, before) == [REFUSED], "the lease of the last node has ended"
        (inherited,) = ask(store, request(leased[job.id], Line("l"), turn=7))
        assert isinstance(inherited, Got)
        assert [hold.number for hold in inherited.holds] == [hold.number for hold in got.holds]
        assert is_waiting(store, leased[other.id])

    @pytest.mark.parametrize("leased", [False, True])
    def test_work_that_nobody_takes_over_loses_its_slots_in_time(self, store: Store, leased: bool) -> None:
        job, other, _ = printing(store)
        release(store, job)
        if leased:
            (job,) = store.claim()  # it waits in the memory of a node, and does not ask
        assert is_waiting(store, other, NOW)
        assert is_waiting(store, other, NOW + BETWEEN_US - 1)
        assert not is_waiting(store, other, NOW + BETWEEN_US)
        assert holding(store, "l") == {other.id: 1}
        if leased:
            assert isinstance(ask(store, request(job, Line("l"), turn=2))[0], Waits)

    def test_a_request_at_the_last_moment_keeps_the_slots(self, store: Store) -> None:
        job, other, _ = printing(store)
        release(store, job)
        assert is_waiting(store, other, NOW)
        (job,) = store.claim()
        assert slots(ask(store, request(job, Line("l"), turn=2), now=NOW + 2 * BETWEEN_US)[0]) == {("l", ""): 1}
        assert is_waiting(store, other, NOW + 3 * BETWEEN_US)

    @pytest.mark.parametrize(("status", "keeps"), [(Status.DONE, True), (Status.OVER, False), (Status.CANCEL, False)])
    def test_work_that_is_over_has_no_slots(self, store: Store, status: Status, keeps: bool) -> None:
        job, other, _ = printing(store)
        end(store, job, status)
        release(store, job)
        assert is_waiting(store, other) == keeps

    def test_a_job_that_ends_between_two_leases_has_no_slots(self, store: Store) -> None:
        job, other, _ = printing(store)
        release(store, job)
        store.cancel(job.id)
        assert not is_waiting(store, other)

    def test_slots_that_are_taken_away_are_free_although_the_work_goes_on(self, store: Store) -> None:
        job, other, _ = printing(store)
        release(store, job, is_taken=True)
        assert not is_waiting(store, other)

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_lease_that_needs_more_waits_for_all(self, store: Store, restarts: bool) -> None:
        job, other, _ = printing(store)
        define(store, "m", counted(1))
        if restarts:
            store.reopen()
            store.recover()
            leased = {one.id: one for one in store.claim()}
            job, other = leased[job.id], leased[other.id]
        else:
            release(store, job)
            (job,) = store.claim()
        assert slots(ask(store, request(other, Line("m"), turn=2))[0]) == {("m", ""): 1}
        (waits,) = ask(store, request(job, Line("l"), Line("m"), turn=2))
        assert isinstance(waits, Waits)
        assert waits.lacking == ("m",)
        assert holding(store, "l") == {}

    # ---- submissions ----

    def test_a_submission_keeps_its_key_and_its_answer(self, store: Store) -> None:
        job = store.leased()
        first = begin(store, job, "k1")
        assert (first.number, first.key, first.meta, first.since_us) == (1, "k1", "", NOW)
        assert begin(store, job, "k2", NOW + 5) == first._replace(payload=begin(store, job).payload)
        assert record(store, job) == {(job.id, 1)}
        repeated = begin(store, job, "k3", NOW + 9)
        assert (repeated.number, repeated.key, repeated.meta, repeated.since_us) == (1, "k1", META, NOW)

    def test_the_first_answer_stays(self, store: Store) -> None:
        job = submitted(store)
        assert record(store, job, meta='"other"') == set()
        assert record(store, job, number=2) == set()
        assert shown(store, job) == [(1, Status.OPEN, META)]

    @pytest.mark.parametrize("event", HAND_BACK)
    def test_a_job_that_is_handed_back_keeps_its_work(self, store: Store, event: Event) -> None:
        job = submitted(store)
        store.settle(
            Settlement(store.present(job.id), event, 0, due_us=NOW if event in {Event.RETRY, Event.SNOOZE} else 0)
        )
        assert look(store) == Looked(0, more=False, any=True)
        assert shown(store, job) == [(1, Status.OPEN, META)]
        store.wake(NOW)
        (job,) = store.claim()
        assert begin(store, job, "k2").key == "k1"

    def test_submissions_outlive_the_node(self, store: Store) -> None:
        job = submitted(store)
        store.reopen()
        store.recover()
        assert look(store) == Looked(0, more=False, any=True)
        (job,) = store.claim()
        assert (begin(store, job, "k2").key, begin(store, job, "k2").meta) == ("k1", META)

    def test_another_attempt_submits_anew(self, store: Store) -> None:
        job = submitted(store)
        end(store, job, Status.OVER)
        work = begin(store, job, "k2", NOW + 7, attempt=1)
        assert (work.number, work.key, work.meta, work.since_us, work.attempt) == (2, "k2", "", NOW + 7, 1)
        assert shown(store, job) == [(2, Status.OPEN, "")]

    def test_work_that_has_succeeded_is_not_submitted_again(self, store: Store) -> None:
        job = submitted(store)
        end(store, job, Status.DONE)
        work = begin(store, job, "k2")
        assert (work.number, work.key, work.meta) == (1, "k1", META)

    # ---- cancellations ----

    @pytest.mark.parametrize("event", [event for event in ENDS if event is not Event.SUCCEED])
    @pytest.mark.parametrize("running", [False, True])
    def test_work_is_cancelled_once_its_job_has_ended(self, store: Store, event: Event, running: bool) -> None:
        job = submitted(store)
        if running:
            store.assign(job)
        store.end(job, event)
        assert look(store) == Looked(1, more=False, any=True)
        assert look(store) == Looked(0, more=False, any=True), "it has a job that cancels it"
        assert cancellations(store) == [{"key": "k1", "meta": {"id": "j-1"}, "args": None, "number": 1}]
        assert shown(store, job) == [(1, Status.CANCELLING, META)]

    def test_work_of_a_job_that_is_cancelled_while_it_waits_is_cancelled(self, store: Store) -> None:
        job = submitted(store)
        store.settle(Settlement(store.present(job.id), Event.RELEASE, 0))
        store.cancel(job.id)
        assert look(store).cancelled == 1

    def test_work_of_a_job_that_is_gone_is_cancelled(self, store: Store) -> None:
        job = store.leased(options=Options(forget=True))
        begin(store, job)
        record(store, job)
        store.end(job, Event.FAIL)
        assert store.find(job.id) is None
        assert look(store).cancelled == 1

    def test_a_cancellation_without_an_answer_has_the_arguments(self, store: Store) -> None:
        job = store.leased()
        begin(store, job)
        store.end(job, Event.CANCEL)
        look(store)
        assert cancellations(store) == [{"key": "k1", "meta": None, "args": ["x"], "number": 1}]

    @pytest.mark.parametrize("payload", [b"", b"x", b'["\xff"]'])
    def test_a_cancellation_has_only_arguments_that_are_json(self, store: Store, payload: bytes) -> None:
        job = store.leased()
        store.group(BeginWork([Starting(job.id, job.function, "k1", payload, 0)], NOW))
        store.end(job, Event.CANCEL)
        look(store)
        assert cancellations(store) == [{"key": "k1", "meta": None, "args": None, "number": 1}]

    @pytest.mark.parametrize("status", [Status.DONE, Status.OVER])
    @pytest.mark.parametrize("event", ENDS)
    def test_work_that_has_ended_is_not_cancelled(self, store: Store, status: Status, event: Event) -> None:
        job = submitted(store)
        end(store, job, status)
        assert look(store) == Looked(0, more=False, any=True)
        store.end(job, event)
        assert look(store) == Looked(0, more=False, any=False)
        assert shown(store, job) == []
        assert cancellations(store) == []

    def test_work_of_a_job_that_has_succeeded_is_not_cancelled(self, store: Store) -> None:
        job = submitted(store)
        store.end(job, Event.SUCCEED)
        assert look(store) == Looked(0, more=False, any=False)

    def test_work_is_cancelled_although_its_job_goes_on(self, store: Store) -> None:
        job = store.leased()
        begin(store, job)
        end(store, job, Status.CANCEL)
        assert record(store, job) == {(job.id, 1)}, "the answer may come after the timeout"
        assert begin(store, job, "k2").key == "k2"
        assert look(store) == Looked(1, more=False, any=True)
        assert [one["key"] for one in cancellations(store)] == ["k1"]
        assert shown(store, job) == [(1, Status.CANCELLING, META), (2, Status.OPEN, "")]

    @pytest.mark.parametrize(
        ("event", "status"),
        [(Event.SUCCEED, Status.ANSWERED), (Event.FAIL, Status.GIVEN_UP), (Event.CANCEL, Status.GIVEN_UP)],
    )
    def test_it_is_seen_how_a_cancellation_has_ended(self, store: Store, event: Event, status: Status) -> None:
        job = submitted(store)
        store.end(job, Event.CANCEL)
        look(store)
        (canceller,) = store.claim(CANCEL)
        store.end(canceller, event)
        assert look(store) == Looked(0, more=False, any=False)
        (work,) = store.read(FindWork(job.id))
        assert (work.status, work.canceller, work.ended_us) == (status, canceller.id, NOW)
        later = NOW + round(SHOWN_FOR * 1_000_000)
        look(store, later)
        assert len(store.read(FindWork(job.id))) == 1
        look(store, later + 1)
        assert store.read(FindWork(job.id)) == []

    def test_the_last_submissions_of_a_job_are_shown(self, store: Store) -> None:
        job = store.leased()
        for number in range(1, MOST_SHOWN + 3):
            begin(store, job, f"k{number}")
            end(store, job, Status.CANCEL, number)
        assert [number for number, _, _ in shown(store, job)] == [*range(3, MOST_SHOWN + 3)]

    def test_a_look_is_bounded(self, store: Store) -> None:
        jobs = [submitted(store) for _ in range(5)]
        for job in jobs:
            store.end(job, Event.CANCEL)
        looks = [store.group(LookAtWork(NOW, 2))[0] for _ in range(3)]
        assert [(one.cancelled, one.more) for one in looks] == [(2, True), (2, True), (1, False)]
        assert len(cancellations(store)) == 5
