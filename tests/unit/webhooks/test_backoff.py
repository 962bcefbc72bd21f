"""Decisions after attempts to send a message, and pauses of webhooks."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.webhooks.answer import Answer, Cause, SendError
from mainspring.webhooks.backoff import (
    DELAYS,
    JITTER,
    LONGEST_WISH,
    SLOWEST,
    SPAN,
    Decision,
    Outcome,
    decide,
    retry_after,
)

NOW_US = 1_900_000_000_000_000
HOUR_US = 3_600_000_000
MIDDLE = 0.5
"""The draw without jitter."""
TIMEOUT = SendError(Cause.TIMEOUT, "no answer within 20 s")
DRAWS = st.floats(0, 1)
FAILED = Decision(Outcome.RETRY, 1.0, "x")
GIVEN_UP = Decision(Outcome.GIVE_UP, why="x")


def answer(status: int, wish: str = "") -> Answer:
    return Answer(status, 0.1, wish, "")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("attempt", [1, len(DELAYS), 99])
def test_a_success_delivers(status: int, attempt: int) -> None:
    assert decide(attempt, answer(status), NOW_US, MIDDLE) == Decision(Outcome.DELIVERED)


def test_the_attempts_lie_within_72_hours() -> None:
    assert list(DELAYS[:9]) == [0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000]
    assert 20 * 3600 < DELAYS[9] < 24 * 3600
    delays = [decide(attempt, TIMEOUT, NOW_US, MIDDLE).seconds for attempt in range(1, len(DELAYS))]
    assert delays == list(DELAYS[1:])
    assert sum(delays) == SPAN == 72 * 3600


@given(st.integers(1, len(DELAYS) - 1), DRAWS)
def test_jitter_changes_a_delay_by_a_tenth_at_most(attempt: int, draw: float) -> None:
    seconds = decide(attempt, TIMEOUT, NOW_US, draw).seconds
    assert abs(seconds - DELAYS[attempt]) <= DELAYS[attempt] * JITTER * 1.001


@pytest.mark.parametrize("result", [TIMEOUT, answer(500), answer(404), answer(301), answer(429), answer(199)])
@pytest.mark.parametrize("attempt", [len(DELAYS), len(DELAYS) + 1])
def test_the_last_attempt_gives_up(result: Answer | SendError, attempt: int) -> None:
    decision = decide(attempt, result, NOW_US, MIDDLE)
    assert decision.outcome is Outcome.GIVE_UP
    assert f"{attempt} attempts were all" in decision.why


@pytest.mark.parametrize("attempt", [1, len(DELAYS)])
def test_gone_disables_the_webhook(attempt: int) -> None:
    assert decide(attempt, answer(410, "60"), NOW_US, MIDDLE).outcome is Outcome.DISABLE


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (TIMEOUT, "no answer within 20 s"),
        (answer(500), "answered 500"),
        (answer(302), "redirects are not followed"),
        (answer(404), "answered 404"),
    ],
)
def test_other_answers_are_retried_with_a_reason(result: Answer | SendError, why: str) -> None:
    decision = decide(1, result, NOW_US, MIDDLE)
    assert decision.outcome is Outcome.RETRY
    assert why in decision.why


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_cannot_keep_up_gets_time(status: int) -> None:
    assert decide(1, answer(500), NOW_US, 0).seconds < SLOWEST
    assert decide(1, answer(status), NOW_US, 0).seconds == SLOWEST
    assert decide(1, answer(status, "1000"), NOW_US, 0).seconds == 1000
    assert decide(4, answer(status, "1000"), NOW_US, MIDDLE).seconds == DELAYS[4], "a shorter wish changes nothing"


def test_another_failure_has_no_wish() -> None:
    assert decide(1, answer(500, "1000"), NOW_US, MIDDLE).seconds == DELAYS[1]


@given(st.integers(1, len(DELAYS) - 1), st.integers(0, 10**10 - 1), DRAWS)
def test_a_wish_is_kept_up_to_a_limit(attempt: int, wish: int, draw: float) -> None:
    seconds = decide(attempt, answer(503, str(wish)), NOW_US, draw).seconds
    assert seconds >= min(wish, LONGEST_WISH)
    assert seconds <= max(LONGEST_WISH, DELAYS[attempt]) * (1 + JITTER) + 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("120", 120),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("1e3", 0),
        ("٣", 0),
        ("99999999999", 0),
        (formatdate(NOW_US / 1e6 + 90, usegmt=True), 90),
        (formatdate(NOW_US / 1e6 - 90, usegmt=True), 0),
        (formatdate(NOW_US / 1e6 + 90), 90),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 0),
        ("Wed, 21 Oct 99999 07:28:00 GMT", 0),
    ],
)
def test_a_wish_is_a_number_or_a_date(text: str, seconds: float) -> None:
    found = retry_after(text, NOW_US)
    assert found == seconds or (found > seconds and "9999" in text)


@given(st.text(max_size=40))
def test_any_text_is_a_wish_or_none(text: str) -> None:
    assert retry_after(text, NOW_US) >= 0
