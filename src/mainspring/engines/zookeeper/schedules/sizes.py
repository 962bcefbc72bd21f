"""How much goes into one transaction, which is one multi: the server takes about a megabyte.

Sizes are in bytes and about: as JSON, some arguments take twice as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.store import Change

MOST_ROWS: Final = 300
"""Rows that one transaction decides."""
MOST_BYTES: Final = 300_000
"""What these rows and their jobs may have."""
MOST_FOLLOWING: Final = 700_000
"""What may follow from the end of one run."""
ROW: Final = 1_000
"""A row, its job without arguments, and what both are found by; or a schedule."""


def most_rows(catalogue: Catalogue, names: Collection[str]) -> int:
    """Return how many rows of each of some schedules one transaction takes, with all that may follow from each; at least 1."""
    graph, schedules = catalogue.graph, catalogue.schedules
    rows = size = 0
    for name in names:
        following = [schedules[name]] if name in schedules else []
        following += graph.descendants(name)
        rows += len(following)
        size += sum(map(_size, following))
    return max(min(MOST_ROWS // max(rows, 1), MOST_BYTES // max(size, 1)), 1)


def too_much_follows(catalogue: Catalogue, changed: Collection[str]) -> str | None:
    """Return a schedule, of those changed and their parents, after which more runs than fits into one multi; None: all do."""
    graph, schedules = catalogue.graph, catalogue.schedules
    related = [name for name in changed if name in schedules]
    parents = {parent for name in related for parent in schedules[name].parents}
    for name in sorted({*related, *parents}):
        started = sum(_size(child) + len(child.args) for child in graph.children(name))
        if started + ROW * len(graph.descendants(name)) > MOST_FOLLOWING:
            return name
    return None


def portions(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Part changes, in their order, into as many as one transaction takes."""
    portion: list[Change] = []
    size = 0
    for change in changes:
        more = ROW if change.schedule is None else _size(change.schedule)
        if portion and size + more > MOST_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(change)
        size += more
    if portion:
        yield portion


def _size(schedule: Schedule) -> int:
    return ROW + len(schedule.args)
