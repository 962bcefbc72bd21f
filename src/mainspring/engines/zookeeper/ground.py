"""The ground of a slice's unit of work: one attempt of one transaction in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mainspring.engines.zookeeper.new_jobs import NewJobs
from mainspring.engines.zookeeper.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.committer import Conflict
    from mainspring.engines.zookeeper.session import Session
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found


class ZookeeperGround:
    """``jobs.slices.Ground``: the final multi checks the nodes that were read, and writes those that were locked.

    The unit is one job's entry or one operation, not the group: each has a ground and a unit of work of its own.
    """

    kind: ClassVar[str] = "jobs"
    """The kind of its transactions, for error messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.transaction = Transaction(session.tree)
        self._jobs = NewJobs(session, self.transaction)
        self._commits: list[Callable[[], object]] = [self._jobs.report]
        self._rollbacks: list[Callable[[], object]] = []

    @property
    def lifecycle(self) -> JobLifecycle:
        """The job lifecycle of this node."""
        lifecycle = self._session.lifecycle
        assert lifecycle is not None, "a node with slices has a lifecycle"
        return lifecycle

    @property
    def term(self) -> int:
        """0: jobs are not leased here, but by the entry that assigns them."""
        return 0

    def node(self, term: int) -> str:
        """Return the node of a term; those of ended jobs are loaded."""
        return self._session.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the write."""
        self._commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is not written."""
        self._rollbacks.append(function)

    async def submit(self, jobs: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return await self._jobs.submit(jobs)

    def ends(self, job: Job, key: Any) -> None:
        """Register a job that ends in this transaction, and the key of its owner."""
        del key
        self._jobs.ends(job)

    # ---- the attempt ----

    def committed(self) -> None:
        """Run the callbacks after the write."""
        self._rollbacks.clear()
        for function in self._commits:
            function()

    def give_up(self) -> None:
        """Discard the writes: only the result was requested."""
        self.rolled_back()
        self._commits.clear()
        self.transaction = Transaction(self._session.tree)

    def rolled_back(self) -> None:
        """End the attempt: run the rollback callbacks unless it was written."""
        rollbacks, self._rollbacks = self._rollbacks, []
        for function in rollbacks:
            function()

    def overtaken(self, conflict: Conflict | None) -> None:
        """Invalidate caches after a conflict; None: the conflict was found before the write."""
