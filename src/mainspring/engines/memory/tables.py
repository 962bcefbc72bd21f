"""The content of the memory engine, and the indexes over it.

`Pending` has the pending jobs of one function and priority, by their keys.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from typing import TYPE_CHECKING

from mainspring.event_log.interests import CurrentInterests, NewEvents
from mainspring.jobs.model import Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mainspring.access.audit import Recorded
    from mainspring.access.store import Credential
    from mainspring.bulk.rules import BulkOperation
    from mainspring.conflicts.store import Successor
    from mainspring.deadlines.store import Item
    from mainspring.event_log.store import Event, StoredInterest
    from mainspring.external.store import Work
    from mainspring.job_logs.model import Chunk
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.owners import Notices
    from mainspring.resources.definition_store import StoredResource
    from mainspring.resources.holds import Hold, Holder, Request
    from mainspring.resources.instances import Instance
    from mainspring.resources.rules import Bucket, FunctionLimits, Holding, Rate
    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Fire
    from mainspring.schedules.parents import Join
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Key
    from mainspring.series import Row
    from mainspring.streams.model import Block, Head
    from mainspring.subscriptions.model import Delivery, Subscribed
    from mainspring.values.model import StoredValue
    from mainspring.workflows.model import Definition
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import EarlySignals, Snapshot


class Pending:
    """Heaps of ids, one for each key. Ids may be out of date, so a caller checks the state of the job that it pops."""

    __slots__ = ("_heaps", "_keys")

    def __init__(self) -> None:
        self._heaps: dict[bytes, list[int]] = {}
        self._keys: list[bytes] = []
        """In order."""

    def push(self, key: bytes, job_id: int) -> None:
        """Add a job."""
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = []
            insort(self._keys, key)
        heapq.heappush(heap, job_id)

    def pop(self) -> tuple[bytes, int] | None:
        """Pop the oldest of all jobs, with its key. Meant for few keys: with many, jobs are claimed by key."""
        while self._heaps:
            if len(self._heaps) == 1:
                key, heap = next(iter(self._heaps.items()))
            else:
                key, heap = min(self._heaps.items(), key=_oldest)
            if heap:
                return key, heapq.heappop(heap)
            if len(self._heaps) == 1:
                return None  # it stays for the next job: most functions have no other key
            self.forget(key)
        return None

    def firsts(self, is_pending: Callable[[int], bool], most: int) -> Iterator[int]:
        """Yield the oldest job of each of the first keys, and drop outdated entries before it."""
        for key in self._keys[:most]:
            heap = self._heaps[key]
            while heap and not is_pending(heap[0]):
                heapq.heappop(heap)
            if heap:
                yield heap[0]

    def all_of(self, key: bytes, is_pending: Callable[[int], bool]) -> Iterator[int]:
        """Yield the jobs of a key, the oldest first, and drop outdated entries before the first one."""
        heap = self._heaps.get(key, [])
        while heap and not is_pending(heap[0]):
            heapq.heappop(heap)
        if heap:
            yield heap[0]
            yield from (job_id for job_id in sorted(heap)[1:] if is_pending(job_id))

    def pop_of(self, key: bytes) -> tuple[bytes, int] | None:
        """Pop the oldest job of a key that `keys` has returned."""
        heap = self._heaps[key]
        return (key, heapq.heappop(heap)) if heap else None

    def forget(self, key: bytes) -> None:
        """Drop a key that has no jobs."""
        if not self._heaps[key]:
            del self._heaps[key]
            del self._keys[bisect_left(self._keys, key)]

    def keys(self, after: bytes | None) -> Iterator[bytes]:
        """Return all keys in order, from the first after ``after`` once around."""
        at = 0 if after is None else bisect_right(self._keys, after)
        yield from self._keys[at:] + self._keys[:at]


def _oldest(item: tuple[bytes, list[int]]) -> int:
    return item[1][0] if item[1] else 0


class Tables:
    """The content of a memory store. Heaps may hold outdated ids, so a caller checks the state of the job that it pops."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.live: dict[tuple[bytes, bytes], int] = {}
        """The live job by function and unique."""
        self.kept: dict[tuple[bytes, bytes], int] = {}
        """By function and unique: the last job submitted with ``keep_unique`` that has succeeded."""
        self.pending: dict[bytes, tuple[Pending, Pending, Pending]] = {}
        """The pending jobs of each priority, by function."""
        self.tagged: dict[tuple[str, str], set[int]] = {}
        """Jobs by namespace and tag."""
        self.live_roots: Counter[tuple[bytes, bytes]] = Counter()
        """The numbers of live root jobs by function and key."""
        self.open_runs: Counter[tuple[str, str]] = Counter()
        """The numbers of open runs by namespace and workflow."""
        self.nodes: Mapping[int, str] = {}
        """The node of each term, as of the group under way."""
        self.attempts: dict[int, bytes] = {}
        """The records of attempts; see ``attempt_records``."""
        self.due: list[tuple[int, int]] = []
        """Heap of (due, id) of scheduled jobs."""
        self.expiring: list[tuple[int, int]] = []
        """Heap of (expires, id) of jobs that have not started."""
        self.ended: list[tuple[int, int]] = []
        """Heap of (ended, id)."""
        self.dead: list[tuple[int, int]] = []
        """The same of failed jobs."""
        self.stopping: dict[int, StopRequest] = {}
        """The requests to cancel held jobs."""
        self.waits: dict[int, set[int]] = {}
        """The terms of the nodes whose clients wait, by job; only if the store is shared."""
        self.counts = Counts()
        self.limits: dict[bytes, FunctionLimits] = {}
        """The limits of functions, by name."""
        self.resources: dict[str, StoredResource] = {}
        """By the keys of their names."""
        self.grants: dict[str, int] = {}
        """How often slots of resources were granted."""
        self.instances: dict[tuple[str, str], Instance] = {}
        """By resource and name."""
        self.completions: dict[bytes, Completion] = {}
        """By digest."""
        self.holds: set[Hold] = set()
        self.requests: dict[Holder, Request] = {}
        self.answered_runs: list[Holder] = []
        """The holders of the kind RUN for which the group under way has stored answers."""
        self.successors: dict[int, Successor] = {}
        """The jobs that wait for the live job of their unique, by id."""
        self.works: dict[tuple[int, int], Work] = {}
        """Submissions of work that runs elsewhere, by job and number."""
        self.tokens: dict[tuple[bytes, bytes], dict[int, Holding]] = {}
        """The holdings of nodes, by function and pool, then by term; only if the store is shared."""
        self.buckets: dict[tuple[bytes, bytes], tuple[Rate, Bucket]] = {}
        """The rate and the starts left, by function and pool; only if the store is shared."""
        self.credentials: dict[bytes, Credential] = {}
        """By digest."""
        self.replies: dict[bytes, tuple[bytes, int, bytes | None]] = {}
        """By key: the digest of the request, its time, and the encoded answer."""
        self.revocations = 0
        self.acts: list[Recorded] = []
        """The audit, oldest first."""
        self.last_act = 0
        self.interests: dict[str, StoredInterest] = {}
        """By their ids."""
        self.interest_changes = 0
        self.current_interests = CurrentInterests()
        self.new_events = NewEvents(self.current_interests)
        """The events of the group under way."""
        self.events: list[Event] = []
        """The log of events, oldest first."""
        self.last_event = self.swept_events = 0
        self.event_series: dict[bytes, tuple[int, int]] = {}
        """The number of causes of each series of events, and the time of the last one, by key."""
        self.subscriptions: dict[str, Subscribed] = {}
        """By their ids."""
        self.deliveries: dict[tuple[str, int], list[Delivery]] = {}
        """By subscription and subject, in the order of their events."""
        self.deadlines: dict[Item, int] = {}
        """The times by which jobs should have begun and ended, and schedules started a job, in microseconds of wall time."""
        self.dated: list[DueRow] = []
        """Those that the group under way has written."""
        self.notices: Notices = {}
        """The events in the group under way, for the owners of jobs."""
        self.schedules: dict[str, Stored] = {}
        self.catalogue: Catalogue | None = None
        """The specifications, until one of them changes."""
        self.fires: dict[str, dict[int, Fire]] = {}
        """Rows of fire times, by schedule and fire time."""
        self.unfinished: dict[str, set[int]] = {}
        """Fire times of the rows that are not finished, by schedule."""
        self.forgotten: dict[str, int] = {}
        """The fire time up to which rows were deleted, by schedule."""
        self.runs: dict[int, set[Key]] = {}
        """The keys of the rows that have a job and no outcome, by job."""
        self.joins: dict[Key, Join] = {}
        self.declared: dict[tuple[str, bytes], tuple[int, int]] = {}
        """The times of the first and the last declaration, by app and digest."""
        self.workflows: dict[int, RunRow] = {}
        """Runs of workflows."""
        self.histories: dict[int, tuple[list[int], list[bytes]]] = {}
        """The blocks of runs: the numbers of their first events, and their events."""
        self.snapshots: dict[int, Snapshot] = {}
        self.payloads: dict[int, dict[int, bytes]] = {}
        """Those that are kept apart from events, by run and event."""
        self.workflow_ids: dict[tuple[str, str], set[int]] = {}
        """Runs by namespace and workflow id."""
        self.run_links: dict[int, list[int]] = {}
        """The runs that continue another one, in order, by the root jobs of their chains."""
        self.alarms: list[tuple[int, int]] = []
        """Heap of (due, run)."""
        self.parked_runs: dict[int, None] = {}
        self.closed_runs: list[tuple[int, int]] = []
        """Sorted list of (closed, run)."""
        self.early_signals: dict[int, tuple[EarlySignals, list[Signal]]] = {}
        """The signals to jobs whose runs have not begun."""
        self.errands: dict[int, bytes] = {}
        """Stored requests of runs to other runs, by their numbers, in order."""
        self.last_errand = 0
        self.definitions: dict[tuple[str, str, str], Definition] = {}
        """By namespace, name and version."""
        self.series: dict[tuple[str, bytes, int], dict[tuple[int, int], Row]] = {}
        """The buckets of functions, by namespace, function and step, then by time and term."""
        self.logs: dict[int, dict[int, Chunk]] = {}
        """The chunks of the logs of jobs, by job and id."""
        self.values: dict[int, dict[str, StoredValue]] = {}
        """Published values, by job and name."""
        self.streams: dict[int, dict[str, Head]] = {}
        """Streams, by job and name."""
        self.blocks: dict[tuple[int, str], list[Block]] = {}
        """The blocks of streams, by job and name, in the order of their numbers."""
        self.operations: dict[int, BulkOperation] = {}
        """Operations on many jobs."""
        self.operation_steps: dict[int, dict[int, bytes]] = {}
        """The jobs of each step, by operation and revision."""
