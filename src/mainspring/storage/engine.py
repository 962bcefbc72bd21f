"""The contract between a node and an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.errors import StoreError
    from mainspring.ids import NodeId, Term
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Budget, Query

    Committed = Callable[[Sequence[Any] | StoreError], None]
    """Receives the outcomes of a group in the order of its operations, or the error if nothing of the group was committed.

    An outcome may be a StoreError if this operation alone failed, or DEFERRED if ``Answer`` was or will be called for it."""
    Answer = Callable[[int, Any | StoreError], None]
    """Receives the outcome of one operation of a group, named by its place."""
    Answered = Callable[[Any], None]
    """Receives the answer to a query, or the StoreError."""


class Opened(NamedTuple):
    """The result of opening a store."""

    term: Term
    """The number under which this run of the node holds jobs; never used before."""
    nodes: Mapping[int, str]
    """The node of each term, for the handles of jobs of earlier terms. A shared store adds the terms of other nodes before it
    returns jobs of these terms."""


class QueryPort(Protocol):
    """The part of an engine that answers queries."""

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query from what is committed, and call ``answered`` once, before returning or later on the node's thread.

        It is called as `commit` is, and runs beside a group: neither waits for the other. The answer includes everything that was
        committed before the call. A read that has spent its budget returns the rows found so far (`query.Page.next`); each read
        gets at least one part further. If the store is not reachable, the query fails within seconds, where a group would wait.
        """


class GroupPort(Protocol):
    """The part of an engine that commits groups."""

    whole: bool
    """Whether a group is one transaction: all of its operations happen, or none."""

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group as one transaction and call ``committed`` once, before returning or later on the node's thread.

        ``answer`` is for outcomes that do not depend on the rest of the group. An engine may call it at any time, also long after
        the group has ended, once for each of these operations. Among the group's outcomes theirs are DEFERRED.

        Called on the node's thread, in its running loop if it has one. At most one group is in progress at a time.
        """


class Engine(QueryPort, GroupPort, Protocol):
    """One implementation of the store.

    A group is one transaction: all of its operations happen, or none. (On a store that has no transactions of that size, and is
    not ``whole``, each job of an operation happens as a whole or not at all.) The operations of one group are concurrent, so any
    serial order of them is right. Engines run them in an order of kinds that suits them: settlements first, so that a released
    unique can be used in the same group; claims after submissions.
    """

    durable: bool
    """Whether committed data survives the end of the process."""

    max_value: int
    """The largest payload or result that can be stored, in bytes."""

    shared: bool
    """Whether several nodes have the store open at once. Each group is then fenced by the node's term: once a node has ended
    the term, groups fail with StoreFencedError and change nothing."""

    limits: bool
    """Whether it keeps limits, pauses and keys of functions."""

    namespaces: bool
    """Whether it keeps functions of other namespaces than ``default``."""

    lines: bool
    """Whether pending jobs stand in lines whose first jobs can be read (`queries.jobs.FirstInLine`)."""

    recalls: bool
    """Whether it keeps arguments and attempts (`queries.jobs.Recall`)."""

    logs: bool
    """Whether it keeps the logs of jobs (`job_logs.store`)."""

    access: bool
    """Whether it keeps credentials and an audit (`access.store`)."""

    series: bool
    """Whether it keeps series of functions (`series.store`)."""

    workflows: bool
    """Whether it keeps runs of workflows: it has `jobs.slices.RunGround`, deletes jobs with `Options.forget` at their end,
    and stores requests to stop held jobs (`jobs.store.RequestStop`)."""

    changes_jobs: bool
    """Whether it reschedules waiting jobs, and redrives jobs later or with other arguments (`jobs.store.Reschedule`, `Redrive`).
    Clients delete jobs on such a store alone; `DeleteEnded` is done by all, for jobs that are kept for a shorter time."""

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: Any = None
    ) -> Opened:
        """Open the store for a node and begin its next term.

        ``deliver`` runs a function on the node's own thread; engines with threads of their own call ``committed`` through it.
        ``lifecycle`` (`jobs.slices.JobLifecycle`, or None) is the node's part in creating jobs for slices; without it they
        create none. On a shared store, open may be called again after the term has ended, to begin another one.
        Raises StoreBusyError, StoreForeignError, StoreCorruptError, StoreFullError, StoreUnavailableError or StoreError.
        """

    async def close(self) -> None:
        """Release the store. No group may be under way. It may be closed again.

        On a shared store this ends the node's term, so that no other node waits for its lease, unless the node still holds jobs.
        The node that finds it dead releases these, as for any lost node. Never raises: if the store is not reachable, other nodes
        wait for the lease.
        """
