"""The versions of lists and objects while somebody watches: all who have the same rights share one sample."""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.api import namespaces, nodes, schedules, workers, workflows
from mainspring.api.answers.sample_loop import INTERVAL, SampleLoop
from mainspring.api.errors import Code, problem_of
from mainspring.api.feeds import Shared
from mainspring.api.fires import ListFires, ReadOutcomes
from mainspring.api.live import FollowVersion, Version
from mainspring.api.versions import PARKED, RUNS, SCHEDULE_FIRES, SCHEDULES_SHOWN, WORKERS, due_key, version_of
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mainspring.access.caller import Caller
    from mainspring.access.roles import Grant
    from mainspring.api.answers.registry import Followers
    from mainspring.api.answers.waiting import Ask
    from mainspring.api.feeds import Feed
    from mainspring.jobs.service import JobService

    Read = Callable[[Any, Caller], Coroutine[Ask, Any, Any]]
    """Returns the answer to a request."""
    ReadVersion = Callable[[Read, FollowVersion, Caller], Coroutine[Ask, Any, tuple[str, bool]]]
    """Returns a version, and whether it is the last one."""
    Key = tuple[str, str, str, frozenset[Grant]]
    """A namespace, a subject with its name, and the grants of the callers."""

PARTS: Final = 20
"""A sampler uses at most one of so many parts of the time."""
SAMPLES: Final = 20
"""A second, of all samplers together: with more samplers, each takes its samples less often."""
READS: Final = 2
"""A second, of all viewers of a subject together: so many of them are to read it again, if it changes all the time."""
GONE: Final = frozenset({Code.SCHEDULE_NOT_FOUND, Code.WORKER_NOT_FOUND, Code.RUN_NOT_FOUND, Code.FORBIDDEN})


async def _schedules(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    listed: schedules.Listed = await read(schedules.List(namespace=asked.namespace), caller)
    names = [one.name for one in heapq.nsmallest(SCHEDULES_SHOWN, listed.schedules, key=due_key)]
    runs: list[schedules.Run] = []
    if names:
        runs += (await read(ReadOutcomes(names, namespace=asked.namespace), caller)).fires
    runs.sort(key=lambda run: run.schedule)
    return version_of(listed.schedules, runs), False


async def _schedule(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(schedules.Show(asked.name, namespace=asked.namespace), caller)
    fires = await read(ListFires(asked.name, namespace=asked.namespace, limit=SCHEDULE_FIRES), caller)
    return version_of([shown], fires.fires), False


async def _workers(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of((await read(workers.List(WORKERS, namespace=asked.namespace), caller)).workers), False


async def _worker(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    return version_of([await read(workers.Show(asked.name, namespace=asked.namespace), caller)]), False


async def _nodes(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    everything = await read(nodes.List(namespace=asked.namespace), caller)
    of_namespace = await read(namespaces.ListNodes(namespace=asked.namespace), caller)
    return version_of(everything.nodes, of_namespace.nodes), False


async def _runs(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    newest = await read(workflows.List(limit=RUNS, namespace=asked.namespace), caller)
    parked = await read(workflows.List(parked=True, limit=PARKED, namespace=asked.namespace), caller)
    return version_of(newest.runs, parked.runs), False


async def _run(read: Read, asked: FollowVersion, caller: Caller) -> tuple[str, bool]:
    shown = await read(workflows.Show(asked.name, namespace=asked.namespace), caller)
    return version_of([shown]), shown.closed_at is not None


VERSIONS: Final[Mapping[str, ReadVersion]] = {
    "schedules": _schedules,
    "schedule": _schedule,
    "workers": _workers,
    "worker": _worker,
    "nodes": _nodes,
    "runs": _runs,
    "run": _run,
}


class VersionStreams:
    """Streams of versions. ``read`` answers requests."""

    def __init__(self, service: JobService, read: Read) -> None:
        self._service = service
        self._read = read
        self._samplers: dict[Key, _Sampler] = {}
        self.followers: Followers = {FollowVersion: self._follow}

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self._samplers)

    async def _follow(self, request: FollowVersion, caller: Caller, feed: Feed) -> Callable[[], None]:
        key = request.namespace, request.subject, request.name, frozenset(caller.grants)
        sampler = self._samplers.get(key)
        if sampler is None:
            sampler = _Sampler(self._service, self._read, request, caller, self._interval, partial(self._end, key))
            await sampler.read()  # it refuses what this caller may not see, or what is not there
            sampler = self._samplers.setdefault(key, sampler)
        sampler.add(feed)
        return partial(sampler.remove, feed)

    def _interval(self) -> float:
        return max(INTERVAL, len(self._samplers) / SAMPLES)

    def _end(self, key: Key) -> None:
        del self._samplers[key]


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
        interval: Callable[[], float],
        ended: Callable[[], object],
    ) -> None:
        self._read = read
        self._asked = asked
        self._caller = caller
        self._ended = ended
        self._loop = SampleLoop(service, self._take, self._is_watched, ended, parts=PARTS, interval=interval)
        self._feeds: set[Feed] = set()
        self._version = ""
        self._newest = Shared(None)
        self._is_last = self._is_running = False

    def _is_watched(self) -> bool:
        return bool(self._feeds)

    def add(self, feed: Feed) -> None:
        """Send the newest version, and all later ones."""
        self._feeds.add(feed)
        self._send(feed)
        if not self._is_running:
            self._is_running = True
            self._loop.wait()

    def remove(self, feed: Feed) -> None:
        """Send no more. The sampler lives until its next sample, so that clients that come and go cause no further ones."""
        self._feeds.discard(feed)

    async def read(self) -> None:
        """Read the version. Raises ApiError."""
        version, self._is_last = await VERSIONS[self._asked.subject](self._read, self._asked, self._caller)
        self._become(version)

    async def _take(self) -> None:
        before = self._version
        try:
            await self.read()
        except MainspringError as error:
            if problem_of(error).code not in GONE:
                raise
            self._is_last = True
            self._become("")
        if self._version != before:
            for feed in self._feeds:
                self._send(feed)
        if self._is_last:
            self._feeds.clear()

    def _become(self, version: str) -> None:
        self._version = version
        self._newest = Shared(Version(version, len(self._feeds) / READS))

    def _send(self, feed: Feed) -> None:
        feed.replace("version", self._newest)
        if self._is_last:
            feed.end()
