"""Jobs in a node's memory, function queues, and workers.

`Preference` has the jobs that wait a moment for the worker that they prefer, because it can run them with less work than the
others.

Little memory serves very many jobs and functions: `compact` rebuilds a dict, because a dict keeps the memory of deleted entries
until an entry is added. After 400,000 foreground jobs of one client that is 20 MB for each dict. The allocator returns the memory
of the jobs themselves, so no trim of the heap is needed. Clients can name any number of functions. The names of those that are
rows of the store alone are in a Bloom filter (`Names`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from mainspring.jobs.model import State
from mainspring.namespaces import ANY, namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping

    from mainspring.events import Progress, ProgressText
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.model import Job, Retry
    from mainspring.resources.holds import Hold, Request, Resource, Waits
    from mainspring.resources.rules import Limits
    from mainspring.turns_of_loop import Timer

MIN_TABLE_BYTES: Final = 1_048_576
"""The size in bytes below which a dict is not compacted."""
BYTES_PER_ENTRY: Final = 400
"""Bytes for each entry above which a dict is sparse. A dict that has just grown has about 100."""


def compact(table: MutableMapping[Any, Any]) -> None:
    """Rebuild a sparse dict in place, in the same order. The cost is proportional to the remaining entries."""
    size = sys.getsizeof(table)
    if size > MIN_TABLE_BYTES and size > BYTES_PER_ENTRY * len(table):
        content = list(table.items())
        table.clear()
        table.update(content)


BITS: Final = 2**23
"""1 MiB. With 300,000 names one in some thousands of other names is a false positive, with a million one in fifty."""
_PROBES: Final = 4


class Names:
    """A Bloom filter of names: it contains every name that was added, and a few others."""

    def __init__(self) -> None:
        self._bits = bytearray(BITS // 8)
        self.number = 0
        """The number of names added, without those that were false positives."""
        self.of_namespaces: Counter[str] = Counter()
        """The same by namespace."""

    def __contains__(self, name: bytes) -> bool:
        bits = self._bits
        return all(bits[place >> 3] & (1 << (place & 7)) for place in _places(name))

    def add(self, name: bytes) -> None:
        """Add a name."""
        if name not in self:
            self.number += 1
            self.of_namespaces[namespace_of(name)] += 1
            for place in _places(name):
                self._bits[place >> 3] |= 1 << (place & 7)


def _places(name: bytes) -> list[int]:
    mixed = hash(name)
    first, step = mixed % BITS, (mixed >> 23) | 1
    return [(first + probe * step) % BITS for probe in range(_PROBES)]


class Rows:
    """The functions that are rows of the store alone, as of the last reading of the store, with later additions."""

    def __init__(self) -> None:
        self._current: Names | None = None
        self._next: Names | None = None
        self._left = 0
        """The number that came into memory since."""
        self._left_of: Counter[str] = Counter()
        """The same by namespace."""

    @property
    def number(self) -> int:
        """The approximate number of functions."""
        return max(self._current.number - self._left, 0) if self._current is not None else 0

    def number_of(self, namespace: str) -> int:
        """Return the approximate number of functions of a namespace."""
        if self._current is None:
            return 0
        return max(self._current.of_namespaces[namespace] - self._left_of[namespace], 0)

    @property
    def namespaces(self) -> Iterable[str]:
        """The namespaces with functions among them."""
        return () if self._current is None else self._current.of_namespaces

    def __contains__(self, name: bytes) -> bool:
        return self._current is not None and name in self._current

    def add(self, name: bytes) -> bool:
        """Add a function that became a row; return whether it is a new one."""
        if self._current is None:
            self._current = Names()
        is_new = name not in self._current
        self._current.add(name)
        if self._next is not None:
            self._next.add(name)
        return is_new

    def left(self, name: bytes) -> None:
        """Count a function that came into memory."""
        if name in self:
            self._left += 1
            self._left_of[namespace_of(name)] += 1

    def begin(self) -> None:
        """Begin a reading. At its end only functions remain that it met or that were added meanwhile."""
        self._next = Names()

    def met(self, name: bytes) -> None:
        """Add a row that the reading met."""
        assert self._next is not None
        self._next.add(name)

    def end(self) -> None:
        """End a complete reading."""
        self._current, self._next, self._left = self._next, None, 0
        self._left_of.clear()

    def give_up(self) -> None:
        """Abandon a reading that failed."""
        self._next = None


J = TypeVar("J")
W = TypeVar("W")

PREFERRED_WAIT = 0.05
"""Seconds for which a job waits for its preferred worker, if that has no credit and another one has. A worker that has a run of a
workflow in memory ends its present decision in a few milliseconds; any other one would have to replay the run."""


class Preference(Generic[J, W]):
    """The preferred workers of a function's jobs, and the jobs that wait for them.

    ``of`` returns the worker that a job prefers; None if it prefers none. Times are monotonic.
    """

    def __init__(self, of: Callable[[J], W | None]) -> None:
        self.of = of
        self._waiting: dict[J, tuple[W, float]] = {}
        """Each job's worker, and the time until which it waits for it; in the order of these times."""
        self._by_worker: dict[W, dict[J, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def jobs(self) -> list[J]:
        """Return the waiting jobs, oldest first."""
        return list(self._waiting)

    def workers(self) -> list[W]:
        """Return the workers for which jobs wait."""
        return list(self._by_worker)

    def wait(self, job: J, worker: W, now: float) -> None:
        """Let a job wait for its preferred worker."""
        self._waiting[job] = worker, now + PREFERRED_WAIT
        self._by_worker.setdefault(worker, {})[job] = None

    def remove(self, job: J) -> bool:
        """Let a job wait no longer; return False if it did not."""
        entry = self._waiting.pop(job, None)
        if entry is None:
            return False
        worker = entry[0]
        jobs = self._by_worker[worker]
        del jobs[job]
        if not jobs:
            del self._by_worker[worker]
        return True

    def release(self, worker: W) -> list[J]:
        """Let no job wait for a worker any longer; return those that did, oldest first."""
        jobs = list(self._by_worker.pop(worker, ()))
        for job in jobs:
            del self._waiting[job]
        return jobs

    def first_for(self, worker: W) -> J | None:
        """Return the oldest job that waits for a worker."""
        return next(iter(self._by_worker.get(worker, ())), None)

    def overdue(self, now: float) -> J | None:
        """Return the oldest job if it has waited long enough, so that any worker may have it."""
        for job, (_, until) in self._waiting.items():
            return job if until <= now else None
        return None

    def next(self) -> float | None:
        """Return the time at which the oldest job has waited long enough."""
        for _, until in self._waiting.values():
            return until
        return None

    def clear(self) -> None:
        """Forget all waiting jobs."""
        self._waiting.clear()
        self._by_worker.clear()


_PENDING, _RUNNING = int(State.PENDING), int(State.RUNNING)


class Slots:
    """A job's request for slots of resources, and what it got."""

    __slots__ = ("holds", "metas", "request", "taken", "waits")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.holds: tuple[Hold, ...] | None = None
        """None until the request is granted."""
        self.metas: tuple[tuple[str, str, bytes], ...] = ()
        """Those of instances: resource, instance, JSON."""
        self.waits: Waits | None = None
        """Why it waits, by the last answer."""
        self.taken = False
        """Whether they were taken away: the job does not keep them, even if its work goes on elsewhere."""


class Elsewhere:
    """The work of a delivery in another system, which its worker watches."""

    __slots__ = ("is_submitted", "key", "looked_at", "number", "problem", "timed_out")

    def __init__(self, number: int, key: str, *, is_submitted: bool, timed_out: Callable[[], None]) -> None:
        self.number = number
        """The number of the submission among those of the job."""
        self.key = key
        self.is_submitted = is_submitted
        """Whether it is on disk what the other system has answered."""
        self.timed_out = timed_out
        """Is called when the attempt has timed out, before it is settled."""
        self.looked_at = 0.0
        """Monotonic time of the worker's last look; 0: it has reported none."""
        self.problem = ""
        """Why the last look has failed, or that it is slow."""


class Held:
    """A job in memory: a stored one under this node's lease, or a foreground one that is not stored."""

    __slots__ = (
        "ability",
        "admission",
        "adopting",
        "beat",
        "begins_by",
        "cancelled",
        "completion",
        "denominator",
        "elsewhere",
        "handle",
        "job",
        "numerator",
        "queue",
        "queued",
        "recorded",
        "reported",
        "slots",
        "started_us",
        "stop_us",
        "stored",
        "subscribers",
        "text",
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
        """A background submit has joined this foreground job, and its row is being stored."""
        self.then: list[Callable[[], None]] | None = None
        """Functions to call once the row is stored."""
        self.worker: Worker | None = None
        self.ability: Ability | None = None
        """The ability of its present or last worker for the function, as of the delivery."""
        self.timers: list[Timer] | None = None
        """The timers of its expiry, its timeout and its heartbeat."""
        self.admission: AdmissionQueue[Held] | None = None
        """The queue that gave its tokens, from the delivery until its end is on disk."""
        self.slots: Slots | None = None
        """Its slots of resources, or its request for some."""
        self.elsewhere: Elsewhere | None = None
        """Its work in another system, once that is begun in this delivery."""
        self.token = b""
        self.started_us = 0
        self.beat = 0.0
        """Monotonic time of the worker's last report, if the job has a heartbeat."""
        self.begins_by = 0.0
        """Monotonic time at which its attempt begins at the latest, once its worker has prepared an executor; 0 before that."""
        self.recorded = False
        self.cancelled = ""
        """The reason for which the worker was asked to stop; empty if it was not."""
        self.stop_us = 0
        """When that was; 0 if it was not."""
        self.completion: Completion | None = None
        """The token that its function has asked for in this delivery."""
        self.queued = False
        """Whether it waits in its queue. The entry of a removed job stays there, and is skipped."""
        self.numerator = b"0"
        self.denominator = b"0"
        self.text = b""
        """The text of its progress."""
        self.reported = False
        """Whether its worker has reported progress."""
        self.subscribers: ProgressSubscribers | None = None
        """Other nodes whose clients wait for it; None before the first report of its worker, and on a store of one node."""

    def is_in(self, namespace: str) -> bool:
        """Return whether the job is in a namespace; `ANY` stands for all."""
        return namespace in {ANY, namespace_of(self.job.function)}

    def seen(self) -> Job:
        """Return the job as clients see it: running once a worker has it."""
        if self.worker is None:
            return self.job
        attempt = self.job.attempt + 1
        return msgspec.structs.replace(self.job, state=_RUNNING, started_us=self.started_us, attempt=attempt)

    def worker_name(self) -> str | None:
        """Return the name of its worker; None if it waits."""
        return self.worker.connection.name() if self.worker is not None else None


class ProgressSubscribers:
    """The nodes that receive a job's progress, by their terms."""

    __slots__ = ("read_at", "terms", "unsent")

    def __init__(self, read_at: float) -> None:
        self.read_at = read_at
        """Monotonic time of the last query to the store."""
        self.terms: list[int] = []
        self.unsent: list[Progress | ProgressText] | None = []
        """Messages that wait for the first answer of the store; None after it."""


class Ability(NamedTuple):
    """A worker's options of a function, from its registration; durations in seconds."""

    timeout: float | None = None
    """The time limit of an attempt; set by a plain worker's CAN_DO_TIMEOUT."""
    requeue: bool = True
    """Whether an attempt that takes longer is requeued, as in Gearman, or counts as failed."""
    heartbeat: float | None = None
    retry: Retry | None = None
    limits: Limits | None = None
    """The limits that it declares for the function."""
    resources: tuple[tuple[str, Resource], ...] = ()
    """The resources that it declares, by the keys of their names."""
    elsewhere: str = ""
    """The work runs in another system, and this happens to it at a timeout: ``cancel`` or ``leave``. Empty: it runs here."""


LOST: Final = b"lost"
"""A reason to stop a delivery: its token is no longer valid."""
SILENT: Final = b"silent"
"""The same, because the worker has sent nothing for too long: it gets no work until it sends again."""


class WorkerConnection(Protocol):
    """The connection of a worker, as the jobs slice uses it."""

    def wake(self) -> None:
        """Wake a sleeping worker: there may be a job."""

    def assign(self, held: Held) -> None:
        """Send a job to the worker."""

    def no_job(self) -> None:
        """Answer a request that waited for a job: there is none."""

    def name(self) -> str:
        """Return the worker's name, or its address."""

    def stop(self, held: Held, reason: bytes) -> None:
        """Ask the worker to stop a job: ``cancelled``, ``timeout``, `LOST` or `SILENT`, which the worker gets as ``lost``."""


class Worker:
    """A worker, as dispatch uses it."""

    __slots__ = (
        "abilities",
        "asleep",
        "beside",
        "connection",
        "credit",
        "ended",
        "excepted",
        "gone",
        "grabbing",
        "ignored_results",
        "is_full",
        "isolates",
        "refused",
        "running",
        "slots",
        "streams",
        "turn",
        "woken_for",
    )

    def __init__(self, connection: WorkerConnection, beside: Worker | None = None) -> None:
        self.connection = connection
        self.beside = beside
        """The worker for tasks of the same process, if this one is for something else; both count as one."""
        self.abilities: dict[FunctionQueue, Ability] = {}
        """In the order of registration."""
        self.gone = False
        """Its connection has ended. Functions forget it one after the other, and skip it until then."""
        self.asleep = False
        self.woken_for: FunctionQueue | None = None
        self.grabbing = 0
        """The number of its requests for jobs that wait for an answer."""
        self.streams = beside is not None
        """It receives jobs as they come (the protocol extension)."""
        self.isolates = False
        """It can run a job in a process of its own."""
        self.is_full = False
        """It can send no more heartbeats now, so it gets no jobs of functions that are registered with a timeout of them."""
        self.credit = 0
        """The number of jobs that it accepts now. While it is positive, the worker is among the takers of its functions."""
        self.slots: int | None = None
        """The number of jobs that it runs at a time, if declared. It may prefetch more."""
        self.ended = False
        """It has ended a job since its last NO_JOB."""
        self.turn = 0
        self.running: dict[bytes, Held] = {}
        """By handle."""
        self.excepted: bytes | None = None
        """The job that it last ended with an exception: many libraries send a failure after it."""
        self.ignored_results: set[bytes] = set()
        """Jobs that were cancelled while it ran them. A plain worker cannot be stopped, so their results are ignored."""
        self.refused = False
        """Its job was lost to another node, or its report came too late. No message reports that; the worker may query it."""

    def takes(self, queue: FunctionQueue) -> bool:
        """Return whether it has registered for a function and gets its jobs now, as far as it has credit."""
        ability = self.abilities.get(queue)
        return ability is not None and not (self.is_full and ability.heartbeat is not None)


class FunctionQueue:
    """A function at a node: its waiting jobs in memory, its workers, and the counts of its stored jobs."""

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
        "is_root",
        "leased",
        "maximum",
        "mean_size",
        "measured",
        "measured_at",
        "name",
        "prefer",
        "ready",
        "returning",
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

    def __init__(self, name: bytes, serial: int = 0, prefer: Preference[Held, Worker] | None = None) -> None:
        self.name = name
        self.prefer = prefer
        """The jobs that wait for a preferred worker; None if jobs of the function prefer none."""
        self.serial = serial
        """Its number among all queues that the node created."""
        self.ready: tuple[deque[Held], ...] = ()
        """Jobs to hand out, by priority; see `ready_queues`."""
        self.size = 0
        """The number of waiting jobs, without dropped ones."""
        self.admission: AdmissionQueue[Held] | None = None
        """Holds the jobs instead of ``ready``, if the function has limits or a pause, or its jobs have keys."""
        self.dropped = 0
        """An upper bound of the entries of removed jobs in ``ready``."""
        self.running = 0
        self.workers: dict[Worker, int] = {}
        """The registered workers, each with its number of registrations."""
        self.sleepers: dict[Worker, None] = {}
        self.takers: dict[Worker, None] = {}
        """Workers with credit, in the order of their turns: they receive jobs as they come, or wait for an answer."""
        self.woken = 0
        """Workers that were woken for this function and have sent no request since."""
        # Each live job is counted in one of the next five.
        self.backlog = [0, 0, 0]
        """Pending jobs in the store and in the commit queue, by priority."""
        self.inflight = 0
        """Jobs in the commit queue that are leased to this node already."""
        self.leased = 0
        """Stored jobs under this node's lease."""
        self.away = 0
        """Other stored jobs: those not due yet, and those that other nodes hold."""
        self.foreground = 0
        """Jobs in memory alone."""
        self.counted = True
        """False until the jobs that were stored before the queue was created are counted."""
        self.returning = 0
        """The number of its jobs that workers or nodes have lost since the last claim."""
        self.uncounted = False
        """Another node has announced pending jobs, which ``backlog`` may not count yet."""
        self.is_root = False
        """Its jobs stand for runs of workflows: they become root jobs, and no worker gets them."""
        self.claiming = False
        self.hinted = False
        """Another node has announced stored jobs, and no claim has found any since."""
        self.window = 0
        self.stalled = 0.0
        """Seconds for which jobs have waited here without a free worker."""
        self.settled = 0
        """Deliveries that ended since the last adaptation of the window."""
        self.ended = 0
        """Deliveries that ended before that."""
        self.measured = 0
        """Deliveries that had ended when claimed jobs came last."""
        self.measured_at = -math.inf
        """The monotonic time of that."""
        self.mean_size = 0.0
        """Mean size of payloads, in bytes."""
        self.maximum: tuple[int, int, int] | None = None
        """``maxqueue`` of each priority; 0 means no limit."""

    @property
    def runs_elsewhere(self) -> bool:
        """Whether its workers watch work in other systems: nothing that happens to them or to nodes is due to its jobs."""
        return any(self in worker.abilities and worker.abilities[self].elsewhere for worker in self.workers)

    def ready_queues(self) -> tuple[deque[Held], ...]:
        """Return ``ready`` with a deque for each priority. Created late: most of very many functions have no jobs here."""
        if not self.ready:
            self.ready = (deque(), deque(), deque())
        return self.ready

    def places(self) -> int:
        """Return how many jobs its workers can accept at once."""
        return len(self.sleepers) + sum(worker.credit for worker in self.takers)

    def is_full(self, priority: int) -> bool:
        """Return whether ``maxqueue`` forbids one more job of a priority."""
        return bool(self.maximum and self.maximum[priority] and self.total() >= self.maximum[priority])

    @property
    def live(self) -> int:
        """The number of stored jobs that have not ended; a sum of parts, so that it is never below any of them."""
        high, normal, low = self.backlog
        return high + normal + low + self.inflight + self.leased + self.away

    def total(self) -> int:
        """Return how many jobs have not ended."""
        return self.live + self.foreground

    def count(self, state: int, priority: int, number: int) -> None:
        """Count stored jobs of a state and priority that were not counted yet."""
        if state == _PENDING:
            self.backlog[priority] = number
        else:
            self.away += number

    def clamp_counts(self) -> None:
        """Raise negative counts to zero: subtracted jobs may have been stored by another node and not counted here."""
        self.backlog[:] = [max(number, 0) for number in self.backlog]
        self.away = max(self.away, 0)

    def claimable(self) -> int:
        """Return how many jobs a claim may find by this node's counts; at least 1 if another node has announced some."""
        return sum(self.backlog) or int(self.uncounted)

    def is_idle(self) -> bool:
        """Return whether this node does not use the function: all its jobs, if any, are only in the store."""
        unused = not (self.workers or self.foreground or self.size or self.running or self.inflight or self.leased)
        configured = self.maximum or (self.admission is not None and self.admission.limited)
        return unused and not (configured or self.claiming or self.hinted or self.is_root)

    def is_active(self) -> bool:
        """Return whether the queue can change with time alone; if not, periodic work skips it."""
        return bool(
            self.size
            or self.settled
            or self.window
            or self.uncounted
            or self.admission is not None
            or (self.workers and any(self.backlog))
        )

    def queued(self) -> list[Held]:
        """Return the waiting jobs in memory, each once, even if it was removed and queued again; visits each job."""
        if self.admission is not None:
            return list(dict.fromkeys(self.admission.queued()))
        ready = dict.fromkeys(held for ready in self.ready for held in ready if held.queued)
        return list(ready) if self.prefer is None else [*self.prefer.jobs(), *ready]

    def startable(self, most: int) -> int:
        """Return about how many jobs could be handed out now, at most ``most`` with limits; 0 only if none can."""
        return self.size if self.admission is None or not self.size else self.admission.startable(most)

    def waiting_by_priority(self) -> tuple[int, int, int]:
        """Return how many jobs wait in memory and in the store, high priority first; visits each job in memory."""
        high, normal, low = self.backlog
        for held in self.queued():
            priority = held.job.priority
            high, normal, low = high + (priority == 0), normal + (priority == 1), low + (priority == 2)
        return high, normal, low

    def waits(self) -> bool:
        """Return whether any job waits; faster than ``waiting``, for callers with very many functions."""
        high, normal, low = self.backlog
        return bool(high or normal or low or self.size or self.inflight)

    def waiting(self) -> int:
        """Return how many jobs wait, in memory and in the store."""
        return self.size + self.inflight + sum(self.backlog)
