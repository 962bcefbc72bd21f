"""The measures of one node on the page ``/metrics``."""

from __future__ import annotations

import heapq
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from mainspring.access.shares import KINDS as KINDS_OF_PLACES
from mainspring.access.shares import OWNERS
from mainspring.faces.http.figures import Distribution, Measure
from mainspring.hidden_secrets import hide_secrets
from mainspring.jobs.attempts import BOUNDS, OUTCOMES
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.model import Priority
from mainspring.namespaces import DEFAULT, namespace_of
from mainspring.storage.set_aside import KINDS
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.access.shares import Refusals
    from mainspring.faces.gearman.peers import Peers
    from mainspring.jobs.service import JobService
    from mainspring.server.oldest import Oldest
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.set_aside import SetAside

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
        functions = list(self._service.all_functions())
        number = self._service.number_of_functions
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
        for kind, name, text, value in (
            ("gauge", "mainspring_functions", "Functions that have jobs or workers.", number),
            ("gauge", "mainspring_connections", "Open connections of the Gearman port.", len(self._peers.connected)),
            (
                "gauge",
                "mainspring_silent_workers",
                "Workers that have sent nothing although they should, and get no work.",
                sum(peer.silence.since_us > 0 for peer in self._peers.connected),
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
            ("gauge", "mainspring_window_jobs", "Jobs in memory.", len(self._service.in_memory())),
        ):
            yield Measure(name, kind, text, [({}, float(value))])  # type: ignore[arg-type]

    def _attempts(self) -> Iterable[Measure | Distribution]:
        """Return the measures of attempts."""
        self._service.report_ends()
        counted = [(labels_of(one.name), one) for one in self._service.attempt_figures(self._service.monotonic())]
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
