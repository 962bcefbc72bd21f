"""The nodes of terms. They never change, so each is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.engines.zookeeper.tree import Tree


async def read_all(tree: Tree) -> dict[int, str]:
    """Return the nodes of all terms."""
    nodes: dict[int, str] = {}
    await meet(tree, nodes, paths.numbers_of(await tree.children(paths.TERMS)))
    return nodes


async def meet(tree: Tree, nodes: dict[int, str], terms: Iterable[int]) -> None:
    """Load the nodes of some terms into ``nodes``, but for terms that never existed."""
    unknown = sorted(set(terms) - nodes.keys())
    if unknown:
        found = await tree.get_many([f"{paths.TERMS}/{term}" for term in unknown])
        nodes.update({term: node.data.decode() for term, node in zip(unknown, found, strict=True) if node})


async def worker_of(tree: Tree, nodes: dict[int, str], term: int) -> str | None:
    """Return the worker of a term; None if there was no such term."""
    await meet(tree, nodes, [term])
    node = nodes.get(term)
    return None if node is None else paths.worker_name(node, term)
