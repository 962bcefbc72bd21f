"""The versions of lists and objects while somebody watches: all who have the same rights share one sample."""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from mainspring.api import jobs, namespaces, nodes, schedules, workers, workflows
from mainspring.api.answers.sample_loop import INTERVAL, SampleLoop
from mainspring.api.errors import ApiError, Code, problem_of
from mainspring.api.feeds import Shared
from mainspring.api.fires import ListFires, ReadOutcomes
from mainspring.api.live import FollowVersion, Version
from mainspring.api.overview import NEWEST_FAILURES, overview_version
from mainspring.api.versions import (
    PARKED,
    RUNS,
    SCHEDULE_FIRES,
    SCHEDULES_SHOWN,
    WORKERS,
    due_key,
    sees_all,
    version_of,
)
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.access.roles import Grant
    from mainspring.api.answers.registry import Followers
    from mainspring.api.answers.waiting import Ask
    from mainspring.api.feeds import Feed
    from mainspring.api.request import Request
    from mainspring.jobs.service import JobService

    Read = Callable[[Any, Caller], Coroutine[Ask, Any, Any]]
    """Returns the answer to a request."""
    ReadVersion = Callable[[Read, FollowVersion, Caller], Coroutine[Ask, Any, tuple[str, bool]]]
    """Returns a version, and whether it is the last one."""
    Key = tuple[str, str, str, frozenset[Grant]]
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
GONE: Final = frozenset({Code.SCHEDULE_NOT_FOUND, Code.WORKER_NOT_FOUND, Code.RUN_NOT_FOUND, Code.FORBIDDEN})

log = structlog.get_logger("mainspring.api")


async def _all(read: Read, request: Any, caller: Caller) -> Any:
    """Return the answer to the request of a list without a limit, with the rows of all its pages."""
    answer = part = await read(request, caller)
    while part.next:
        part = await read(replace(request, after=part.next), caller)
        getattr(answer, request.rows).extend(getattr(part, request.rows))
    return answer


async def _schedules(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    listed: schedules.Listed = await _all(read, schedules.List(namespace=asked.namespace), caller)
    shown = heapq.nsmallest(SCHEDULES_SHOWN, listed.schedules, key=due_key)
    runs: list[schedules.Run] = []
    if shown:
        names = [one.name for one in shown]
        runs += (await _all(read, ReadOutcomes(names, namespace=asked.namespace), caller)).fires
    runs.sort(key=lambda run: run.schedule)
    return version_of(shown, runs, number=len(listed.schedules)), False


async def _schedule(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(schedules.Show(asked.name, namespace=asked.namespace), caller)
    fires = await read(ListFires(asked.name, namespace=asked.namespace, limit=SCHEDULE_FIRES), caller)
    return version_of([shown], fires.fires), False


async def _workers(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of((await read(workers.List(WORKERS, namespace=asked.namespace), caller)).workers), False


async def _worker(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of([await read(workers.Show(asked.name, namespace=asked.namespace), caller)]), False


async def _nodes(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    everything = await _all(read, nodes.List(namespace=asked.namespace), caller)
    if sees_all(everything.nodes):
        return version_of(everything.nodes), False
    return version_of((await _all(read, namespaces.ListNodes(namespace=asked.namespace), caller)).nodes), False


async def _runs(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    newest = await read(workflows.List(limit=RUNS, partial=True, namespace=asked.namespace), caller)
    parked = await read(workflows.List(parked=True, limit=PARKED, partial=True, namespace=asked.namespace), caller)
    return version_of(newest.runs, parked.runs), False


async def _run(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(workflows.Show(asked.name, namespace=asked.namespace), caller)
    return version_of([shown]), shown.closed_at is not None


async def _troubles(wall: Callable[[], float], read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    namespace = asked.namespace

    async def optional(request: Request[Any], read: Read = read) -> Any:
        try:
            return await read(request, caller)
        except ApiError as error:
            if error.problem.code is not Code.UNSUPPORTED:
                raise
            return None

    status = await read(namespaces.Status(namespace=namespace), caller)
    listed = await _all(read, namespaces.ListNodes(namespace=namespace), caller)
    due = await optional(schedules.List(namespace=namespace), partial(_all, read))
    failed = await optional(jobs.List(state="failed", limit=NEWEST_FAILURES, partial=True, namespace=namespace))
    parked = await optional(workflows.List(parked=True, limit=PARKED, partial=True, namespace=namespace))
    version = overview_version(
        status,
        listed.nodes,
        None if due is None else due.schedules,
        None if failed is None else failed.jobs,
        None if parked is None else parked.runs,
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
}


INTERVALS: Final[Mapping[str, float]] = {"troubles": 5.0}
"""Seconds from one sample to the next of subjects that need many requests; most figures are kept as long."""


class VersionStreams:
    """Streams of versions. ``read`` answers requests, and records no refusals: callers do not make the later ones."""

    def __init__(self, service: JobService, read: Read) -> None:
        self._service = service
        self._read = read
        self._samplers: dict[Key, _Sampler] = {}
        self._is_repeating = False
        self.followers: Followers = {FollowVersion: self._follow}

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self._samplers)

    async def _follow(self, request: FollowVersion, caller: Caller, feed: Feed) -> Callable[[], None]:
        key = request.namespace, request.subject, request.name, frozenset(caller.grants)
        sampler = self._samplers.get(key)
        if sampler is None:
            sampler = _Sampler(self._service, self._read, request, caller, self, partial(self._end, key))
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

    def _end(self, key: Key, sampler: _Sampler) -> None:
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


class _Sampler:
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
        ended: Callable[[_Sampler], object],
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
        versions: dict[str, ReadVersion] = {**VERSIONS, "troubles": partial(_troubles, service.wall)}
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
