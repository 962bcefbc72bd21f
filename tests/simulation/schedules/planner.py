"""The administrator of the schedules, who edits, pauses, resumes, removes and triggers them at any node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.schedules.store import Change
from tests.simulation.actors import Actor

from . import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.callbacks import Ask
    from mainspring.errors import MainspringError
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Stored

    from .life import ScheduleLife
    from .world import ScheduleWorld


class Planner(Actor):
    """Acts on the schedules that it read last, which others may have changed since."""

    def __init__(self, world: ScheduleWorld, number: int, schedules: list[Schedule]) -> None:
        super().__init__(world, f"planner {number}")
        self.stage = world
        self.planned = {schedule.name: schedule for schedule in schedules}
        self.read: dict[str, Stored] = {}
        self.done = 0
        self._count = number
        """Numbers the schedules that this planner has added, so that they differ from those of others."""

    def act(self) -> bool:
        chance = self.chance
        if self.world.calm or chance.random() > 0.6:
            return False
        life = chance.choice(self.stage.able())
        name = chance.choice(list(self.planned))
        stored = self.read.get(name)
        number = chance.random()
        if number < 0.25 or stored is None:
            self._begin(life.schedules.find(), self._found)
        elif number < 0.45:
            self._edit(life, stored)
        elif number < 0.55:
            self._begin(life.schedules.save([Change("pause", name)]), self._saved)
        elif number < 0.67:
            self._begin(life.schedules.save([Change("resume", name)]), self._saved)
        elif number < 0.78:
            self._begin(life.schedules.trigger(name), self._triggered)
        elif name.startswith("s"):
            self._remove_or_add(life, name)
        return True

    def _edit(self, life: ScheduleLife, stored: Stored) -> None:
        now_us = to_us(self.world.clock.wall())
        schedule = plan.edited(self.chance, stored.schedule, now_us)
        life_of, number = stored.schedule.args.split(b".")
        schedule = replace(schedule, args=b"%b.%d" % (life_of, int(number) + 1))
        change = Change("put", schedule.name, stored.state.version, schedule)
        self._begin(life.schedules.save([change]), self._saved)

    def _remove_or_add(self, life: ScheduleLife, name: str) -> None:
        if self.chance.random() < 0.5:
            self._begin(life.schedules.save([Change("remove", name)]), self._saved)
            return
        self._count += 10
        if name in self.read and self.chance.random() < 0.5:
            fresh = self.read[name].schedule  # as it was before its removal
        else:
            fresh = plan.loner(self.chance, name, to_us(self.world.clock.wall()))
        fresh = replace(fresh, args=b"%d.0" % self._count, overlap=self.planned[name].overlap)
        self._begin(life.schedules.save([Change("put", name, 0, fresh)]), self._saved)

    def _begin(self, work: Coroutine[Ask, Any, Any], done: Callable[[Any], None]) -> None:
        CallInProgress(work, done, self._refused)

    # ---- answers ----

    def _found(self, stored: list[Stored]) -> None:
        self.read |= {one.schedule.name: one for one in stored}

    def _saved(self, stored: dict[str, Stored | None]) -> None:
        del stored
        self.done += 1

    def _triggered(self, row: Fire | None) -> None:
        if row is not None:
            stored = self.stage.content.tables.fires[row.schedule][row.fire_us]
            assert stored.root == row.schedule, f"{row} is acknowledged and not stored"
            self.done += 1

    @staticmethod
    def _refused(error: MainspringError) -> None:
        refused = not isinstance(error, UsageError) or "never fires" in str(error) or "before it starts" in str(error)
        assert refused, error
