"""The interface of slices to an attempt to run a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.submitting import store
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found


class PostgresGround:
    """``jobs.slices.Ground``."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's job lifecycle."""
        assert self._tx.lifecycle is not None, "a node with slices provides the ids of its jobs"
        return self._tx.lifecycle

    @property
    def term(self) -> int:
        """The node's own term."""
        return self._tx.term

    def node(self, term: int) -> str:
        """Return the node of a term, if it is cached; the terms of followed ends must be."""
        return self._tx.nodes.get(term, "")

    async def meet(self, terms: Iterable[int]) -> None:
        """Load the nodes of these terms."""
        await self._tx.nodes.load(term * TERM_SPAN for term in terms if term)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.after_commit(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is rolled back."""
        self._tx.after_rollback(function)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return await store(self._tx, new, [0] * len(new)) if new else {}
