"""Operations from the submission of a job to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.jobs.model import State
from mainspring.namespaces import DEFAULT
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.access.acts import Act
    from mainspring.access.once import KeyedAct
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.rules import Settlement


class Submit(Operation):
    """Store new jobs, each in the state that it carries (SCHEDULED, PENDING, or LEASED under the node's term).

    Guard: no live job of the same function has the same unique. With ``options.keep_unique`` also: no such job that was submitted
    with ``keep_unique`` has succeeded so recently; a live job comes before it. Jobs of one operation are stored in order.
    A background job that joins a live foreground one makes that a background one. With a ``waiter``, the term of a node of a
    shared store, this also subscribes that node to each job that is stored or joined, as ``Subscribe`` does.
    Outcome: ``dict[int, Found]``: for each job that was not stored (by its id), the one that it joins. Usually empty.
    """

    __slots__ = ("jobs", "waiter")

    phase = Phase.SUBMIT
    is_request = True
    brings_jobs = True

    def __init__(
        self,
        jobs: list[Job],
        waiter: int = 0,
    ) -> None:
        super().__init__()
        self.jobs = jobs
        self.waiter = waiter
        self.rows = len(jobs)


class SubmitOnce(Submit):
    """Store new jobs as `Submit` does, with the answer to the request for them.

    Outcome: that of `Submit`; or the earlier `Reservation` of the key, and then nothing changes.
    """

    __slots__ = ("keyed_act",)

    keyed = True

    def __init__(self, jobs: list[Job], keyed_act: KeyedAct) -> None:
        super().__init__(jobs)
        self.keyed_act = keyed_act


class Found(NamedTuple):
    """A stored job in short, without its payload."""

    id: int
    state: int
    attempt: int

    @classmethod
    def of(cls, job: Job) -> Found:
        """Return a job in short."""
        return cls(job.id, job.state, job.attempt)


class Withdrawn(NamedTuple):
    """A live job that a slice has deleted, as it was before."""

    id: int
    term: int
    """The term that it was held under; 0 if it waited."""
    state: int
    function: bytes
    priority: int


class Assign(Operation):
    """Record jobs as running, with the number of attempts counted before. Guard: held under ``job.term``. Outcome: None."""

    __slots__ = ("jobs",)

    phase = Phase.ASSIGN
    brings_jobs = True

    def __init__(self, jobs: list[Job]) -> None:
        super().__init__()
        self.jobs = jobs
        self.rows = len(jobs)


JobTerm = tuple[int, int]
"""A job's id, and the term under which it is held."""


def each_once(operations: Sequence[Settle]) -> tuple[dict[JobTerm, Settlement], list[set[int]]]:
    """Return the first settlement of each job and term, and for each operation the jobs that were settled before it."""
    first: dict[JobTerm, Settlement] = {}
    repeated = []
    for operation in operations:
        seen_before = set()
        for settlement in operation.settlements:
            job = settlement.job
            if first.setdefault((job.id, job.term), settlement) is not settlement:
                seen_before.add(job.id)
        repeated.append(seen_before)
    return first, repeated


class Settle(Operation):
    """Settle held jobs. Guard: the job is held under the settlement's ``job.term``.

    A success clears the payload and the error of earlier attempts; any other settlement without an error keeps the last error.
    A settlement that gives a job back ends it if that was requested (``RequestStop``); the settlement is changed accordingly.
    Outcome: ``set[int]``, the ids of the jobs whose guard failed (the settlement is stale). Of two settlements of one job the
    first counts, and the id is in the outcome.
    """

    __slots__ = ("settlements",)

    phase = Phase.SETTLE
    brings_jobs = True

    def __init__(self, settlements: list[Settlement]) -> None:
        super().__init__()
        self.settlements = settlements
        self.rows = len(settlements)


class Cancel(Acting):
    """Cancel a waiting job. Guard: SCHEDULED or PENDING, and in the namespace. Outcome: ``Cancelled``."""

    __slots__ = ("error", "id", "namespace", "now_us")

    phase = Phase.CANCEL
    is_request = True

    def __init__(
        self,
        job_id: int,
        error: bytes,
        now_us: int,
        namespace: str = DEFAULT,
    ) -> None:
        super().__init__()
        self.id = job_id
        self.error = error
        self.now_us = now_us
        self.namespace = namespace

    def recorded(self, outcome: Cancelled) -> Act | None:
        """Return the act with the job's state before it, if the job was cancelled."""
        if self.act is None or outcome.job is None or outcome.before > State.PENDING:
            return None
        return replace(self.act, before=State(outcome.before).name.lower(), after="cancelled")


class RequestStop(Acting):
    """Store a request to cancel jobs that are held, each under a term if one is given.

    From then on RETRY, SNOOZE, RELEASE and LOSE of the job, and its recovery, end it CANCELLED with ``request``; a success and a
    failure stay what they are. Only for engines that keep runs of workflows. Outcome: ``set[int]``, the ids of the jobs that are
    held so.
    """

    __slots__ = ("jobs", "request")

    phase = Phase.CANCEL
    is_request = True

    def __init__(self, jobs: Sequence[tuple[int, int | None]], request: StopRequest) -> None:
        super().__init__()
        self.jobs = jobs
        self.request = request
        self.rows = len(jobs)


class Cancelled(NamedTuple):
    """The outcome of Cancel: the job after it, without payload and result, and the job's state before it."""

    job: Job | None
    before: int


class Redrive(Acting):
    """Put an ended, unsuccessful job back to pending and reset its attempts.

    It becomes a background job: the clients of a foreground job have received their answer. With a ``payload``, it gets these
    arguments in place of its own; with ``due_us``, it is SCHEDULED until then.
    Guard: FAILED, CANCELLED or EXPIRED, in the namespace, no root job (``model.RUNS``), and its unique is not live.
    Outcome: ``Redriven``.
    ``function`` is the job's, for the node's own counts.
    """

    __slots__ = ("due_us", "function", "id", "namespace", "payload")

    phase = Phase.REDRIVE
    is_request = True

    def __init__(
        self,
        job_id: int,
        function: bytes = b"",
        namespace: str = DEFAULT,
        *,
        payload: bytes | None = None,
        due_us: int = 0,
    ) -> None:
        super().__init__()
        self.id = job_id
        self.function = function
        self.namespace = namespace
        self.payload = payload
        self.due_us = due_us
        self.size += len(payload or b"")

    def recorded(self, outcome: Redriven) -> Act | None:
        """Return the act, if the job was put back."""
        return self.act if outcome.redriven else None


class Redriven(NamedTuple):
    """The outcome of Redrive: the job after it, without payload and result.

    ``rival`` is the live job with the same unique, if that is why the redrive was refused.
    """

    job: Job | None
    redriven: bool
    rival: int | None = None
