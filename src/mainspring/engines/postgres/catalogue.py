"""A node's cache of all schedules' specifications: read once; after that only changes are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.statements import load
from mainspring.schedules.catalogue import Catalogue, leaders
from mainspring.schedules.codecs import decode_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg import Connection, Record

_SQL = load("schedules.sql")


class CatalogueCache:
    """The catalogue at a version of the store. It stays valid from one group to the next."""

    def __init__(self) -> None:
        self._version = -1
        self.catalogue = Catalogue({})
        self._leaders: Mapping[str, str] = {}

    async def refresh(self, connection: Connection[Record], version: int) -> None:
        """Read the changes up to a version. The transaction holds a lock, so the version stays current until it ends."""
        if version == self._version:
            return
        schedules, unread = dict(self.catalogue.schedules), dict(self.catalogue.unread)
        for name, schedule in await connection.fetch(_SQL["specifications_since"], self._version):
            schedules.pop(name, None)
            unread.pop(name, None)
            if schedule is not None:
                schedules[name], why = decode_schedule(name, schedule)
                if why:
                    unread[name] = why
        self.catalogue = Catalogue(schedules, unread)
        self._leaders = leaders(schedules)
        self._version = version

    def rows_to_lock(self, name: str) -> tuple[str, ...]:
        """Return the schedules whose rows must be locked before anything that a fire time of this one may change."""
        leader = self._leaders.get(name)
        return (name,) if leader is None or leader == name else (leader, name)

    def end_affects_others(self, name: str) -> bool:
        """Return whether the end of a run may change other rows: relatives, waiting runs, runs that joined it."""
        schedule = self.catalogue.schedules.get(name)
        return schedule is not None and (name in self._leaders or bool(schedule.unique) or self.catalogue.queues(name))
