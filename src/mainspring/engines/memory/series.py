"""Series in memory."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.engines.memory.tables import Tables
    from mainspring.series.model import Row
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query


def save(tables: Tables, operation: SaveSeries) -> None:
    """Write buckets, and delete old ones."""
    for row in operation.series:
        key = (row.namespace, row.function, row.step)
        tables.series.setdefault(key, {})[row.at, row.term] = deepcopy(row)
    old = [
        (key, place)
        for key, rows in tables.series.items()
        if (oldest := operation.oldest.get(key[2])) is not None
        for place in rows
        if place[0] < oldest
    ]
    for key, place in old[:SWEEP_ROWS]:
        del tables.series[key][place]


async def read(tables: Tables, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""
    rows = tables.series.get((query.namespace, query.function, query.step), {})

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        places = sorted(place for place in rows if place > (after or (query.since, -1)))
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


async def read_namespace(tables: Tables, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""
    rows = {
        (row.at, row.function, row.term): row
        for (namespace, _, step), buckets in tables.series.items()
        if (namespace, step) == (query.namespace, query.step)
        for row in buckets.values()
        if row.at >= query.since
    }

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        places = sorted(place for place in rows if after is None or place > after)
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {SaveSeries: save}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ReadSeries: read,
    ReadNamespaceSeries: read_namespace,
}
