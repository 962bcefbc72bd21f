"""What slices stand on: one attempt of one transaction in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mainspring.engines.zookeeper.making import NewJobs
from mainspring.engines.zookeeper.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.committer import Conflict
    from mainspring.engines.zookeeper.session import Session
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found


class ZookeeperGround:
    """``jobs.slices.Ground``: what was read is checked, and what was locked is written, when all is written.

    The unit is one job's entry or one operation, not the group: each has a ground and a unit of work of its own.
    """

    kind: ClassVar[str] = "jobs"
    """What is decided on it, in words for people."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.transaction = Transaction(session.tree)
        self._jobs = NewJobs(session, self.transaction)
        self._commits: list[Callable[[], object]] = [self._jobs.tell]
        self._rollbacks: list[Callable[[], object]] = []

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's own."""
        lifecycle = self._session.lifecycle
        assert lifecycle is not None, "a node with slices says who gives its jobs their ids"
        return lifecycle

    @property
    def term(self) -> int:
        """None: a job is leased by the entry that assigns it."""
        return 0

    def node(self, term: int) -> str:
        """Return the node of a term; those of ends that are followed are known."""
        return self._session.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function once all is written."""
        self._commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function where this attempt is not written."""
        self._rollbacks.append(function)

    async def submit(self, jobs: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return await self._jobs.submit(jobs)

    def ends(self, job: Job, key: Any) -> None:
        """Say that a job ends with what is written, and the key of its owner."""
        del key
        self._jobs.ends(job)

    # ---- the attempt ----

    def committed(self) -> None:
        """All is written."""
        self._rollbacks.clear()
        for function in self._commits:
            function()

    def give_up(self) -> None:
        """Write nothing: only what would come of it was asked for."""
        self.rolled_back()
        self._commits.clear()
        self.transaction = Transaction(self._session.tree)

    def rolled_back(self) -> None:
        """The attempt is over: undo what it has said, unless it was written."""
        rollbacks, self._rollbacks = self._rollbacks, []
        for function in rollbacks:
            function()

    def overtaken(self, conflict: Conflict | None) -> None:
        """Others were quicker: the next attempt is not to rely on what is remembered. None: it was seen before the write."""
