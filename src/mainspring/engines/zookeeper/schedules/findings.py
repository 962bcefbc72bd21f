"""The results of lists before a transaction. No version guards them, so the transaction checks or writes these rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.zookeeper.schedules import places
from mainspring.engines.zookeeper.tree import Delete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.owners import Ended
    from mainspring.schedules.model import Fire
    from mainspring.schedules.store import Key


class Repairs(NamedTuple):
    """The rows that one transaction repairs: the answers to ``joined``, ``queued`` and ``stuck``."""

    joined: Sequence[tuple[Key, Ended | None]] = ()
    queued: Sequence[str] = ()
    stuck: Sequence[Key] = ()


class OldRows(NamedTuple):
    """The oldest rows of a schedule."""

    rows: Sequence[Fire]
    blocks: dict[str, list[int]]
    """The parents of these rows, with the fire times of all rows that each has."""

    def drop(self, name: str, until_us: int) -> list[Change]:
        """Return the deletion of the rows up to a fire time, and of the parents that are empty then."""
        changes: list[Change] = [Delete(places.row(name, row.fire_us)) for row in self.rows if row.fire_us <= until_us]
        changes += [Delete(block) for block, times in self.blocks.items() if times[-1] <= until_us]
        return changes
