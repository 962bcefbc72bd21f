"""The read side of schedules: their histories in pages. It never writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.storage.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.schedules.model import Fire


class ListFires(Operation):
    """Read rows of a schedule, those of the newest fire times first, of times before ``before_us`` where that is given.

    Outcome: ``list[Fire]``, also where the schedule was removed.
    """

    __slots__ = ("before_us", "name")

    def __init__(
        self,
        name: str,
        done: Callable[[list[Fire]], None],
        failed: Callable[[StoreError], None],
        before_us: int | None = None,
        limit: int = 100,
    ) -> None:
        super().__init__(done, failed)
        self.name = name
        self.before_us = before_us
        self.rows = limit
        self.overtakes = True


READING: Sequence[type[Operation]] = (ListFires,)
