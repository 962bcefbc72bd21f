"""The creation of an empty tree's roots, and of a node's next term."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import committer, journal, paths, records
from mainspring.engines.zookeeper.schedules import places
from mainspring.engines.zookeeper.tree import Create, Done, SessionEndedError, UnknownOutcomeError, Write
from mainspring.errors import StoreForeignError, StoreUnavailableError
from mainspring.nodes.model import NodeRow

if TYPE_CHECKING:
    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.ids import NodeId

LAYOUT_VERSION: Final = 1
"""The version of the tree's layout; a node refuses a tree of a newer one."""


async def prepare(tree: Tree) -> bool:
    """Create all missing roots and buckets, and return whether there were any.

    Several nodes may do so at once, and may stop anywhere. Raises StoreForeignError if a newer version has the tree.
    """
    node = await tree.get(paths.LAYOUT)
    if node is not None:
        version = records.decode(node.data).get("version", 0)
        if version > LAYOUT_VERSION:
            raise StoreForeignError(
                f"the tree has layout {version}, and this version of Mainspring supports {LAYOUT_VERSION}: upgrade this node"
            )
        return False
    for root in (*paths.ROOTS, *places.ROOTS):
        await tree.commit([Create(root)])  # refused if it exists
    for root in paths.BUCKETED:
        while missing := sorted(set(paths.BUCKETS).difference(await tree.children(root) or ())):
            await tree.commit([Create(f"{root}/{bucket}") for bucket in missing])
    await tree.commit([Create(paths.LAYOUT, records.encode({"version": LAYOUT_VERSION}))])
    return True


async def next_term(tree: Tree, node: NodeId) -> int:
    """Start a node's next term: one multi creates its number, queue, journal and ephemeral node."""
    while True:
        counter = await tree.get(paths.TERMS)
        assert counter is not None, "the roots are there"
        term = int(records.decode(counter.data).get("last", 0)) + 1
        who = paths.worker_name(node, term)
        row = NodeRow(term=term, name=node, counter=0)
        changes = [
            Write(paths.TERMS, records.encode({"last": term}), counter.version),
            Create(f"{paths.TERMS}/{term}", node.encode()),
            *(Create(path) for path in (paths.queue(who), paths.wants(who), paths.mail(who))),
            *journal.begin(who),
            Create(paths.worker(who), records.encode(row), ephemeral=True),
        ]
        try:
            outcome = await tree.commit(changes)
        except UnknownOutcomeError:
            if await _has_begun(tree, who):
                return term
            continue  # with another number: this one leaves at most a worker without tasks, which ends with its session
        if isinstance(outcome, Done):
            return term


async def _has_begun(tree: Tree, who: str) -> bool:
    """Return whether this session has created a worker. While the ensemble is away, it waits.

    The worker would live as long as the session: without the wait, an idle one might stay behind.
    """
    while True:
        try:
            await tree.sync()
            node = await tree.get(paths.worker(who))
        except (StoreUnavailableError, SessionEndedError):
            await asyncio.sleep(committer.RETRY_DELAY)  # the next session can read it as well
        else:
            return node is not None and node.owner == tree.session
