"""Calls about one namespace: its jobs, what fails and waits in it, and what happened in the last minutes."""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from mainspring.api.answers.readings import Readings
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.troubled import Troubled, Work
from mainspring.api.answers.waiting import Later, read_page
from mainspring.api.namespaces import (
    FailingFunction,
    Failures,
    JobCounts,
    NamespaceStatus,
    OldestJob,
    RecentJobs,
    Status,
)
from mainspring.jobs.attempts import OUTCOMES
from mainspring.jobs.held import FunctionQueue
from mainspring.namespaces import namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.series.model import HALF_HOUR, MINUTE, Bucket, add_error, begin_of
from mainspring.series.store import ReadNamespaceSeries
from mainspring.workflows.model import function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.api.answers.dead_letters import DeadLetters, DeadNumbers
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.functions import Acknowledged
    from mainspring.api.namespaces import StoreState
    from mainspring.api.request import Request
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import NodeRow
    from mainspring.series.model import Row
    from mainspring.storage.reads import Reads

RECENT_MINUTES: Final = 5
"""Minutes that count as recent, besides the one under way."""
FAILING_HALF_HOURS: Final = 2
"""Half hours of failures, with the one under way."""
MOST_FAILING: Final = 20
PAGE_ROWS: Final = 1000
"""Buckets of one read: they are added in a few milliseconds, and then other work goes on."""
MOST_PAGES: Final = 200
"""Reads for one sum: those of forty thousand functions in the recent minutes."""
KEPT_FOR: Final = 5.0
"""Seconds for which the read buckets of a namespace are used again: nodes write theirs as often."""
MOST_KEPT: Final = 100
"""Namespaces whose buckets are kept."""
MOST_SHOWN: Final = 50
"""Functions of a namespace that the last answers have shown as troubled."""


class Ages(Protocol):
    """The ages of the oldest waiting jobs of a namespace; `server.oldest` implements it."""

    def refresh(self, then: Callable[[], None]) -> None:
        """Read the store if it is time, and call a function then."""

    def ages(self) -> Iterator[tuple[bytes, float]]:
        """Return functions with waiting jobs, with the seconds for which the oldest one has waited."""


class AcknowledgedFunctions(Protocol):
    """The functions whose failures somebody has acknowledged; `acknowledgements` implements it."""

    async def of(
        self, namespace: str, letters: Mapping[bytes, int], failed_us: Mapping[bytes, int]
    ) -> list[Acknowledged]:
        """Return those that have not failed since."""


class Figures(NamedTuple):
    """The part of a status that is cheap enough for each second."""

    jobs: JobCounts
    functions: int
    oldest_waiting: OldestJob | None
    recent: RecentJobs | None
    dead_letters: int | None


class _Series(NamedTuple):
    """The sums of buckets by function, from a wall time in seconds on. ``seconds`` is how long that is."""

    since: int
    seconds: float
    buckets: dict[bytes, Bucket]


class _Sums:
    """The sums of buckets, by function. ``add_bucket`` adds the part of a bucket that is needed to another one."""

    def __init__(self, add_bucket: Callable[[Bucket, Bucket], None]) -> None:
        self.buckets: dict[bytes, Bucket] = {}
        self._add_bucket = add_bucket

    def add(self, row: Row) -> None:
        """Add a bucket."""
        total = self.buckets.get(row.function)
        if total is None:
            total = self.buckets[row.function] = Bucket()
        self._add_bucket(total, row.bucket)


def _add_errors(total: Bucket, bucket: Bucket) -> None:
    for kind, group in bucket.errors.items():
        add_error(total.errors, kind, group)


class _Sight:
    """Which functions a caller may see by the permission of a request; ``every``: all of the namespace."""

    def __init__(self, request: Request[Any], caller: Caller) -> None:
        self._request = request
        self._caller = caller
        self.every = caller.functions(request.permission, request.namespace) is None

    def __call__(self, function: bytes) -> bool:
        request = self._request
        return self.every or self._caller.may(request.permission, request.namespace, function_text(function))


class NamespaceCalls:
    """Answers with the figures of one namespace.

    ``others`` returns the rows of the other live nodes, and ``ages`` the ages of a namespace's oldest jobs. ``dead`` has
    the numbers of dead letters, ``acknowledged`` the functions whose failures need nobody. ``kept`` is whether the store keeps
    series. ``store`` returns the state of the store.
    """

    def __init__(
        self,
        service: JobService,
        reads: Reads,
        clock: Clock,
        others: Callable[[], Sequence[NodeRow]],
        ages: Callable[[str], Ages],
        dead: DeadLetters,
        *,
        kept: bool,
        acknowledged: AcknowledgedFunctions | None = None,
        store: Callable[[], StoreState | None] = lambda: None,
    ) -> None:
        self._store = store
        self._acknowledged = acknowledged
        self._service = service
        self._reads = reads
        self._clock = clock
        self._handles: Handles = service.handles
        self._others = others
        self._ages = ages
        self._kept = kept
        self._recent: Readings[str, _Series] = Readings(clock.monotonic, KEPT_FOR, MOST_KEPT)
        self._failing: Readings[str, _Series] = Readings(clock.monotonic, KEPT_FOR, MOST_KEPT)
        self._dead = dead
        self._shown: dict[str, list[bytes]] = {}
        self._troubled = Troubled(reads, clock, kept=kept)
        self.handlers: Handlers = {Status: self.status}

    async def figures(self, request: Request[Any], caller: Caller) -> Figures:
        """Return the figures of a namespace, of the functions that a caller may see by the permission of a request."""
        namespace, sees = request.namespace, _Sight(request, caller)
        await Later[None](lambda done, _: self._service.counted(lambda: done(None)))
        ages = self._ages(namespace)
        await Later[None](lambda done, _: ages.refresh(lambda: done(None)))
        recent = await self._recent.get(namespace, partial(self._read_recent, namespace)) if self._kept else None
        dead = await self._dead.of(namespace)
        functions = [queue for queue in self._present(namespace) if sees(queue.name)]
        oldest = max(((age, name) for name, age in ages.ages() if sees(name)), default=None)
        return Figures(
            jobs=self._counts(namespace, functions, sees),
            functions=len(functions),
            oldest_waiting=None if oldest is None else OldestJob(function_text(oldest[1]), round(oldest[0], 3)),
            recent=None if recent is None else _recent(recent, sees),
            dead_letters=sum(dead.by_function[name] for name in dead.by_function if sees(name))
            if dead.is_whole
            else None,
        )

    async def status(self, request: Status, caller: Caller) -> NamespaceStatus:
        """Return the status of a namespace."""
        namespace, sees = request.namespace, _Sight(request, caller)
        figures = await self.figures(request, caller)
        failing, failed_us = None, {}
        if self._kept:
            series = await self._failing.get(namespace, partial(self._read_failing, namespace))
            failing = self._most_failing(series, sees)
            failed_us = {
                name: max(group.last_us for group in bucket.errors.values())
                for name, bucket in series.buckets.items()
                if bucket.errors
            }
        failures = {} if failing is None else {one.function: one.failures for one in failing.functions}
        failed = {function_named(name, namespace): number for name, number in failures.items()}
        present = self._present(namespace)
        dead = await self._dead.among(namespace, present, list(failed))
        letters = {name: number for name, number in dead.by_function.items() if sees(name)}
        waited = {name: age for name, age in self._ages(namespace).ages() if sees(name)}
        functions = [queue for queue in present if sees(queue.name)]
        troubled = await self._troubled.among(namespace, self._work(functions, waited, failed, letters, dead))
        self._show(namespace, [function_named(one.function, namespace) for one in troubled])
        acknowledged = []
        if self._acknowledged is not None:
            found = await self._acknowledged.of(namespace, dead.by_function, failed_us)
            acknowledged = [one for one in found if sees(function_named(one.function, namespace))]
        return NamespaceStatus(
            namespace=namespace,
            acknowledged=acknowledged,
            **figures._asdict(),
            failing=failing,
            troubled=troubled,
            store=self._store(),
        )

    def shown(self, namespace: str) -> tuple[bytes, ...]:
        """Return the troubled functions of the last answers."""
        return tuple(self._shown.get(namespace, ()))

    def _show(self, namespace: str, names: list[bytes]) -> None:
        before = self._shown.pop(namespace, ())
        while len(self._shown) >= MOST_KEPT:
            del self._shown[next(iter(self._shown))]
        self._shown[namespace] = list(dict.fromkeys([*names, *before]))[:MOST_SHOWN]

    def _present(self, namespace: str) -> list[FunctionQueue]:
        return [queue for queue in self._service.all_functions() if namespace_of(queue.name) == namespace]

    def _work(
        self,
        functions: list[FunctionQueue],
        waited: dict[bytes, float],
        failures: dict[bytes, int],
        letters: Mapping[bytes, int],
        dead: DeadNumbers,
    ) -> Iterator[Work]:
        """Return the functions at work that the node has in memory, and those with failures or dead letters."""
        service = self._service
        queues = {queue.name: queue for queue in functions}
        running = running_by_function(self._others())
        for name in {**queues, **failures, **letters}:
            queue = queues.get(name) or FunctionQueue(name)
            waiting, at_work = queue.waiting(), queue.running + running.get(name, 0)
            number = letters.get(name, 0 if dead.is_whole else None)
            if waiting or at_work or number or name in failures:
                yield Work(
                    name,
                    waiting,
                    at_work,
                    workers=sum(queue.workers.values()),
                    is_registered=service.is_registered(name),
                    is_paused=service.spec_of(name).paused,
                    oldest=waited.get(name),
                    failures=failures.get(name, 0),
                    dead=number,
                )

    def _counts(self, namespace: str, functions: list[FunctionQueue], sees: _Sight) -> JobCounts:
        total = waiting = running = 0
        for queue in functions:
            total += queue.total()
            running += queue.running
            waiting += queue.waiting()
        if sees.every:  # those of functions that are rows of the store alone, and not listed
            more = self._service.unlisted_jobs(namespace)
            total, waiting = total + more.jobs, waiting + more.waiting
        for name, number in running_by_function(self._others()).items():
            if namespace_of(name) == namespace and sees(name):
                running += number
        return JobCounts(total, waiting, running, max(total - waiting - running, 0))

    async def _read_recent(self, namespace: str) -> _Series:
        wall, sums = self._clock.wall(), _Sums(Bucket.add_attempts)
        since = begin_of(MINUTE, wall) - RECENT_MINUTES * MINUTE
        await self._add(sums, namespace, MINUTE, since, begin_of(MINUTE, wall) + MINUTE)
        return _Series(since, wall - since, sums.buckets)

    async def _read_failing(self, namespace: str) -> _Series:
        wall, sums = self._clock.wall(), _Sums(_add_errors)
        since = begin_of(HALF_HOUR, wall) - (FAILING_HALF_HOURS - 1) * HALF_HOUR
        await self._add(sums, namespace, HALF_HOUR, since, begin_of(HALF_HOUR, wall) + HALF_HOUR)
        return _Series(since, wall - since, sums.buckets)

    async def _add(self, sums: _Sums, namespace: str, step: int, since: int, until: int) -> None:
        """Add the buckets that begin between two times, page by page."""
        query = ReadNamespaceSeries(namespace=namespace, step=step, since=since, limit=PAGE_ROWS)
        for _ in range(MOST_PAGES):
            page = await read_page(self._reads.ask, query)
            for row in page.items:
                if row.at >= until:
                    return
                sums.add(row)
            if page.next is None:
                return
            query = replace(query, after=page.next)

    def _most_failing(self, series: _Series, sees: Callable[[bytes], bool]) -> Failures:
        failing = ((name, bucket.errors) for name, bucket in series.buckets.items() if bucket.errors and sees(name))
        numbers = ((sum(group.number for group in errors.values()), name, errors) for name, errors in failing)
        functions = []
        for number, name, errors in heapq.nlargest(MOST_FAILING, numbers, key=lambda one: one[:2]):
            kind, last = max(errors.items(), key=lambda one: one[1].last_us)
            handle = self._handles.of(last.job).decode() if last.job else None
            functions.append(
                FailingFunction(function_text(name), number, rfc3339(last.last_us), kind, last.message, handle)
            )
        return Failures(rfc3339(series.since * 1_000_000) or "", functions)


def _recent(series: _Series, sees: Callable[[bytes], bool]) -> RecentJobs:
    total = Bucket()
    for name, bucket in series.buckets.items():
        if sees(name):
            total.add_attempts(bucket)
    outcomes = {outcome: total.outcomes.get(outcome, 0) for outcome in OUTCOMES}
    return RecentJobs(
        since=rfc3339(series.since * 1_000_000) or "",
        seconds=round(series.seconds, 3),
        submitted=total.submitted,
        **outcomes,
        succeeded_per_second=outcomes["succeeded"] / series.seconds,
    )
