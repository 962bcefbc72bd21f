"""What slices stand on in an attempt to run a group."""

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
        """The node's own."""
        assert self._tx.lifecycle is not None, "a node with slices says who gives its jobs their ids"
        return self._tx.lifecycle

    @property
    def term(self) -> int:
        """The node's."""
        return self._tx.term

    def node(self, term: int) -> str:
        """Return the node of a term that was met; those of ends that are followed have to be."""
        return self._tx.nodes.get(term, "")

    async def meet(self, terms: Iterable[int]) -> None:
        """Know the nodes of these terms from now on."""
        await self._tx.nodes.meet(term * TERM_SPAN for term in terms if term)

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.after_commit(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function where this attempt is not committed."""
        self._tx.after_rollback(function)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return await store(self._tx, new, [0] * len(new)) if new else {}
