"""Random runs of a fleet with resources and faults of every kind, and planted faults that the runs detect."""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.holds import MemoryHolds
from mainspring.jobs.hold_requests import HoldRequests
from mainspring.jobs.lost_slots import LostSlots
from mainspring.jobs.model import State
from mainspring.resources import hold_store

from .fleet.resourceful import ResourceWorld
from .fleet.running import simulate_fleet
from .stores import SimulationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.access.caller import Act
    from mainspring.jobs.held import Held
    from mainspring.resources.holds import Hold, Holder, Request

CHUNK = 15
Plant = pytest.MonkeyPatch


class Counted(ResourceWorld):
    """Runs whose accounts are added up."""

    all_taken = all_most = 0

    def run(self, steps: int) -> None:
        """Run, and count."""
        super().run(steps)
        Counted.all_taken += self.taken
        Counted.all_most += self.most


@pytest.mark.parametrize("first", range(0, 2 * CHUNK, CHUNK))
def test_no_slot_has_two_holders_and_all_jobs_run(first: int) -> None:
    before = Counted.all_taken, Counted.all_most
    assert simulate_fleet(*range(first, first + CHUNK), kind=Counted) > CHUNK
    assert Counted.all_taken > before[0], "an operator has taken slots away"
    assert Counted.all_most > before[1] + 100, "slots were short"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 6000, 1000))
def test_no_slot_has_two_holders_in_many_runs(first: int) -> None:
    simulate_fleet(*range(first, first + 1000), kind=ResourceWorld)


def is_caught(seeds: int, *, by: str) -> None:
    """Check that one of the runs fails for the right reason."""
    found = []
    for seed in range(seeds):
        try:
            simulate_fleet(seed, kind=ResourceWorld)
        except SimulationError as error:
            found.append(str(error)[:200])
            if re.search(by, str(error)):
                return
    pytest.fail(f"no run has detected the fault: {found}")


def replant(patches: Plant, module: Any, name: str, text: str, instead: str) -> None:
    """Replace a text in the source of a function."""
    source = inspect.getsource(getattr(module, name))
    assert source.count(text) == 1, text
    found: dict[str, Any] = {}
    exec(
        compile(f"from __future__ import annotations\n{source.replace(text, instead)}", name, "exec"),
        vars(module),
        found,
    )
    assert isinstance(found[name], FunctionType)
    patches.setattr(module, name, found[name])


def test_a_slot_that_is_given_twice_after_a_repeated_question_is_detected(monkeypatch: Plant) -> None:
    replant(
        monkeypatch,
        hold_store,
        "_answers",
        "if holder not in had and holder not in rows.ended}",
        "if holder not in rows.ended}",
    )
    is_caught(20, by="asked for")


def test_granting_slots_that_others_hold_is_detected(monkeypatch: Plant) -> None:
    replant(monkeypatch, hold_store, "_answers", "decide(resources, rows.holds,", "decide(resources, (),")
    is_caught(5, by="holders, and")


def test_a_hold_that_is_kept_at_a_cancel_is_detected(monkeypatch: Plant) -> None:
    is_leased = MemoryHolds.leased

    async def leased(self: MemoryHolds, holders: Collection[Holder]) -> Mapping[Holder, bool]:
        jobs = self._tables.jobs
        found = {one: True for one in holders if one.id in jobs and jobs[one.id].state == State.CANCELLED}
        return found | dict(await is_leased(self, holders))

    def left(self: HoldRequests, held: Held) -> None:
        held.slots = None
        self.granted.pop(held.job.id, None)

    monkeypatch.setattr(MemoryHolds, "leased", leased)
    monkeypatch.setattr(HoldRequests, "left", left)
    is_caught(20, by="is of a job that is CANCELLED|leaked")


def test_a_request_that_is_kept_after_the_end_of_its_job_is_detected(monkeypatch: Plant) -> None:
    async def drop(self: hold_store._Rows, holders: Collection[Holder]) -> tuple[list[Hold], list[Request]]:
        holds = [one for one in self.holds if one.holder in holders]
        await self._tables.delete(holds, [])
        self.holds = [one for one in self.holds if one.holder not in holders]
        return holds, []

    monkeypatch.setattr(hold_store._Rows, "drop", drop)
    is_caught(20, by="this never ends")


def test_giving_slots_away_before_the_attempt_has_ended_is_detected(monkeypatch: Plant) -> None:
    async def take(self: LostSlots, held: Held, resource: str, act: Act, *, cancel: bool) -> None:
        del resource, act, cancel
        self._requests.left(held)

    monkeypatch.setattr(LostSlots, "_take", take)
    is_caught(20, by="runs with 0 slots")
