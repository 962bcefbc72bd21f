"""The interface of slices to a transaction of SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import jobs, roots, submitting
from mainspring.jobs.store import RequestStop, Submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found, Withdrawn


class SqliteGround:
    """``jobs.slices.RunGround``."""

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

    async def begin_roots(self, new: list[Job]) -> dict[int, Found]:
        """Store root jobs."""
        return roots.begin_roots(self._tx, new)

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        """Turn pending jobs into root jobs."""
        return roots.take_pending(self._tx, function, limit, now_us)

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        """Turn waiting jobs into root jobs."""
        return roots.take_waiting(self._tx, ids, now_us)

    async def end_roots(self, ended: Iterable[Job]) -> list[Job]:
        """End root jobs."""
        return roots.end_roots(self._tx, ended)

    async def forget_roots(self, ids: Iterable[int]) -> int:
        """Delete ended root jobs."""
        return roots.forget_roots(self._tx, ids)

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        """Delete live jobs."""
        return roots.withdraw(self._tx, ids)

    async def request_stop(self, held: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        """Store a request to cancel held jobs."""
        return jobs.request_stop(self._tx, [RequestStop(held, request)])[0]

    async def is_held(self, job_id: int, term: int) -> bool:
        """Return whether a job is held under a term."""
        return roots.is_held(self._tx, job_id, term)
