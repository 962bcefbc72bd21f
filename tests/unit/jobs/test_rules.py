from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import IllegalTransitionError
from mainspring.ids import slot_of
from mainspring.jobs import rules
from mainspring.jobs.model import Job, Options, Retry, State
from mainspring.jobs.rules import TRANSITIONS, Event

PAIRS = list(itertools.product(State, Event))
NOW = 1_700_000_000_000_000
POLICY = Retry(max_attempts=3, initial=1.0, factor=2.0, maximum=60.0, jitter=0.0)


def job(state: State = State.LEASED, *, attempt: int = 0, suspects: int = 0) -> Job:
    return Job(1, b"f", b"", state=int(state), attempt=attempt, suspects=suspects, term=7)


# ---- the table ----


@pytest.mark.parametrize("pair", list(TRANSITIONS), ids=str)
def test_a_row_of_the_table_is_a_step(pair: tuple[State, Event]) -> None:
    assert rules.step(*pair) is TRANSITIONS[pair]
    assert pair[0] in rules.sources(pair[1])
    assert rules.target(pair[1]) is TRANSITIONS[pair]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in TRANSITIONS], ids=str)
def test_everything_else_raises_and_says_what(pair: tuple[State, Event]) -> None:
    with pytest.raises(IllegalTransitionError, match=f"{pair[0].name.lower()} cannot {pair[1].value}"):
        rules.step(*pair)
    assert pair[0] not in rules.sources(pair[1])


@pytest.mark.parametrize("event", Event)
def test_an_event_leads_to_one_state(event: Event) -> None:
    assert {after for (_, legal), after in TRANSITIONS.items() if legal is event} == {rules.target(event)}


def test_a_success_is_final() -> None:
    assert not [event for event in Event if (State.SUCCEEDED, event) in TRANSITIONS]


def test_ended_jobs_can_only_be_redriven() -> None:
    assert {event for before, event in TRANSITIONS if before.ended} == {Event.REDRIVE, Event.REDRIVE_LATER}


@pytest.mark.parametrize(
    ("before", "due_us", "after"),
    [
        (State.PENDING, None, State.PENDING),
        (State.SCHEDULED, None, State.SCHEDULED),
        (State.PENDING, 10, State.PENDING),
        (State.SCHEDULED, 10, State.PENDING),
        (State.PENDING, 11, State.SCHEDULED),
        (State.SCHEDULED, 11, State.SCHEDULED),
    ],
)
def test_a_waiting_job_is_rescheduled(before: State, due_us: int | None, after: State) -> None:
    assert rules.rescheduled(before, due_us, 10) is after


def test_a_job_that_does_not_wait_is_not_postponed() -> None:
    for state in set(State) - {State.SCHEDULED, State.PENDING}:
        with pytest.raises(IllegalTransitionError):
            rules.rescheduled(state, 11, 10)


def test_whatever_ends_a_lease_is_legal_from_both_held_states() -> None:
    leased, running = (
        {event for state, event in TRANSITIONS if state is held} for held in (State.LEASED, State.RUNNING)
    )
    assert leased == running


def test_every_state_can_be_reached_and_every_live_one_left() -> None:
    reached = {State.SCHEDULED, State.PENDING, State.LEASED}
    for _ in State:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(State)
    assert {before for before, _ in TRANSITIONS} >= {state for state in State if not state.ended}


def test_the_stores_compare_states_by_number() -> None:
    assert [state for state in State if state.held] == [State.LEASED, State.RUNNING]
    assert [state for state in State if state.ended] == [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED]
    assert [int(state) for state in State] == list(range(8))


# ---- settlements ----


def test_a_success_counts_its_attempt() -> None:
    settlement = rules.succeeded(job(attempt=2), b"r", NOW - 5, NOW)
    assert (settlement.event, settlement.counted, settlement.result) == (Event.SUCCEED, 3, b"r")
    assert (settlement.started_us, settlement.ended_us, settlement.error) == (NOW - 5, NOW, b"")


@pytest.mark.parametrize(
    ("attempt", "policy", "final", "event"),
    [
        (0, POLICY, False, Event.RETRY),
        (1, POLICY, False, Event.RETRY),
        (2, POLICY, False, Event.FAIL),
        (9, POLICY, False, Event.FAIL),
        (0, POLICY, True, Event.FAIL),
        (0, None, False, Event.FAIL),
        (0, Retry(max_attempts=1), False, Event.FAIL),
    ],
)
def test_a_failure_is_tried_again_while_attempts_are_left(
    attempt: int, policy: Retry | None, final: bool, event: Event
) -> None:
    settlement = rules.failed(job(attempt=attempt), policy, b"{}", NOW - 5, NOW, final=final, chance=0.5)
    assert (settlement.event, settlement.counted, settlement.error) == (event, attempt + 1, b"{}")
    if event is Event.RETRY:
        assert (settlement.due_us, settlement.ended_us) == (NOW + 1_000_000 * 2**attempt, 0)
    else:
        assert (settlement.due_us, settlement.ended_us) == (0, NOW)


@given(
    attempt=st.integers(0, 10_000),
    policy=st.builds(
        Retry,
        max_attempts=st.just(100_000),
        initial=st.floats(0, allow_nan=False),
        factor=st.floats(0, allow_nan=False),
        maximum=st.floats(0, allow_nan=False),
        jitter=st.floats(0, 10),
    ),
    chance=st.floats(0, 1),
)
def test_no_policy_leaves_the_stores_integers(attempt: int, policy: Retry, chance: float) -> None:
    settlement = rules.failed(job(attempt=attempt), policy, b"", NOW, NOW, final=False, chance=chance)
    assert NOW <= settlement.due_us < 2**63


@given(st.floats(0, allow_nan=False))
def test_any_duration_fits(seconds: float) -> None:
    assert 0 <= rules.duration_us(seconds) < 2**62
    assert -(2**63) < rules.kept_since(NOW, seconds) <= NOW


def test_the_jobs_of_a_run_have_its_slot() -> None:
    plain, of_a_run = (Job(5, b"f", b"", b"u", options=options) for options in (None, Options(run=(42, 7))))
    assert rules.slot(plain) == slot_of("default", b"f", b"u", 5) != 7
    assert rules.slot(of_a_run) == 7


def test_a_job_that_ran_in_a_lost_node_counts_an_attempt_and_others_a_suspect() -> None:
    held = [job(State.RUNNING, attempt=1, suspects=1), job(State.LEASED, attempt=1, suspects=1)]
    settlements = rules.recovered(held)
    assert [(one.event, one.counted, one.job.suspects) for one in settlements] == [
        (Event.LOSE, 2, 1),
        (Event.LOSE, 1, 2),
    ]


@pytest.mark.parametrize(
    ("attempt", "policy", "limit", "out"),
    [
        (2, POLICY, 0, False),
        (3, POLICY, None, True),
        (1, None, None, False),
        (999, None, None, False),
        (1, None, 1, True),
        (1, None, 2, False),
        (2, None, 2, True),
        (0, None, 0, False),
        (1, None, 0, True),
    ],
)
def test_lost_workers_use_attempts_up(attempt: int, policy: Retry | None, limit: int | None, out: bool) -> None:
    assert rules.out_of_attempts(job(attempt=attempt), policy, limit) is out
