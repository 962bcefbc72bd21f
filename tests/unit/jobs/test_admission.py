"""Which job may start next: limits are kept, keys take turns, and nothing that could start is kept waiting."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs.admission import MIN_JOBS, AdmissionQueue, open_own
from mainspring.jobs.held import FunctionQueue, Held
from mainspring.jobs.model import Job, Priority
from mainspring.jobs.token_grants import GrantedAccounts
from mainspring.resources.rules import Limits, Rate
from mainspring.testing import ManualClock

SECOND = 1_000_000
_ids = itertools.count(1)


class Door:
    """An admission queue, with the jobs that have left it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.queue = FunctionQueue(b"f")
        self.admission: AdmissionQueue[Held] = AdmissionQueue(self.clock, open_own)
        self.admission.change(limits or Limits(), paused=False)
        self.out: list[Held] = []

    def make(self, key: str = "", priority: int = Priority.NORMAL) -> Held:
        return Held(Job(next(_ids), b"f", b"", priority=priority, key=key.encode()), b"", self.queue, stored=True)

    def wait(self, held: Held, *, first: bool = False) -> None:
        held.queued = True
        self.admission.push(held, first=first)

    def push(self, key: str = "", priority: int = Priority.NORMAL, *, first: bool = False) -> Held:
        held = self.make(key, priority)
        self.wait(held, first=first)
        return held

    def drop(self, held: Held) -> None:
        held.queued = False
        self.admission.drop(held)

    def pop(self) -> Held | None:
        can = self.admission.startable(1)
        held = self.admission.pop()
        assert can == (held is not None), "what is said to be startable can be had"
        if held is not None:
            held.queued = False
            self.out.append(held)
        return held

    def pops(self, number: int) -> str:
        """The keys of the next jobs."""
        return "".join("-" if (held := self.pop()) is None else held.job.key.decode() or "." for _ in range(number))

    def end(self, at: int = 0) -> None:
        held = self.out.pop(at)
        self.admission.give_back(held.job.key)


# ---- limits ----


def test_no_more_run_at_once_than_the_function_allows() -> None:
    door = Door(Limits(concurrency=2))
    for _ in range(4):
        door.push()
    assert door.pops(3) == "..-"
    door.end()
    assert door.pops(2) == ".-"


def test_no_more_run_at_once_than_a_key_allows() -> None:
    door = Door(Limits(concurrency_per_key=1))
    for key in "aaabbc":
        door.push(key)
    assert door.pops(4) == "abc-"
    door.end(1)
    assert door.pops(2) == "b-"
    door.end(0)
    assert door.pops(2) == "a-"


def test_a_request_for_a_job_alone_keeps_the_limit_of_a_key() -> None:
    door = Door(Limits(concurrency_per_key=1))
    for _ in range(2):
        door.push("a")
    assert door.admission.pop() is not None
    assert door.admission.pop() is None


def test_jobs_without_a_key_are_one_key() -> None:
    door = Door(Limits(concurrency_per_key=1))
    door.push()
    door.push()
    assert door.pops(2) == ".-"


def test_a_rate_lets_a_burst_start_and_then_one_after_the_other() -> None:
    door = Door(Limits(rate=Rate(2, SECOND, 3)))
    for _ in range(9):
        door.push()
    assert door.pops(4) == "...-"
    assert door.admission.next_us() == door.admission.now_us() + SECOND // 2
    door.clock.advance(0.5)
    assert door.pops(2) == ".-"
    door.clock.advance(10)
    assert door.pops(4) == "...-"


def test_each_key_has_a_bucket_of_its_own() -> None:
    door = Door(Limits(rate_per_key=Rate(1, SECOND, 1)))
    for key in "aabbc":
        door.push(key)
    assert door.pops(4) == "abc-"
    following = door.admission.next_us()
    assert following == door.admission.now_us() + SECOND
    door.clock.advance(1)
    assert door.pops(3) == "ab-"


def test_ends_do_not_fill_a_bucket() -> None:
    door = Door(Limits(concurrency_per_key=1, rate_per_key=Rate(1, SECOND, 1)))
    door.push("a")
    door.push("a")
    assert door.pops(1) == "a"
    door.end()
    assert door.pops(1) == "-"
    assert door.admission.next_us() == door.admission.now_us() + SECOND
    door.clock.advance(1)
    assert door.pops(1) == "a"


def test_nothing_leaves_a_paused_gate() -> None:
    door = Door()
    door.push("a")
    door.admission.change(Limits(), paused=True)
    assert door.pops(1) == "-"
    assert not door.admission.admits(b"a")
    door.admission.change(Limits(), paused=False)
    assert door.pops(1) == "a"


def test_a_changed_limit_holds_for_what_runs_already() -> None:
    door = Door()
    for key in "aaab":
        door.push(key)
    assert door.pops(2) == "ab"
    door.admission.change(Limits(concurrency_per_key=1), paused=False)
    assert door.pops(1) == "-"
    door.admission.change(Limits(concurrency=3, concurrency_per_key=2), paused=False)
    assert door.pops(2) == "a-"
    door.admission.change(Limits(), paused=False)
    assert door.pops(1) == "a"
    for _ in range(4):
        door.end()
    assert not door.admission.key_queues


# ---- turns ----


def test_keys_take_turns_however_many_jobs_one_has() -> None:
    door = Door()
    for key in "aaaaabbc":
        door.push(key)
    assert door.pops(9) == "abcabaaa-"


def test_a_key_that_comes_later_waits_for_one_turn_only() -> None:
    door = Door()
    for key in "aaaa":
        door.push(key)
    assert door.pops(1) == "a"
    door.push("b")
    assert door.pops(3) == "aba"


def test_higher_priorities_go_before_turns() -> None:
    door = Door()
    for key, priority in (("a", 1), ("b", 1), ("a", 0), ("a", 0), ("c", 2), ("b", 0)):
        door.push(key, priority)
    assert door.pops(7) == "abaabc-"
    assert [held.job.priority for held in door.out] == [0, 0, 0, 1, 1, 2]


def test_one_keys_jobs_go_in_order_and_the_first_before_them() -> None:
    door = Door()
    jobs = [door.push("a") for _ in range(3)]
    jobs.insert(0, door.push("a", first=True))
    door.pops(4)
    assert door.out == jobs


def test_what_is_claimed_takes_its_place_by_age_among_its_keys_jobs() -> None:
    door = Door(Limits(concurrency_per_key=2))
    jobs = [door.make(key) for key in "abaabaaa"]
    stale = jobs[3]
    for held in [jobs[0], jobs[1], stale, jobs[5], jobs[7]]:
        door.wait(held)
    door.drop(stale)
    claimed = [jobs[2], jobs[4], jobs[6]]
    for held in claimed:
        held.queued = True
    door.admission.merge(claimed)
    assert door.pops(5) == "abab-"
    assert door.out == [jobs[at] for at in (0, 1, 2, 4)]
    door.end(0)
    door.end(1)
    assert door.pops(3) == "aa-"
    assert door.out[2:] == [jobs[5], jobs[6]]
    assert door.admission.key_queues[b"a"].size == door.admission.parked == 1


def test_what_was_taken_out_is_passed_over_and_forgotten() -> None:
    door = Door(Limits(concurrency_per_key=1))
    jobs = [door.push(key) for key in "aab"]
    door.drop(jobs[0])
    assert door.pops(3) == "ab-"
    assert door.out == jobs[1:]
    for number in range(500):
        door.drop(door.push(f"k{number}"))
    assert len(door.admission.key_queues) <= 2
    for _ in range(500):
        door.drop(door.push("a"))
    assert sum(map(len, door.admission.key_queues[b"a"].ready)) <= 200
    assert not list(door.admission.queued())


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 1, 1, 2])), max_size=30),
    st.lists(st.integers(0, 5), max_size=80),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_limits_hold_and_nothing_that_could_start_waits(
    jobs: list[tuple[str, int]], steps: list[int], concurrency: int, per_key: int
) -> None:
    """Jobs come, start and end in any order."""
    door = Door(Limits(concurrency, per_key))
    in_flight = list(jobs)
    waiting: Counter[tuple[bytes, int]] = Counter()
    for step in steps:
        running = Counter(held.job.key for held in door.out)
        if step <= 1 and in_flight:
            key, priority = in_flight.pop()
            door.push(key, priority)
            waiting[key.encode(), priority] += 1
        elif step == 2 and door.out:
            door.end()
        else:
            free = {entry for entry, number in waiting.items() if number and running[entry[0]] < per_key}
            held = door.pop()
            if not free or len(door.out) - (held is not None) >= concurrency:
                assert held is None
            else:
                assert held is not None
                assert held.job.priority == min(priority for _, priority in free)
                waiting[held.job.key, held.job.priority] -= 1
        running = Counter(held.job.key for held in door.out)
        assert running.total() <= concurrency
        assert all(number <= per_key for number in running.values())
        assert door.admission.parked <= sum(line.size for line in door.admission.key_queues.values()) == waiting.total()


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 3), st.randoms(use_true_random=False)
)
def test_nobody_waits_for_more_than_one_turn_of_each_other_key(
    keys: list[str], concurrency: int, chance: object
) -> None:
    """While a key has a job that waits, no other key is served twice before it."""
    door = Door(Limits(concurrency=concurrency))
    for key in keys:
        door.push(key)
    waiting = Counter(key.encode() for key in keys)
    since: dict[bytes, Counter[bytes]] = {key: Counter() for key in waiting}
    while waiting:
        if len(door.out) == concurrency:
            door.end(chance.randrange(concurrency))  # type: ignore[attr-defined]
        held = door.pop()
        assert held is not None
        for other, served in since.items():
            if waiting[other] and other != held.job.key:
                served[held.job.key] += 1
                assert served[held.job.key] <= 1
        since[held.job.key].clear()
        waiting[held.job.key] -= 1
        waiting = +waiting


# ---- what may come ----


def test_a_key_may_have_about_as_many_jobs_here_as_can_start_soon() -> None:
    door = Door(Limits(concurrency_per_key=10))
    assert door.admission.claim_quota() == 20
    door.admission.change(Limits(concurrency_per_key=1), paused=False)
    assert door.admission.claim_quota() == MIN_JOBS
    for _ in range(MIN_JOBS - 1):
        door.admission.expect(b"a")
    assert door.admission.admits(b"a")
    door.admission.expect(b"a")
    assert not door.admission.admits(b"a")
    assert door.admission.admits(b"b")
    assert door.admission.enough() == {b"a"}
    for _ in range(MIN_JOBS):
        door.admission.arrived(b"a")
    assert not door.admission.key_queues


def test_a_function_holds_no_more_than_its_limits_let_start_soon() -> None:
    door = Door(Limits(concurrency=100))
    assert door.admission.room(64) == 64
    door.admission.change(Limits(concurrency=5), paused=False)
    assert door.admission.room(64) == 10
    door.admission.change(Limits(rate=Rate(1, 60 * SECOND, 1)), paused=False)
    assert door.admission.room(64) == MIN_JOBS


def test_keys_that_cannot_start_are_left_out_of_claims() -> None:
    door = Door(Limits(concurrency_per_key=1))
    for key in "aab":
        door.push(key)
    assert door.admission.enough() == set()
    door.pops(3)
    assert door.admission.enough() == {b"a"}, "it is parked; of b nothing waits, so that more may come"
    door.end()
    assert door.admission.enough() == set()


def test_a_key_whose_jobs_have_gone_is_claimed_again() -> None:
    door = Door()
    accounts = GrantedAccounts()
    admission = AdmissionQueue[Held](door.clock, accounts.opener(door.queue))
    admission.change(Limits(concurrency_per_key=1), paused=False)
    door.admission = admission
    waiting = [door.push("a") for _ in range(3)]
    assert door.pops(1) == "-"
    assert admission.enough() == {b"a"}, "the node has no token of it"
    accounts.of[door.queue][b"a"].not_granted(admission.now_us())  # and does not request one for a second
    for held in waiting:
        door.drop(held)
    assert admission.enough() == set(), "claims would skip it for ever, because nothing asks for its token"
    assert not admission.short


def test_a_claim_is_repeated_for_a_skipped_key_that_needs_more_jobs() -> None:
    door = Door(Limits(concurrency_per_key=4))
    for key in "aaaaa":
        door.push(key)
    admission = door.admission
    assert admission.enough() == {b"a"}
    admission.claimed(admission.after, frozenset({b"a"}))
    assert not admission.behind
    door.pop()
    assert admission.behind, "the store has more of them"
    admission.claimed(admission.after, frozenset({b"a"}))
    assert admission.behind, "the key ran short during the claim"
    admission.claimed(admission.after, frozenset())
    door.pop()
    assert not admission.behind


def test_a_claim_that_found_nothing_is_not_repeated_until_something_changes() -> None:
    door = Door(Limits(concurrency_per_key=1))
    for key in "aa":
        door.push(key)
    door.pops(2)
    door.admission.left = 100
    assert door.admission.is_dry(100)
    assert not door.admission.is_dry(101), "there is a new job"
    door.admission.left = 100
    assert door.admission.is_dry(90)
    assert not door.admission.is_dry(91), "one went and another one came"
    door.admission.left = 100
    door.end()
    assert not door.admission.is_dry(100), "a key can go on"
