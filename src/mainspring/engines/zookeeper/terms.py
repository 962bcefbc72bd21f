"""Who had which term. That never changes, so it is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.engines.zookeeper.tree import Tree


async def read_all(tree: Tree) -> dict[int, str]:
    """Return all terms that were, with the nodes that had them."""
    nodes: dict[int, str] = {}
    await meet(tree, nodes, paths.numbers_of(await tree.children(paths.TERMS)))
    return nodes


async def meet(tree: Tree, nodes: dict[int, str], terms: Iterable[int]) -> None:
    """Add the nodes of some terms to those that are known; terms that never were stay unknown."""
    unknown = sorted(set(terms) - nodes.keys())
    if unknown:
        found = await tree.get_many([f"{paths.TERMS}/{term}" for term in unknown])
        nodes.update({term: node.data.decode() for term, node in zip(unknown, found, strict=True) if node})


async def worker_of(tree: Tree, nodes: dict[int, str], term: int) -> str | None:
    """Return the worker that has or had a term; None where there was no such term."""
    await meet(tree, nodes, [term])
    node = nodes.get(term)
    return None if node is None else paths.worker_name(node, term)
