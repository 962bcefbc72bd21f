"""From an address to an engine on a real ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import address, bootstrap
from mainspring.engines.zookeeper.cluster import ZookeeperCluster
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.ensemble.client import KazooTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Slice


def engine(url: str, lease: float, slices: Sequence[Slice]) -> ZookeeperEngine:
    """Return an engine that is not open yet; its sessions last for ``lease`` seconds without a word. Raises SettingsError."""
    where = address.parse(url)
    return ZookeeperEngine(lambda: KazooTree(where, lease), lease=lease, slices=slices)


def cluster(url: str, lease: float) -> ZookeeperCluster:
    """Return a way for nodes of another store to see who lives: a node is gone ``lease`` seconds after its last word."""
    return ZookeeperCluster(KazooTree(address.parse(url), lease))


async def prepare(url: str) -> list[int]:
    """Give an empty tree its roots; returns the layout's version where it was not there. Raises SettingsError, StoreError."""
    tree = KazooTree(address.parse(url), 10.0)
    try:
        await tree.open()
        return [bootstrap.LAYOUT] if await bootstrap.prepare(tree) else []
    finally:
        await tree.close()
