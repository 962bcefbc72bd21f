from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs.model import Retry, backoff

POLICIES = st.builds(
    Retry,
    initial=st.floats(0, 1e300),
    factor=st.floats(0, 1e300),
    maximum=st.floats(0, 1e300),
    jitter=st.floats(0, 1),
)


@pytest.mark.parametrize(("attempt", "wait"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (5000, 60.0)])
def test_waits_grow_up_to_the_maximum(attempt: int, wait: float) -> None:
    assert backoff(Retry(initial=1.0, factor=2.0, maximum=60.0, jitter=0.5), attempt, 0.5) == wait


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 9.0), (0.25, 9.5), (0.5, 10.0), (1.0, 11.0)])
def test_chance_moves_the_wait_within_the_jitter(chance: float, wait: float) -> None:
    assert backoff(Retry(initial=10.0, jitter=0.1), 1, chance) == pytest.approx(wait)


def test_a_large_jitter_does_not_make_a_wait_negative() -> None:
    assert backoff(Retry(initial=10.0, jitter=3.0), 1, 0.0) == 0.0


@given(policy=POLICIES, attempt=st.integers(1, 10**6), chance=st.floats(0, 1))
def test_every_wait_is_within_its_bounds(policy: Retry, attempt: int, chance: float) -> None:
    wait = backoff(policy, attempt, chance)
    assert 0 <= wait <= policy.maximum * (1 + policy.jitter) * (1 + 1e-9)


@given(factor=st.floats(1, 10), attempt=st.integers(1, 1000))
def test_without_jitter_waits_never_shrink(factor: float, attempt: int) -> None:
    policy = Retry(initial=0.1, factor=factor, maximum=100.0, jitter=0.0)
    assert backoff(policy, attempt, 0.5) <= backoff(policy, attempt + 1, 0.5)


@pytest.mark.parametrize("factor", [math.inf, 1e308, 10**400])
def test_no_factor_overflows(factor: float) -> None:
    assert backoff(Retry(initial=1.0, factor=factor, maximum=60.0, jitter=0.0), 3, 0.5) == 60.0
    assert backoff(Retry(initial=0.0, factor=factor, maximum=60.0, jitter=0.0), 3, 0.5) in {0.0, 60.0}
