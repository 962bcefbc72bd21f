"""What the handlers of one group share."""

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
"""What handlers remember from group to group, by its class."""


class Transaction:
    """A group under way: one attempt to run it. Another attempt has another one.

    Where the group only reads, ``connection`` is in no transaction, and each statement has a snapshot of its own.
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
        """The node's own."""
        self.functions = functions
        self.nodes = nodes
        """Terms to nodes; ``await tx.nodes.meet(ids)`` before jobs with these ids are returned."""
        self.deltas: dict[tuple[int, int, int], int] = {}
        """What this group has changed in the counts so far: (function, state, priority) to a number."""
        self.pendings: set[bytes] = set()
        self.settlements: dict[int, list[int]] = {}
        self.works: list[Work] = []
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        self._memory = memory
        self.notices: Notices = {}
        """What has happened in this group and is not followed yet, for the owners of jobs."""
        self.lifecycle = lifecycle
        """The node's side of jobs that the group makes by itself."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self.deltas[key] = self.deltas.get(key, 0) + number

    def pending(self, name: bytes) -> None:
        """A due job of this function was left pending: other nodes are told after the commit."""
        self.pendings.add(name)

    def settled(self, term: int, job_id: int) -> None:
        """A job has ended that clients of this term's node wait for: it is told after the commit."""
        self.settlements.setdefault(term, []).append(job_id)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function once the group is committed, before its outcomes are told."""
        self.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function where this attempt is not committed, once that is known."""
        self.rollbacks.append(function)

    def later(self, work: Work) -> None:
        """Run something on the control connection, outside of every transaction, some time after the commit; best effort."""
        self.works.append(work)

    def memory(self, kind: type[T]) -> T:
        """Return what this engine remembers in a class: made at first use, without arguments, and kept until the term ends."""
        found: T | None = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind()
        return found
