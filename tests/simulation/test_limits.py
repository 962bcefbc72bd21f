"""The limits of a fleet under every kind of trouble, and that the runs fail where a guard is taken away."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory import resources
from mainspring.jobs.subscriptions import Subscriptions
from mainspring.jobs.token_grants import GrantedAccount
from mainspring.resources import rules

from .fleet.limited import LimitedWorld
from .fleet.running import simulate_fleet
from .stores import SimulationError

if TYPE_CHECKING:
    from mainspring.resources.store import Grant, TokenRequest

CHUNK = 20
Plant = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_no_more_run_at_once_than_may_and_all_run_in_the_end(first: int) -> None:
    assert simulate_fleet(*range(first, first + CHUNK), kind=LimitedWorld) > CHUNK


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_no_more_run_at_once_than_may_for_long(first: int) -> None:
    simulate_fleet(*range(first, first + 1000), kind=LimitedWorld)


def is_caught(seeds: int, *, by: str) -> None:
    """One of so many runs fails, and for the right reason."""
    for seed in range(seeds):
        try:
            simulate_fleet(seed, kind=LimitedWorld)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("nobody has noticed")


def test_tokens_given_whoever_has_them(monkeypatch: Plant) -> None:
    monkeypatch.setattr(rules, "grantable", lambda limit, _others, _held, wanted: min(limit, wanted))
    is_caught(20, by="run at once")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_tokens_of_an_ended_term_used_on(monkeypatch: Plant) -> None:
    monkeypatch.setattr(GrantedAccount, "forget", lambda _: None)
    is_caught(100, by="run at once")


def test_tokens_of_ended_terms_kept(monkeypatch: Plant) -> None:
    monkeypatch.setattr(resources, "end", lambda *_: None)
    is_caught(20, by="never ends")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_tokens_passed_on_unused(monkeypatch: Plant) -> None:
    granted = GrantedAccount.granted

    def generous(self: GrantedAccount, ask: TokenRequest, grant: Grant, now_us: int, store_us: int) -> None:
        self.leased = max(self.leased, grant.tokens)  # as if it had had them before
        granted(self, ask, grant, now_us, store_us)

    monkeypatch.setattr(GrantedAccount, "granted", generous)
    is_caught(400, by="never ends")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_token_of_a_job_that_was_dropped_while_it_was_handed_out(monkeypatch: Plant) -> None:
    def dropped(self: Subscriptions, ids: set[int]) -> None:
        for job_id in ids:
            held = self._table.find(job_id)
            if held is not None:
                held.queue.leased -= 1
                self._serving.release(held)

    monkeypatch.setattr(Subscriptions, "_dropped", dropped)
    is_caught(400, by="never ends")
