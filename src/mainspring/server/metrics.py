"""The measures of one node on the page ``/metrics``: of jobs, the ages of the oldest ones, workflows and logs.

The ages of the oldest pending jobs are current for jobs in memory, some seconds old for jobs in the store.

`NodeStatus` is the status of a node, as ``mainspring status`` shows it.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import KINDS as KINDS_OF_PLACES
from mainspring.access.caller import OWNERS
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.nodes import (
    CommitNumbers,
    FunctionStatus,
    JobNumbers,
    NodeStatus,
    SetAsideStatus,
    WaitingJobs,
    WorkflowStatus,
)
from mainspring.clock import from_us, to_us
from mainspring.faces.web import Distribution, Measure
from mainspring.jobs.attempts import BOUNDS, OUTCOMES
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import Priority
from mainspring.namespaces import DEFAULT, namespace_of
from mainspring.private_data import hide_secrets
from mainspring.queries import FirstInLine
from mainspring.server.log_writer import dropped_lines
from mainspring.storage.reads import KINDS
from mainspring.version import version
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mainspring.access.caller import Refusals
    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.faces.gearman.peers import Peers
    from mainspring.job_logs.service import LogService
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.settings import ServerSettings
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads, SetAside
    from mainspring.subscriptions.service import Deliverer
    from mainspring.workflows.service import WorkflowService

OLDEST_FUNCTIONS: Final = 100
"""Functions whose oldest jobs are read: those with the most pending jobs."""
READ_INTERVAL: Final = 5.0
"""Seconds between two reads of the store."""
PAUSE_FACTOR: Final = 20
"""A read is followed by a pause of this many times its duration, if that is longer than the interval."""


class Oldest:
    """Finds the oldest pending jobs of the functions with the most of them.

    ``reads``: None for a store without the query, where only jobs in memory count.
    """

    def __init__(self, functions: Callable[[], Iterable[FunctionQueue]], reads: Reads | None, clock: Clock) -> None:
        self._functions = functions
        self._reads = reads
        self._clock = clock
        self._stored: dict[bytes, int] = {}
        """By function, the wall time in microseconds since which its oldest pending job in the store has waited."""
        self._next = float("-inf")
        """The monotonic time of the next read; infinite while one is under way."""

    def refresh(self, then: Callable[[], None] = lambda: None) -> None:
        """Read the store if the interval has passed, and call a function then; otherwise call it at once.

        Nodes that serve metrics call this about once a second.
        """
        began = self._clock.monotonic()
        functions = [queue.name for queue in self._busiest() if any(queue.backlog)] if began >= self._next else []
        if self._reads is None or not functions:
            then()
            return

        def succeeded(found: dict[bytes, int]) -> None:
            self._stored = found
            ended = self._clock.monotonic()
            self._next = ended + max(READ_INTERVAL, PAUSE_FACTOR * (ended - began))
            then()

        def failed(error: StoreError) -> None:
            del error  # keep the earlier ages
            self._next = self._clock.monotonic() + READ_INTERVAL
            then()

        self._next = float("inf")
        self._reads.ask(FirstInLine(tuple(functions)), succeeded, failed)

    def ages(self) -> Iterator[tuple[bytes, float]]:
        """Return functions that have pending jobs, with the seconds for which the oldest one has waited."""
        now_us = to_us(self._clock.wall())
        for queue in self._busiest():
            times = [_since(held) for held in _firsts(queue)]
            if any(queue.backlog) and queue.name in self._stored:
                times.append(self._stored[queue.name])
            if times:
                yield queue.name, from_us(max(now_us - min(times), 0))

    def _busiest(self) -> list[FunctionQueue]:
        waiting = [(queue.waiting(), queue) for queue in self._functions() if queue.waits()]
        most = heapq.nlargest(OLDEST_FUNCTIONS, waiting, key=lambda one: one[0])
        return [queue for number, queue in most if number]


def _firsts(queue: FunctionQueue) -> Iterator[Held]:
    """Return the pending jobs in memory that may be the oldest."""
    if queue.admission is not None:
        yield from queue.queued()
        return
    if queue.prefer is not None:
        yield from queue.prefer.jobs()
    for ready in queue.ready:
        for held in ready:
            if held.queued:
                yield held
                break


def _since(held: Held) -> int:
    return max(held.job.created_us, held.job.due_us)


MOST_NAMESPACES: Final = 100


class OldestByNamespace:
    """One `Oldest` for each namespace that was asked for, so that busy functions elsewhere displace none of it.

    ``reads``: None for a store without the query.
    """

    def __init__(self, functions: Callable[[], Iterable[FunctionQueue]], reads: Reads | None, clock: Clock) -> None:
        self._functions = functions
        self._reads = reads
        self._clock = clock
        self._all: dict[str, Oldest] = {}

    def of(self, namespace: str) -> Oldest:
        """Return the ages of a namespace."""
        found = self._all.pop(namespace, None)
        if found is None:

            def own() -> Iterator[FunctionQueue]:
                return (queue for queue in self._functions() if namespace_of(queue.name) == namespace)

            found = Oldest(own, self._reads, self._clock)
        while len(self._all) >= MOST_NAMESPACES:
            del self._all[next(iter(self._all))]
        self._all[namespace] = found
        return found


METRIC_FUNCTIONS: Final = 1000
"""Functions with their own measures, at most; any client can create more functions."""


class Metrics:
    """Reads a node's measures. ``ready`` returns whether it accepts new work; ``others`` return measures of other parts."""

    def __init__(
        self,
        ready: Callable[[], bool],
        service: JobService,
        peers: Peers,
        commits: CommitQueue,
        oldest: Oldest,
        others: Sequence[Callable[[], Iterable[Measure]]],
    ) -> None:
        self._ready = ready
        self._service = service
        self._peers = peers
        self._commits = commits
        self._oldest = oldest
        self._others = others

    def figures(self) -> Iterable[Measure | Distribution]:
        """Return the current measures."""
        yield Measure(
            "mainspring_ready", "gauge", "1 if /readyz answers 200, otherwise 0.", [({}, float(self._ready()))]
        )
        yield from self._jobs()
        for other in self._others:
            yield from other()

    def _jobs(self) -> Iterable[Measure | Distribution]:
        """Return the measures of functions, connections and commits."""
        functions = list(self._service.roster.functions())
        number = self._service.roster.number
        if len(functions) > METRIC_FUNCTIONS:
            functions = heapq.nlargest(
                METRIC_FUNCTIONS, functions, key=lambda queue: (queue.total(), len(queue.workers))
            )
        queues = [(labels_of(queue.name), queue) for queue in functions]
        waiting = [
            ({**labels, "priority": priority.name.lower()}, float(jobs))
            for labels, queue in queues
            for priority, jobs in zip(Priority, queue.waiting_by_priority(), strict=True)
        ]
        yield Measure("mainspring_jobs_waiting", "gauge", "Jobs that wait for a worker.", waiting)
        figures: tuple[tuple[str, str, Callable[[FunctionQueue], float]], ...] = (
            ("mainspring_jobs_running", "Jobs with workers.", lambda queue: queue.running),
            ("mainspring_jobs_live", "Jobs that have not ended.", FunctionQueue.total),
            (
                "mainspring_workers",
                "Workers that registered for a function.",
                lambda queue: sum(queue.workers.values()),
            ),
        )
        for name, text, read in figures:
            yield Measure(name, "gauge", text, [(labels, read(queue)) for labels, queue in queues])
        ended = [(labels, float(queue.ended)) for labels, queue in queues]
        yield Measure("mainspring_deliveries_total", "counter", "Ended deliveries, with any outcome.", ended)
        oldest = [(labels_of(name), age) for name, age in self._oldest.ages()]
        yield Measure("mainspring_oldest_waiting_seconds", "gauge", "How long the oldest due job has waited.", oldest)
        yield from self._attempts()
        paces = [pace for peer in self._peers.connected if (pace := peer.worker_side.pace) is not None]
        for kind, name, text, value in (
            ("gauge", "mainspring_functions", "Functions that have jobs or workers.", number),
            ("gauge", "mainspring_connections", "Open connections of the Gearman port.", len(self._peers.connected)),
            (
                "gauge",
                "mainspring_silent_workers",
                "Workers that have sent nothing although they should, and get no work.",
                sum(peer.silence.since_us > 0 for peer in self._peers.connected),
            ),
            (
                "gauge",
                "mainspring_full_workers",
                "Workers that can send no more heartbeats, and get no jobs with timeouts of them.",
                sum(pace.full for pace in paces),
            ),
            (
                "gauge",
                "mainspring_heartbeat_load_ratio",
                "The largest share of its pace that a worker's heartbeats need.",
                max((pace.load / pace.pace for pace in paces if pace.pace), default=0.0),
            ),
            (
                "gauge",
                "mainspring_heartbeat_lag_seconds",
                "How late a heartbeat of a worker was, at most, in the last minute.",
                max((pace.lag for pace in paces), default=0.0),
            ),
            ("counter", "mainspring_connections_opened_total", "Accepted connections.", self._peers.total),
            ("counter", "mainspring_commits_total", "Groups sent to the store.", self._commits.groups),
            (
                "counter",
                "mainspring_committed_jobs_total",
                "Jobs submitted, recorded as running or settled in them.",
                self._commits.jobs,
            ),
            ("gauge", "mainspring_uncommitted_bytes", "Bytes that wait for the store.", self._commits.bytes),
            ("gauge", "mainspring_window_jobs", "Jobs in memory.", len(self._service.table.held.values())),
        ):
            yield Measure(name, kind, text, [({}, float(value))])  # type: ignore[arg-type]

    def _attempts(self) -> Iterable[Measure | Distribution]:
        """Return the measures of attempts."""
        self._service.ends.report_ends()
        counted = [
            (labels_of(one.name), one) for one in self._service.attempts.figures(self._service.clock.monotonic())
        ]
        ends = [
            ({**labels, "outcome": outcome}, float(number))
            for labels, one in counted
            for outcome, number in zip(OUTCOMES, one.outcomes, strict=True)
        ]
        yield Measure("mainspring_attempts_total", "counter", "Ended attempts, by outcome.", ends)
        measured = [(labels, one) for labels, one in counted if one.measured]
        ran = [(labels, one.ran_counts.counts, one.ran_counts.total_us / 1e6) for labels, one in measured]
        yield Distribution("mainspring_attempt_seconds", "How long attempts ran.", BOUNDS, ran)
        waited = [(labels, one.waited_counts.counts, one.waited_counts.total_us / 1e6) for labels, one in measured]
        text = "How long jobs had been due when an attempt started."
        yield Distribution("mainspring_wait_seconds", text, BOUNDS, waited)


def set_aside_measures(set_aside: SetAside) -> Iterable[Measure]:
    """Return how many stored objects the node has set aside."""
    counts: Counter[str] = Counter()
    for one in set_aside.entries():
        counts[one.kind] += one.number
    text = "Stored objects that this node cannot handle, by kind; the log names them."
    yield Measure("mainspring_set_aside", "gauge", text, [({"kind": kind}, float(counts[kind])) for kind in KINDS])


def labels_of(name: bytes) -> dict[str, str]:
    """Return the labels of a function, with its namespace unless that is ``default``.

    They are unique: Prometheus refuses a whole page if two lines have the same labels.
    """
    namespace, text = namespace_of(name), function_text(name)
    if (hidden := hide_secrets(text)) != text:
        text = f"{hidden} {blake2b(name, digest_size=4).hexdigest()}"
    return {"function": text} | ({} if namespace == DEFAULT else {"namespace": namespace})


def refused_places(refusals: Refusals) -> Iterator[Measure]:
    """Yield the numbers of refused requests, streams, watches and waits, by whose places were all taken."""
    text = "Places that were refused: the node, the namespace or the caller had all of its own."
    counts = [
        ({"kind": kind, "owner": owner}, float(refusals.counts[kind, owner]))
        for kind in KINDS_OF_PLACES
        for owner in OWNERS
    ]
    yield Measure("mainspring_places_refused_total", "counter", text, counts)


def workflow_measures(workflows: WorkflowService) -> Iterable[Measure]:
    """Return the numbers of runs by type."""
    counts = workflows.counts()
    for name, text, numbers in (
        ("mainspring_workflows_open", "Runs that have not ended.", _by_type(counts.open)),
        ("mainspring_workflows_parked", "Runs whose code could not make their next decision.", _by_type(counts.parked)),
        (
            "mainspring_workflows_stranded",
            "Runs that have needed a decision for a minute, without a worker of their version.",
            _by_type(counts.stranded),
        ),
    ):
        yield Measure(name, "gauge", text, [(labels, float(number)) for labels, number in numbers])


def _by_type(
    numbers: Mapping[tuple[str, str], int] | Mapping[tuple[str, str, str], int],
) -> list[tuple[dict[str, str], int]]:
    """Add numbers up that are given by namespace, type and possibly version; return them with their labels."""
    total: Counter[tuple[str, str]] = Counter()
    for key, number in numbers.items():
        total[key[0], key[1]] += number
    return [
        ({"type": kind} | ({} if namespace == DEFAULT else {"namespace": namespace}), number)
        for (namespace, kind), number in sorted(total.items())
    ]


def log_measures(logs: LogService) -> Iterable[Measure]:
    """Return the numbers of lines."""
    for name, text, number in (
        ("mainspring_log_lines_total", "Lines of jobs that workers have sent.", logs.lines),
        ("mainspring_log_lines_dropped_total", "Lines of them that a busy store could not take.", logs.dropped),
    ):
        yield Measure(name, "counter", text, [({}, float(number))])


def delivery_measures(deliverer: Deliverer) -> Iterable[Measure]:
    """Return the numbers of events on their way to listeners."""
    for name, text, number in (
        (
            "mainspring_events_delivered_total",
            "Events that became jobs of listeners and webhooks.",
            deliverer.delivered,
        ),
        (
            "mainspring_events_in_circles_total",
            "Events that no listener got, because deliveries had led to them in a circle.",
            deliverer.too_deep,
        ),
    ):
        yield Measure(name, "counter", text, [({}, float(number))])


def own_log_measures() -> Iterable[Measure]:
    """Return the number of lines of the node's own log that were lost."""
    text = "Lines of the node's own log that were dropped, because nothing read them."
    yield Measure("mainspring_node_log_lines_dropped_total", "counter", text, [({}, float(dropped_lines()))])


STATUS_FUNCTIONS: Final = 1000
"""Functions in one status, at most: those with the most jobs."""
MOST_VERSIONS: Final = 1000
"""Versions of workflows in one status, at most."""


class Status:
    """Reads a node's status. ``started`` is the monotonic time of its start, by ``clock``."""

    def __init__(
        self,
        settings: ServerSettings,
        service: JobService,
        peers: Peers,
        commits: CommitQueue,
        schedules: ScheduleService,
        clock: Clock,
        started: float,
        workflows: WorkflowService | None,
        set_aside: SetAside,
    ) -> None:
        self._settings = settings
        self._service = service
        self._peers = peers
        self._commits = commits
        self._schedules = schedules
        self._clock = clock
        self._started = started
        self._workflows = workflows
        self._set_aside = set_aside

    def read(self, namespace: str, sees: Callable[[str], bool] | None, everything: bool) -> NodeStatus:
        """Return the current status, with the functions and workflows of a namespace that a predicate accepts, or all of them.

        Without ``everything``, no number counts jobs, workers or functions of others.
        """
        service = self._service
        own = [queue for queue in service.roster.functions() if namespace_of(queue.name) == namespace]
        if sees is not None:
            own = [queue for queue in own if sees(function_text(queue.name))]
        functions = own if len(own) <= STATUS_FUNCTIONS else heapq.nlargest(STATUS_FUNCTIONS, own, FunctionQueue.total)
        workers = [worker for worker in service.dispatch.workers if worker.abilities]
        if not everything:
            seen = {queue.name for queue in own}
            workers = [worker for worker in workers if any(queue.name in seen for queue in worker.abilities)]
        return NodeStatus(
            version=version(),
            name=self._settings.name,
            term=service.term,
            store=self._settings.store.shown if everything else self._settings.store.shown.partition(":")[0],
            pid=os.getpid() if everything else None,
            uptime=round(self._clock.monotonic() - self._started, 3),
            connections=len(self._peers.connected) if everything else None,
            schedules=self._schedules.fires,
            workers=len({worker.beside or worker for worker in workers}),
            known_functions=service.roster.number if everything else len(own),
            jobs=_sum(service.dispatch.queues.values(), *service.jobs_of_others) if everything else _sum(own),
            commits=CommitNumbers(self._commits.groups, self._commits.jobs) if everything else None,
            functions=[_function(queue) for queue in functions],
            workflows=[]
            if self._workflows is None
            else [one for one in self._versions(self._workflows, namespace) if sees is None or sees(one.type)],
            set_aside=[
                SetAsideStatus(one.kind, one.name.replace("\x1f", "/"), rfc3339(to_us(one.since)), one.fault)
                for one in self._set_aside.entries()
            ]
            if everything
            else [],
        )

    @staticmethod
    def _versions(workflows: WorkflowService, namespace: str) -> list[WorkflowStatus]:
        counts = workflows.counts()
        versions = sorted(
            (one.namespace, one.name, one.version) for one in workflows.definitions.all() if one.namespace == namespace
        )
        return [  # the versions of workflows are listed page by page elsewhere
            WorkflowStatus(
                *key[1:], workflows.versions.workers(*key), counts.parked.get(key, 0), counts.stranded.get(key, 0)
            )
            for key in versions[:MOST_VERSIONS]
        ]


def _sum(functions: Iterable[FunctionQueue], total: int = 0, waiting: int = 0) -> JobNumbers:
    """Return the numbers of the jobs of functions, added to those of others."""
    running = 0
    for queue in functions:
        total += queue.total()
        running += queue.running
        waiting += queue.size + sum(queue.backlog)
    return JobNumbers(total, running, waiting)


def _function(queue: FunctionQueue) -> FunctionStatus:
    return FunctionStatus(
        function=function_text(queue.name),
        total=queue.total(),
        running=queue.running,
        workers=sum(queue.workers.values()),
        waiting=WaitingJobs(*queue.waiting_by_priority()),
    )
