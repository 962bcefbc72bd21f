"""The membership of nodes: their rows are ephemeral, and go within the session time-out after a node's end.

Implements ``mainspring.nodes.store.MembershipPort``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.tree import ANY, Create, Delete, Refused, Write
from mainspring.errors import StoreFencedError
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from mainspring.engines.zookeeper.tree import Change, Node, Tree

_decode: Final = msgspec.json.Decoder(NodeRow).decode


async def beat(tree: Tree, who: str, row: NodeRow) -> list[NodeRow]:
    """Write a node's own row and return all. Raises StoreFencedError."""
    outcome = await tree.commit([Write(paths.worker(who), records.encode(row))])
    if isinstance(outcome, Refused):
        raise StoreFencedError(f"term {row.term} was ended by another node, or its session has")
    return await rows(tree)


async def rows(tree: Tree) -> list[NodeRow]:
    """Return the rows of all live nodes; foreign data is ignored."""
    workers = sorted(paths.workers_of(await tree.children(paths.WORKERS)))
    drain_requested = set(await tree.children(paths.DRAINING) or ())
    found = []
    for node in await tree.get_many([paths.worker(who) for who in workers]):
        row = None if node is None else _row(node)
        if row is not None:
            found.append(msgspec.structs.replace(row, draining=row.draining or row.name in drain_requested))
    return found


async def now(tree: Tree, who: str) -> float:
    """Return the wall time of the ensemble's leader, in seconds: that of a write."""
    box = paths.mail(who)
    await tree.commit([Write(box, b"")])
    node = await tree.get(box)
    if node is None:
        raise StoreFencedError(f"{box} is gone: the term was ended by another node")
    return node.mtime_us / 1_000_000


def _row(node: Node) -> NodeRow | None:
    try:
        return _decode(node.data)
    except ValueError:
        return None  # the master logs it, if it is a worker's


async def _find(tree: Tree, term: int) -> tuple[str, Node] | None:
    for who in paths.workers_of(await tree.children(paths.WORKERS)):
        if paths.term_of(who) == term:
            node = await tree.get(paths.worker(who))
            return None if node is None else (who, node)
    return None


async def end(tree: Tree, term: int, counter: int | None) -> bool:
    """End a term by deleting its node's ephemeral: each of its batches checks that.

    If it was the master, its leadership ends too: its session may go on while it only sends, and receives nothing.
    """
    while True:
        found = await _find(tree, term)
        if found is None:
            return await tree.get(f"{paths.TERMS}/{term}") is not None
        who, node = found
        if counter is not None and ((row := _row(node)) is None or row.counter != counter):
            return False
        version = node.version if counter is not None else ANY
        changes: list[Change] = [Delete(paths.worker(who), version)]
        master = await tree.get(paths.MASTER)
        if master is not None and records.decode(master.data)["worker"] == who:
            changes.append(Delete(paths.MASTER, master.version))
        outcome = await tree.commit(changes)
        if not isinstance(outcome, Refused):
            return True


async def ask_to_drain(tree: Tree, term: int, *, draining: bool) -> bool:
    """Store or delete the request that a node drain; it applies to the node's name until it is deleted."""
    found = await _find(tree, term)
    if found is None:
        return False
    path = f"{paths.DRAINING}/{found[0].rpartition('-')[0]}"
    await tree.commit([Create(path) if draining else Delete(path)])
    return True


async def leave(tree: Tree, who: str) -> None:
    """Delete a node's row, letters and requests, and its queue if it is empty; the master returns the tasks it holds."""
    await tree.commit([Delete(paths.worker(who))])
    box = paths.mail(who)
    letters = await tree.children(box) or ()
    await tree.commit([*(Delete(f"{box}/{letter}") for letter in letters), Delete(box)])
    await tree.commit([Delete(paths.wants(who))])
    await tree.commit([Delete(paths.queue(who))])  # refused if it is not empty
    await tree.commit([Delete(f"{paths.DRAINING}/{who.rpartition('-')[0]}")])
