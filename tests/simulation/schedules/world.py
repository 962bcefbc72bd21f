"""A fleet with schedules that fire, follow each other and are changed while nodes start, stop and are cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.clock import to_us
from mainspring.schedules.store import Change, SaveSchedules
from tests.progress import Position
from tests.shared_memory import SharedMemoryEngine
from tests.simulation.actors import Actor, Client
from tests.simulation.fleet.world import FleetWorld
from tests.simulation.store import refuse_separate_answer

from . import plan
from .due import WRONG
from .history import ScheduleHistory
from .life import ScheduleLife, ScheduleWay
from .planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_SECONDS = 6.0
"""Seconds for which schedules continue after the last fault."""
LATE = 1.0
"""Seconds by which a fire time may be late without faults, by a correct clock."""


class ScheduleWorld(FleetWorld):
    """One run."""

    history: ScheduleHistory

    def __init__(self, seed: int) -> None:
        self.lives: dict[str, ScheduleLife] = {}  # type: ignore[assignment]
        super().__init__(seed, plan.BEGIN)

    def _history(self) -> ScheduleHistory:
        return ScheduleHistory(self.content)

    def _cast(self) -> list[Actor]:
        chance = self.chance
        actors = [actor for actor in super()._cast() if not isinstance(actor, Client) or chance.random() < 0.2]
        now_us = to_us(self.clock.wall())
        schedules = plan.family(chance) + plan.loners(chance, now_us)
        self._save([Change("put", one.name, 0, one) for one in schedules])
        return [*actors, *(Planner(self, number, schedules) for number in (1, 2))]

    def _begin(self, name: str) -> None:
        clock = self.machines[name]
        way = ScheduleWay(
            self.content, self.history, name, clock, self.chance, self._fleet.lease, self._term_ended, self.removed
        )
        self.lives[name] = ScheduleLife(name, way, clock, self.chance, self._fleet, **self._options)

    def able(self) -> list[ScheduleLife]:
        """Return the nodes that accept requests."""
        return [life for life in self.lives.values() if life.ready and not life.stopped]

    def _save(self, changes: list[Change]) -> None:
        """Change schedules in the store, without a node."""
        operation = SaveSchedules(changes, to_us(self.clock.wall()))
        outcomes = list[Any]()
        SharedMemoryEngine(self.content).commit([operation], outcomes.append, refuse_separate_answer)
        self.history.note("", [operation], *outcomes)

    def step(self) -> None:
        """Do one random action; sometimes a node and the workers do everything that they can."""
        super().step()
        able = self.able()
        if able and self.chance.random() < 0.2:
            life = self.chance.choice(able)
            life.settle()
            for wire in [wire for wire in life.wires if wire.can_deliver]:
                wire.deliver()
            for actor in self.actors:
                self._receive(actor)
                self._act(actor)
            self._remove_dead()

    # ---- without faults ----

    def run(self, steps: int) -> None:
        """Run with faults, without, with faults, and without."""
        super().run(steps)
        self.history.rows.whole()

    def run_without_faults(self) -> None:
        """Run without faults: overdue times are decided, later ones are punctual, and after a pause all runs end."""
        self._calm_down()
        self._until(30.0, lambda: not self._behind())
        end = self.clock.monotonic() + QUIET_SECONDS
        self._until(QUIET_SECONDS + 5, lambda: self.clock.monotonic() >= end)
        late = self._behind()
        assert not late, f"late without faults: {late}"
        self._save([Change("pause", name) for name in self.history.schedules])
        self._come_to_an_end()
        self._save([Change("resume", name) for name in self.history.schedules])

    def _until(self, seconds: float, reached: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + seconds
        while True:
            self._advance_without_faults()
            if reached():
                return
            assert self.clock.monotonic() < end, f"still behind: {self._behind()}"
            self._go_forward()

    def _behind(self) -> list[str]:
        now_us = to_us(self.clock.wall() - LATE - WRONG - self.history.astray)
        stored = self.content.tables.schedules.values()
        return [str(one) for one in stored if one.state.next_us is not None and one.state.next_us < now_us]

    def left(self) -> dict[str, Position]:
        """Return the work that has not ended yet."""
        unfinished = self.content.tables.unfinished.items()
        found = [f"the runs {sorted(rows)} of {name}" for name, rows in unfinished if rows] + self._behind()
        return super().left() | {one: Position(one) for one in found}
