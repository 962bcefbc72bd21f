"""Streams of samples, which are taken while somebody watches: live numbers of namespaces, and versions of lists and objects.

All callers who have the same rights share one sample. `SampleLoop` takes it again and again, at a pace that leaves most of the
time to other work.
"""

from __future__ import annotations

import heapq
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from mainspring.api import events, jobs, listeners, namespaces, nodes, schedules, webhooks, workflows
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.namespaces import (
    AllFunctionNumbers,
    FollowNumbers,
    FollowVersion,
    FunctionNumbers,
    Numbers,
    Version,
)
from mainspring.api.request import ApiError, Code, Page, Shared, problem_of
from mainspring.api.schedules import ListFires, ReadOutcomes
from mainspring.api.versions import (
    DELIVERIES,
    EVENTS,
    NEWEST_FAILURES,
    PARKED,
    RUNS,
    SCHEDULE_FIRES,
    SCHEDULES_SHOWN,
    SUBSCRIPTIONS,
    WORKERS,
    due_key,
    overview_version,
    sees_all,
    version_of,
)
from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.errors import MainspringError
from mainspring.jobs.attempts import OTHER
from mainspring.jobs.held import FunctionQueue
from mainspring.namespaces import namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Caller, Grant
    from mainspring.api.handlers.namespaces import Figures
    from mainspring.api.handlers.registry import Call, Followers
    from mainspring.api.namespaces import RecentJobs
    from mainspring.api.request import Feed, Request
    from mainspring.callbacks import Ask
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import NodeRow

INTERVAL: Final = 1.0
"""Seconds from one sample to the next, at least."""

log = structlog.get_logger("mainspring.api")


class SampleLoop:
    """Calls ``take`` at once, and again until ``is_watched`` returns False; then it calls ``ended``.

    A sample takes at most one of so many parts of the time as ``parts`` returns. ``interval`` returns the seconds from one sample
    to the next.
    """

    def __init__(
        self,
        service: JobService,
        take: Callable[[], Coroutine[Ask, Any, None]],
        is_watched: Callable[[], bool],
        ended: Callable[[], object],
        *,
        parts: Callable[[], int] = lambda: 2,
        interval: Callable[[], float] = lambda: INTERVAL,
    ) -> None:
        self._service = service
        self._take = take
        self._is_watched = is_watched
        self._ended = ended
        self._parts = parts
        self._interval = interval
        self._begun = 0.0

    def run_once(self) -> None:
        """Take a sample, and the next one in time."""
        if not self._is_watched():
            self._ended()
            return
        self._begun = self._service.clock.monotonic()
        CallInProgress(self._take(), self._go_on, self._go_on, self._broken)

    def wait(self) -> None:
        """Take the first sample in time."""
        self._begun = self._service.clock.monotonic()
        self._go_on(None)

    def _go_on(self, _: object) -> None:
        """Take the next sample in time, also after the store could not be read."""
        took = self._service.clock.monotonic() - self._begun
        self._service.later(max(self._interval() - took, took * (self._parts() - 1)), self.run_once)

    def _broken(self, error: Exception) -> None:
        log.error("a sample for live pages failed", exc_info=error)
        self._go_on(error)


if TYPE_CHECKING:
    ReadFigures = Callable[[FollowNumbers, Caller], Coroutine[Ask, Any, Figures]]
    NumberKey = tuple[str, frozenset[str] | None]
    """A namespace, and the patterns of the functions that a caller may see, or None for all."""

MOST_FUNCTIONS: Final = 1000
"""Functions in a sample: about 60 KB."""
MOST_NAMES: Final = 2**17
"""Bytes of their names: clients choose them, and each slow client has a copy of the sample that it reads."""


class LiveStreams:
    """Streams of numbers.

    ``figures`` returns the figures of a namespace, ``workers`` the number of its connected workers, and ``others`` the rows of
    the other live nodes. ``shown`` returns the functions of a namespace that overviews show.
    """

    def __init__(
        self,
        service: JobService,
        figures: ReadFigures,
        workers: Callable[[str], int],
        others: Callable[[], Sequence[NodeRow]] = tuple,
        shown: Callable[[str], Iterable[bytes]] = lambda _: (),
    ) -> None:
        self._others = others
        self._shown = shown
        self._service = service
        self._figures = figures
        self._workers = workers
        self._samplers: dict[NumberKey, _NumberSampler] = {}
        self.followers: Followers = {FollowNumbers: self._follow}

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self._samplers)

    async def _follow(self, request: FollowNumbers, call: Call, feed: Feed) -> Callable[[], None]:
        patterns = call.caller.functions(request.permission, request.namespace)
        key = (request.namespace, None if patterns is None else frozenset(patterns))
        sampler = self._samplers.get(key)
        if sampler is None:
            ended = partial(self._samplers.pop, key)
            sampler = _NumberSampler(
                self._service,
                self._figures,
                self._workers,
                self._others,
                self._shown,
                request.namespace,
                call.caller,
                ended,
            )
            self._samplers[key] = sampler
        sampler.add(feed, request)
        return partial(sampler.remove, feed)


class _NumberSampler:
    """Takes the samples for all callers who may see the same functions of a namespace; ``caller`` is one of them.

    ``ended`` is called when nobody watches any more.
    """

    def __init__(
        self,
        service: JobService,
        figures: ReadFigures,
        workers: Callable[[str], int],
        others: Callable[[], Sequence[NodeRow]],
        shown: Callable[[str], Iterable[bytes]],
        namespace: str,
        caller: Caller,
        ended: Callable[[], object],
    ) -> None:
        self._service = service
        self._figures = figures
        self._workers = workers
        self._others = others
        self._shown = shown
        self._namespace = namespace
        self._caller = caller
        self._loop = SampleLoop(service, self._take, lambda: bool(self._feeds), ended)
        self._feeds: dict[Feed, FollowNumbers] = {}
        """With the requests, which say what they get."""
        self._numbers: Shared | None = None
        self._functions: Shared | None = None
        self._troubled: Shared | None = None
        self._is_running = False

    def add(self, feed: Feed, wanted: FollowNumbers) -> None:
        """Send the newest sample, and all later ones."""
        self._feeds[feed] = wanted
        self._send(feed)
        if not self._is_running:
            self._is_running = True
            self._loop.run_once()

    def remove(self, feed: Feed) -> None:
        """Send no more. The sampler lives until its next sample, so that clients that come and go cause no further ones."""
        self._feeds.pop(feed, None)

    async def _take(self) -> None:
        figures = await self._figures(FollowNumbers(namespace=self._namespace), self._caller)
        self._numbers = Shared(self._numbers_of(figures))
        wanted = self._feeds.values()
        self._functions = Shared(self._all_functions()) if any(one.functions for one in wanted) else None
        self._troubled = Shared(self._shown_functions()) if any(one.troubled for one in wanted) else None
        for feed in self._feeds:
            self._send(feed)

    def _send(self, feed: Feed) -> None:
        if self._numbers is not None:
            feed.replace("numbers", self._numbers)
        wanted = self._feeds[feed]
        functions = self._functions if wanted.functions else self._troubled if wanted.troubled else None
        if functions is not None:
            feed.replace("functions", functions)

    def _sees(self, function: bytes) -> bool:
        return namespace_of(function) == self._namespace and self._caller.may(
            FollowNumbers.permission, self._namespace, function_text(function)
        )

    def _numbers_of(self, figures: Figures) -> Numbers:
        oldest, recent = figures.oldest_waiting, figures.recent
        return Numbers(
            at=rfc3339(to_us(self._service.clock.wall())),
            waiting=figures.jobs.waiting,
            running=figures.jobs.running,
            scheduled=figures.jobs.scheduled,
            submitted=self._submitted(),
            workers=self._workers(self._namespace),
            oldest_function=None if oldest is None else oldest.function,
            oldest_seconds=None if oldest is None else oldest.seconds,
            succeeded=None if recent is None else recent.succeeded,
            not_succeeded=None if recent is None else _unsuccessful(recent),
            succeeded_per_second=None if recent is None else round(recent.succeeded_per_second, 1),
            dead_letters=figures.dead_letters,
        )

    def _submitted(self) -> int:
        figures = self._service.attempts.figures(self._service.clock.monotonic())
        return sum(one.submitted for one in figures if one.name != OTHER and self._sees(one.name))

    def _all_functions(self) -> AllFunctionNumbers:
        running = running_by_function(self._others())
        queues = {queue.name: queue for queue in self._service.roster.functions() if self._sees(queue.name)}
        queues |= {
            name: FunctionQueue(name)
            for name, number in running.items()
            if number and name not in queues and self._sees(name)
        }
        found = heapq.nsmallest(MOST_FUNCTIONS + 1, queues.values(), key=lambda queue: queue.name)
        sizes = accumulate(len(queue.name) for queue in found[:MOST_FUNCTIONS])
        shown = found[: sum(1 for size in sizes if size <= MOST_NAMES)]
        return AllFunctionNumbers(_by_name(shown, running), more=len(shown) < len(found))

    def _shown_functions(self) -> AllFunctionNumbers:
        names = {name for name in self._shown(self._namespace) if self._sees(name)}
        queues = {queue.name: queue for queue in self._service.roster.functions() if queue.name in names}
        shown = [queues.get(name) or FunctionQueue(name) for name in sorted(names)]
        return AllFunctionNumbers(_by_name(shown, running_by_function(self._others())), more=True)


def _by_name(queues: Iterable[FunctionQueue], elsewhere: Mapping[bytes, int]) -> dict[str, FunctionNumbers]:
    return {
        function_text(queue.name): FunctionNumbers(
            queue.waiting(),
            queue.running,
            sum(queue.workers.values()),
            queue.running + elsewhere.get(queue.name, 0),
        )
        for queue in queues
    }


def _unsuccessful(recent: RecentJobs) -> int:
    """Return the number of attempts that failed in any way."""
    return recent.failed + recent.retried + recent.timed_out + recent.lost


if TYPE_CHECKING:
    Read = Callable[[Any, Caller], Coroutine[Ask, Any, Any]]
    """Returns the answer to a request."""
    ReadVersion = Callable[[Read, FollowVersion, Caller], Coroutine[Ask, Any, tuple[str, bool]]]
    """Returns a version, and whether it is the last one."""
    VersionKey = tuple[str, str, str, frozenset[Grant]]
    """A namespace, a subject with its name, and the grants of the callers."""

PARTS: Final = 20
"""All samplers together use at most one of so many parts of the time."""
SAMPLES: Final = 20
"""A second, of all samplers together: with more samplers, each takes its samples less often."""
READS: Final = 2
"""Viewers of a subject for each second of the spread. They wait for half of it on average: if the subject changes all the time,
twice as many read it in each second."""
REPEAT: Final = 4.0
"""Seconds after which a version is sent again: a page shows that it is not live after three times as many without one."""
GONE: Final = frozenset(
    {
        *(Code.SCHEDULE_NOT_FOUND, Code.WORKER_NOT_FOUND, Code.RUN_NOT_FOUND),
        *(Code.LISTENER_NOT_FOUND, Code.WEBHOOK_NOT_FOUND, Code.FORBIDDEN),
    }
)


async def _all(read: Read, request: Any, caller: Caller) -> Any:
    """Return the answer to the request of a list with the rows of all its pages."""
    answer = part = await read(request, caller)
    while part.next:
        part = await read(replace(request, cursor=part.next), caller)
        answer.items.extend(part.items)
    return answer


async def _schedules(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    listed: Page[schedules.ScheduleInfo] = await _all(
        read, schedules.ListAllSchedules(namespace=asked.namespace), caller
    )
    shown = heapq.nsmallest(SCHEDULES_SHOWN, listed.items, key=due_key)
    runs: list[schedules.FireInfo] = []
    if shown:
        names = [one.name for one in shown]
        runs += (await _all(read, ReadOutcomes(names, namespace=asked.namespace), caller)).items
    runs.sort(key=lambda run: run.schedule)
    return version_of(shown, runs, number=len(listed.items)), False


async def _schedule(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(schedules.ShowSchedule(asked.name, namespace=asked.namespace), caller)
    fires = await read(ListFires(asked.name, namespace=asked.namespace, limit=SCHEDULE_FIRES), caller)
    return version_of([shown], fires.items), False


async def _workers(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of((await read(nodes.ListWorkers(limit=WORKERS, namespace=asked.namespace), caller)).items), False


async def _worker(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of([await read(nodes.ShowWorker(asked.name, namespace=asked.namespace), caller)]), False


async def _nodes(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    everything = await _all(read, nodes.ListNodes(namespace=asked.namespace), caller)
    if sees_all(everything.items):
        return version_of(everything.items), False
    return version_of((await _all(read, namespaces.ListNamespaceNodes(namespace=asked.namespace), caller)).items), False


async def _runs(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    newest = await read(workflows.ListWorkflowRuns(limit=RUNS, namespace=asked.namespace), caller)
    parked = await read(workflows.ListWorkflowRuns(parked=True, limit=PARKED, namespace=asked.namespace), caller)
    return version_of(newest.items, parked.items), False


async def _run(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(workflows.ShowRun(asked.name, namespace=asked.namespace), caller)
    return version_of([shown]), shown.closed_at is not None


async def _events(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of((await read(events.ListEvents(limit=EVENTS, namespace=asked.namespace), caller)).items), False


async def _listeners(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    listed = await read(listeners.ListListeners(limit=SUBSCRIPTIONS, namespace=asked.namespace), caller)
    return version_of(listed.items), False


async def _webhooks(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    listed = await read(webhooks.ListWebhooks(limit=SUBSCRIPTIONS, namespace=asked.namespace), caller)
    return version_of(listed.items), False


async def _listener(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(listeners.ShowListener(asked.name, namespace=asked.namespace), caller)
    return await _with_deliveries(read, asked, caller, shown)


async def _webhook(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(webhooks.ShowWebhook(asked.name, namespace=asked.namespace), caller)
    return await _with_deliveries(read, asked, caller, shown)


async def _with_deliveries(
    read: Read, asked: FollowVersion, caller: Caller, shown: listeners.ListenerInfo | webhooks.WebhookInfo
) -> tuple[str, bool]:
    newest = jobs.ListJobs(function=shown.function, limit=DELIVERIES, namespace=asked.namespace)
    return version_of([shown], (await read(newest, caller)).items), False


async def _troubles(wall: Callable[[], float], read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    namespace = asked.namespace

    async def optional(request: Request[Any], read: Read = read) -> Any:
        try:
            return await read(request, caller)
        except ApiError as error:
            if error.problem.code is not Code.UNSUPPORTED:
                raise
            return None

    status = await read(namespaces.ShowNamespace(namespace=namespace), caller)
    listed = await _all(read, namespaces.ListNamespaceNodes(namespace=namespace), caller)
    due = await optional(schedules.ListAllSchedules(namespace=namespace), partial(_all, read))
    failed = await optional(jobs.ListJobs(state="failed", limit=NEWEST_FAILURES, namespace=namespace))
    parked = await optional(workflows.ListWorkflowRuns(parked=True, limit=PARKED, namespace=namespace))
    version = overview_version(
        status,
        listed.items,
        None if due is None else due.items,
        None if failed is None else failed.items,
        None if parked is None else parked.items,
        wall(),
    )
    return version, False


VERSIONS: Final[Mapping[str, ReadVersion]] = {
    "schedules": _schedules,
    "schedule": _schedule,
    "workers": _workers,
    "worker": _worker,
    "nodes": _nodes,
    "runs": _runs,
    "run": _run,
    "events": _events,
    "listeners": _listeners,
    "listener": _listener,
    "webhooks": _webhooks,
    "webhook": _webhook,
}


INTERVALS: Final[Mapping[str, float]] = {"troubles": 5.0}
"""Seconds from one sample to the next of subjects that need many requests; most figures are kept as long."""


class VersionStreams:
    """Streams of versions. ``read`` answers requests, and records no refusals: callers do not make the later ones."""

    def __init__(self, service: JobService, read: Read) -> None:
        self._service = service
        self._read = read
        self._samplers: dict[VersionKey, _VersionSampler] = {}
        self._is_repeating = False
        self.followers: Followers = {FollowVersion: self._follow}

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self._samplers)

    async def _follow(self, request: FollowVersion, call: Call, feed: Feed) -> Callable[[], None]:
        key = request.namespace, request.subject, request.name, frozenset(call.caller.grants)
        sampler = self._samplers.get(key)
        if sampler is None:
            sampler = _VersionSampler(self._service, self._read, request, call.caller, self, partial(self._end, key))
            await sampler.read()  # it refuses what this caller may not see, or what is not there
            sampler = self._samplers.setdefault(key, sampler)
        sampler.add(feed)
        if not self._is_repeating:
            self._repeat_later()
        return partial(sampler.remove, feed)

    def interval(self, subject: str) -> float:
        """Return the seconds from one sample to the next."""
        return max(INTERVALS.get(subject, INTERVAL), len(self._samplers) / SAMPLES)

    def parts(self) -> int:
        """Return in how many parts of the time a sampler uses at most one."""
        return PARTS * max(1, len(self._samplers))

    def _end(self, key: VersionKey, sampler: _VersionSampler) -> None:
        if self._samplers.get(key) is sampler:
            del self._samplers[key]

    def _repeat_later(self) -> None:
        self._is_repeating = bool(self._samplers)
        if self._samplers:
            self._service.later(REPEAT, self._repeat)

    def _repeat(self) -> None:
        for sampler in self._samplers.values():
            sampler.repeat()
        self._repeat_later()


class _VersionSampler:
    """Reads a version for all callers with the same grants; ``caller`` is one of them.

    ``ended`` is called when nobody watches any more, or after the last version.
    """

    def __init__(
        self,
        service: JobService,
        read: Read,
        asked: FollowVersion,
        caller: Caller,
        pace: VersionStreams,
        ended: Callable[[_VersionSampler], object],
    ) -> None:
        self._read = read
        self._asked = asked
        self._caller = caller
        self._ended = partial(ended, self)
        self._loop = SampleLoop(
            service,
            self._take,
            self._is_watched,
            self._ended,
            parts=pace.parts,
            interval=partial(pace.interval, asked.subject),
        )
        versions: dict[str, ReadVersion] = {**VERSIONS, "troubles": partial(_troubles, service.clock.wall)}
        self._read_version = versions[asked.subject]
        self._feeds: dict[Feed, bool] = {}
        """With whether they have got a version."""
        self._version = ""
        self._is_last = self._is_running = False
        self._is_read = False
        """Whether the last read has succeeded."""
        self._is_failing = False
        """Whether a failure is in the log."""

    def _is_watched(self) -> bool:
        return bool(self._feeds)

    def add(self, feed: Feed) -> None:
        """Send the version if it has just been read, else the next one, and all later ones.

        An earlier one may be older than the client's page, which would load again for nothing.
        """
        self._feeds[feed] = False
        if not self._is_running:
            self._is_running = True
            self._send([feed])
            self._loop.wait()

    def remove(self, feed: Feed) -> None:
        """Send no more. The sampler lives until its next sample, so that clients that come and go cause no further ones."""
        self._feeds.pop(feed, None)

    def repeat(self) -> None:
        """Send the version again, while it can be read."""
        if self._is_read:
            self._send([feed for feed, has_version in self._feeds.items() if has_version])

    async def read(self) -> None:
        """Read the version. Raises ApiError."""
        self._is_read = False
        self._version, self._is_last = await self._read_version(self._read, self._asked, self._caller)
        self._is_read = True

    async def _take(self) -> None:
        before = self._version
        try:
            await self.read()
        except MainspringError as error:
            problem = problem_of(error)
            if problem.code not in GONE:
                self._log_failure(problem.message)
                return
            self._version, self._is_last = "", True
        self._is_failing = False
        is_new = self._version != before
        self._send([feed for feed, has_version in self._feeds.items() if is_new or not has_version])

    def _send(self, feeds: Sequence[Feed]) -> None:
        newest = Shared(Version(self._version, len(self._feeds) / READS))
        for feed in feeds:
            self._feeds[feed] = True
            feed.replace("version", newest)
        if self._is_last:
            for feed in self._feeds:
                feed.end()
            self._feeds.clear()
            self._ended()

    def _log_failure(self, problem: str) -> None:
        """Write the first one of several failures to the log."""
        if not self._is_failing:
            self._is_failing = True
            asked = self._asked
            log.warning(
                "live pages do not change",
                namespace=asked.namespace,
                subject=asked.subject,
                name=asked.name,
                problem=problem,
            )
