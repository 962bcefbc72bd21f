"""The last recoveries of a node: jobs of ended terms that it gave back, so that people see where jobs went after a death.

They are in the node's memory, and its row shows them to all nodes until it ends. A record in the store would outlive the node,
but it would add a write to each recovery, for figures that change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.nodes.model import Recovery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST: Final = 10
"""Recoveries in the row of a node, so that a heartbeat stays small."""
MOST_TERMS: Final = 10
"""Terms that one of them names."""


class Recoveries:
    """The newest recoveries of a node. ``name_of`` returns the name of a term's node, or an empty text."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        self._name_of = name_of
        self._kept: list[Recovery] = []

    def add(self, terms: Sequence[int], jobs: int, at_us: int) -> None:
        """Add jobs that were given back. Large numbers come in parts, which are added up."""
        if not jobs:
            return
        named = tuple(terms[:MOST_TERMS])
        if self._kept and self._kept[-1].terms == named:
            jobs += self._kept.pop().jobs
        self._kept.append(Recovery(named, tuple(self._name_of(term) for term in named), jobs, at_us))
        del self._kept[:-MOST]

    def rows(self) -> tuple[Recovery, ...]:
        """Return them, the oldest first."""
        return tuple(self._kept)
