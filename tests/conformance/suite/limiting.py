"""Claims that take turns between keys, the limits of functions, and granted tokens."""

from __future__ import annotations

import pytest

from mainspring.errors import StoreFencedError
from mainspring.ids import slot_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, Priority, State
from mainspring.jobs.rules import Event
from mainspring.queries import FirstInLine
from mainspring.resources import store as resources
from mainspring.resources.rules import FUNCTION_POOL, FunctionLimits, Limits, Rate, pool_of
from mainspring.storage.engine import Budget
from tests.conformance.suite.driver import NOW, Store, released

SECOND = 1_000_000
FIRST_ROUND: ops.After = (None, None, None)


def by_key(
    store: Store,
    limit: int,
    per_key: int,
    after: ops.After = FIRST_ROUND,
    *,
    enough: frozenset[bytes] = frozenset(),
    function: bytes = b"f",
) -> ops.ClaimedByKey:
    """Claim jobs, taking turns between keys."""
    want = ops.ClaimRequest(function, limit)
    (claimed,) = store.group(ops.ClaimByKey(store.term, want, per_key, after, enough))
    assert isinstance(claimed, ops.ClaimedByKey)
    return claimed


def keys(claimed: ops.ClaimedByKey) -> list[bytes]:
    """Return the keys of the claimed jobs."""
    return [job.key for job in claimed.jobs]


def keyed(store: Store, *names: bytes, priority: Priority = Priority.NORMAL) -> list[Job]:
    """Submit jobs with these keys."""
    jobs = [store.job(key=key, priority=priority) for key in names]
    assert store.submit(*jobs) == {}
    return jobs


def acquire(store: Store, *asks: resources.TokenRequest) -> list[resources.Grant]:
    """Request tokens and starts."""
    (grants,) = store.group(resources.Acquire(store.term, asks, NOW))
    assert isinstance(grants, list)
    return grants


class Limiting:
    """Tests of the limits in a store."""

    # ---- keys ----

    def test_a_key_that_waits_is_not_hidden_behind_the_jobs_of_others(self, store: Store) -> None:
        times = {b"": 7, b"a": 8, b"b": 5, b"c": 9}
        store.submit(*[store.job(key=key, created_us=NOW + number) for key, number in times.items()])
        found = store.read(FirstInLine((b"f",)))
        assert found in ({b"f": NOW + 5}, {b"f": NOW + 7}), "there is a queue for each key, or one for all"

    def test_a_job_keeps_its_key(self, store: Store) -> None:
        (job,) = keyed(store, b"\0k\xff")
        assert [one.key for one in store.claim()] == [b"\0k\xff"]
        held = store.present(job.id)
        assert store.settle(released(held)) == set()
        assert keys(by_key(store, 9, 9)) == [b"\0k\xff"]

    def test_plain_claims_take_jobs_with_keys_too(self, store: Store) -> None:
        jobs = keyed(store, b"b", b"", b"a", b"")
        assert sorted(job.id for job in store.claim()) == sorted(job.id for job in jobs)

    def test_a_claim_takes_at_most_its_number_of_each_key(self, store: Store) -> None:
        jobs = keyed(store, b"a", b"a", b"a", b"b", b"", b"", b"", b"c")
        claimed = by_key(store, 100, 2)
        assert sorted(keys(claimed)) == [b"", b"", b"a", b"a", b"b", b"c"]
        assert {jobs[at].id for at in (0, 1, 3, 4, 5, 7)} == {job.id for job in claimed.jobs}, "the oldest of each"
        assert all((job.state, job.term) == (State.LEASED, store.term) for job in claimed.jobs)
        assert {job.id for job in by_key(store, 100, 5).jobs} == {jobs[6].id, jobs[2].id}
        assert by_key(store, 100, 5).jobs == []

    def test_claims_go_on_behind_the_last_key(self, store: Store) -> None:
        keyed(store, *[b"k%d" % number for number in range(5)] * 2)
        seen, after = [], FIRST_ROUND
        for _ in range(5):
            claimed = by_key(store, 2, 1, after)
            assert claimed.more
            seen += keys(claimed)
            after = claimed.after
        assert seen == [b"k%d" % number for number in range(5)] * 2
        assert not by_key(store, 2, 1, after).more

    def test_keys_that_have_enough_are_skipped(self, store: Store) -> None:
        keyed(store, b"a", b"b", b"c", b"")
        assert keys(by_key(store, 9, 1, enough=frozenset({b"a", b""}))) == [b"b", b"c"]
        claimed = by_key(store, 9, 1, enough=frozenset({b"a", b""}))
        assert (claimed.jobs, claimed.more) == ([], False)
        assert sorted(keys(by_key(store, 9, 1))) == [b"", b"a"]

    def test_higher_priorities_come_first_for_any_key(self, store: Store) -> None:
        keyed(store, b"a", b"b", priority=Priority.LOW)
        keyed(store, b"b", b"z")
        keyed(store, b"z", priority=Priority.HIGH)
        claimed = by_key(store, 4, 5)
        assert [(job.priority, job.key) for job in claimed.jobs] == [(0, b"z"), (1, b"b"), (1, b"z"), (2, b"a")]

    def test_a_claim_reads_a_limited_number_of_keys(self, store: Store) -> None:
        number = ops.KEYS_PER_CLAIM + 50
        keyed(store, *[b"k%05d" % at for at in range(number)], b"last")
        enough = frozenset(b"k%05d" % at for at in range(number))
        claimed = by_key(store, 5, 1, enough=enough)
        assert (claimed.jobs, claimed.more) == ([], True)
        assert keys(by_key(store, 5, 1, claimed.after, enough=enough)) == [b"last"]

    def test_other_functions_and_states_are_not_claimed(self, store: Store) -> None:
        keyed(store, b"a")
        store.submitted(key=b"a", function=b"g")
        store.submitted(key=b"a", state=State.SCHEDULED, due_us=NOW + 5)
        ended = store.leased(key=b"b", function=b"h")
        store.end(ended, Event.SUCCEED)
        assert keys(by_key(store, 9, 9)) == [b"a"]
        assert by_key(store, 9, 9).jobs == []
        assert by_key(store, 9, 9, function=b"h").jobs == []
        assert by_key(store, 9, 9, function=b"never submitted").jobs == []

    def test_a_claim_by_key_sees_the_submits_of_its_group(self, store: Store) -> None:
        job = store.job(key=b"a")
        claim = ops.ClaimByKey(store.term, ops.ClaimRequest(b"f", 5), 5, FIRST_ROUND, frozenset())
        claimed, _ = store.group(claim, ops.Submit([job]))
        assert [one.id for one in claimed.jobs] == [job.id]

    # ---- limits of functions ----

    def test_limits_are_stored(self, store: Store) -> None:
        limits = FunctionLimits(b"f\xff", commanded=Limits(3, 2, Rate(1, 2, 3), Rate(4, 5, 6)), paused=True)
        (stored,) = store.group(resources.SaveLimits(limits))
        assert stored == FunctionLimits(b"f\xff", commanded=limits.commanded, paused=True, version=1)
        store.reopen()
        assert store.read(resources.ListLimits()).items == [stored]

    def test_limits_are_read_in_parts(self, store: Store) -> None:
        saved = [FunctionLimits(b"f%d" % number, commanded=Limits(number + 1)) for number in range(7)]
        store.group(*[resources.SaveLimits(one) for one in saved])
        page = store.read(resources.ListLimits(), Budget(rows=4, part=3))
        assert len(page.items) == 4
        assert page.next is not None
        found = store.all_of(resources.ListLimits(), Budget(rows=4, part=3))
        assert {one.function: one.commanded for one in found} == {one.function: one.commanded for one in saved}
        assert len(store.read(resources.ListLimits(), Budget(seconds=0.0, part=3)).items) == 3

    def test_the_second_of_two_writers_receives_the_first_ones_limits(self, store: Store) -> None:
        first = FunctionLimits(b"f", commanded=Limits(1))
        second = FunctionLimits(b"f", commanded=Limits(2))
        outcomes = store.group(*[resources.SaveLimits(limits) for limits in (first, second)])
        assert outcomes[0] == outcomes[1]
        assert (outcomes[0].version, outcomes[0].commanded) == (1, Limits(1))
        following = FunctionLimits(b"f", commanded=Limits(2), version=1)
        (stored,) = store.group(resources.SaveLimits(following))
        assert (stored.version, stored.commanded) == (2, Limits(2))


class Granting:
    """Tests of token grants from a shared store. Derived classes have two nodes, ``store`` and ``other``."""

    def test_a_pool_grants_its_tokens(self, store: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, 3, 5)
        assert acquire(store, ask) == [resources.Grant(3)]
        assert acquire(store, ask._replace(tokens=9)) == [resources.Grant(5)]
        assert acquire(store, ask._replace(tokens=2)) == [resources.Grant(2)]
        assert acquire(store, ask._replace(tokens=0)) == [resources.Grant(0)]

    def test_pools_are_independent(self, store: Store) -> None:
        pools = [(b"f", FUNCTION_POOL), (b"g", FUNCTION_POOL), (b"f", pool_of(b"")), (b"f", pool_of(b"\xff"))]
        asks = [resources.TokenRequest(function, pool, 9, number) for number, (function, pool) in enumerate(pools, 1)]
        assert [grant.tokens for grant in acquire(store, *asks)] == [1, 2, 3, 4]

    def test_nodes_share_a_pool_and_learn_of_other_claimants(self, store: Store, other: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, 4, 5)
        assert acquire(store, ask) == [resources.Grant(4)]
        assert acquire(other, ask) == [resources.Grant(1, claimants=2)]
        assert acquire(store, ask) == [resources.Grant(4, claimants=2, short=True)]
        assert acquire(store, ask._replace(tokens=1)) == [resources.Grant(1, claimants=2, short=True)]
        assert acquire(other, ask) == [resources.Grant(4, claimants=2)]
        assert acquire(store, ask._replace(tokens=1)) == [resources.Grant(1, claimants=2)]

    def test_a_lowered_limit_grants_nothing_more(self, store: Store, other: Store) -> None:
        assert acquire(store, resources.TokenRequest(b"f", FUNCTION_POOL, 4, 5))[0].tokens == 4
        lowered = resources.TokenRequest(b"f", FUNCTION_POOL, 5, 3)
        assert acquire(other, lowered)[0].tokens == 0
        assert acquire(store, lowered)[0].tokens == 4, "granted tokens are not revoked"
        assert acquire(store, lowered._replace(tokens=1))[0].tokens == 1
        assert acquire(store, lowered)[0].tokens == 3

    def test_requests_of_one_group_see_each_other(self, store: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, 3, 5, starts=2, rate=Rate(1, 3600 * SECOND, 3))
        first, second = store.group(*[resources.Acquire(store.term, [ask], NOW) for _ in range(2)])
        assert [(grant.tokens, grant.starts) for grant in (*first, *second)] == [(3, 2), (3, 1)]

    def test_tokens_end_with_their_term(self, store: Store, other: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, 5, 5)
        assert acquire(store, ask)[0].tokens == 5
        assert acquire(other, ask)[0].tokens == 0
        other.end_term(store.term)
        assert acquire(other, ask) == [resources.Grant(5)]
        with pytest.raises(StoreFencedError):
            acquire(store, ask)

    def test_a_bucket_grants_its_burst_and_no_more(self, store: Store, other: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, starts=3, rate=Rate(1, 3600 * SECOND, 4))
        (grant,) = acquire(store, ask)
        assert grant.starts == 3
        (grant,) = acquire(other, ask)
        assert grant.starts == 1
        assert grant.next_us > 0
        assert acquire(store, ask)[0].starts == 0

    def test_a_bucket_whose_rate_was_changed_keeps_its_starts(self, store: Store) -> None:
        ask = resources.TokenRequest(b"f", FUNCTION_POOL, starts=1, rate=Rate(1, 3600 * SECOND, 4))
        assert acquire(store, ask)[0].starts == 1
        assert acquire(store, ask._replace(starts=9, rate=Rate(1, 7200 * SECOND, 100)))[0].starts == 3

    def test_nodes_that_claim_by_key_do_not_share(self, store: Store, other: Store) -> None:
        keyed(store, *[b"k%d" % (number % 7) for number in range(60)])
        taken: list[int] = []
        for _ in range(10):
            for node in (store, other):
                taken += [job.id for job in by_key(node, 5, 2).jobs]
        assert len(taken) == len(set(taken)) == 60

    def test_a_node_that_does_not_wait_is_no_claimant(self, store: Store, other: Store) -> None:
        ask = resources.TokenRequest(b"f", pool_of(b"a"), 1, 1)
        assert acquire(store, ask) == [resources.Grant(1)]
        assert acquire(other, ask._replace(waits=False)) == [resources.Grant(0, claimants=2)]
        assert acquire(store, ask) == [resources.Grant(1)]
        assert acquire(store, ask._replace(tokens=0, demand=1)) == [resources.Grant(0)]
        assert acquire(other, ask._replace(waits=False)) == [resources.Grant(1, claimants=2, short=True)]

    def test_jobs_of_a_key_are_claimed_by_the_node_with_its_tokens(self, store: Store, other: Store) -> None:
        keyed(store, *[b"a", b"", b"b", b"c"] * 2)
        for key in (b"a", b"", b"b"):
            acquire(store, resources.TokenRequest(b"f", pool_of(key), 1, 2))
        acquire(other, resources.TokenRequest(b"f", pool_of(b"b"), 1, 2))
        for key in (b"a", b""):
            acquire(store, resources.TokenRequest(b"f", pool_of(key), 2, 2))

        def claim(node: Store, limit: int, enough: frozenset[bytes] = frozenset()) -> ops.ClaimedByKey:
            want = ops.ClaimRequest(b"f", limit)
            (claimed,) = node.group(ops.ClaimByKey(node.term, want, 1, FIRST_ROUND, enough, 2))
            assert isinstance(claimed, ops.ClaimedByKey)
            return claimed

        assert keys(claim(other, 1)) == [b"b"], "the keys of others do not hide those behind them"
        assert keys(claim(other, 9)) == [b"b", b"c"]
        assert sorted(keys(claim(store, 9))) == [b"", b"a", b"c"]
        acquire(store, resources.TokenRequest(b"f", pool_of(b"a"), 0, 2))
        assert keys(claim(other, 9)) == [b"a"]

    def test_a_claim_names_the_skipped_keys_that_have_jobs(self, store: Store, other: Store) -> None:
        keyed(other, b"a", b"b")
        assert by_key(store, 9, 1, enough=frozenset({b"a", b"c"})).skipped == {b"a"}

    def test_claims_by_key_keep_to_their_slots(self, store: Store) -> None:
        jobs = keyed(store, *[b"k%d" % (number % 3) for number in range(30)])
        slots = frozenset(slot_of("default", b"f", b"", job.id) for job in jobs[:5])
        want = ops.ClaimRequest(b"f", 100, slots)
        (claimed,) = store.group(ops.ClaimByKey(store.term, want, 100, FIRST_ROUND, frozenset()))
        assert {job.id for job in claimed.jobs} == {
            job.id for job in jobs if slot_of("default", b"f", b"", job.id) in slots
        }
        late = ops.ClaimRequest(b"f", 100, frozenset(), NOW + 1)
        (claimed,) = store.group(ops.ClaimByKey(store.term, late, 100, FIRST_ROUND, frozenset()))
        assert len(claimed.jobs) == len([job for job in jobs if slot_of("default", b"f", b"", job.id) not in slots]), (
            "every node may claim overdue jobs"
        )
