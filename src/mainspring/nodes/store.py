"""The ports that the nodes slice needs: rows of nodes and the ends of their terms, and who else knows of deaths.

All of it goes past the commit queue, over a connection of its own: a busy or a blocked group must not cost a node its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.events.relay import Message
    from mainspring.nodes.model import NodeRow


class MembershipPort(Protocol):
    """What the nodes of a store know of each other. Each method raises StoreUnavailableError where the store is away."""

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write a node's own row, counter and all, and return the rows of all nodes.

        Whether it drains is not the node's to write: `ask_to_drain` has the last word, whatever the row says.
        Raises StoreFencedError where its term has ended.
        """

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes, as `beat` does."""

    async def now(self) -> float:
        """Return the wall time of the store's own clock, in seconds: nodes set theirs by it."""

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term, and take its row away: no group is committed under it from now on.

        With a ``counter``, only where the row still has it: the node may have come back meanwhile. A group that is under way is
        waited for, or broken off. Says whether the term has ended, by this call or before.
        """

    async def abandoned(self) -> Sequence[int]:
        """Return the ended terms that still hold jobs, or whose clients' waiting is still noted."""

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Note that the node of a row shall drain, or no longer; says whether there is such a row.

        It holds for the node's name: also under its next terms, whoever has ended this one, until the node leaves by closing its
        store. Rows are returned with it.
        """


class Cluster(Protocol):
    """Who knows which nodes of a store live, and carries what they tell each other, in the store's place.

    It only makes things quicker: where it is away, heartbeats in the store and looks into it do as well.
    """

    id: str
    """The same for all nodes that watch each other there; empty where this node has never reached it."""

    async def open(self, heard: Callable[[Message], None]) -> None:
        """Begin to be there, once it can be reached; returns at once. ``heard`` is called with each message for this node."""

    async def join(self, node: str, term: int) -> None:
        """Be there under a term from now on, as soon as it can be reached."""

    def joined(self, term: int) -> bool:
        """Whether this node is there under a term, as far as it knows."""

    async def gone(self, terms: Collection[int]) -> Collection[int]:
        """Return those of some terms that are surely not there any more; none where nobody can say."""

    def send(self, to: int, message: Message) -> bool:
        """Tell the node that has a term something; False where it is not known to be there."""

    def tell_all(self, message: Message) -> None:
        """Tell all others something."""

    async def close(self) -> None:
        """Leave, within some seconds."""
