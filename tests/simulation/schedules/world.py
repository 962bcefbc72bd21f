"""A fleet with schedules: they fire, follow each other and are changed while nodes come, go and lose their ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.clock import to_us
from mainspring.schedules.store import Change, SaveSchedules
from tests.shared_memory import SharedMemoryEngine
from tests.simulation.actors import Actor, Client
from tests.simulation.fleet.world import FleetWorld
from tests.simulation.store import at_once

from . import plan
from .due import WRONG
from .history import ScheduleHistory
from .life import ScheduleLife, ScheduleWay
from .planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_SECONDS = 6.0
"""For so long schedules go on after all trouble has ended."""
LATE = 1.0
"""Seconds by which a fire time may be late in peace, by a clock that goes right."""


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
        """Return the nodes that somebody can ask something."""
        return [life for life in self.lives.values() if life.ready and not life.stopped]

    def _save(self, changes: list[Change]) -> None:
        """Change schedules past all nodes."""
        operation = SaveSchedules(changes, to_us(self.clock.wall()))
        outcomes = list[Any]()
        SharedMemoryEngine(self.content).commit([operation], outcomes.append, at_once)
        self.history.note("", [operation], *outcomes)

    def step(self) -> None:
        """One thing happens; now and then a node and the workers get on with all that they can do."""
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
            self._bury()

    # ---- peace ----

    def run(self, steps: int) -> None:
        """Trouble, peace, trouble and peace again."""
        super().run(steps)
        self.history.rows.whole()

    def peace(self) -> None:
        """No more trouble: what was due meanwhile is decided, all goes on in time, and once it is paused, ends."""
        self._calm_down()
        self._until(30.0, lambda: not self._behind())
        end = self.clock.monotonic() + QUIET_SECONDS
        self._until(QUIET_SECONDS + 5, lambda: self.clock.monotonic() >= end)
        late = self._behind()
        assert not late, f"late in peace: {late}"
        self._save([Change("pause", name) for name in self.history.schedules])
        self._come_to_an_end()
        self._save([Change("resume", name) for name in self.history.schedules])

    def _until(self, seconds: float, reached: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + seconds
        while True:
            self._go_on_in_peace()
            if reached():
                return
            assert self.clock.monotonic() < end, f"still behind: {self._behind()}"
            self._go_forward()

    def _behind(self) -> list[str]:
        now_us = to_us(self.clock.wall() - LATE - WRONG - self.history.astray)
        stored = self.content.tables.schedules.values()
        return [str(one) for one in stored if one.state.next_us is not None and one.state.next_us < now_us]

    def left(self) -> list[str]:
        """Say what has not come to its end yet."""
        found = super().left()
        unfinished = self.content.tables.unfinished.items()
        return found + [f"the runs {sorted(rows)} of {name}" for name, rows in unfinished if rows] + self._behind()
