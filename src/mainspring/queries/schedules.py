"""Queries about schedules: their histories in pages, and their last outcomes. They never write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.schedules.model import Fire
from mainspring.storage.query import PageQuery, Query, in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.storage.query import Meter, Page

AMONG: Final = 20
"""The newest rows of a schedule, among which its last outcome is: otherwise that many run or wait."""


class ListFires(PageQuery[Fire], frozen=True):
    """Read the rows of a schedule, newest fire times first, also of a removed one. A page continues after a fire time."""

    name: str


class NewestFires(PageQuery[Fire], frozen=True, kw_only=True):
    """Read the newest rows of some schedules, in the order of these, and of each the oldest row first.

    A page continues after a place in ``names`` and a fire time.
    """

    names: tuple[str, ...]
    """Keys of schedules, each once."""
    before_us: tuple[int, ...]
    """For each of them: only rows with fire times before this one."""
    since_us: int = 0
    """Only rows from this fire time on."""
    each: int
    """The most rows of each."""


class LastOutcomes(Query[list[Fire]], frozen=True):
    """Read the last outcome of each of some schedules: the newest row whose job has ended, or that was skipped.

    Only the newest `AMONG` rows of a schedule are examined.
    """

    names: tuple[str, ...]
    """Keys of schedules."""


class Stretch(NamedTuple):
    """The rows of a schedule that are wanted."""

    name: str
    before_us: int
    since_us: int


async def newest_fires(
    query: NewestFires, meter: Meter, read: Callable[[Sequence[Stretch], int], Awaitable[Sequence[Fire]]]
) -> Page[Fire]:
    """Answer a query with ``read``: it receives stretches and a number, and returns at most that number of their rows.

    Of each stretch it leaves out all but the newest ``each``, also of those before ``since_us``.
    """
    places = {name: place for place, name in enumerate(query.names)}

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Fire]]:
        first, last_us = after or (0, -1)
        wanted = [
            Stretch(name, before_us, query.since_us)
            for name, before_us in zip(query.names[first:], query.before_us[first:], strict=True)
        ]
        if wanted:
            wanted[0] = wanted[0]._replace(since_us=max(last_us + 1, query.since_us))
        found = await read(wanted, most)
        return [((places[row.schedule], row.fire_us), row) for row in found]

    return await in_parts(query, meter, behind)
