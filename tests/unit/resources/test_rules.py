"""Buckets never pour more than they may, shares never pass the limit, and two versions of a worker do not flap."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.resources import rules
from mainspring.resources.model import UNLIMITED, FunctionLimits, Limits, Rate

RATES = st.builds(Rate, st.integers(1, 50), st.integers(1_000, 3_000_000), st.integers(1, 60))
TAKES = st.lists(st.tuples(st.integers(0, 500_000), st.integers(0, 80)), min_size=1, max_size=40)
"""Microseconds since the take before, and how many are wanted."""
SECOND = 1_000_000


def poured(rate: Rate, takes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """When how many were taken."""
    bucket, now_us, taken = rules.full(rate, 0), 0, []
    for passed, wanted in takes:
        now_us += passed
        number, bucket = rules.take(rate, bucket, now_us, wanted)
        assert 0 <= number <= wanted
        taken.append((now_us, number))
    return taken


@given(RATES, TAKES)
def test_in_no_time_more_than_the_rate_and_one_burst(rate: Rate, takes: list[tuple[int, int]]) -> None:
    taken = poured(rate, takes)
    for at, (begin, _) in enumerate(taken):
        for (end, _), total in zip(taken[at:], accumulate(number for _, number in taken[at:]), strict=True):
            assert total * rate.per_us <= (end - begin) * rate.number + rate.burst * rate.per_us


@given(RATES, TAKES, st.randoms(use_true_random=False))
def test_starts_that_follow_their_grants_late_keep_to_the_rate_too(
    rate: Rate, takes: list[tuple[int, int]], chance: object
) -> None:
    granted = poured(rules.leased(rate), takes)
    starts = sorted(
        at + chance.randint(0, rules.LAPSE_US)  # type: ignore[attr-defined]
        for at, number in granted
        for _ in range(number)
    )
    burst = max(rate.burst, 1 + -(-rules.LAPSE_US * rate.number // rate.per_us))
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            length = starts[last] - starts[first]
            assert (last - first + 1) * rate.per_us <= length * rate.number + burst * rate.per_us


@given(RATES)
def test_the_worst_that_late_starts_can_do(rate: Rate) -> None:
    """All of a burst is started as late as it may be, together with what was granted meanwhile."""
    granted = poured(rules.leased(rate), [(0, 80), (rules.LAPSE_US, 80)])
    assert sum(number for _, number in granted) <= max(rate.burst, 2 + rules.LAPSE_US * rate.number // rate.per_us)


@given(RATES, st.integers(1, 10_000_000))
def test_an_idle_bucket_fills_up_and_no_further(rate: Rate, wait: int) -> None:
    taken, bucket = rules.take(rate, rules.full(rate, 0), 0, rate.burst)
    assert taken == rate.burst
    assert rules.tokens(rate, bucket, wait) == min(wait * rate.number // rate.per_us, rate.burst)


@given(RATES, TAKES)
def test_the_next_token_comes_when_it_was_told_and_not_before(rate: Rate, takes: list[tuple[int, int]]) -> None:
    bucket, now_us = rules.full(rate, 0), 0
    for passed, wanted in takes:
        now_us += passed
        _, bucket = rules.take(rate, bucket, now_us, wanted)
    following = rules.next_us(rate, bucket)
    assert rules.tokens(rate, bucket, following) >= 1
    if following > now_us:
        assert rules.tokens(rate, bucket, following - 1) == 0


def test_a_clock_that_went_back_adds_nothing_and_stops_nothing() -> None:
    rate = Rate(1, SECOND, 2)
    taken, bucket = rules.take(rate, rules.full(rate, 100 * SECOND), 100 * SECOND, 2)
    assert taken == 2
    assert rules.take(rate, bucket, 10 * SECOND, 1)[0] == 0
    _, bucket = rules.take(rate, bucket, 10 * SECOND, 1)
    assert rules.tokens(rate, bucket, 11 * SECOND) == 1


@given(RATES, RATES, st.integers(0, 60))
def test_a_changed_rate_keeps_what_was_in_the_bucket(before: Rate, after: Rate, taken: int) -> None:
    _, bucket = rules.take(before, rules.full(before, 0), 0, taken)
    left = max(before.burst - taken, 0)
    assert rules.tokens(after, rules.poured(before, after, bucket), 0) == min(left, after.burst)


# ---- tokens of nodes ----


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), max_size=60))
def test_the_sum_of_tokens_never_passes_the_limit(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    """Four nodes ask for more, give back, and end, in any order."""
    held = dict.fromkeys(range(4), 0)
    for node, wanted, ends in steps:
        others = sum(held.values()) - held[node]
        held[node] = 0 if ends else rules.granted(limit, others, held[node], wanted)
        assert sum(held.values()) <= limit
        assert held[node] <= wanted


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_a_lowered_limit_takes_nothing_away_and_gives_nothing_more(before: int, after: int, wanted: int) -> None:
    held = rules.granted(before, 0, 0, wanted)
    assert rules.granted(after, 0, held, wanted) == max(held, min(after, wanted))


@given(st.integers(1, 100), st.integers(1, 100))
def test_fair_shares_fit_together(limit: int, claimants: int) -> None:
    assert rules.fair_share(limit, claimants) * claimants <= limit


# ---- which word counts ----

OLD, NEW = Limits(concurrency=5), Limits(concurrency=10)
MINUTE = 60 * SECOND


def test_a_command_counts_more_than_code() -> None:
    said = rules.declared(FunctionLimits(b"f"), OLD, 0)
    assert rules.effective(said, 0) == OLD
    commanded = FunctionLimits(b"f", said.declared, UNLIMITED)
    assert rules.effective(commanded, 0) == UNLIMITED


def test_a_new_version_counts_from_its_first_worker_on_and_nothing_flaps() -> None:
    said = FunctionLimits(b"f")
    for minute, limits, holds in ((0, OLD, OLD), (1, NEW, NEW), (2, OLD, NEW), (3, NEW, NEW), (4, OLD, NEW)):
        said = rules.declared(said, limits, minute * MINUTE)
        assert rules.effective(said, minute * MINUTE) == holds, f"in minute {minute}"


def test_after_a_rollback_the_older_version_counts_again() -> None:
    said = rules.declared(rules.declared(FunctionLimits(b"f"), OLD, 0), NEW, MINUTE)
    said = rules.declared(said, OLD, 4 * MINUTE)
    assert rules.effective(said, 6 * MINUTE - 1) == NEW
    assert rules.effective(said, 6 * MINUTE) == OLD
    said = rules.declared(said, NEW, 7 * MINUTE)
    assert rules.effective(said, 7 * MINUTE) == NEW, "it was deployed again"
    assert len(said.declared) == 2


def test_what_nobody_says_any_more_is_forgotten() -> None:
    said = rules.declared(FunctionLimits(b"f"), OLD, 0)
    assert rules.effective(said, rules.FORGOTTEN_US) == UNLIMITED


def test_a_declaration_is_repeated_before_it_is_forgotten() -> None:
    said = rules.declared(FunctionLimits(b"f"), OLD, 0)
    assert not rules.is_stale(said, OLD, 1)
    assert rules.is_stale(said, NEW, 1)
    assert rules.is_stale(said, OLD, rules.FORGOTTEN_US // 2)


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (Limits(concurrency=0), "concurrency"),
        (Limits(concurrency_per_key=-1), "concurrency_per_key"),
        (Limits(rate=Rate(0, SECOND, 1)), "rate"),
        (Limits(rate=Rate(1, 0, 1)), "1 ms"),
        (Limits(rate_per_key=Rate(1, SECOND, 0)), "burst"),
        (Limits(rate_per_key=Rate(1, SECOND, 10**6)), "burst"),
    ],
)
def test_what_cannot_be_right_is_told_by_name(limits: Limits, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        rules.check(limits)


def test_what_can_be_right_is_taken() -> None:
    rules.check(UNLIMITED)
    rules.check(Limits(1, 1, Rate(1, 1_000, 1), Rate(1_000_000, 366 * 86_400 * SECOND, 100_000)))
