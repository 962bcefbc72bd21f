"""Submits and uniques."""

from __future__ import annotations

import pytest

from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, Priority, Retry, State
from mainspring.jobs.rules import Event
from mainspring.namespaces import DEFAULT, key
from tests.conformance.suite.driver import NOW, Store, done
from tests.conformance.suite.operations import ANYTHING

SECOND = 1_000_000
KEEP = Options(keep_unique=10.0)
AWKWARD = [
    b"\0",
    b"a\0b",
    b"\xff\xfe",
    bytes(range(256)),
    "ключ ☃".encode(),
    b" ",
    b"'; DROP TABLE jobs; --",
    b"%s?1:x",
]


class Submitting:
    """Tests of ``Submit``."""

    def test_a_claimed_job_equals_the_submitted_one(self, store: Store) -> None:
        options = Options(retry=Retry(max_attempts=3, initial=0.5), timeout=1.5, heartbeat=2.0, keep_unique=60.0)
        job = store.submitted(
            function=b"resize",
            payload=b"cat.png",
            unique=b"cat",
            priority=Priority.HIGH,
            expires_us=NOW + SECOND,
            options=options,
        )
        (claimed,) = store.claim(b"resize")
        job.state, job.term = int(State.LEASED), store.term
        assert claimed == job

    @pytest.mark.parametrize("text", AWKWARD, ids=repr)
    def test_any_bytes_are_kept(self, store: Store, text: bytes) -> None:
        function = key(DEFAULT, text)
        job = store.submitted(function=function, payload=text, unique=text)
        (claimed,) = store.claim(function)
        assert (claimed.id, claimed.function, claimed.payload, claimed.unique) == (job.id, function, text, text)
        store.end(claimed, Event.RETRY, error=text, due_us=NOW)
        assert store.find_unique((function, text), (ANYTHING, text)) == [(job.id, State.SCHEDULED, 1)] * 2
        assert store.present(job.id).error == text
        assert [one.id for one in store.list(function=function, unique=text)] == [job.id]

    def test_names_that_differ_only_in_their_last_bytes_differ(self, store: Store) -> None:
        jobs = [store.job(b"f" + end, unique=b"u" + end) for end in (b"", b"\0", b"\0\0", b" ")]
        assert store.submit(*jobs) == {}
        assert [[job.id for job in store.claim(one.function)] for one in jobs] == [[job.id] for job in jobs]

    def test_an_empty_payload_is_a_payload(self, store: Store) -> None:
        store.submitted(payload=b"")
        assert [job.payload for job in store.claim()] == [b""]

    def test_a_large_payload_comes_back_whole(self, store: Store) -> None:
        payload = (b"\0\xff" * (4 * 2**20))[: store.engine.max_value]
        job = store.leased(payload=payload)
        assert job.payload == payload
        assert job.input_size == len(payload)
        store.end(job, result=payload[::-1])
        found = store.present(job.id)
        assert (found.result, found.output_size) == (payload[::-1], len(payload))

    def test_each_job_gets_the_state_that_it_carries(self, store: Store) -> None:
        states = [State.SCHEDULED, State.PENDING, State.LEASED]
        jobs = [store.job(state=state, due_us=NOW if state is State.SCHEDULED else 0) for state in states]
        assert store.submit(*jobs) == {}
        assert [store.state(job.id) for job in jobs] == states
        assert [job.id for job in store.claim()] == [jobs[1].id], "a job that is scheduled or held cannot be claimed"
        assert store.settle(done(jobs[2])) == set(), "a job that was submitted as leased can be settled"

    def test_a_large_group(self, store: Store) -> None:
        jobs = [store.job(b"f%d" % (number % 7), b"%d" % number) for number in range(5000)]
        store.submit(*jobs)
        assert [job.payload for job in store.claim(b"f3")] == [b"%d" % number for number in range(3, 5000, 7)]

    # ---- uniques ----

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED, State.RUNNING])
    def test_a_second_request_joins_a_live_job(self, store: Store, state: State) -> None:
        first = store.submitted(unique=b"u", state=State.LEASED if state.held else state, due_us=NOW)
        if state is State.RUNNING:
            store.assign(first)
        second = store.job(unique=b"u")
        assert store.submit(second) == {second.id: (first.id, state, 0)}
        assert store.find(second.id) is None

    def test_jobs_that_joined_cost_the_others_nothing(self, store: Store) -> None:
        first = store.submitted(unique=b"u")
        jobs = [store.job(), store.job(unique=b"u"), store.job(unique=b"v"), store.job(unique=b"u"), store.job()]
        joined = store.submit(*jobs)
        assert {job_id: found.id for job_id, found in joined.items()} == {jobs[1].id: first.id, jobs[3].id: first.id}
        assert [job.id for job in store.claim()] == [first.id, jobs[0].id, jobs[2].id, jobs[4].id]

    def test_the_first_of_equal_uniques_in_one_operation_is_stored(self, store: Store) -> None:
        jobs = [store.job(unique=b"u") for _ in range(3)]
        assert store.submit(*jobs) == {job.id: (jobs[0].id, State.PENDING, 0) for job in jobs[1:]}

    def test_equal_uniques_in_one_group_are_stored_once(self, store: Store) -> None:
        jobs = [store.job(unique=b"u") for _ in range(4)]
        submits = [ops.Submit([job, store.job()]) for job in jobs]
        outcomes = store.group(*submits)
        (winner,) = [job for job, joined in zip(jobs, outcomes, strict=True) if not joined]
        assert [set(joined) for joined in outcomes] == [set() if job is winner else {job.id} for job in jobs]
        assert {found.id for joined in outcomes for found in joined.values()} == {winner.id}

    def test_a_unique_belongs_to_its_function(self, store: Store) -> None:
        assert store.submit(store.job(b"f", unique=b"u"), store.job(b"g", unique=b"u")) == {}

    def test_jobs_without_a_unique_never_join(self, store: Store) -> None:
        assert store.submit(*[store.job(unique=b"") for _ in range(3)]) == {}
        assert store.submit(store.job(unique=b"")) == {}

    @pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE])
    def test_an_ended_job_frees_its_unique(self, store: Store, event: Event) -> None:
        store.end(store.leased(unique=b"u"), event)
        store.submitted(unique=b"u")

    @pytest.mark.parametrize("event", [Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.LOSE])
    def test_a_job_that_continues_keeps_its_unique(self, store: Store, event: Event) -> None:
        first = store.leased(unique=b"u")
        store.end(first, event, due_us=NOW)
        second = store.job(unique=b"u")
        assert store.submit(second)[second.id].id == first.id

    def test_a_settlement_frees_a_unique_for_its_own_group(self, store: Store) -> None:
        old = store.leased(unique=b"u")
        new = store.job(unique=b"u")
        for order in (1, -1):
            operations = [ops.Submit([new]), ops.Settle([done(old)])][::order]
            assert store.group(*operations) == [{}, set()][::order]
            (old,) = store.claim()
            assert old.id == new.id
            new = store.job(unique=b"u")

    # ---- uniques that are kept ----

    def test_a_success_is_joined_for_as_long_as_the_request_sets(self, store: Store) -> None:
        first = store.leased(unique=b"u", options=KEEP)
        store.end(first, at=NOW)
        soon = store.job(unique=b"u", options=KEEP, created_us=NOW + 10 * SECOND - 1)
        assert store.submit(soon) == {soon.id: (first.id, State.SUCCEEDED, 1)}
        late = store.job(unique=b"u", options=KEEP, created_us=NOW + 10 * SECOND)
        assert store.submit(late) == {}

    def test_both_jobs_must_set_keep_unique(self, store: Store) -> None:
        store.end(store.leased(unique=b"u"))
        store.end(store.leased(unique=b"u", options=KEEP))
        assert store.submit(store.job(unique=b"u")) == {}

    @pytest.mark.parametrize("event", [Event.FAIL, Event.CANCEL, Event.EXPIRE])
    def test_only_a_success_is_joined(self, store: Store, event: Event) -> None:
        store.end(store.leased(unique=b"u", options=KEEP), event)
        assert store.submit(store.job(unique=b"u", options=KEEP)) == {}

    def test_a_live_job_takes_precedence_over_a_success(self, store: Store) -> None:
        store.end(store.leased(unique=b"u", options=KEEP))
        live = store.submitted(unique=b"u")
        job = store.job(unique=b"u", options=KEEP)
        assert store.submit(job) == {job.id: (live.id, State.PENDING, 0)}

    def test_a_live_job_of_the_same_operation_takes_precedence_over_a_success(self, store: Store) -> None:
        kept = store.leased(unique=b"u", options=KEEP)
        store.end(kept)
        jobs = [store.job(unique=b"u", options=options) for options in (KEEP, None, KEEP)]
        joined = store.submit(*jobs)
        assert {job_id: one.id for job_id, one in joined.items()} == {jobs[0].id: kept.id, jobs[2].id: jobs[1].id}

    def test_the_last_success_is_joined(self, store: Store) -> None:
        first = store.leased(unique=b"u", options=KEEP)
        store.end(first, at=NOW + SECOND)
        # By the clock, which was set back in between, it ended before the other one.
        second = store.submitted(unique=b"u", options=KEEP, created_us=NOW + 20 * SECOND)
        store.end(store.claim()[0], at=NOW)
        job = store.job(unique=b"u", options=KEEP)
        assert store.submit(job)[job.id].id == first.id
        assert store.sweep(NOW + 1, 0) == 1
        assert store.find(second.id) is None
        assert store.submit(job)[job.id].id == first.id

    def test_a_kept_success_that_was_swept_is_forgotten(self, store: Store) -> None:
        store.end(store.leased(unique=b"u", options=KEEP))
        assert store.sweep(NOW + 1, 0) == 1
        assert store.submit(store.job(unique=b"u", options=KEEP)) == {}

    def test_keeping_for_ever(self, store: Store) -> None:
        first = store.leased(unique=b"u", options=Options(keep_unique=1e300))
        store.end(first)
        job = store.job(unique=b"u", options=Options(keep_unique=1e300))
        assert store.submit(job)[job.id].id == first.id
