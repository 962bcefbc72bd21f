"""The clean-up of journals of ended workers: their counts are moved to the total, and after a day they are deleted.

Until then a worker that was cut off can read in its journal whether its last batch was committed.
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

JOURNAL_RETENTION_US: Final = 24 * 3600 * 1_000_000
"""Microseconds for which the journal of an ended worker is kept."""


def folded(journals: Sequence[tuple[str, Node]], into: Node | None) -> Entry | None:
    """Return the entry that moves the counts of journals into the total; None if they have none."""
    decoded = [(path, node, records.decode(node.data)) for path, node in journals]
    changes: list[Change] = []
    for path, node, record in decoded:
        if "." in path.rpartition("-")[2]:  # the overflow of a journal: its batch number is never read
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
    """Fold the journals of ended workers into the total, and delete those past their retention.

    Raises DeposedError, StoreUnavailableError, SessionEndedError.
    """
    tree = leadership.tree
    # In this order: a journal is created together with its worker.
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
    await _delete_expired([paths.journal(name) for name in gone], leadership)


async def _delete_expired(places: list[str], leadership: Leadership) -> None:
    if not places:
        return
    now_us = round(await membership.now(leadership.tree, leadership.session.who) * 1_000_000)
    entries = []
    for path, node in zip(places, await leadership.tree.get_many(places), strict=True):
        if (
            node is not None
            and node.mtime_us < now_us - JOURNAL_RETENTION_US
            and not records.decode(node.data).get("counts")
        ):
            entries.append(Entry([Delete(path, node.version)]))
    await leadership.commit(entries)


def _worker_of(journal: str) -> str:
    """Return the worker of a journal: ``n1-7`` also for ``n1-7.3``. Names of nodes may have dots themselves."""
    node, _, term = journal.rpartition("-")
    return f"{node}-{term.partition('.')[0]}"
