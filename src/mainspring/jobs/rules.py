"""The state machine of jobs: one table of states, and the decisions about a job when an attempt ends.

Everything here is pure. The engines derive the guards of their statements from the table, the documentation's diagram is drawn
from it, and the tests check every transition of it.

An attempt is *counted* when a worker really had the job: it failed, it was lost with its connection, it timed out, or its
node was lost after it had recorded the job as running. A polite release and a snooze are not counted.

A worker of the extension runs many jobs in one process. If the process is lost, each of them may be the cause: each counts a
*suspect*, not an attempt. After two such losses a job runs in a process of its own, and the loss of that one counts an attempt.

`Refusals` has the reasons for which clients' requests about single jobs are refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.errors import ConflictError, IllegalTransitionError, NotFoundError
from mainspring.ids import slot_of
from mainspring.jobs.model import DECISIONS, RUNS, State, backoff, failure
from mainspring.jobs.successors import waits
from mainspring.namespaces import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.ids import Handles
    from mainspring.jobs.model import Job, Retry, StopRequest


class Event(StrEnum):
    """The events of a stored job."""

    DUE = "due"
    CLAIM = "claim"
    ASSIGN = "assign"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    LOSE = "lose"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"
    REDRIVE_LATER = "redrive later"
    POSTPONE = "postpone"
    BEGIN = "begin"


class Outcome(StrEnum):
    """How a worker's attempt at a job ended; the job may be retried after it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The worker reported an error, or a result that cannot be stored."""
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The worker, its connection or its node was lost, or the worker was silent for too long."""
    CANCELLED = "cancelled"
    RELEASED = "released"
    """The worker or the node handed the job back; the attempt is not counted."""
    SNOOZED = "snoozed"
    """The worker postponed the job; the attempt is not counted."""


_S, _E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (_S.SCHEDULED, _E.DUE): _S.PENDING,
    (_S.SCHEDULED, _E.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _E.EXPIRE): _S.EXPIRED,
    (_S.PENDING, _E.CLAIM): _S.LEASED,
    (_S.PENDING, _E.CANCEL): _S.CANCELLED,
    (_S.PENDING, _E.EXPIRE): _S.EXPIRED,
    (_S.LEASED, _E.ASSIGN): _S.RUNNING,
    # A second record of the same run is late but harmless: the worker was lost and the job handed to the next one.
    (_S.RUNNING, _E.ASSIGN): _S.RUNNING,
    (_S.FAILED, _E.REDRIVE): _S.PENDING,
    (_S.CANCELLED, _E.REDRIVE): _S.PENDING,
    (_S.EXPIRED, _E.REDRIVE): _S.PENDING,
    (_S.FAILED, _E.REDRIVE_LATER): _S.SCHEDULED,
    (_S.CANCELLED, _E.REDRIVE_LATER): _S.SCHEDULED,
    (_S.EXPIRED, _E.REDRIVE_LATER): _S.SCHEDULED,
    (_S.SCHEDULED, _E.POSTPONE): _S.SCHEDULED,
    (_S.PENDING, _E.POSTPONE): _S.SCHEDULED,
    # The job of a workflow becomes a root job (``model.RUNS``), which no node holds.
    (_S.SCHEDULED, _E.BEGIN): _S.RUNNING,
    (_S.PENDING, _E.BEGIN): _S.RUNNING,
} | {
    # Running is recorded only after a while, so every end of a run must be legal from both held states.
    (held, event): target
    for held in (_S.LEASED, _S.RUNNING)
    for event, target in {
        _E.SUCCEED: _S.SUCCEEDED,
        _E.FAIL: _S.FAILED,
        _E.RETRY: _S.SCHEDULED,
        _E.SNOOZE: _S.SCHEDULED,
        _E.RELEASE: _S.PENDING,
        _E.LOSE: _S.PENDING,
        _E.CANCEL: _S.CANCELLED,
        _E.EXPIRE: _S.EXPIRED,
    }.items()
}


def step(state: State, event: Event) -> State:
    """Return the state that follows; raise IllegalTransitionError if the table has no such transition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"a job that is {state.name.lower()} cannot {event.value}") from None


_SOURCES = {event: frozenset(state for state, legal in TRANSITIONS if legal is event) for event in Event}


def sources(event: Event) -> frozenset[State]:
    """Return the states in which an event is legal."""
    return _SOURCES[event]


_TARGETS = {event: after for (_, event), after in TRANSITIONS.items()}


def target(event: Event) -> State:
    """Return the target state of an event: it is the same from every state in which the event is legal."""
    return _TARGETS[event]


def rescheduled(state: State, due_us: int | None, now_us: int) -> State:
    """Return the state of a waiting job after a change of its due time; None leaves the time unchanged."""
    if due_us is None:
        return state
    if due_us > now_us:
        return step(state, Event.POSTPONE)
    return state if state is State.PENDING else step(state, Event.DUE)


def redriven(state: State, due_us: int) -> State:
    """Return the state of an ended job that is redriven, to run at once or, if ``due_us`` is given, then."""
    return step(state, Event.REDRIVE_LATER if due_us else Event.REDRIVE)


# The lookup of an enumeration's member would take longer than the rest of a settlement.
_SUCCEED: Final = Event.SUCCEED
_SUCCEEDED: Final = Outcome.SUCCEEDED


class Settlement:
    """The settlement of a held job: the change that the store has to record.

    The store records it only while the job is held under ``job.term``. ``counted`` is the job's number of counted attempts
    afterwards, ``due_us`` is when it is due again after RETRY and SNOOZE. ``worker`` is the name of its worker, if the job has an
    owner. ``payload`` is what a success leaves of the payload; None: all of it. ``record`` is that of the attempt, if it has one
    (`attempt_records`).

    The rest is for logs and metrics and is not stored. ``outcome`` is how the attempt ended; None: no worker had the job.
    ``ran_us`` is how long the attempt ran, 0 if unknown. ``waited_us`` is how long the job had waited before; -1 if unknown, and
    after a success, where the job has the times. ``why`` is the reason for a loss that leaves the job's error unchanged.
    ``lost_us`` is the time of a loss, if it is known.
    ``postponed_us``: by how much a job with a deadline was postponed, whose deadline moves as far.
    ``awaits``: the attempt goes on without its worker, until its completion comes.
    ``reported``: a worker of the protocol extension reported the failure, and has logged it itself. ``suspected``: the delivery
    was lost and counts no attempt, because another job may be the cause.
    """

    __slots__ = (
        "awaits",
        "counted",
        "due_us",
        "ended_us",
        "error",
        "event",
        "job",
        "lost_us",
        "outcome",
        "payload",
        "postponed_us",
        "ran_us",
        "record",
        "reported",
        "result",
        "started_us",
        "suspected",
        "waited_us",
        "why",
        "worker",
    )

    def __init__(
        self,
        job: Job,
        event: Event,
        counted: int,
        *,
        due_us: int = 0,
        started_us: int = 0,
        ended_us: int = 0,
        result: bytes = b"",
        error: bytes = b"",
        worker: str = "",
    ) -> None:
        self.job = job
        self.event = event
        self.counted = counted
        self.due_us = due_us
        self.started_us = started_us
        self.ended_us = ended_us
        self.result = result
        self.error = error
        self.worker = worker
        self.payload: bytes | None = b""
        self.record = b""
        self.outcome: Outcome | None = None
        self.ran_us = 0
        self.waited_us = -1
        self.postponed_us = 0
        self.lost_us = 0
        self.why = ""
        self.awaits = False
        self.reported = False
        self.suspected = False


def succeeded(job: Job, result: bytes, started_us: int, now_us: int) -> Settlement:
    """Settle a job that its worker has completed."""
    settlement = Settlement(job, _SUCCEED, job.attempt + 1, started_us=started_us, ended_us=now_us, result=result)
    settlement.outcome = _SUCCEEDED
    settlement.ran_us = now_us - started_us
    return settlement


def failed(
    job: Job, policy: Retry | None, error: bytes, started_us: int, now_us: int, *, final: bool, chance: float
) -> Settlement:
    """Settle a failed attempt: retry after a backoff if the policy has an attempt left, otherwise a dead letter.

    ``chance`` is a random number from 0 to 1 for the jitter.
    """
    counted = job.attempt + 1
    if final or policy is None or counted >= policy.max_attempts:
        return Settlement(job, Event.FAIL, counted, started_us=started_us, ended_us=now_us, error=error)
    due_us = now_us + duration_us(backoff(policy, counted, chance))
    return Settlement(job, Event.RETRY, counted, due_us=due_us, started_us=started_us, error=error)


_MAX_DURATION_US = 2**61
"""Some 73,000 years: no sum of a time and a duration leaves the stores' 64 bits."""


def slot(job: Job) -> int:
    """Return the hash slot of a job: that of its run, if it belongs to one, so that one node prefers all jobs of a run."""
    if job.options is not None and job.options.run is not None:
        return job.options.run[1]
    return own_slot(job)


KEPT_EVENTS: Final = 100
"""Events after which a run stays with the node of its slot, where a worker may have it in memory."""


def moves_freely(job: Job) -> bool:
    """Return whether any node may take a new job, whatever its slot: decisions of runs with few events cost no node much."""
    options = job.options
    return job.function[:1] == DECISIONS and options is not None and options.ref < KEPT_EVENTS


def own_slot(job: Job) -> int:
    """Return the hash slot of a job by its function and unique."""
    namespace, name = namespaces.split(job.function) if job.unique else (namespaces.DEFAULT, b"")
    # Nodes of the version before namespaces compute the same from the columns of PostgreSQL, where the name is the whole key.
    return slot_of(namespace, name if namespace == namespaces.DEFAULT else job.function, job.unique, job.id)


def duration_us(seconds: float) -> int:
    """Convert a duration of any length into microseconds that a store can hold."""
    return round(min(seconds * 1_000_000, _MAX_DURATION_US))


def kept_since(created_us: int, keep_unique: float) -> int:
    """Return the time after which a job must have succeeded to be joined by one created then with that ``keep_unique``."""
    return created_us - duration_us(keep_unique)


def out_of_attempts(job: Job, policy: Retry | None, lost_limit: int | None) -> bool:
    """Return whether a job whose worker was lost may not be given to another one.

    A policy's ``max_attempts`` counts lost deliveries too. ``lost_limit`` is how many workers a job without a policy may
    lose, at least one; None is no limit.
    """
    if policy is not None:
        return job.attempt >= policy.max_attempts
    return lost_limit is not None and job.attempt >= max(lost_limit, 1)


WORKER_LOST: Final = 1 << 16
"""The number that a lost worker adds to ``Job.suspects``; a lost node adds 1.

One number, because stores have one column. Nodes of version 1.0 and before add only lost nodes, and read lost workers as many
lost nodes: they run such a job with more care than it needs.
"""
MAX_LOST: Final = (1 << 15) - 1
"""The most lost workers of one job that are counted; the column in PostgreSQL has 32 bits."""

SUSPECTS_ALONE: Final = 2
"""Losses after which a job is isolated, because it may be their cause. After so many lost nodes it runs alone and is recorded
first; after so many lost workers it runs in a process of its own."""

LONGEST_PREPARATION: Final = 60.0
"""Seconds for an executor to become ready, such as a process that imports the App. After them, it counts as running time."""

LOST_DELIVERIES: Final = 5
"""Deliveries that a job may lose with workers of the extension. ``--job-retries`` overrides it for jobs without a policy."""


def was_tried(job: Job) -> bool:
    """Return whether a worker has lost or failed a job: it does not expire any more."""
    return job.attempt > 0 or job.suspects >= WORKER_LOST


def waits_since_us(job: Job, now_us: int) -> int:
    """Return since when a job has waited: its due time, or ``now_us`` if it has run since then, and nobody knows until when."""
    if job.due_us > max(job.created_us, job.started_us):
        return job.due_us
    return now_us if was_tried(job) or job.started_us else job.created_us


def may_kill_nodes(job: Job) -> bool:
    """Return whether a job may be the cause of its lost nodes."""
    return job.suspects % WORKER_LOST >= SUSPECTS_ALONE


def may_kill_workers(job: Job) -> bool:
    """Return whether a job may be the cause of its lost workers: it runs in a process of its own."""
    return job.suspects >= SUSPECTS_ALONE * WORKER_LOST


def lost(job: Job, policy: Retry | None, lost_limit: int | None, why: str, started_us: int, now_us: int) -> Settlement:
    """Settle a delivery to a plain worker, or to one that refuses the function now: it counts as an attempt."""
    job.attempt += 1
    if out_of_attempts(job, policy, lost_limit):
        return _given_up(job, f"{why}; attempt {job.attempt} was the last", started_us, now_us)
    return _given_back(job, why, now_us)


def lost_with_process(
    job: Job, policy: Retry | None, lost_limit: int | None, why: str, started_us: int, now_us: int, *, own: bool
) -> Settlement:
    """Settle a delivery to a worker of the extension whose process is lost, or hangs.

    ``own``: the worker ran only jobs in processes of their own, so that the loss counts as an attempt, too.
    """
    number = job.suspects // WORKER_LOST + 1
    job.suspects = job.suspects % WORKER_LOST + number * WORKER_LOST
    limit = LOST_DELIVERIES if policy is not None or lost_limit is None else max(lost_limit, 1)
    if own:
        job.attempt += 1
        if policy is not None and job.attempt >= policy.max_attempts:
            return _given_up(job, f"{why}; attempt {job.attempt} was the last", started_us, now_us)
    if number >= min(limit, MAX_LOST):
        lost = "1 delivery" if number == 1 else f"{number} deliveries"
        return _given_up(job, f"{why}; the job lost {lost} with workers, the most that it may", started_us, now_us)
    settlement = _given_back(job, f"{why}; loss {number} of at most {limit}", now_us)
    settlement.suspected = not own
    return settlement


def handed_on(job: Job, why: str, now_us: int) -> Settlement:
    """Settle a lost delivery whose work goes on in another system: another worker watches it, and no attempt counts."""
    note_begun(job)
    settlement = _given_back(job, why, now_us)
    settlement.suspected = True
    return settlement


def note_begun(job: Job) -> None:
    """Note that the work of a job has begun in another system: the job does not expire any more, and is no suspect."""
    job.suspects = WORKER_LOST


def _given_up(job: Job, why: str, started_us: int, now_us: int) -> Settlement:
    error = failure("WorkerLost", why)
    return Settlement(job, Event.FAIL, job.attempt, started_us=started_us, ended_us=now_us, error=error)


def _given_back(job: Job, why: str, now_us: int) -> Settlement:
    settlement = Settlement(job, Event.LOSE, job.attempt)
    settlement.why = why
    settlement.lost_us = now_us
    return settlement


GIVES_BACK: Final = frozenset({Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.LOSE})
"""The events of a held job that another worker may run again."""


def cancel_on_request(settlement: Settlement, request: StopRequest) -> None:
    """Turn a settlement that gives a job back into the cancel that was requested meanwhile."""
    settlement.event = Event.CANCEL
    settlement.outcome = Outcome.CANCELLED
    settlement.ended_us = max(request.at_us, settlement.started_us)
    settlement.due_us = 0
    settlement.error = request.error


def recovered(jobs: Iterable[Job]) -> list[Settlement]:
    """Return the settlements that give back the jobs of a lost node.

    A job that was recorded as running counts an attempt; any other may or may not have reached a worker and counts a *suspect*.
    """
    settlements = []
    for job in jobs:
        ran = job.state == State.RUNNING
        if not ran:
            job.suspects += 1
        settlement = Settlement(job, Event.LOSE, job.attempt + 1 if ran else job.attempt)
        if ran:
            settlement.outcome = Outcome.LOST
        settlements.append(settlement)
    return settlements


def run_not_retried(subject: str, function: bytes) -> str:
    """Return why a run of a workflow is not retried, and what to do: the same words everywhere."""
    name = name_of(function).decode("utf-8", "replace")
    return (
        f"{subject} is a run of a workflow, and a run cannot be retried: "
        f"start another one with mainspring workflows start {name}"
    )


NEVER_BEGUN: Final = "ended while it waited for the live job of its unique: submit it again"
"""Why a successor is not retried."""


class Refusals:
    """Makes the errors. They name the job by the id in the request; the job may have joined another one since."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def not_found(self, job_id: int) -> NotFoundError:
        """Refuse a handle without a job, or that of a job of another namespace."""
        return NotFoundError(f"no job has the handle {self._handle(job_id)}")

    def not_redated(self, job_id: int, job: Job) -> ConflictError:
        """Refuse to change by when a job should end that has ended."""
        return ConflictError(
            f"{self._handle(job_id)} is {_state(job.state)}: a job that has ended has no deadline any more"
        )

    def not_retried(self, job_id: int, job: Job) -> ConflictError:
        """Refuse to retry a job that has not ended, has succeeded, or is a run."""
        handle = self._handle(job_id)
        if job.term == RUNS:
            return ConflictError(run_not_retried(handle, job.function))
        return ConflictError(f"{handle} is {_state(job.state)}: only failed, cancelled and expired jobs can be retried")

    def unique_is_live(self, job_id: int, rival: str) -> ConflictError:
        """Refuse to retry a job while another one, whose handle is given, has its unique."""
        return ConflictError(
            f"the unique of {self._handle(job_id)} is live again as {rival}: wait for that job, or cancel it",
            live_handle=rival,
        )

    def in_foreground(self, job_id: int) -> ConflictError:
        """Refuse to change a job that is in memory alone."""
        return ConflictError(
            f"a client waits for {self._handle(job_id)} in the foreground: only stored jobs can be changed"
        )

    def never_begun(self, job_id: int) -> ConflictError:
        """Refuse to retry a job that ended while it waited for the live job of its unique."""
        return ConflictError(f"{self._handle(job_id)} {NEVER_BEGUN}")

    def not_changed(self, job_id: int, job: Job, state: int) -> ConflictError:
        """Refuse to change a job that does not wait, because it is in another state."""
        handle = self._handle(job_id)
        if waits(job):
            return ConflictError(
                f"{handle} waits for the live job of its unique, and begins when that has ended: cancel that job to begin sooner"
            )
        if job.term == RUNS:
            return ConflictError(f"{handle} is a run of a workflow, which has begun: only waiting jobs can be changed")
        if state == State.LEASED:
            return ConflictError(f"{handle} is about to run at another node: only waiting jobs can be changed")
        return ConflictError(f"{handle} is {_state(state)}: only waiting jobs can be changed")

    def not_deleted(self, job_id: int, job: Job) -> ConflictError:
        """Refuse to delete a job that has not ended, or is a run."""
        handle = self._handle(job_id)
        if job.term == RUNS and State(job.state).ended:
            return ConflictError(f"{handle} is a run of a workflow, which stays as long as its history")
        return ConflictError(f"{handle} is {_state(job.state)}: only ended jobs can be deleted; cancel it first")

    def _handle(self, job_id: int) -> str:
        return self._handles.of(job_id).decode()


def _state(state: int) -> str:
    return State(state).name.lower()
