"""Queries about schedules: their histories in pages. They never write."""

from __future__ import annotations

from mainspring.schedules.model import Fire
from mainspring.storage.query import PageQuery


class ListFires(PageQuery[Fire], frozen=True):
    """Read the rows of a schedule, newest fire times first, also of a removed one. A page continues after a fire time."""

    name: str
