"""Buckets keep to their rates, tokens of nodes keep to the limit, and limits of two worker versions do not alternate."""

from __future__ import annotations

from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.resources import rules
from mainspring.resources.holds import Line
from mainspring.resources.rules import (
    NO_TIMES,
    UNLIMITED,
    FunctionLimits,
    Limits,
    Rate,
    Times,
    decode_limits,
    encode_limits,
)

RATES = st.builds(Rate, st.integers(1, 50), st.integers(1_000, 3_000_000), st.integers(1, 60))
REQUESTS = st.lists(st.tuples(st.integers(0, 500_000), st.integers(0, 80)), min_size=1, max_size=40)
"""Microseconds since the last request, and the number of wanted tokens."""
SECOND = 1_000_000


def consumed(rate: Rate, requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the time and number of consumed tokens for each request."""
    bucket, now_us, numbers = rules.full(rate, 0), 0, []
    for passed, wanted in requests:
        now_us += passed
        number, bucket = rules.consume(rate, bucket, now_us, wanted)
        assert 0 <= number <= wanted
        numbers.append((now_us, number))
    return numbers


@given(RATES, REQUESTS)
def test_no_time_span_has_more_tokens_than_rate_and_burst(rate: Rate, requests: list[tuple[int, int]]) -> None:
    numbers = consumed(rate, requests)
    for at, (begin, _) in enumerate(numbers):
        for (end, _), total in zip(numbers[at:], accumulate(number for _, number in numbers[at:]), strict=True):
            assert total * rate.per_us <= (end - begin) * rate.number + rate.burst * rate.per_us


@given(RATES, REQUESTS, st.randoms(use_true_random=False))
def test_late_starts_keep_to_the_rate(rate: Rate, requests: list[tuple[int, int]], chance: object) -> None:
    granted = consumed(rules.grant_rate(rate), requests)
    starts = sorted(
        at + chance.randint(0, rules.GRANT_EXPIRY_US)  # type: ignore[attr-defined]
        for at, number in granted
        for _ in range(number)
    )
    burst = max(rate.burst, 1 + -(-rules.GRANT_EXPIRY_US * rate.number // rate.per_us))
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            length = starts[last] - starts[first]
            assert (last - first + 1) * rate.per_us <= length * rate.number + burst * rate.per_us


@given(RATES)
def test_late_starts_of_a_whole_burst_keep_to_the_bound(rate: Rate) -> None:
    """A whole burst starts as late as possible, together with the grants of that time."""
    granted = consumed(rules.grant_rate(rate), [(0, 80), (rules.GRANT_EXPIRY_US, 80)])
    assert sum(number for _, number in granted) <= max(
        rate.burst, 2 + rules.GRANT_EXPIRY_US * rate.number // rate.per_us
    )


@given(RATES, st.integers(1, 10_000_000))
def test_an_idle_bucket_fills_up_to_its_burst(rate: Rate, wait: int) -> None:
    number, bucket = rules.consume(rate, rules.full(rate, 0), 0, rate.burst)
    assert number == rate.burst
    assert rules.tokens(rate, bucket, wait) == min(wait * rate.number // rate.per_us, rate.burst)


@given(RATES, REQUESTS)
def test_the_next_token_is_there_at_the_returned_time_and_not_before(
    rate: Rate, requests: list[tuple[int, int]]
) -> None:
    bucket, now_us = rules.full(rate, 0), 0
    for passed, wanted in requests:
        now_us += passed
        _, bucket = rules.consume(rate, bucket, now_us, wanted)
    following = rules.next_us(rate, bucket)
    assert rules.tokens(rate, bucket, following) >= 1
    if following > now_us:
        assert rules.tokens(rate, bucket, following - 1) == 0


def test_a_clock_set_back_neither_adds_nor_blocks_tokens() -> None:
    rate = Rate(1, SECOND, 2)
    number, bucket = rules.consume(rate, rules.full(rate, 100 * SECOND), 100 * SECOND, 2)
    assert number == 2
    assert rules.consume(rate, bucket, 10 * SECOND, 1)[0] == 0
    _, bucket = rules.consume(rate, bucket, 10 * SECOND, 1)
    assert rules.tokens(rate, bucket, 11 * SECOND) == 1


@given(RATES, RATES, st.integers(0, 60))
def test_a_bucket_keeps_its_tokens_when_its_rate_changes(before: Rate, after: Rate, number: int) -> None:
    _, bucket = rules.consume(before, rules.full(before, 0), 0, number)
    left = max(before.burst - number, 0)
    assert rules.tokens(after, rules.converted(before, after, bucket), 0) == min(left, after.burst)


# ---- tokens of nodes ----


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), max_size=60))
def test_the_sum_of_tokens_never_exceeds_the_limit(limit: int, steps: list[tuple[int, int, bool]]) -> None:
    """Four nodes request more tokens, release some, and end, in any order."""
    held = dict.fromkeys(range(4), 0)
    for node, wanted, ends in steps:
        others = sum(held.values()) - held[node]
        held[node] = 0 if ends else rules.grantable(limit, others, held[node], wanted)
        assert sum(held.values()) <= limit
        assert held[node] <= wanted


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_a_lowered_limit_neither_revokes_nor_grants_tokens(before: int, after: int, wanted: int) -> None:
    held = rules.grantable(before, 0, 0, wanted)
    assert rules.grantable(after, 0, held, wanted) == max(held, min(after, wanted))


@given(st.integers(1, 100), st.integers(1, 100))
def test_the_sum_of_fair_shares_keeps_to_the_limit(limit: int, claimants: int) -> None:
    assert rules.fair_share(limit, claimants) * claimants <= limit


# ---- precedence of limits ----

OLD, NEW = Limits(concurrency=5), Limits(concurrency=10)
MINUTE = 60 * SECOND


def test_a_command_keeps_the_use_of_resources() -> None:
    uses = (Line("licence", 2),)
    function = rules.with_declaration(FunctionLimits(b"f"), Limits(concurrency=9, uses=uses), 0)
    commanded = msgspec.structs.replace(function, commanded=Limits(concurrency=1))
    assert rules.effective(commanded, 1) == Limits(concurrency=1, uses=uses)


def test_a_command_overrides_code() -> None:
    function = rules.with_declaration(FunctionLimits(b"f"), OLD, 0)
    assert rules.effective(function, 0) == OLD
    commanded = FunctionLimits(b"f", function.declared, UNLIMITED)
    assert rules.effective(commanded, 0) == UNLIMITED


def test_a_new_version_applies_from_its_first_worker_on_and_limits_do_not_alternate() -> None:
    function = FunctionLimits(b"f")
    for minute, limits, holds in ((0, OLD, OLD), (1, NEW, NEW), (2, OLD, NEW), (3, NEW, NEW), (4, OLD, NEW)):
        function = rules.with_declaration(function, limits, minute * MINUTE)
        assert rules.effective(function, minute * MINUTE) == holds, f"in minute {minute}"


def test_the_older_version_applies_after_a_rollback() -> None:
    function = rules.with_declaration(rules.with_declaration(FunctionLimits(b"f"), OLD, 0), NEW, MINUTE)
    function = rules.with_declaration(function, OLD, 4 * MINUTE)
    assert rules.effective(function, 6 * MINUTE - 1) == NEW
    assert rules.effective(function, 6 * MINUTE) == OLD
    function = rules.with_declaration(function, NEW, 7 * MINUTE)
    assert rules.effective(function, 7 * MINUTE) == NEW, "it was deployed again"
    assert len(function.declared) == 2


def test_a_declaration_expires() -> None:
    function = rules.with_declaration(FunctionLimits(b"f"), OLD, 0)
    assert rules.effective(function, rules.DECLARATION_EXPIRY_US) == UNLIMITED


def test_a_declaration_is_repeated_before_it_expires() -> None:
    function = rules.with_declaration(FunctionLimits(b"f"), OLD, 0)
    assert not rules.is_stale(function, OLD, 1)
    assert rules.is_stale(function, NEW, 1)
    assert rules.is_stale(function, OLD, rules.DECLARATION_EXPIRY_US // 2)


# ---- times ----

SLOW, QUICK = Times(deadline=60.0), Times(start_within=1.0, deadline=5.0)


def test_the_times_of_the_newest_code_apply() -> None:
    function = FunctionLimits(b"f")
    for minute, times, holds in ((0, SLOW, SLOW), (1, QUICK, QUICK), (2, SLOW, QUICK), (3, NO_TIMES, NO_TIMES)):
        function = rules.with_times(function, times, minute * MINUTE)
        assert rules.effective_times(function, minute * MINUTE) == holds, f"in minute {minute}"
    assert rules.effective_times(rules.with_times(function, SLOW, 7 * MINUTE), 8 * MINUTE) == SLOW, "after a rollback"


def test_times_apply_without_a_worker_and_end_with_code_that_has_none() -> None:
    function = rules.with_times(rules.with_times(FunctionLimits(b"f"), SLOW, 0), QUICK, MINUTE)
    function = rules.with_times(function, SLOW, 2 * MINUTE)
    assert rules.effective_times(function, 90 * 24 * 60 * MINUTE) == SLOW, "its worker was there last"
    assert rules.with_times(function, NO_TIMES, 99 * MINUTE) == FunctionLimits(b"f")
    assert decode_limits(encode_limits(function), b"f", 1) == function


def test_times_are_written_when_they_are_new_and_before_they_expire() -> None:
    assert not rules.are_times_stale(FunctionLimits(b"f"), NO_TIMES, 0)
    function = rules.with_times(FunctionLimits(b"f"), SLOW, 0)
    stale = [
        rules.are_times_stale(function, times, at)
        for times, at in ((SLOW, 1), (QUICK, 1), (NO_TIMES, 1), (SLOW, 2 * MINUTE))
    ]
    assert stale == [False, True, True, True]


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
def test_an_invalid_limit_is_refused_with_its_name(limits: Limits, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        rules.check(limits)


def test_valid_limits_are_accepted() -> None:
    rules.check(UNLIMITED)
    rules.check(Limits(1, 1, Rate(1, 1_000, 1), Rate(1_000_000, 366 * 86_400 * SECOND, 100_000)))


# ---- a clock that was ahead ----

DAY = 1440 * MINUTE


def test_declarations_of_a_clock_that_was_ahead_are_repeated_and_expire() -> None:
    function = rules.with_declaration(rules.with_declaration(FunctionLimits(b"f"), OLD, DAY), NEW, DAY + 1)
    assert rules.effective(function, MINUTE) == NEW
    assert rules.is_stale(function, NEW, MINUTE), "its worker declares it again"
    function = rules.with_declaration(function, OLD, MINUTE)
    assert rules.effective(function, 2 * MINUTE) == NEW, "it is still the newer one"
    function = rules.with_declaration(function, OLD, 5 * MINUTE)
    assert rules.effective(function, 7 * MINUTE) == OLD, "no worker has repeated the newer one"
    newest = Limits(concurrency=7)
    function = rules.with_declaration(function, newest, 7 * MINUTE)
    assert rules.effective(function, 7 * MINUTE) == newest, "newer than one whose first time lies ahead"


def test_a_demand_of_a_clock_that_was_ahead_does_not_count() -> None:
    others = [rules.Holding(1, 5, DAY)]
    assert not rules.divide(others, 10, 0, 1, MINUTE).short
    assert rules.divide(others, 10, 0, 1, DAY + 1).short
