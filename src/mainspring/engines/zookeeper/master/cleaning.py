"""Journals of workers that are gone: what they have counted goes into one, and after a day they go themselves.

Until then a worker that was cut off may read in its own whether its last batch has happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import membership, paths, records
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.journal import TOTAL, journal_data, total
from mainspring.engines.zookeeper.tree import Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.master.leadership import Leadership
    from mainspring.engines.zookeeper.tree import Change, Node

KEEP_US: Final = 24 * 3600 * 1_000_000
"""Microseconds for which the journal of a worker that is gone stays."""


def folded(journals: Sequence[tuple[str, Node]], into: Node | None) -> Entry | None:
    """Return what moves the counts of journals into the total; None where they have none."""
    told = [(path, node, records.decode(node.data)) for path, node in journals]
    changes: list[Change] = []
    for path, node, record in told:
        if "." in path.rpartition("-")[2]:  # what had become too much for a journal: nobody asks for its batch
            changes.append(Delete(path, node.version))
        elif record.get("counts"):
            changes.append(Write(path, journal_data(record["batch"], {}), node.version))
    if not changes:
        return None
    before = [] if into is None else [into.data]
    data = journal_data(0, total([*before, *(node.data for _, node in journals)]))
    changes.append(Create(TOTAL, data) if into is None else Write(TOTAL, data, into.version))
    return Entry(changes)


async def clean(leadership: Leadership) -> None:
    """Fold the journals of workers that are gone, and take away the oldest.

    Raises DeposedError, StoreUnavailableError, SessionEndedError.
    """
    tree = leadership.tree
    # In this order: a journal comes into being together with its worker.
    names = paths.journals_of(await tree.children(paths.JOURNALS))
    living = await tree.children(paths.WORKERS) or ()
    gone = sorted(name for name in names if name != "total" and _worker_of(name) not in living)
    for name in {_worker_of(name) for name in gone}:
        places = [paths.journal(one) for one in gone if _worker_of(one) == name]
        nodes = await tree.get_many([*places, TOTAL])
        journals = [(path, node) for path, node in zip(places, nodes[:-1], strict=True) if node is not None]
        entry = folded(journals, nodes[-1])
        if entry is not None:
            await leadership.commit([entry])
    await _forget([paths.journal(name) for name in gone], leadership)


async def _forget(places: list[str], leadership: Leadership) -> None:
    if not places:
        return
    now_us = round(await membership.now(leadership.tree, leadership.session.who) * 1_000_000)
    entries = []
    for path, node in zip(places, await leadership.tree.get_many(places), strict=True):
        if node is not None and node.mtime_us < now_us - KEEP_US and not records.decode(node.data).get("counts"):
            entries.append(Entry([Delete(path, node.version)]))
    await leadership.commit(entries)


def _worker_of(journal: str) -> str:
    """Return the worker whose journal it is: ``n1-7`` of ``n1-7.3`` too, while names of nodes may have dots."""
    node, _, term = journal.rpartition("-")
    return f"{node}-{term.partition('.')[0]}"
