"""Operations that clients request for single jobs, beside their cancel and redrive: reschedule and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.access.audit import Acting
from mainspring.jobs.model import State
from mainspring.namespaces import DEFAULT
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.access.acts import Act
    from mainspring.jobs.model import Job


class Reschedule(Acting):
    """Change when a waiting job starts, its priority, or when it expires; None leaves a value unchanged.

    With ``due_us``, the job is SCHEDULED if that is after ``now_us``, and PENDING otherwise. An ``expires_us`` of 0 means that it
    does not expire. Guard: SCHEDULED or PENDING, in the namespace. Outcome: ``Rescheduled``.
    """

    __slots__ = ("due_us", "expires_us", "id", "namespace", "now_us", "priority")

    phase = Phase.CANCEL
    is_request = True

    def __init__(
        self,
        job_id: int,
        now_us: int,
        *,
        due_us: int | None = None,
        priority: int | None = None,
        expires_us: int | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        super().__init__()
        self.id = job_id
        self.namespace = namespace
        self.now_us = now_us
        self.due_us = due_us
        self.priority = priority
        self.expires_us = expires_us

    def recorded(self, outcome: Rescheduled) -> Act | None:
        """Return the act, if the job waited."""
        return self.act if outcome.job is not None and outcome.before <= State.PENDING else None


class Rescheduled(NamedTuple):
    """The outcome of Reschedule: the job after it, without payload and result, and its state and priority before.

    The guard held if the state before is SCHEDULED or PENDING.
    """

    job: Job | None
    before: int
    priority: int


class DeleteEnded(Acting):
    """Delete an ended job. Guard: ended, in the namespace, and no root job (``model.RUNS``). Outcome: ``Deleted``."""

    __slots__ = ("id", "namespace")

    phase = Phase.SWEEP
    is_request = True

    def __init__(self, job_id: int, namespace: str = DEFAULT) -> None:
        super().__init__()
        self.id = job_id
        self.namespace = namespace

    def recorded(self, outcome: Deleted) -> Act | None:
        """Return the act, if the job was deleted."""
        return self.act if outcome.deleted else None


class Deleted(NamedTuple):
    """The outcome of DeleteEnded: the job as it was, without payload and result, and whether it was deleted."""

    job: Job | None
    deleted: bool
