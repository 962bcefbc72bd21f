"""The contract between a node and an engine, whatever the engine is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.errors import StoreError
    from mainspring.ids import NodeId, Term
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Budget, Query

    Committed = Callable[[Sequence[Any] | StoreError], None]
    """Takes the outcomes of a group in the order of its operations, or the reason why nothing of it has happened.

    In place of an outcome there may be a StoreError, where this operation alone has failed, or DEFERRED, where ``Answer`` was or
    will be called for it."""
    Answer = Callable[[int, Any | StoreError], None]
    """Takes the outcome of one operation of a group, named by its place, apart from the others."""
    Answered = Callable[[Any], None]
    """Takes the answer to a query, or the StoreError that says why there is none."""


class Opened(NamedTuple):
    """What a node learns when it opens its store."""

    term: Term
    """The number under which this run of the node holds jobs; never used before."""
    nodes: Mapping[int, str]
    """The node that had each term, for the handles of jobs of earlier terms. A shared store adds to it what it learns of others
    before it returns a job of theirs."""


class QueryPort(Protocol):
    """What answers queries."""

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query from what is committed, and call ``answered`` once, before returning or later on the node's thread.

        It is called as `commit` is, and runs beside a group: neither waits for the other. The answer has all that was committed
        before the call. A read that has spent its budget answers what it has found so far (`query.Page.next`), and each one gets
        further than its beginning. Where the store is away it fails within seconds; it does not wait as a group does.
        """


class GroupPort(Protocol):
    """What commits groups."""

    whole: bool
    """Whether a group is one transaction: all of its operations happen, or none."""

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group as one transaction and call ``committed`` once, before returning or later on the node's thread.

        ``answer`` is for outcomes that do not depend on the rest of the group: an engine may give them earlier or later, also
        long after the group has ended, once for each of these operations. Among the outcomes they are DEFERRED.

        Called on the node's thread, in its running loop where it has one. At most one group is under way at a time.
        """


class Engine(QueryPort, GroupPort, Protocol):
    """One implementation of the store.

    A group is one transaction: all of its operations happen, or none. (Where the store has no transactions of that size, and is
    not ``whole``, each job of an operation happens as a whole or not at all.) The operations of one group were under way at the
    same time, so any serial order of them is right; engines run them in an order of kinds that suits them (settlements
    first, so that a name that becomes free can be taken in the same group; claims after submissions).
    """

    durable: bool
    """Whether what was committed survives the end of the process."""

    max_value: int
    """The largest payload or result that can be stored, in bytes."""

    shared: bool
    """Whether several nodes have the store open at once. Then each group is fenced by the node's term: once that has been ended,
    by whichever node, groups fail with StoreFencedError and have not happened."""

    limits: bool
    """Whether it keeps limits, pauses and keys of functions."""

    lines: bool
    """Whether its pending jobs stand in lines whose beginnings can be read (`queries.jobs.FirstInLine`)."""

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], followers: Any = None
    ) -> Opened:
        """Open the store for a node and begin its next term.

        ``deliver`` runs a function on the node's own thread; engines with threads of their own call ``committed`` through it.
        ``followers`` (`jobs.slices.Followers`, or None) are the node's side of jobs that slices make: without them none can.
        On a shared store it may be called again once the term was ended, to begin another one.
        Raises StoreBusyError, StoreForeignError, StoreCorruptError, StoreFullError, StoreUnavailableError or StoreError.
        """

    async def close(self) -> None:
        """Release the store. No group may be under way. It may be closed again.

        On a shared store the node leaves by it: its term ends, so that nobody waits for its lease, unless it still holds jobs.
        These are given back by whoever finds it dead, as those of any node that is gone. Never raises: where the store is away,
        the others wait for the lease too.
        """
