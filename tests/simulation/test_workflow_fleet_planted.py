"""The simulation of fleets with workflows detects planted faults: each test removes one guard, and a seed must fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.engines.memory.workflows import MemoryRuns
from mainspring.workflows import draft, history
from mainspring.workflows.outbox import ErrandLoop
from tests.shared_memory import SharedMemoryEngine
from tests.shared_runs import SharedRuns

from .stores import SimulationError
from .workflows.fleet import ChildFleetWorld, FlowFleetWorld
from .workflows.fleet_running import simulate_flow_fleet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.storage.engine import Answer, Committed, Operation

Plant = pytest.MonkeyPatch


def is_caught(seeds: int, *, by: str, kind: type[FlowFleetWorld] = FlowFleetWorld) -> None:
    """Check that one of the seeds fails, the first one that does for the right reason."""
    for seed in range(seeds):
        try:
            simulate_flow_fleet([seed], kind=kind)
        except SimulationError as error:
            if not re.search(by, str(error)):
                pytest.fail(f"another check has failed: {error}")
            return
    pytest.fail("no seed has detected the fault")


def test_using_a_run_in_memory_that_another_node_has_changed_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(SharedRuns, "is_current", lambda *_: True)
    is_caught(10, by="the number of events guards a run")


def test_appending_to_a_run_that_another_node_has_closed_is_detected(monkeypatch: Plant) -> None:
    def change(self: MemoryRuns, one: Any) -> None:
        self._put(one.row, self._tables.workflows[one.row.id].due_us)

    monkeypatch.setattr(SharedRuns, "is_current", lambda *_: True)
    monkeypatch.setattr(MemoryRuns, "_change", change)
    is_caught(20, by=r"comes after|the row counts|times there|not recorded|recorded otherwise")


def test_doing_an_errand_twice_is_detected(monkeypatch: Plant) -> None:
    done: set[int] = set()

    async def late(tables: SharedRuns, numbers: Any, new: Any) -> None:
        """Leave each errand in the store once, as if two nodes did it."""
        first = [number for number in numbers if number not in done]
        done.update(first)
        await MemoryRuns.change_errands(tables, [number for number in numbers if number not in first], new)

    monkeypatch.setattr(SharedRuns, "change_errands", late)
    is_caught(10, by="a run begins once|times there", kind=ChildFleetWorld)


def test_losing_the_errands_of_a_node_that_has_stopped_is_detected(monkeypatch: Plant) -> None:
    monkeypatch.setattr(ErrandLoop, "_look", lambda _: None)
    is_caught(10, by="has stood still", kind=ChildFleetWorld)


def test_taking_a_decision_of_a_node_whose_term_has_ended_is_detected(monkeypatch: Plant) -> None:
    commit = SharedMemoryEngine.commit

    def careless(self: SharedMemoryEngine, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        ended, self._content.ended = self._content.ended, set()
        try:
            commit(self, group, committed, answer)
        finally:
            self._content.ended |= ended

    monkeypatch.setattr(SharedMemoryEngine, "commit", careless)
    is_caught(10, by="a group of an ended term was committed")


def test_ringing_an_alarm_at_two_nodes_is_detected(monkeypatch: Plant) -> None:
    folds: dict[Any, Any] = draft._FOLDS
    fire = folds[history.TimerFired]

    def twice(state: Any, event: Any) -> None:
        timer = state.timers[event.timer_id]
        fire(state, event)
        if timer.fire_us % 2 == 0:  # for the first time
            state.timers[event.timer_id] = replace(timer, fire_us=timer.fire_us | 1)

    monkeypatch.setitem(folds, history.TimerFired, twice)
    is_caught(20, by="the timer is not open")
