"""A job in a node's hands, and the workers that may run it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.events.relay import Progress
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.model import Job, Retry
    from mainspring.jobs.timers import Timer
    from mainspring.resources.model import Limits

_PENDING, _RUNNING = int(State.PENDING), int(State.RUNNING)


class Held:
    """A job in memory: a stored one under this node's lease, or a foreground one that is nowhere else."""

    __slots__ = (
        "ability",
        "admission",
        "adopting",
        "beat",
        "cancelled",
        "denominator",
        "handle",
        "job",
        "numerator",
        "queue",
        "queued",
        "recorded",
        "started_us",
        "stored",
        "subscribers",
        "then",
        "timers",
        "token",
        "worker",
    )

    def __init__(self, job: Job, handle: bytes, queue: FunctionQueue, *, stored: bool) -> None:
        self.job = job
        self.handle = handle
        self.queue = queue
        self.stored = stored
        self.adopting = False
        """A background submit has joined this foreground job, and its row is on the way to the store."""
        self.then: list[Callable[[], None]] | None = None
        """What waits until the row is stored."""
        self.worker: Worker | None = None
        self.ability: Ability | None = None
        """What the worker that has it, or had it last, said about the function when it got the job."""
        self.timers: list[Timer] | None = None
        """What limits it: how long it may wait, or how long its worker may take."""
        self.admission: AdmissionQueue[Held] | None = None
        """Where it has tokens from, from when it leaves for a worker until its end is on disk."""
        self.token = b""
        self.started_us = 0
        self.beat = 0.0
        """Monotonic time of the worker's last sign of life, where a heartbeat is asked for."""
        self.recorded = False
        self.cancelled = ""
        """Why the worker was asked to stop; empty where it was not."""
        self.queued = False
        """It waits in its queue. One that was taken out is still met there, and passed over."""
        self.numerator = b"0"
        self.denominator = b"0"
        self.subscribers: ProgressSubscribers | None = None
        """Other nodes whose clients wait for it; None until its worker has something to tell them, or nobody shares the store."""

    def seen(self) -> Job:
        """Return the job as the outside sees it: running once a worker has it."""
        if self.worker is None:
            return self.job
        attempt = self.job.attempt + 1
        return msgspec.structs.replace(self.job, state=_RUNNING, started_us=self.started_us, attempt=attempt)

    def worker_name(self) -> str | None:
        """Return the name of the worker that has it; None where it waits."""
        return self.worker.connection.name() if self.worker is not None else None


class ProgressSubscribers:
    """The nodes that are told how far a job is, by their terms."""

    __slots__ = ("read_at", "terms", "unsent")

    def __init__(self, read_at: float) -> None:
        self.read_at = read_at
        """Monotonic time of the last question to the store."""
        self.terms: list[int] = []
        self.unsent: list[Progress] | None = []
        """What waits for the first answer."""


class Ability(NamedTuple):
    """What a worker said when it registered for a function; durations in seconds."""

    timeout: float | None = None
    """Of a plain worker: the job is requeued."""
    requeue: bool = True
    """Whether a run that takes longer goes back to the queue, as in Gearman, or counts as failed."""
    heartbeat: float | None = None
    retry: Retry | None = None
    limits: Limits | None = None
    """What it says of the function's limits."""


class WorkerConnection(Protocol):
    """How a worker is reached."""

    def wake(self) -> None:
        """Tell a sleeping worker that there may be work."""

    def assign(self, held: Held) -> None:
        """Hand a job over."""

    def no_job(self) -> None:
        """Answer a request for a job that had to wait for the store and found nothing."""

    def name(self) -> str:
        """Return what the worker calls itself, or where it is connected from."""

    def stop(self, held: Held, reason: bytes) -> None:
        """Ask the worker to stop a job: ``cancelled``, ``timeout`` or ``lost``."""


class Worker:
    """A worker, as dispatch sees it."""

    __slots__ = (
        "abilities",
        "asleep",
        "connection",
        "credit",
        "ended",
        "excepted",
        "gone",
        "grabbing",
        "ignored_results",
        "isolates",
        "refused",
        "running",
        "slots",
        "streams",
        "turn",
        "woken_for",
    )

    def __init__(self, connection: WorkerConnection) -> None:
        self.connection = connection
        self.abilities: dict[FunctionQueue, Ability] = {}
        """In the order of registration."""
        self.gone = False
        """Its connection has ended. Its functions forget it one after the other, and until then they pass it over."""
        self.asleep = False
        self.woken_for: FunctionQueue | None = None
        self.grabbing = 0
        """How often it has asked for a job and waits until the store has been looked at."""
        self.streams = False
        """It takes jobs as they come (the protocol extension)."""
        self.isolates = False
        """It runs a job in a process of its own where it is asked to."""
        self.credit = 0
        """How many jobs it takes as they come. While there are any, it is among the takers of its functions."""
        self.slots: int | None = None
        """How many jobs it runs at a time, where it has declared that. It may take more of them in advance."""
        self.ended = False
        """It has ended a job since it was told last that there is none."""
        self.turn = 0
        self.running: dict[bytes, Held] = {}
        """By handle."""
        self.excepted: bytes | None = None
        """The job that it ended last with an exception: many libraries send a failure after it."""
        self.ignored_results: set[bytes] = set()
        """Jobs that were cancelled while it ran them and it could not be told: its results are passed over."""
        self.refused = False
        """Its job was lost to another node, or what it said of one came too late: it has no word for that, but may ask."""


class FunctionQueue:
    """What a node knows of one function: its waiting jobs in memory, its workers, and what stands in the store."""

    __slots__ = (
        "admission",
        "away",
        "backlog",
        "claiming",
        "counted",
        "dropped",
        "ended",
        "foreground",
        "hinted",
        "inflight",
        "leased",
        "maximum",
        "mean_size",
        "name",
        "ready",
        "running",
        "serial",
        "settled",
        "size",
        "sleepers",
        "stalled",
        "takers",
        "uncounted",
        "window",
        "woken",
        "workers",
    )

    def __init__(self, name: bytes, serial: int = 0) -> None:
        self.name = name
        self.serial = serial
        """Which one of all that the node has made."""
        self.ready: tuple[deque[Held], ...] = ()
        """Jobs to hand out, by priority; see `ready_queues`."""
        self.size = 0
        """How many of them, without the dropped ones."""
        self.admission: AdmissionQueue[Held] | None = None
        """Has these jobs in place of ``ready``, where the function has limits or a pause, or its jobs have keys."""
        self.dropped = 0
        """Jobs that were taken out since their places were last cleared, or more than those that are still met."""
        self.running = 0
        self.workers: dict[Worker, int] = {}
        """Who has registered, and how often."""
        self.sleepers: dict[Worker, None] = {}
        self.takers: dict[Worker, None] = {}
        """Workers with credit, whose turn it is first: they take jobs as they come, or wait for an answer."""
        self.woken = 0
        """Workers that were woken for this function and have not asked yet."""
        # Each job that has not ended is counted in one of the next five.
        self.backlog = [0, 0, 0]
        """Pending jobs in the store and on the way there, by priority."""
        self.inflight = 0
        """Jobs on the way to the store that are leased to this node already."""
        self.leased = 0
        """Jobs that the store has under this node's lease."""
        self.away = 0
        """Other stored jobs: those that are not due yet, and those that other nodes hold."""
        self.foreground = 0
        """Jobs that are nowhere but in memory."""
        self.counted = True
        """False until the store has said how many jobs it had when the queue was made."""
        self.uncounted = False
        """Another node has announced pending jobs in the store, which ``backlog`` may not count yet."""
        self.claiming = False
        self.hinted = False
        """Another node has said that it stored jobs, and no claim has found any since."""
        self.window = 0
        self.stalled = 0.0
        """Seconds for which jobs have waited here while no worker was free and none became free."""
        self.settled = 0
        """Deliveries that have ended since the window was adapted last."""
        self.ended = 0
        """The same before that."""
        self.mean_size = 0.0
        """Mean size of payloads, in bytes."""
        self.maximum: tuple[int, int, int] | None = None
        """``maxqueue`` of each priority; 0 is no limit."""

    def ready_queues(self) -> tuple[deque[Held], ...]:
        """Return ``ready`` with a place for each priority: made here, for of very many functions most wait in the store."""
        if not self.ready:
            self.ready = (deque(), deque(), deque())
        return self.ready

    def places(self) -> int:
        """Return how many jobs its workers would take at once."""
        return len(self.sleepers) + sum(worker.credit for worker in self.takers)

    def is_full(self, priority: int) -> bool:
        """Return whether ``maxqueue`` forbids one more job of a priority."""
        return bool(self.maximum and self.maximum[priority] and self.total() >= self.maximum[priority])

    @property
    def live(self) -> int:
        """How many stored jobs have not ended. It is a sum of parts, so it is never below any of them."""
        high, normal, low = self.backlog
        return high + normal + low + self.inflight + self.leased + self.away

    def total(self) -> int:
        """Return how many jobs have not ended."""
        return self.live + self.foreground

    def count(self, state: int, priority: int, number: int) -> None:
        """Count jobs that the store has of a state and priority, and that were not counted yet."""
        if state == _PENDING:
            self.backlog[priority] = number
        else:
            self.away += number

    def clamp_counts(self) -> None:
        """Raise negative counts to zero: jobs were subtracted that another node had stored and this one had not counted."""
        self.backlog[:] = [max(number, 0) for number in self.backlog]
        self.away = max(self.away, 0)

    def claimable(self) -> int:
        """Return how many jobs a claim may find, as far as this node knows; at least 1 where another node has announced some."""
        return sum(self.backlog) or int(self.uncounted)

    def is_idle(self) -> bool:
        """Return whether nobody at this node has to do with the function: all its jobs are in the store, if there are any."""
        unused = not (self.workers or self.foreground or self.size or self.running or self.inflight or self.leased)
        configured = self.maximum or (self.admission is not None and self.admission.limited)
        return unused and not (configured or self.claiming or self.hinted)

    def is_active(self) -> bool:
        """Return whether anything goes on here that may change with time alone; if not, nobody need look at it now and then."""
        return bool(
            self.size
            or self.settled
            or self.window
            or self.uncounted
            or self.admission is not None
            or (self.workers and any(self.backlog))
        )

    def queued(self) -> list[Held]:
        """Return the jobs that wait here, each once, also where it was taken out and put back; looks at each."""
        if self.admission is not None:
            return list(dict.fromkeys(self.admission.queued()))
        return list(dict.fromkeys(held for ready in self.ready for held in ready if held.queued))

    def startable(self, most: int) -> int:
        """Return how many jobs could be handed out now: exactly whether any can, and not above ``most``."""
        return self.size if self.admission is None or not self.size else self.admission.startable(most)

    def waiting_by_priority(self) -> tuple[int, int, int]:
        """Return how many jobs wait in memory and in the store, high first; looks at each job in memory."""
        high, normal, low = self.backlog
        for held in self.queued():
            priority = held.job.priority
            high, normal, low = high + (priority == 0), normal + (priority == 1), low + (priority == 2)
        return high, normal, low

    def waits(self) -> bool:
        """Return whether any job waits: sooner than ``waiting`` counts them, for who asks very many functions."""
        high, normal, low = self.backlog
        return bool(high or normal or low or self.size or self.inflight)

    def waiting(self) -> int:
        """Return how many jobs wait, in memory and in the store."""
        return self.size + self.inflight + sum(self.backlog)
