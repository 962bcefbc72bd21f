"""The engine and the cluster for an address of a real ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import address
from mainspring.engines.zookeeper import engine as engine_module
from mainspring.engines.zookeeper.cluster import ZookeeperCluster
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.ensemble.client import KazooTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.sessions import Slice


def engine(url: str, lease: float, slices: Sequence[Slice]) -> ZookeeperEngine:
    """Return an engine that is not open; its sessions last ``lease`` seconds without a message. Raises SettingsError."""
    where = address.parse(url)
    return ZookeeperEngine(lambda: KazooTree(where, lease, checks_versions=True), lease=lease, slices=slices)


def cluster(url: str, lease: float) -> ZookeeperCluster:
    """Return the cluster for nodes of another store: a node is dead ``lease`` seconds after its last message."""
    return ZookeeperCluster(KazooTree(address.parse(url), lease))


async def prepare(url: str) -> list[int]:
    """Create the roots of an empty tree; return the layout's version if it was empty. Raises SettingsError, StoreError."""
    tree = KazooTree(address.parse(url), 10.0)
    try:
        await tree.open()
        return [engine_module.LAYOUT_VERSION] if await engine_module.prepare_tree(tree) else []
    finally:
        await tree.close()
