"""The interface of slices to a transaction of SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import submitting
from mainspring.jobs.store import Submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found


class SqliteGround:
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
        """Return the node of a term."""
        return self._tx.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if the transaction is rolled back."""
        self._tx.rollbacks.append(function)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return submitting.submit(self._tx, [Submit(new)])[0]
