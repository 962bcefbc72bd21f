"""The schedules slice on this engine: its handlers, readers and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper.schedules import history, reading, repair, writing
from mainspring.engines.zookeeper.schedules.catalogue import Specifications
from mainspring.engines.zookeeper.schedules.tables import ZookeeperSchedules
from mainspring.queries.schedules import LastOutcomes, ListFires, NewestFires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.unit import ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Handlers, Readers, Session


class ZookeeperScheduleSlice:
    """See ``engines.zookeeper.session.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    handlers: Final[Handlers] = {
        ops.SaveSchedules: writing.save,
        ops.Declare: writing.run,
        ops.RepairSchedules: repair.repair,
        ops.FireSchedules: writing.fire,
        ops.TriggerSchedule: writing.trigger,
        ops.ForgetFires: history.forget,
        ops.FindDue: reading.find_due,
    }
    readers: Final[Readers] = {
        ops.ListSchedules: reading.list_schedules,
        ListFires: reading.list_fires,
        NewestFires: reading.read_newest_fires,
        LastOutcomes: reading.last_outcomes,
    }

    async def turns(self, session: Session, keys: Sequence[ops.Key]) -> list[str | None]:
        """Return the family of each run: runs of one family are written one after the other."""
        cache = await session.memory(Specifications).now()
        return [cache.turn(name) if cache.minds_ends(name) else None for name, _ in keys]

    def ground(self, session: Session) -> ZookeeperSchedules:
        """Return an attempt of a transaction."""
        return ZookeeperSchedules(session)

    def unit(self, ground: ZookeeperSchedules) -> ScheduleUnit:
        """Return its unit of work."""
        return ScheduleUnit(ground)
