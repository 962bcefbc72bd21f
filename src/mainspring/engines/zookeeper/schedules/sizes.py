"""The limits of one transaction, which is one multi: the server accepts about a megabyte.

Sizes are approximate bytes: as JSON, some arguments take twice as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.store import Change

MAX_ROWS: Final = 300
"""Rows of one transaction."""
MAX_BYTES: Final = 300_000
"""Bytes of these rows and their jobs."""
MAX_FOLLOWING: Final = 700_000
"""Bytes of all rows and jobs that the end of one run may start."""
ROW_BYTES: Final = 1_000
"""Bytes of a row, its job without arguments and their index nodes; or of a schedule."""


def most_rows(catalogue: Catalogue, names: Collection[str]) -> int:
    """Return how many rows of each of some schedules fit into one transaction, with their consequences; at least 1."""
    graph, schedules = catalogue.graph, catalogue.schedules
    rows = size = 0
    for name in names:
        following = [schedules[name]] if name in schedules else []
        following += graph.descendants(name)
        rows += len(following)
        size += sum(map(_size, following))
    return max(min(MAX_ROWS // max(rows, 1), MAX_BYTES // max(size, 1)), 1)


def too_much_follows(catalogue: Catalogue, changed: Collection[str]) -> str | None:
    """Return a schedule, of those changed and their parents, whose children do not fit into one multi; None: all do."""
    graph, schedules = catalogue.graph, catalogue.schedules
    related = [name for name in changed if name in schedules]
    parents = {parent for name in related for parent in schedules[name].parents}
    for name in sorted({*related, *parents}):
        started = sum(_size(child) + len(child.args) for child in graph.children(name))
        if started + ROW_BYTES * len(graph.descendants(name)) > MAX_FOLLOWING:
            return name
    return None


def portions(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Split changes, in their order, into portions that fit into one transaction."""
    portion: list[Change] = []
    size = 0
    for change in changes:
        more = ROW_BYTES if change.schedule is None else _size(change.schedule)
        if portion and size + more > MAX_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(change)
        size += more
    if portion:
        yield portion


def _size(schedule: Schedule) -> int:
    return ROW_BYTES + len(schedule.args)
