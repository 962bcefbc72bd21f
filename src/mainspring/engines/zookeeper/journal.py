"""Journals: the number of a node's last batch, and the counts of jobs that the node has added and removed.

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
"""The journal in which a master adds up the counts of ended nodes."""
MAX_COUNTS: Final = 200
"""Counts in a journal; more go to a node of their own, so that not every batch has to write them."""
MAX_BYTES: Final = 20_000
"""Bytes of a journal; more counts go to a node of their own, too: names of functions may be long, and the journal shares its
packet with a batch."""

Count = tuple[bytes, int, int, int]
"""Function, state, priority, and the change of their number."""
Counts = dict[tuple[bytes, int, int], int]
"""By function, state and priority; held jobs are LEASED, whether or not they are recorded as running."""


def begin(who: str) -> list[Change]:
    """Return the creation of an empty journal, for the multi that starts the term."""
    return [Create(paths.journal(who), journal_data(0, {}))]


def journal_data(batch: int, counts: Counts) -> bytes:
    """Return a journal's data."""
    encoded = [[paths.encode_function(function), *key, number] for (function, *key), number in counts.items()]
    return records.encode({"batch": batch, "counts": encoded})


def counted(before: Counts, changes: Iterable[Count]) -> Counts:
    """Return counts after some changes; without changes the same object."""
    after: Counts | None = None
    for function, state, priority, number in changes:
        if after is None:
            after = dict(before)
        key = (function, counted_as(int(state)), int(priority))
        after[key] = after.get(key, 0) + number
    return before if after is None else {key: number for key, number in after.items() if number}


def total(journals: Iterable[bytes]) -> Counts:
    """Return the sum of the counts of all journals."""
    sums: Counts = {}
    for data in journals:
        for function, state, priority, number in records.decode(data).get("counts", ()):
            key = (paths.decode_function(function), state, priority)
            sums[key] = sums.get(key, 0) + number
    return {key: number for key, number in sums.items() if number}
