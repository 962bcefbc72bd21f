"""Claim, Assign, Settle and Recover."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State
from mainspring.jobs.rules import MAX_LOST, WORKER_LOST, Event, Settlement
from tests.conformance.suite.driver import NOW, Store, done, released

ENDS = [event for event in Event if State.LEASED in rules.sources(event) and event is not Event.ASSIGN]


class Holding:
    """Tests of held jobs."""

    # ---- Claim ----

    def test_claims_are_in_order_of_priority_and_then_of_age(self, store: Store) -> None:
        priorities = [Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH, Priority.LOW]
        jobs = [store.job(priority=priority) for priority in priorities]
        store.submit(*reversed(jobs))
        order = [jobs[at].id for at in (2, 4, 1, 3, 0, 5)]
        assert [job.id for job in store.claim(limit=3)] == order[:3]
        assert [job.id for job in store.claim(limit=3)] == order[3:]
        assert store.claim() == []

    def test_claimed_jobs_are_held_under_the_term(self, store: Store) -> None:
        job = store.leased(payload=b"whole")
        assert (job.state, job.term, job.payload) == (State.LEASED, store.term, b"whole")
        found = store.present(job.id)
        assert (found.state, found.term) == (State.LEASED, store.term)

    def test_each_request_gets_its_jobs(self, store: Store) -> None:
        store.submit(*[store.job(name) for name in (b"f", b"g", b"f", b"f")])
        wants = [
            ops.ClaimRequest(b"g", 5),
            ops.ClaimRequest(b"never submitted", 5),
            ops.ClaimRequest(b"f", 2),
            ops.ClaimRequest(b"f", 0),
        ]
        (claimed,) = store.group(ops.Claim(store.term, wants))
        assert [[job.function for job in jobs] for jobs in claimed] == [[b"g"], [], [b"f", b"f"], []]

    def test_two_claims_of_one_group_do_not_share(self, store: Store) -> None:
        store.submit(*[store.job() for _ in range(5)])
        claims = [ops.Claim(store.term, [ops.ClaimRequest(b"f", 3)]) for _ in range(2)]
        claimed = [job.id for ((*jobs,),) in store.group(*claims) for job in jobs]
        assert len(set(claimed)) == len(claimed) == 5

    def test_a_claim_sees_the_submits_of_its_group(self, store: Store) -> None:
        job = store.job()
        claim = ops.Claim(store.term, [ops.ClaimRequest(b"f", 5)])
        ((claimed,), _) = store.group(claim, ops.Submit([job]))
        assert [one.id for one in claimed] == [job.id]

    def test_a_claim_sees_the_releases_of_its_group(self, store: Store) -> None:
        job = store.leased()
        claim = ops.Claim(store.term, [ops.ClaimRequest(b"f", 5)])
        ((claimed,), _) = store.group(claim, ops.Settle([released(job)]))
        assert [one.id for one in claimed] == [job.id]

    @pytest.mark.parametrize("event", [Event.RELEASE, Event.LOSE, Event.RETRY, Event.SNOOZE])
    def test_a_job_that_comes_back_keeps_its_place(self, store: Store, event: Event) -> None:
        jobs = [store.job() for _ in range(3)]
        store.submit(*jobs)
        first, second = store.claim(limit=2)
        store.end(second, event, due_us=NOW)
        store.end(first, event, due_us=NOW)
        store.wake(NOW)
        assert [job.id for job in store.claim()] == [job.id for job in jobs]

    def test_a_claimed_job_carries_its_past_attempts(self, store: Store) -> None:
        job = store.leased()
        job.suspects = suspects = MAX_LOST * WORKER_LOST + 1
        settlement = Settlement(job, Event.RETRY, 1, due_us=NOW, started_us=NOW - 5, error=b"{}")
        assert store.settle(settlement) == set()
        store.wake(NOW)
        (claimed,) = store.claim()
        assert (claimed.attempt, claimed.suspects, claimed.error, claimed.payload) == (1, suspects, b"{}", b"p")

    # ---- Assign ----

    def test_an_assigned_job_is_running(self, store: Store) -> None:
        job = store.leased()
        job.attempt = 2
        store.assign(job)
        found = store.present(job.id)
        assert (found.state, found.attempt, found.term) == (State.RUNNING, 2, store.term)
        store.assign(job)
        assert store.state(job.id) is State.RUNNING

    def test_assign_ignores_jobs_that_are_not_held_under_its_term(self, store: Store) -> None:
        job = store.leased()
        other = _as(job, term=job.term + 1)
        store.assign(other)
        assert store.state(job.id) is State.LEASED
        store.end(job)
        store.assign(job)
        assert store.state(job.id) is State.SUCCEEDED
        store.assign(store.job())

    # ---- Settle ----

    @pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
    @pytest.mark.parametrize("event", ENDS)
    def test_every_end_leads_to_the_state_of_the_table(self, store: Store, event: Event, running: bool) -> None:
        job = store.leased()
        if running:
            store.assign(job)
        job.suspects = 1
        settlement = Settlement(job, event, 3, due_us=NOW + 5, started_us=NOW - 5, ended_us=NOW, error=b"{}")
        assert store.settle(settlement) == set()
        found = store.present(job.id)
        target = rules.target(event)
        assert found.state == target
        assert (found.attempt, found.suspects, found.started_us) == (3, 1, NOW - 5)
        assert (found.due_us, found.ended_us) == (NOW + 5, NOW)
        assert found.error == b"{}"
        if not target.ended:
            assert found.term == 0

    def test_a_success_keeps_the_result_and_drops_the_payload(self, store: Store) -> None:
        job = store.leased(payload=b"12345")
        store.end(job, Event.RETRY, due_us=NOW, error=b'{"type":"E"}')
        store.wake(NOW)
        (job,) = store.claim()
        store.end(job, result=b"\0result\xff")
        found = store.present(job.id)
        assert (found.result, found.error, found.payload) == (b"\0result\xff", b"", b"")
        assert (found.input_size, found.output_size) == (5, 8)

    def test_a_failure_keeps_the_payload(self, store: Store) -> None:
        job = store.leased(payload=b"again")
        store.end(job, Event.FAIL, error=b"{}")
        assert store.redrive(job.id).redriven
        assert [one.payload for one in store.claim()] == [b"again"]

    def test_a_settlement_without_an_error_leaves_the_last_one(self, store: Store) -> None:
        job = store.leased()
        store.end(job, Event.RETRY, error=b"{}", due_us=NOW)
        store.wake(NOW)
        (job,) = store.claim()
        assert store.settle(released(job)) == set()
        assert store.present(job.id).error == b"{}"

    def test_an_ended_job_is_not_settled_again(self, store: Store) -> None:
        job = store.leased()
        store.end(job, result=b"first")
        assert store.settle(done(job, b"second")) == {job.id}
        assert store.present(job.id).result == b"first"

    def test_twice_in_one_operation_counts_once(self, store: Store) -> None:
        job, other = store.leased(), store.leased()
        assert store.settle(done(job, b"first"), done(other), done(job, b"second")) == {job.id}
        assert store.present(job.id).result == b"first"
        assert store.state(other.id) is State.SUCCEEDED

    def test_twice_in_one_group_counts_once(self, store: Store) -> None:
        job = store.leased()
        outcomes = store.group(*[ops.Settle([done(job, b"%d" % at)]) for at in range(2)])
        assert sorted(outcomes, key=len) == [set(), {job.id}]
        assert store.present(job.id).result == b"%d" % outcomes.index(set())

    def test_a_settlement_of_another_term_is_refused(self, store: Store) -> None:
        job = store.leased()
        for term in (job.term - 1, job.term + 1, 0):
            for end in (done, released):
                assert store.settle(end(_as(job, term=term))) == {job.id}
        assert store.state(job.id) is State.LEASED

    def test_a_success_that_leaves_its_payload_is_refused_under_another_term(self, store: Store) -> None:
        job = store.leased()
        settlement = done(_as(job, term=job.term + 1))
        settlement.payload = None
        assert store.settle(settlement) == {job.id}
        assert store.state(job.id) is State.LEASED

    def test_a_settlement_of_a_job_that_no_node_holds_is_refused(self, store: Store) -> None:
        job = store.leased()
        assert store.settle(released(job)) == set()
        assert store.settle(done(job)) == {job.id}
        assert store.settle(done(_as(job, term=0))) == {job.id}
        assert store.state(job.id) is State.PENDING

    def test_a_settlement_of_an_unknown_job_is_refused(self, store: Store) -> None:
        job = store.job(state=State.LEASED)
        assert store.settle(done(job)) == {job.id}

    def test_stale_settlements_cost_the_others_nothing(self, store: Store) -> None:
        store.submit(*[store.job(b"f%d" % (at % 2)) for at in range(40)])
        held = [job for name in (b"f0", b"f1") for job in store.claim(name)]
        stale = {job.id for job in held[::3]}
        settled = [done(_as(job, term=99) if job.id in stale else job) for job in held]
        assert store.settle(*settled) == stale
        assert {job.id for job in held if store.state(job.id) is State.LEASED} == stale

    def test_an_operation_without_rows(self, store: Store) -> None:
        operations = [ops.Settle([]), ops.Submit([]), ops.Assign([])]
        assert store.group(*operations) == [set(), {}, None]
        assert store.group(ops.Claim(store.term, []), ops.Find([])) == [[], {}]

    # ---- Recover ----

    def test_recovery_gives_back_what_earlier_terms_hold(self, store: Store) -> None:
        jobs = [store.job(unique=b"%d" % at) for at in range(4)]
        store.submit(*jobs)
        leased, running, ended = store.claim(limit=3)
        store.assign(running)
        store.end(ended)
        store.reopen()
        own = store.submitted(state=State.LEASED)
        assert store.recover() == 2
        assert store.recover() == 0
        found = [store.present(job.id) for job in (leased, running)]
        assert [(job.state, job.attempt, job.suspects, job.term) for job in found] == [
            (State.PENDING, 0, 1, 0),
            (State.PENDING, 1, 0, 0),
        ]
        assert (store.state(own.id), store.state(ended.id)) == (State.LEASED, State.SUCCEEDED)
        assert [job.id for job in store.claim()] == [leased.id, running.id, jobs[3].id]

    def test_a_settlement_after_recovery_is_stale(self, store: Store) -> None:
        job = store.leased()
        store.reopen()
        store.recover()
        assert store.settle(done(job)) == {job.id}
        (claimed,) = store.claim()
        assert store.settle(done(job)) == {job.id}, "its term has ended"
        store.end(claimed)

    def test_recovery_comes_before_the_claims_of_its_group(self, store: Store) -> None:
        job = store.leased()
        store.reopen()
        claim = ops.Claim(store.term, [ops.ClaimRequest(b"f", 1)])
        ((claimed,), recovered) = store.group(claim, ops.Recover(store.term))
        assert (recovered.number, [one.id for one in claimed]) == (1, [job.id])


def _as(job: Job, *, term: int) -> Job:
    return msgspec.structs.replace(job, term=term)
