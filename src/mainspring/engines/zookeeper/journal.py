"""What a journal says: the number of its node's last batch, and how many jobs that node has added and taken away.

The number of jobs of a function, state and priority is the sum over all journals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.tree import Create
from mainspring.jobs.counts import counted_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.engines.zookeeper.tree import Change

TOTAL: Final = paths.journal("total")
"""Where a master adds up what nodes that are gone have counted."""
MOST_COUNTS: Final = 200
"""Counts in a journal: then they go to a node of their own, so that not every batch carries them."""

Count = tuple[bytes, int, int, int]
"""Function, state, priority, and by how much their number changes."""
Counts = dict[tuple[bytes, int, int], int]
"""By function, state and priority; held jobs are LEASED, whether or not they are recorded as running."""


def begin(who: str) -> list[Change]:
    """Return what creates an empty journal, in the multi that begins the term."""
    return [Create(paths.journal(who), journal_data(0, {}))]


def journal_data(batch: int, counts: Counts) -> bytes:
    """Return a journal's data."""
    told = [[paths.encode(function), *key, number] for (function, *key), number in counts.items()]
    return records.encode({"batch": batch, "counts": told})


def counted(before: Counts, changes: Iterable[Count]) -> Counts:
    """Return counts after some changes: the same ones where there are none."""
    after: Counts | None = None
    for function, state, priority, number in changes:
        if after is None:
            after = dict(before)
        key = (function, counted_as(int(state)), int(priority))
        after[key] = after.get(key, 0) + number
    return before if after is None else {key: number for key, number in after.items() if number}


def total(journals: Iterable[bytes]) -> Counts:
    """Add up what all journals say."""
    sums: Counts = {}
    for data in journals:
        for function, state, priority, number in records.decode(data).get("counts", ()):
            key = (paths.decode(function), state, priority)
            sums[key] = sums.get(key, 0) + number
    return {key: number for key, number in sums.items() if number}
