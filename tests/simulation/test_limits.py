"""Random runs of a fleet with limits and faults of every kind, and planted faults that the runs detect."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mainspring.jobs.outcomes import Subscriptions
from mainspring.jobs.token_grants import GrantedAccount
from mainspring.resources import rules
from tests import shared_memory

from .fleet.limited import LimitedWorld
from .fleet.running import simulate_fleet
from .stores import SimulationError

if TYPE_CHECKING:
    from mainspring.resources.store import Grant, TokenRequest

CHUNK = 20
Plant = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, 40, CHUNK))
def test_concurrency_stays_within_its_limit_and_all_jobs_run(first: int) -> None:
    assert simulate_fleet(*range(first, first + CHUNK), kind=LimitedWorld) > CHUNK


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_concurrency_stays_within_its_limit_in_many_runs(first: int) -> None:
    simulate_fleet(*range(first, first + 1000), kind=LimitedWorld)


def is_caught(seeds: int, *, by: str) -> None:
    """Check that one of the runs fails for the right reason."""
    for seed in range(seeds):
        try:
            simulate_fleet(seed, kind=LimitedWorld)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("no run has detected the fault")


def test_granting_tokens_that_others_hold_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(rules, "grantable", lambda limit, _others, _held, wanted: min(limit, wanted))
    is_caught(20, by="run at once")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_using_tokens_of_an_ended_term_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(GrantedAccount, "forget", lambda _: None)
    is_caught(100, by="run at once")


def test_keeping_tokens_of_ended_terms_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(shared_memory, "end_places", lambda *_: None)
    is_caught(20, by="never ends")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_passing_on_unused_tokens_is_detected(monkeypatch: Plant) -> None:
    granted = GrantedAccount.granted

    def generous(self: GrantedAccount, ask: TokenRequest, grant: Grant, now_us: int, store_us: int) -> None:
        self.leased = max(self.leased, grant.tokens)  # as if it had held them before
        granted(self, ask, grant, now_us, store_us)

    monkeypatch.setattr(GrantedAccount, "granted", generous)
    is_caught(400, by="never ends")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_losing_the_token_of_a_job_dropped_during_its_assignment_is_detected(monkeypatch: Plant) -> None:
    def dropped(self: Subscriptions, ids: set[int]) -> None:
        for job_id in ids:
            held = self._table.find(job_id)
            if held is not None:
                held.queue.leased -= 1
                self._assigner.release(held)

    monkeypatch.setattr(Subscriptions, "_dropped", dropped)
    is_caught(400, by="never ends")
