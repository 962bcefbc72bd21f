"""The rules for a submit whose unique has a live job."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.conflicts.rules import (
    OnConflict,
    Rule,
    Step,
    decide,
    has_begun,
    rule_of,
)
from mainspring.errors import UsageError
from mainspring.jobs.model import UNIQUE_LIMIT, Job, State
from mainspring.jobs.successors import awaited_unique, successor_unique

TABLE = {
    ("join", False): Step.JOIN,
    ("join", True): Step.JOIN,
    ("skip", False): Step.SKIP,
    ("skip", True): Step.SKIP,
    ("replace_input", False): Step.REPLACE,
    ("replace_input", True): Step.FOLLOW,
    ("cancel_old", False): Step.CANCEL,
    ("cancel_old", True): Step.STOP,
}
UNIQUES = st.binary(min_size=1, max_size=UNIQUE_LIMIT)


@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
@pytest.mark.parametrize("begun", [False, True])
def test_each_rule_has_its_step(on_conflict: OnConflict, begun: bool) -> None:
    assert decide(Rule(on_conflict), has_begun=begun) is TABLE[on_conflict, begun]


def test_a_debounced_job_that_waits_is_not_cancelled() -> None:
    assert decide(Rule("cancel_old", 1), has_begun=False) is Step.REPLACE
    assert decide(Rule("cancel_old", 1), has_begun=True) is Step.STOP


@pytest.mark.parametrize(
    ("job", "begun"),
    [
        (Job(1, b"f", b"", state=State.SCHEDULED), False),
        (Job(1, b"f", b"", state=State.PENDING), False),
        (Job(1, b"f", b"", state=State.LEASED), True),
        (Job(1, b"f", b"", state=State.RUNNING), True),
        (Job(1, b"f", b"", state=State.SCHEDULED, attempt=1), True),
        (Job(1, b"f", b"", state=State.PENDING, started_us=1), True),
    ],
)
def test_a_job_has_begun_with_its_first_lease(job: Job, begun: bool) -> None:
    assert has_begun(job) is begun


def test_a_plain_join_needs_no_rule() -> None:
    assert rule_of(None, None, None, b"") is None
    assert rule_of("join", None, None, b"u") is None


def test_a_debounce_replaces_the_input() -> None:
    assert rule_of(None, 2.0, None, b"u") == Rule("replace_input", 2_000_000)
    assert rule_of("cancel_old", 2.0, 9.5, b"u") == Rule("cancel_old", 2_000_000, 9_500_000)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("skip", None, None, b""), "needs a unique"),
        ((None, 1.0, None, b""), "debounce needs a unique"),
        ((None, None, 1.0, b"u"), "give debounce too"),
        (("skip", 1.0, None, b"u"), "keeps the first"),
        (("join", 1.0, None, b"u"), "keeps the first"),
        ((None, 2.0, 1.0, b"u"), "less than the debounce"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: tuple[OnConflict, float, float, bytes], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        rule_of(*options)


@given(
    st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**12), st.lists(st.integers(0, 10**9), max_size=20)
)
def test_a_debounced_job_runs_after_the_last_submit_and_within_the_maximum(
    debounce: int, more: int, first: int, gaps: list[int]
) -> None:
    rule = Rule("replace_input", debounce, debounce + more)
    now = first
    due = rule.due_us(first, now)
    for gap in gaps:
        now += gap
        if now >= due:
            break
        later = rule.due_us(first, now)
        assert due <= later <= first + debounce + more
        assert later == now + debounce or later == first + debounce + more
        due = later


@given(UNIQUES, UNIQUES)
def test_successors_have_uniques_of_their_own(one: bytes, other: bytes) -> None:
    assert len(successor_unique(one)) > UNIQUE_LIMIT, "no client may give it"
    assert awaited_unique(successor_unique(one)) == one
    assert awaited_unique(one) == b""
    assert (successor_unique(one) == successor_unique(other)) is (one == other)
