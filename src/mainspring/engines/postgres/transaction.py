"""The transaction of a group: the state that its handlers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.jobs.counts import counted_as

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.functions import Functions, Nodes
    from mainspring.jobs.owners import Notices
    from mainspring.jobs.slices import JobLifecycle

    Work = Callable[[Connection[Record]], Awaitable[object]]

T = TypeVar("T")

Memory = dict[type[Any], Any]
"""The handlers' memory between groups, by class."""


class Transaction:
    """One attempt to run a group. Another attempt has another transaction.

    If the group only reads, ``connection`` is in no transaction, and each statement has its own snapshot.
    """

    def __init__(
        self,
        connection: Connection[Record],
        term: int,
        functions: Functions,
        nodes: Nodes,
        memory: Memory,
        lifecycle: JobLifecycle | None = None,
    ) -> None:
        self.connection = connection
        self.term = term
        """The node's own term."""
        self.functions = functions
        self.nodes = nodes
        """Nodes by term; call ``await tx.nodes.load(ids)`` before jobs with these ids are returned."""
        self.deltas: dict[tuple[int, int, int], int] = {}
        """The group's changes of the counts so far: (function, state, priority) to a number."""
        self.pendings: set[bytes] = set()
        self.settlements: dict[int, list[int]] = {}
        self.works: list[Work] = []
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        self._memory = memory
        self._tables: dict[Any, Any] = {}
        self.notices: Notices = {}
        """The events in this group that the owners of jobs have not followed yet."""
        self.lifecycle = lifecycle
        """The node's side of jobs that the group creates itself."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self.deltas[key] = self.deltas.get(key, 0) + number

    def pending(self, name: bytes) -> None:
        """Note that a due job of this function was left pending: other nodes are notified after the commit."""
        self.pendings.add(name)

    def settled(self, term: int, job_id: int) -> None:
        """Note the end of a job that clients of this term's node wait for: the node is notified after the commit."""
        self.settlements.setdefault(term, []).append(job_id)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function once the group is committed, before its outcomes are reported."""
        self.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is rolled back, once that is certain."""
        self.rollbacks.append(function)

    def later(self, work: Work) -> None:
        """Run work on the control connection, outside of every transaction, some time after the commit; best effort."""
        self.works.append(work)

    def tables(self, kind: Callable[[Transaction], T]) -> T:
        """Return this attempt's instance of a class of tables: slices that use the same tables share their locks and states."""
        found: T | None = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = kind(self)
        return found

    def memory(self, kind: type[T]) -> T:
        """Return the engine's instance of a class: created at first use, without arguments, and kept until the term ends."""
        found: T | None = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind()
        return found
