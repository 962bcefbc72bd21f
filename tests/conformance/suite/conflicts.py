"""Submits by a rule about the live job of their unique, and the successors that wait for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.conflicts.rules import Rule
from mainspring.conflicts.store import Placed, Released, ReleaseSuccessors, SubmitByRule
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event
from mainspring.jobs.successors import NEVER_US, awaited_unique, successor_unique
from mainspring.queries import Recall
from tests.conformance.suite.driver import NOW, Store
from tests.conformance.suite.fixtures import StoreFixtures

if TYPE_CHECKING:
    from mainspring.conflicts.rules import OnConflict
    from mainspring.jobs.model import Job

SECOND = 1_000_000
ENDS = [event for event in Event if State.LEASED in rules.sources(event) and rules.target(event).ended]
"""The events that end a held job."""


def place(store: Store, on_conflict: OnConflict, payload: bytes = b"new", now: int = NOW, **values: Any) -> Placed:
    """Submit a job of the unique ``u`` by a rule."""
    debounce, most = values.pop("debounce", 0), values.pop("debounce_max", 0)
    job = store.job(payload=payload, unique=b"u", created_us=now, **values)
    (placed,) = store.group(SubmitByRule(job, Rule(on_conflict, debounce, most), now))
    assert isinstance(placed, Placed)
    return placed


def release(store: Store, now: int = NOW) -> Released:
    (released,) = store.group(ReleaseSuccessors(now))
    assert isinstance(released, Released)
    return released


def old(store: Store, **values: Any) -> Job:
    """Submit the job that has the unique."""
    return store.submitted(payload=b"old", unique=b"u", **values)


def held(store: Store, **values: Any) -> Job:
    """Submit the job that has the unique, and lease it."""
    return store.leased(payload=b"old", unique=b"u", **values)


def arguments(store: Store, job_id: int) -> bytes | None:
    """Return the arguments of a job."""
    recalled = store.read(Recall(job_id, 1000))
    assert recalled is not None
    return recalled.payload


def run_next(store: Store, now: int = NOW) -> list[bytes]:
    """Wake what is due, lease and end it; return the arguments of the jobs."""
    store.wake(now)
    claimed = store.claim()
    for job in claimed:
        store.end(job)
    return [job.payload for job in claimed]


class ConflictSuite(StoreFixtures):
    """The contract of ``mainspring.conflicts.store``."""

    # ---- no live job ----

    @pytest.mark.parametrize("on_conflict", ["skip", "cancel_old", "replace_input"])
    def test_a_free_unique_gets_a_new_job(self, store: Store, on_conflict: OnConflict) -> None:
        placed = place(store, on_conflict)
        assert placed.is_new
        assert store.lifecycle.committed == [placed.id]
        assert run_next(store) == [b"new"]
        assert place(store, on_conflict).is_new, "an ended job is not live"

    def test_a_kept_success_is_joined(self, store: Store) -> None:
        done = held(store, options=Options(keep_unique=60.0))
        store.end(done)
        placed = place(store, "skip", options=Options(keep_unique=60.0))
        assert placed == Placed(done.id)
        assert store.lifecycle.live == []

    def test_a_foreground_job_in_memory_is_reported(self, store: Store) -> None:
        store.lifecycle.refused.add(b"u")
        assert place(store, "skip") == Placed(0, in_memory=True)
        assert store.list() == []

    def test_a_job_may_be_leased_at_once(self, store: Store) -> None:
        store.lifecycle.leases = True
        assert store.state(place(store, "replace_input").id) is State.LEASED

    # ---- skip, join ----

    @pytest.mark.parametrize("on_conflict", ["join", "skip"])
    def test_the_live_job_stands_for_the_submit(self, store: Store, on_conflict: OnConflict) -> None:
        job = held(store)
        assert place(store, on_conflict) == Placed(job.id, skipped=on_conflict == "skip")
        assert arguments(store, job.id) == b"old"

    # ---- replace_input ----

    @pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED])
    def test_a_waiting_job_gets_the_new_input(self, store: Store, state: State) -> None:
        job = old(store, state=state, due_us=NOW + SECOND if state is State.SCHEDULED else 0)
        placed = place(store, "replace_input", b"a longer input")
        assert placed == Placed(job.id)
        found = store.present(job.id)
        assert (arguments(store, job.id), found.input_size, found.state) == (b"a longer input", 14, state)
        assert run_next(store, NOW + SECOND) == [b"a longer input"]

    def test_a_begun_job_keeps_its_input(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "replace_input")
        assert placed.is_new
        assert placed.predecessor == job.id
        assert arguments(store, job.id) == b"old"
        assert release(store).due_us == [], "its predecessor has not ended"
        assert run_next(store) == []
        store.end(job)
        assert release(store).due_us == [NOW]
        assert run_next(store) == [b"new"]
        assert not release(store).any

    def test_a_job_between_two_attempts_has_begun(self, store: Store) -> None:
        job = held(store)
        store.settle(rules.Settlement(job, Event.RETRY, 1, due_us=NOW + SECOND, started_us=NOW))
        assert place(store, "replace_input").predecessor == job.id
        assert arguments(store, job.id) == b"old"

    # ---- cancel_old ----

    @pytest.mark.parametrize("state", [State.PENDING, State.SCHEDULED])
    def test_a_waiting_job_is_cancelled_at_once(self, store: Store, state: State) -> None:
        job = old(store, state=state, due_us=NOW + SECOND if state is State.SCHEDULED else 0)
        placed = place(store, "cancel_old")
        assert placed.is_new
        assert placed.cancelled is not None
        assert placed.cancelled.before == state
        assert store.state(job.id) is State.CANCELLED
        assert b"replaced by a later submit" in store.present(job.id).error
        assert store.find_unique((b"f", b"u")) == [ops.Found(placed.id, State.PENDING, 0)]

    def test_a_running_job_is_asked_to_stop(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "cancel_old")
        assert placed.predecessor == job.id
        assert store.lifecycle.stopped == [job.id]
        assert store.state(job.id) is State.LEASED
        store.settle(rules.Settlement(job, Event.RELEASE, 0))
        assert store.state(job.id) is State.CANCELLED, "a job that is to stop is not given back"
        assert release(store).due_us == [NOW]
        assert run_next(store) == [b"new"]

    # ---- successors ----

    def test_a_unique_has_one_successor(self, store: Store) -> None:
        job = held(store)
        first = place(store, "replace_input", b"1")
        second = place(store, "cancel_old", b"2")
        assert (second.id, second.is_new) == (first.id, False)
        assert store.lifecycle.stopped == [job.id]
        store.end(job)
        release(store)
        assert run_next(store) == [b"2"]

    @pytest.mark.parametrize("event", ENDS)
    def test_each_end_releases_the_successor(self, store: Store, event: Event) -> None:
        job = held(store)
        placed = place(store, "replace_input")
        store.end(job, event)
        assert release(store).due_us == [NOW]
        found = store.present(placed.id)
        assert (found.unique, found.due_us) == (b"u", NOW)
        assert store.find_unique((b"f", b"u")) == [ops.Found(placed.id, State.SCHEDULED, 0)]

    @pytest.mark.parametrize("event", sorted(rules.GIVES_BACK))
    def test_a_job_that_goes_on_keeps_its_successor_waiting(self, store: Store, event: Event) -> None:
        job = held(store)
        place(store, "replace_input")
        store.settle(rules.Settlement(job, event, 1, due_us=NOW if event in {Event.RETRY, Event.SNOOZE} else 0))
        assert release(store).due_us == []
        assert release(store).any

    def test_a_successor_is_an_ordinary_job(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "replace_input", options=Options(tags=("t",)))
        waiting = store.present(placed.id)
        assert (waiting.unique, waiting.due_us) == (successor_unique(b"u"), NEVER_US)
        assert awaited_unique(waiting.unique) == b"u"
        assert {one.id for one in store.list()} == {job.id, placed.id}
        assert [one.id for one in store.list(State.SCHEDULED, tag="t")] == [placed.id]

    def test_a_cancelled_successor_is_forgotten(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "replace_input")
        store.cancel(placed.id)
        assert release(store) == Released([], more=False, any=False, stopping=[])
        other = place(store, "replace_input", b"other")
        assert other.id != placed.id
        store.end(job)
        release(store)
        assert run_next(store) == [b"other"]

    def test_nobody_makes_a_successor_run_sooner(self, store: Store) -> None:
        held(store)
        placed = place(store, "replace_input")
        (outcome,) = store.group(ops.Reschedule(placed.id, NOW, due_us=NOW))
        assert outcome.before > State.PENDING, "it is refused"
        assert run_next(store) == []
        assert store.present(placed.id).due_us == NEVER_US

    def test_a_submit_releases_a_successor_whose_predecessor_has_ended(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "replace_input", b"1")
        store.end(job)
        later = place(store, "replace_input", b"2")
        assert (later.id, later.wake_us) == (placed.id, NOW)
        assert run_next(store) == [b"2"]
        assert not release(store).any

    def test_a_plain_submit_may_come_between(self, store: Store) -> None:
        job = held(store)
        placed = place(store, "replace_input")
        store.end(job)
        between = held(store)
        assert release(store).due_us == []
        assert store.state(placed.id) is State.SCHEDULED
        store.end(between)
        assert release(store).due_us == [NOW]
        assert run_next(store) == [b"new"]

    def test_a_delay_of_a_successor_counts(self, store: Store) -> None:
        job = held(store)
        place(store, "replace_input", state=State.SCHEDULED, due_us=NOW + SECOND)
        store.end(job)
        assert release(store).due_us == [NOW + SECOND]
        assert run_next(store) == []
        assert run_next(store, NOW + SECOND) == [b"new"]

    def test_a_successor_outlives_its_node(self, store: Store) -> None:
        job = held(store)
        place(store, "cancel_old")
        store.reopen()
        assert release(store).due_us == []
        store.recover()
        assert store.state(job.id) is State.CANCELLED
        assert release(store).due_us == [NOW]
        assert run_next(store) == [b"new"]

    # ---- debounce ----

    def test_a_debounced_job_waits_until_it_is_quiet(self, store: Store) -> None:
        first = place(store, "replace_input", b"1", debounce=10 * SECOND)
        for second in (4, 8):
            now = NOW + second * SECOND
            placed = place(store, "replace_input", b"%d" % second, now, debounce=10 * SECOND)
            assert placed.id == first.id
            assert store.present(first.id).due_us == now + 10 * SECOND
        assert run_next(store, NOW + 17 * SECOND) == []
        assert run_next(store, NOW + 18 * SECOND) == [b"8"]

    def test_a_debounce_has_a_maximum(self, store: Store) -> None:
        first = place(store, "replace_input", b"0", debounce=10 * SECOND, debounce_max=12 * SECOND)
        for second in (4, 8, 11):
            place(
                store,
                "replace_input",
                b"%d" % second,
                NOW + second * SECOND,
                debounce=10 * SECOND,
                debounce_max=12 * SECOND,
            )
        assert store.present(first.id).due_us == NOW + 12 * SECOND
        assert run_next(store, NOW + 12 * SECOND) == [b"11"]

    def test_a_pending_job_is_debounced_again_within_the_maximum(self, store: Store) -> None:
        first = place(store, "replace_input", b"0", debounce=SECOND, debounce_max=5 * SECOND)
        store.wake(NOW + SECOND)
        assert store.state(first.id) is State.PENDING
        placed = place(store, "replace_input", b"1", NOW + 2 * SECOND, debounce=SECOND, debounce_max=5 * SECOND)
        assert placed.rescheduled is not None
        assert store.state(first.id) is State.SCHEDULED
        store.wake(NOW + 3 * SECOND)
        place(store, "replace_input", b"2", NOW + 6 * SECOND, debounce=SECOND, debounce_max=5 * SECOND)
        assert store.state(first.id) is State.PENDING, "the maximum is over"
        assert run_next(store) == [b"2"]

    def test_a_successor_is_debounced(self, store: Store) -> None:
        job = held(store)
        place(store, "replace_input", b"1", debounce=10 * SECOND)
        place(store, "replace_input", b"2", NOW + 4 * SECOND, debounce=10 * SECOND)
        store.end(job)
        assert release(store, NOW + 5 * SECOND).due_us == [NOW + 14 * SECOND]
        assert run_next(store, NOW + 13 * SECOND) == []
        assert run_next(store, NOW + 14 * SECOND) == [b"2"]

    # ---- many ----

    @pytest.mark.parametrize("on_conflict", ["skip", "cancel_old", "replace_input"])
    def test_submits_of_one_group_follow_each_other(self, store: Store, on_conflict: OnConflict) -> None:
        operations = [
            SubmitByRule(store.job(payload=b"%d" % number, unique=b"u"), Rule(on_conflict), NOW) for number in range(3)
        ]
        outcomes = store.group(*operations)
        assert [one.is_new for one in outcomes] == [True, on_conflict == "cancel_old", on_conflict == "cancel_old"]
        assert run_next(store) == [b"0" if on_conflict == "skip" else b"2"]

    def test_uniques_do_not_meet(self, store: Store) -> None:
        for function in (b"f", b"g"):
            for unique in (b"u", b"u\0", b"v" * 64):
                job = store.job(function, unique=unique)
                (placed,) = store.group(SubmitByRule(job, Rule("skip"), NOW))
                assert placed.is_new

    def test_more_successors_than_a_look_takes(self, store: Store) -> None:
        for number in range(5):
            unique = b"u%d" % number
            job = store.leased(unique=unique)
            store.group(SubmitByRule(store.job(unique=unique), Rule("replace_input"), NOW))
            store.end(job)
        released: list[int] = []
        for more in (True, True, False):
            (found,) = store.group(ReleaseSuccessors(NOW, limit=2))
            assert found.more is more
            released += found.due_us
        assert len(released) == 5
        assert len(run_next(store)) == 5


class SharedConflictSuite(StoreFixtures):
    """The same on a store that several nodes have open."""

    @pytest.mark.parametrize("on_conflict", ["skip", "cancel_old", "replace_input"])
    def test_submits_at_two_nodes_at_once_leave_one_job(self, store: Store, on_conflict: OnConflict) -> None:
        other = store.beside()
        for round_ in range(20):
            unique = b"u%d" % round_
            groups = [
                (node, [SubmitByRule(node.job(payload=b"%d" % at, unique=unique), Rule(on_conflict), NOW)])
                for at, node in enumerate((store, other))
            ]
            outcomes = store.groups(*groups)
            placed = [one[0] for one in outcomes if isinstance(one, list)]
            assert len(placed) == 2, outcomes
            (live,) = store.find_unique((b"f", unique))
            assert live is not None
            waiting = [job for job in store.list() if job.unique == unique and not State(job.state).ended]
            assert [job.id for job in waiting] == [live.id]

    def test_submits_at_two_nodes_at_once_leave_one_successor(self, store: Store) -> None:
        other = store.beside()
        for round_ in range(20):
            unique = b"u%d" % round_
            job = store.leased(unique=unique)
            groups = [
                (node, [SubmitByRule(node.job(payload=b"%d" % at, unique=unique), Rule("replace_input"), NOW)])
                for at, node in enumerate((store, other))
            ]
            outcomes = [one[0] for one in store.groups(*groups) if isinstance(one, list)]
            assert len({one.id for one in outcomes}) == 1, outcomes
            assert sorted(one.is_new for one in outcomes) == [False, True]
            store.end(job)

    def test_a_look_and_a_submit_cross(self, store: Store) -> None:
        other = store.beside()
        for round_ in range(20):
            unique = b"u%d" % round_
            job = store.leased(unique=unique)
            (placed,) = store.group(SubmitByRule(store.job(payload=b"1", unique=unique), Rule("replace_input"), NOW))
            store.end(job)
            submit = SubmitByRule(other.job(payload=b"2", unique=unique), Rule("replace_input"), NOW)
            released, submitted = store.groups((store, [ReleaseSuccessors(NOW)]), (other, [submit]))
            assert isinstance(released, list), released
            assert isinstance(submitted, list), submitted
            assert submitted[0].id == placed.id
            assert run_next(store) == [b"2"]

    def test_a_dead_node_releases_the_successor(self, store: Store) -> None:
        other = store.beside()
        job = other.leased(unique=b"u", payload=b"old")
        assert place(store, "cancel_old").predecessor == job.id
        store.end_term(other.term)
        (recovered,) = store.group(ops.Recover(store.term, of=(other.term,)))
        assert recovered.number == 0
        assert store.state(job.id) is State.CANCELLED
        assert release(store).due_us == [NOW]
        assert run_next(store) == [b"new"]
