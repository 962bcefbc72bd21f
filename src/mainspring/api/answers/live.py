"""The live numbers of namespaces: one sample a second, however many clients watch, and none while nobody does."""

from __future__ import annotations

import heapq
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from mainspring.api.answers.sample_loop import SampleLoop
from mainspring.api.answers.text import rfc3339
from mainspring.api.feeds import Shared
from mainspring.api.live import AllFunctionNumbers, Follow, FunctionNumbers, Numbers
from mainspring.clock import to_us
from mainspring.jobs.attempts import OTHER
from mainspring.jobs.held import FunctionQueue
from mainspring.namespaces import namespace_of
from mainspring.nodes.model import running_by_function
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.api.answers.namespaces import Figures
    from mainspring.api.answers.registry import Followers
    from mainspring.api.answers.waiting import Ask
    from mainspring.api.feeds import Feed
    from mainspring.api.namespaces import RecentJobs
    from mainspring.jobs.service import JobService
    from mainspring.nodes.model import NodeRow

    ReadFigures = Callable[[Follow, Caller], Coroutine[Ask, Any, Figures]]
    Key = tuple[str, frozenset[str] | None]
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
        self._samplers: dict[Key, _Sampler] = {}
        self.followers: Followers = {Follow: self._follow}

    def __len__(self) -> int:
        """Return the number of samplers."""
        return len(self._samplers)

    async def _follow(self, request: Follow, caller: Caller, feed: Feed) -> Callable[[], None]:
        patterns = caller.functions(request.permission, request.namespace)
        key = (request.namespace, None if patterns is None else frozenset(patterns))
        sampler = self._samplers.get(key)
        if sampler is None:
            ended = partial(self._samplers.pop, key)
            sampler = _Sampler(
                self._service,
                self._figures,
                self._workers,
                self._others,
                self._shown,
                request.namespace,
                caller,
                ended,
            )
            self._samplers[key] = sampler
        sampler.add(feed, request)
        return partial(sampler.remove, feed)


class _Sampler:
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
        self._feeds: dict[Feed, Follow] = {}
        """With the requests, which say what they get."""
        self._numbers: Shared | None = None
        self._functions: Shared | None = None
        self._troubled: Shared | None = None
        self._is_running = False

    def add(self, feed: Feed, wanted: Follow) -> None:
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
        figures = await self._figures(Follow(namespace=self._namespace), self._caller)
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
            Follow.permission, self._namespace, function_text(function)
        )

    def _numbers_of(self, figures: Figures) -> Numbers:
        oldest, recent = figures.oldest_waiting, figures.recent
        return Numbers(
            at=rfc3339(to_us(self._service.wall())),
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
        figures = self._service.attempt_figures(self._service.monotonic())
        return sum(one.submitted for one in figures if one.name != OTHER and self._sees(one.name))

    def _all_functions(self) -> AllFunctionNumbers:
        running = running_by_function(self._others())
        queues = {queue.name: queue for queue in self._service.all_functions() if self._sees(queue.name)}
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
        queues = {queue.name: queue for queue in self._service.all_functions() if queue.name in names}
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
