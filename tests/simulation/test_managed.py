"""Instances of managed resources in a simulated cloud keep their promises, and planted faults are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.resources import instance_store, instances
from mainspring.resources.instance_store import Instances
from mainspring.resources.instances import _Plan

from .managed import SimulationError, simulate

if TYPE_CHECKING:
    from mainspring.resources.instance_store import Tend
    from mainspring.resources.instances import Instance

SEEDS = 25


def is_caught(*, by: str, first: int = 0) -> None:
    """Check that one of the runs fails for the right reason; ``first`` is the first seed."""
    with pytest.raises(SimulationError, match=by):
        simulate(range(first, first + SEEDS))


def test_no_cluster_is_lost_used_after_its_release_or_released_early() -> None:
    simulate(range(10))


def test_a_look_that_counts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the incident: so many looks without a use count as so much idle time."""
    idle = _Plan._idle

    def counting(self: _Plan, one: Instance) -> Instance:
        return idle(self, replace(one, last_use_us=one.last_use_us - 10_000_000))

    monkeypatch.setattr(_Plan, "_idle", counting)
    is_caught(by="it was idle")


def test_a_creation_that_is_repeated_under_another_key_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    with_jobs = Instances._with_jobs

    def renamed(self: Instances, tend: Tend) -> list[Instance]:
        for one in self.of(tend.resource):
            if one.step == instances.CREATE and not one.job and one.tries > 1:
                self._put(replace(one, key=f"mainspring-{one.name}-{tend.nonce}"))
        return with_jobs(self, tend)

    monkeypatch.setattr(Instances, "_with_jobs", renamed)
    is_caught(by="second key")


def test_a_release_that_does_not_look_at_holds_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = _Plan.__init__

    def blind(self: _Plan, pool: Any, now_us: int) -> None:
        begin(self, pool, now_us)
        self._held = set()

    monkeypatch.setattr(_Plan, "__init__", blind)
    is_caught(by="it was idle")


def test_an_end_of_a_hold_that_is_no_use_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instances, "use", lambda *_: None)
    is_caught(by="it was idle", first=11)


def test_idle_time_that_nobody_has_watched_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "UNWATCHED_US", 2**62)
    is_caught(by="it was idle")


def test_what_a_failed_creation_leaves_behind_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes from starting to gone, as if nothing could be there."""
    reported = instances.reported

    def careless(one: Instance, report: Any, managed: Any, now_us: int) -> Instance:
        after = reported(one, report, managed, now_us)
        is_failed = (
            after.failures > one.failures and after.step == "" and after.state == instances.InstanceState.STARTING
        )
        return replace(after, state=instances.InstanceState.GONE, since_us=now_us) if is_failed else after

    monkeypatch.setattr(instance_store, "reported", careless)
    is_caught(by="clusters")
