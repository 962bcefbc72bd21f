"""What follows from the ends of jobs in the same transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


class Ended(NamedTuple):
    """A job that has ended for good in the transaction under way: what its owner (``rules.owner``) is told.

    Engines gather these while they run the operations that can end jobs, and then call what they have registered for the owner,
    before anything else: so what follows from an end is committed with it, and the jobs slice knows nothing of what that is.
    """

    id: int
    state: int
    term: int
    """The lease under which it ended; 0 where nobody held it."""
    attempt: int
    worker: str
    started_us: int
    ended_us: int
    error: bytes

    @classmethod
    def of(cls, job: Job, worker: str = "") -> Ended:
        """Return the end of a job as it is stored."""
        return cls(job.id, job.state, job.term, job.attempt, worker, job.started_us, job.ended_us, job.error)

    @classmethod
    def by(cls, settlement: Settlement, state: int) -> Ended:
        """Return the end that a settlement brings about, with the state that follows from its event."""
        job, (started_us, ended_us) = settlement.job, (settlement.started_us, settlement.ended_us)
        error = settlement.error or job.error
        return cls(job.id, state, job.term, settlement.counted, settlement.worker, started_us, ended_us, error)


class Followers(Protocol):
    """What a node does for the jobs that a store makes by itself in a transaction, because others have ended or a time has come.

    All methods are called on the node's thread.
    """

    def next_id(self) -> int:
        """Return the id of a new job."""

    def coming(self, job: Job) -> bool:
        """Hear of a new job before it is written; False where it may not be: a job in this node's memory has its unique.

        After True exactly one of the following two is called with it.
        """

    def stored(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs are committed, before the outcomes of their group are."""

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs were not written after all: they joined others, or their transaction failed."""

    def stop(self, ids: Sequence[int]) -> None:
        """Cancel jobs, as after a commit that has replaced them."""
