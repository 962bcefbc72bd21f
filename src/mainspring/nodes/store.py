"""The ports of the nodes slice: rows of nodes and ends of terms in the store, and a cluster that tracks nodes beside it.

These requests bypass the commit queue on their own connection: a slow or blocked group must not cost a node its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.events import Message
    from mainspring.nodes.model import NodeRow


class MembershipPort(Protocol):
    """The rows and terms of a store's nodes. Each method raises StoreUnavailableError if the store is away."""

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write a node's own row with its new counter, and return the rows of all nodes.

        The store ignores the row's ``draining``: only `ask_to_drain` sets it. Raises StoreFencedError if the term has ended.
        """

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes, as `beat` does."""

    async def now(self) -> float:
        """Return the wall time of the store's clock in seconds; nodes set their clocks by it."""

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term and delete its row: the store refuses further groups under it. Return whether the term has ended.

        With a ``counter``, end it only if the row still has this counter: the node may have come back meanwhile. A group under
        way is awaited or aborted. The result is True also if the term had ended before.
        """

    async def abandoned(self) -> Sequence[int]:
        """Return ended terms that still hold jobs, or still have records of waiting clients."""

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Store that the node of a row shall drain, or no longer. Return whether this row exists.

        The request applies to the node's name, also in its next terms, until the node closes its store. Rows show it.
        """


class Cluster(Protocol):
    """A service that tracks the live nodes of a store and carries their messages, instead of the store.

    It only reduces delays: without it, heartbeats in the store and reads of the store do the same.
    """

    id: str
    """The same for all nodes that watch each other there; empty until this node has reached it."""

    async def open(self, on_message: Callable[[Message], None]) -> None:
        """Connect in the background and return at once. ``on_message`` is called with each message for this node."""

    async def join(self, node: str, term: int) -> None:
        """Register this node under a term, as soon as the cluster can be reached."""

    def joined(self, term: int) -> bool:
        """Return whether this node is registered under a term, as far as it can detect."""

    async def gone(self, terms: Collection[int]) -> Collection[int]:
        """Return those terms that are certainly no longer registered; none if the cluster cannot be reached."""

    def send(self, to: int, message: Message) -> bool:
        """Send a message to the node of a term; return False if the cluster has not reported that node."""

    def broadcast(self, message: Message) -> None:
        """Send a message to all other nodes."""

    async def close(self) -> None:
        """Leave the cluster, within some seconds."""
