"""The read side of schedules: their histories in pages. It never writes."""

from __future__ import annotations

from mainspring.schedules.model import Fire
from mainspring.storage.query import PageQuery


class ListFires(PageQuery[Fire], frozen=True):
    """Read rows of a schedule, those of the newest fire times first, also where it was removed. A place is a fire time."""

    name: str
