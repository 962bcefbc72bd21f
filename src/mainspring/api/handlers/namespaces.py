"""Calls about the present and the recent past of a namespace and its functions: what fails and waits, and what happened.

`Troubled` finds the functions at work, those with trouble first, with their last hour. `SeriesCalls` answers with a function's
jobs by minute or half hour, and its errors by type.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from mainspring.api.functions import (
    BucketInfo,
    DurationNumbers,
    ErrorInfo,
    Errors,
    ReadErrors,
    ReadFunctionSeries,
    Series,
)
from mainspring.api.handlers.functions import Readings
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.namespaces import (
    FailingFunction,
    Failures,
    JobCounts,
    NamespaceStatus,
    OldestJob,
    RecentJobs,
    ShowNamespace,
    TroubledFunction,
    TroubledSubscription,
)
from mainspring.callbacks import Callback
from mainspring.clock import from_us
from mainspring.features import Feature
from mainspring.jobs.attempts import BOUNDS, OUTCOMES
from mainspring.jobs.held import FunctionQueue
from mainspring.namespaces import name_of, namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.series import (
    HALF_HOUR,
    KEPT,
    MINUTE,
    Bucket,
    ErrorGroup,
    ReadNamespaceSeries,
    ReadSeries,
    add_error,
    begin_of,
    oldest_kept,
)
from mainspring.workflows.model import function_named, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.api.functions import Acknowledged, StepName
    from mainspring.api.handlers.functions import DeadLetters, DeadNumbers
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.api.namespaces import StoreState
    from mainspring.api.request import Request
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import NodeRow
    from mainspring.series import Row
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.model import Subscribed

MOST: Final = 8
"""Functions in an answer."""
KEPT_FOR: Final = 5.0
"""Seconds for which a read hour is used again: nodes write their buckets as often."""
MAX_KEPT_HOURS: Final = 500
"""Functions whose hours are kept."""
NOT_SUCCEEDED: Final = ("failed", "retried", "timed_out", "lost")
"""Outcomes of attempts that did not succeed."""
_MOST_ROWS: Final = 10_000
"""Buckets of one read: those of 166 terms."""


class Work(NamedTuple):
    """A function, before its hour is read."""

    name: bytes
    waiting: int
    running: int
    workers: int
    is_registered: bool | None
    """None: unknown."""
    is_paused: bool
    oldest: float | None
    failures: int
    dead: int | None

    @property
    def trouble(self) -> tuple[bool, int, int, float, int, int, bytes]:
        """How much trouble it has, for comparisons: jobs without workers, failures, dead letters, waits."""
        is_stuck = bool(self.waiting) and self.is_registered is False and not self.is_paused
        return is_stuck, self.failures, self.dead or 0, self.oldest or 0.0, self.waiting, self.running, self.name


class _Hour(NamedTuple):
    """The minutes of a function."""

    submitted: list[int]
    succeeded: list[int]
    not_succeeded: list[int]


class Troubled:
    """Finds the functions, and reads their hours, unless the store ``lacks`` series."""

    def __init__(self, reads: Reads, clock: Clock, lacks: frozenset[Feature]) -> None:
        self._reads = reads
        self._clock = clock
        self._kept = Feature.SERIES not in lacks
        self._hours: Readings[tuple[str, bytes], _Hour] = Readings(clock.monotonic, KEPT_FOR, MAX_KEPT_HOURS)

    async def among(self, namespace: str, functions: Iterable[Work]) -> list[TroubledFunction]:
        """Return those with the most trouble."""
        worst = heapq.nlargest(MOST, functions, key=lambda one: one.trouble)
        return [await self._info(namespace, one) for one in worst]

    async def _info(self, namespace: str, work: Work) -> TroubledFunction:
        hour = None
        if self._kept:
            hour = await self._hours.get((namespace, work.name), lambda: self._read(namespace, work.name))
        return TroubledFunction(
            function_text(work.name),
            waiting=work.waiting,
            running=work.running,
            workers=work.workers,
            registered=work.is_registered,
            paused=work.is_paused,
            oldest_seconds=None if work.oldest is None else round(work.oldest, 3),
            failures=work.failures,
            submitted=None if hour is None else hour.submitted,
            succeeded=None if hour is None else hour.succeeded,
            not_succeeded=None if hour is None else hour.not_succeeded,
            dead_letters=work.dead,
        )

    async def _read(self, namespace: str, name: bytes) -> _Hour:
        wall = self._clock.wall()
        begin = oldest_kept(MINUTE, wall)
        query = ReadSeries(namespace=namespace, function=name_of(name), step=MINUTE, since=begin, limit=_MOST_ROWS)
        hour = _Hour(*([0] * KEPT[MINUTE] for _ in range(3)))
        for row in (await self._reads.read_pages(query)).items:
            place, outcomes = (row.at - begin) // MINUTE, row.bucket.outcomes
            if row.at <= begin_of(MINUTE, wall):
                hour.submitted[place] += row.bucket.submitted
                hour.succeeded[place] += outcomes.get("succeeded", 0)
                hour.not_succeeded[place] += sum(outcomes.get(outcome, 0) for outcome in NOT_SUCCEEDED)
        return hour


RECENT_MINUTES: Final = 5
"""Minutes that count as recent, besides the one under way."""
FAILING_HALF_HOURS: Final = 2
"""Half hours of failures, with the one under way."""
MOST_FAILING: Final = 20
PAGE_ROWS: Final = 1000
"""Buckets of one read: they are added in a few milliseconds, and then other work goes on."""
MOST_PAGES: Final = 200
"""Reads for one sum: those of forty thousand functions in the recent minutes."""
"""Seconds for which the read buckets of a namespace are used again: nodes write theirs as often."""
MAX_KEPT_SERIES: Final = 100
"""Namespaces whose buckets are kept."""
MOST_SUBSCRIPTIONS: Final = 20
"""Listeners and webhooks in an answer."""
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
    series. ``store`` returns the state of the store, and ``subscriptions`` the listeners and webhooks of all namespaces.
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
        acknowledged: AcknowledgedFunctions | None = None,
        store: Callable[[], StoreState | None] = lambda: None,
        subscriptions: Callable[[], Sequence[Subscribed]] = tuple,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._acknowledged = acknowledged
        self._service = service
        self._reads = reads
        self._clock = clock
        self._handles: Handles = service.handles
        self._others = others
        self._ages = ages
        self._kept = Feature.SERIES not in service.lacks
        self._recent: Readings[str, _Series] = Readings(clock.monotonic, KEPT_FOR, MAX_KEPT_SERIES)
        self._failing: Readings[str, _Series] = Readings(clock.monotonic, KEPT_FOR, MAX_KEPT_SERIES)
        self._dead = dead
        self._shown: dict[str, list[bytes]] = {}
        self._troubled = Troubled(reads, clock, service.lacks)
        self.handlers: Handlers = {ShowNamespace: self.status}

    async def figures(self, request: Request[Any], caller: Caller) -> Figures:
        """Return the figures of a namespace, of the functions that a caller may see by the permission of a request."""
        namespace, sees = request.namespace, _Sight(request, caller)
        await Callback[None](lambda done, _: self._service.counted(lambda: done(None)))
        ages = self._ages(namespace)
        await Callback[None](lambda done, _: ages.refresh(lambda: done(None)))
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

    async def status(self, request: ShowNamespace, call: Call) -> NamespaceStatus:
        """Return the status of a namespace."""
        namespace, sees = request.namespace, _Sight(request, call.caller)
        figures = await self.figures(request, call.caller)
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
            subscriptions=_troubled(self._subscriptions(), namespace, sees),
        )

    def shown(self, namespace: str) -> tuple[bytes, ...]:
        """Return the troubled functions of the last answers."""
        return tuple(self._shown.get(namespace, ()))

    def _show(self, namespace: str, names: list[bytes]) -> None:
        before = self._shown.pop(namespace, ())
        while len(self._shown) >= MAX_KEPT_SERIES:
            del self._shown[next(iter(self._shown))]
        self._shown[namespace] = list(dict.fromkeys([*names, *before]))[:MOST_SHOWN]

    def _present(self, namespace: str) -> list[FunctionQueue]:
        return [queue for queue in self._service.roster.functions() if namespace_of(queue.name) == namespace]

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
                    is_registered=service.registered.has(name),
                    is_paused=service.functions.limits_of(name).paused,
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
            more = self._service.roster.unlisted_jobs(namespace)
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
            page = await self._reads.read(query)
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


def _troubled(
    subscriptions: Iterable[Subscribed], namespace: str, sees: Callable[[bytes], bool]
) -> list[TroubledSubscription]:
    found = [
        TroubledSubscription(
            one.subscription.target.value, one.subscription.name, one.subscription.paused or None, one.failures
        )
        for one in subscriptions
        if (one.subscription.paused or one.failures)
        and one.subscription.namespace == namespace
        and sees(function_named(one.subscription.function, namespace))
    ]
    return heapq.nsmallest(MOST_SUBSCRIPTIONS, found, key=lambda one: (one.kind, one.name))


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


STEPS: Final[dict[StepName, int]] = {"minute": MINUTE, "half_hour": HALF_HOUR}
MOST_ROWS: Final = 100_000
"""Rows of one answer: the buckets of two thousand terms."""


class SeriesCalls:
    """Answers from the series in the store."""

    def __init__(self, reads: Reads, handles: Handles, clock: Clock) -> None:
        self._reads = reads
        self._handles = handles
        self._clock = clock
        self.handlers: Handlers = {ReadFunctionSeries: self._series, ReadErrors: self._errors}

    async def _series(self, request: ReadFunctionSeries, _: Call) -> Series:
        step, now = STEPS[request.step], self._clock.wall()
        buckets = {at: Bucket() for at in range(oldest_kept(step, now), begin_of(step, now) + 1, step)}
        for row in await self._rows(request, step):
            if (bucket := buckets.get(row.at)) is not None:
                bucket.add(row.bucket)
        last = None
        for bucket in buckets.values():
            if bucket.waiting_us:
                last = bucket
            elif last is not None:  # nodes write a number that has changed
                bucket.count_waiting(last.waiting, last.waiting_us)
        since = None if request.since is None else request.since.timestamp()
        until = None if request.until is None else request.until.timestamp()
        return Series(
            request.function,
            step,
            [
                _info(at, bucket)
                for at, bucket in buckets.items()
                if (since is None or at >= since) and (until is None or at < until)
            ],
            list(BOUNDS),
        )

    async def _errors(self, request: ReadErrors, _: Call) -> Errors:
        found: dict[str, ErrorGroup] = {}
        for row in await self._rows(request, HALF_HOUR):
            for kind, group in row.bucket.errors.items():
                if kind in found:
                    found[kind].add(group)
                else:
                    found[kind] = group
        groups = sorted(found.items(), key=lambda one: (-one[1].number, one[0]))
        since_us = oldest_kept(HALF_HOUR, self._clock.wall()) * 1_000_000
        errors = [self._error(kind, group) for kind, group in groups]
        return Errors(request.function, rfc3339(since_us) or "", errors)

    async def _rows(self, request: ReadFunctionSeries | ReadErrors, step: int) -> list[Row]:
        """Return the buckets of all nodes."""
        query = ReadSeries(
            namespace=request.namespace,
            function=name_of(function_named(request.function, request.namespace)),
            step=step,
            since=oldest_kept(step, self._clock.wall()),
            limit=MOST_ROWS,
        )
        return (await self._reads.read_pages(query)).items

    def _error(self, kind: str, group: ErrorGroup) -> ErrorInfo:
        return ErrorInfo(
            kind,
            group.number,
            rfc3339(group.first_us),
            rfc3339(group.last_us),
            group.message,
            self._handles.of(group.job).decode() if group.job else None,
        )


def _info(at: int, bucket: Bucket) -> BucketInfo:
    outcomes = {outcome: bucket.outcomes.get(outcome, 0) for outcome in OUTCOMES}
    return BucketInfo(
        at=rfc3339(at * 1_000_000) or "",
        submitted=bucket.submitted,
        **outcomes,
        wait=_durations(bucket.waited, bucket.waited_us),
        run=_durations(bucket.ran, bucket.ran_us),
        waiting=bucket.waiting if bucket.waiting_us else None,
    )


def _durations(counts: list[int], total_us: int) -> DurationNumbers | None:
    number = sum(counts)
    if not number:
        return None
    return DurationNumbers(number, from_us(total_us) / number, quantile(counts, 0.5), quantile(counts, 0.95), counts)


def quantile(counts: list[int], share: float) -> float:
    """Return about the duration in seconds below which a share of the durations is. The longest bound stands for longer ones."""
    wanted = share * sum(counts)
    for place, number in enumerate(counts):
        if number and wanted <= number:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return low + (high - low) * wanted / number
        wanted -= number
    return 0.0
