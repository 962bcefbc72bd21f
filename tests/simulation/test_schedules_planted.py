"""The simulation of schedules detects planted faults: each test removes one guard, and the runs must fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.engines.memory.schedules import MemorySchedules
from mainspring.faces.gearman.peer import Peer
from mainspring.jobs.slices import Units
from mainspring.schedules import consequences, unit
from mainspring.schedules.consequences import ScheduleChanges
from mainspring.schedules.parents import Graph
from mainspring.schedules.service import ScheduleService
from mainspring.schedules.store import Due
from mainspring.schedules.unit import ScheduleUnit
from mainspring.server.fleet import Fleet

from .schedules.running import simulate_schedules
from .stores import SimulationError
from .wires import wait_for_answers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.errors import MainspringError
    from mainspring.jobs.owners import Ended, Notice, Notices
    from mainspring.schedules.model import Fire
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Change, FireSchedules, Refused, TriggerSchedule, Writes
    from mainspring.storage.engine import Plan

Plant = pytest.MonkeyPatch


def is_caught(seeds: int, *, by: str, first: int = 0) -> None:
    """Check that one of the runs fails for the right reason. (Others may fail for its consequences.)"""
    for seed in range(first, first + seeds):
        try:
            simulate_schedules(seed)
        except SimulationError as error:
            if re.search(by, str(error)):
                return
    pytest.fail("no run has detected the fault")


# ---- one row and one job ----


def _without_unique(plant: Plant) -> None:
    """Remove the unique key of rows: the existing row is not checked, and the new one replaces it."""
    write = MemorySchedules.write

    async def unaware(*_: object) -> None:
        return None

    async def overwriting(self: MemorySchedules, writes: Writes) -> None:
        await write(self, writes._replace(new=[], changed=[*writes.new, *writes.changed]))

    plant.setattr(ScheduleChanges, "row", unaware)
    plant.setattr(MemorySchedules, "write", overwriting)


def _without_compare_and_swap(plant: Plant) -> None:
    """Let a node write the next state from the version that it found due, without a check of the stored version."""
    found: dict[Due, Stored] = {}
    write, fire = MemorySchedules.write, unit.fire

    async def remembering(self: MemorySchedules, writes: Writes) -> None:
        await write(self, writes)
        for name, stored in writes.schedules.items():
            if stored is not None:
                found[Due(name, stored.state.version)] = stored

    async def unguarded(draft: ScheduleChanges, operation: FireSchedules) -> Any:
        draft.schedules |= {one.name: found[one] for one in operation.due}
        return await fire(draft, operation)

    plant.setattr(MemorySchedules, "write", remembering)
    plant.setattr(unit, "fire", unguarded)


def test_missing_uniqueness_of_fire_times_is_detected(monkeypatch: Plant) -> None:
    _without_unique(monkeypatch)
    is_caught(10, by="has two jobs", first=45)


def test_keeping_a_worker_that_has_ended_its_side_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Peer, "sends_no_more", wait_for_answers)
    is_caught(20, by="half open")


def test_missing_compare_and_swap_on_versions_is_detected(monkeypatch: Plant) -> None:
    _without_compare_and_swap(monkeypatch)
    is_caught(20, by="its version has not")


def test_missing_uniqueness_and_compare_and_swap_is_detected(monkeypatch: Plant) -> None:
    _without_unique(monkeypatch)
    _without_compare_and_swap(monkeypatch)
    is_caught(60, by="has two jobs")


def test_edits_of_changed_schedules_are_detected(monkeypatch: Plant) -> None:
    refusal = unit._refusal

    def trusting(changes: Sequence[Change], draft: ScheduleChanges) -> MainspringError | None:
        now = {name: one.state.version for name, one in draft.schedules.items() if one is not None}
        return refusal([one._replace(version=one.version and now.get(one.name, one.version)) for one in changes], draft)

    monkeypatch.setattr(unit, "_refusal", trusting)
    is_caught(20, by="an edit of .* is lost")


def test_an_edit_before_due_times_are_decided_is_detected(monkeypatch: Plant) -> None:
    async def hasty(*_: object) -> None:
        return None

    monkeypatch.setattr(unit, "_catch_up", hasty)
    is_caught(20, by="is not decided before it is changed")


# ---- consequences of the end of a job ----


def test_following_ends_outside_their_transaction_is_detected(monkeypatch: Plant) -> None:
    late: Notices = {}
    run = Units.run

    async def outside(self: Units[Any], plan: Plan, notices: Notices, outcomes: list[Any]) -> None:
        before = dict(late)
        late.clear()
        late.update(notices)
        notices.clear()
        notices.update(before)
        await run(self, plan, notices, outcomes)

    monkeypatch.setattr(Units, "run", outside)
    is_caught(5, by="goes on after the end of its job")


def test_following_ends_twice_is_detected(monkeypatch: Plant) -> None:
    follow = ScheduleUnit.follow

    async def twice(self: ScheduleUnit, notices: Sequence[Notice]) -> None:
        await follow(self, notices)
        await self.flush()
        await follow(self, notices)

    async def with_what_has_ended(self: MemorySchedules, ids: Collection[int]) -> list[Fire]:
        return [row for rows in self._tables.fires.values() for row in rows.values() if row.job in ids]

    async def unguarded(draft: ScheduleChanges, jobs: Sequence[Ended]) -> None:
        by_id = {job.id: job for job in jobs}
        for row in await draft.tables.of_jobs(sorted(by_id)):
            draft.cache(row)
            await consequences.end(draft, draft.now(row), by_id[row.job])

    monkeypatch.setattr(ScheduleUnit, "follow", twice)
    monkeypatch.setattr(MemorySchedules, "of_jobs", with_what_has_ended)
    monkeypatch.setattr(consequences, "ended", unguarded)
    is_caught(20, by="have succeeded")


def test_forgetting_parents_before_the_last_one_ends_is_detected(monkeypatch: Plant) -> None:
    async def forgetful(_self: MemorySchedules, _keys: object) -> dict[Any, Any]:
        return {}

    monkeypatch.setattr(MemorySchedules, "joins", forgetful)
    is_caught(20, by="does not follow")


def test_ignoring_runs_when_overlap_is_decided_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(ScheduleChanges, "live", lambda _self, _name: [])
    is_caught(10, by="overlaps")


def test_not_starting_waiting_runs_is_detected(monkeypatch: Plant) -> None:
    async def idle(*_: object) -> bool:
        return False

    monkeypatch.setattr(consequences, "start_waiting", idle)
    is_caught(10, by="waits behind nothing")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_triggering_at_the_fire_time_of_a_relative_is_detected(monkeypatch: Plant) -> None:
    trigger = unit.trigger

    async def of_itself_alone(draft: ScheduleChanges, operation: TriggerSchedule) -> Fire | Refused | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Graph, "ancestors", lambda _self, _name: [])
            patch.setattr(Graph, "descendants", lambda _self, _name: [])
            return await trigger(draft, operation)

    monkeypatch.setattr(unit, "trigger", of_itself_alone)
    is_caught(200, by="children go on|have succeeded")


# ---- nodes ----


def test_not_checking_for_the_ends_of_joined_jobs_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(ScheduleService, "_repair", lambda _: None)
    is_caught(60, by="this never ends: .*the runs")


def test_uncorrected_clocks_are_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(Fleet, "adjust_clock", lambda *_: None)
    is_caught(10, by="too early")
