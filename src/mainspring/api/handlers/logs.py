"""Calls about the logs of jobs."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.access.caller import Shares
from mainspring.api.handlers.pages import no_place, rfc3339
from mainspring.api.jobs import LONGEST_WAIT, FollowLogs, LogEnd, Logged, LogLine, ReadJobLogs
from mainspring.api.request import ApiError, Code
from mainspring.callbacks import Callback, CallInProgress
from mainspring.job_logs.model import LEVELS, lines_of, mask_from
from mainspring.job_logs.service import ReadLogs
from mainspring.jobs.model import State
from mainspring.namespaces import split
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Refusals
    from mainspring.api.handlers.registry import Call, Followers, Handlers
    from mainspring.api.request import Feed
    from mainspring.job_logs.model import Chunk
    from mainspring.job_logs.service import LogService, Tap
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService

PAGE_CHUNKS: Final = 64
"""Chunks of one read: about 1 MiB."""
ANSWER_BYTES: Final = 2**20
"""Bytes of lines after which an answer is complete."""
EVENT_BYTES: Final = 2**16
"""The same of an event of a stream."""
ROOM_INTERVAL: Final = 0.5
"""Seconds after which a stream looks again whether its client has read enough."""
MOST_WAITS: Final = 1000
"""Requests of a node that wait for lines at the same time, over CALL and HTTP. Streams have places of their own."""
LAST_LINES: Final = 1.0
"""Seconds after the end of a job in which its last lines may still be stored."""
_CURSOR: Final = re.compile(r"(\d{1,18})\.(\d{1,18})\.(\d{1,18})")


class Place(NamedTuple):
    """The place of a line: in which chunk it is, its number, and when its delivery began."""

    chunk: int = 0
    number: int = 0
    delivery_us: int = 0

    def __str__(self) -> str:
        return f"{self.chunk}.{self.number}.{self.delivery_us}"


def place_of(text: str) -> Place:
    """Return the place that an earlier answer contained. Raises ApiError."""
    if not text:
        return Place()
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise no_place(text)
    return Place(*map(int, found.groups()))


class Collected:
    """The lines of an answer, from chunk to chunk."""

    def __init__(self, place: Place, request: ReadJobLogs, *, whole: bool) -> None:
        """``whole``: lines that are missing before the first one are missing, and not only left out of the answer."""
        self.place = place
        self.lines: list[LogLine] = []
        self.bytes = 0
        self._level = LEVELS.index(request.level)
        self._whole = whole
        self._is_filtered = request.level != LEVELS[0]
        self._missed = 0
        self._last = {place.delivery_us: place.number}
        """The numbers of the last lines, by delivery: those of a run take turns."""

    def add(self, chunk: Chunk, most: int) -> bool:
        """Add lines of a chunk until there are ``most``; return whether the chunk is complete."""
        last = self._last.get(chunk.delivery_us)
        goes_on = last is None and chunk.delivery_us < self.place.delivery_us  # its first lines were on an earlier page
        last = last or 0
        if self._whole and not self._is_filtered and not goes_on and chunk.first > last + 1:
            self._missed += chunk.first - last - 1
        self._whole = True
        self.bytes += len(chunk.body)
        for number, line in enumerate(lines_of(chunk), chunk.first):
            if number <= last:
                continue
            if len(self.lines) >= most:
                return False
            self.place = Place(chunk.id, number, chunk.delivery_us)
            self._last[chunk.delivery_us] = number
            if line.level >= self._level:
                missed, self._missed = self._missed, 0
                self.lines.append(
                    LogLine(
                        chunk.attempt,
                        number,
                        rfc3339(line.at_us),
                        LEVELS[line.level],
                        line.logger,
                        line.message,
                        line.fields or {},
                        missed or UNSET,
                    )
                )
        return True

    def answer(self, *, ended: bool) -> Logged:
        """Return the lines, with the place after them."""
        return Logged(self.lines, str(self.place), ended=ended)


class LogCalls:
    """Answers about the logs of jobs. ``logs`` is None if the store keeps none; `Api` refuses the calls then."""

    def __init__(self, logs: LogService | None, service: JobService, refusals: Refusals | None = None) -> None:
        self._logs = logs
        self._service = service
        self._waits = Shares(MOST_WAITS, "waits", refusals)
        self.handlers: Handlers = {ReadJobLogs: self._answer}
        self.followers: Followers = {FollowLogs: self._follow}

    async def _answer(self, request: ReadJobLogs, call: Call) -> Logged:
        answer = await self._read_or_wait(request, call)
        if answer.ended:
            answer.next = None
        return answer

    async def _read_or_wait(self, request: ReadJobLogs, call: Call) -> Logged:
        if not request.wait or _is_tail(request):
            return await self._read(request, call)
        if why := self._waits.take(call.caller, request.namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        try:
            return await self._read(request, call)
        finally:  # also when its client has gone
            self._waits.free(call.caller, request.namespace)

    async def _follow(self, request: FollowLogs, call: Call, feed: Feed) -> Callable[[], None]:
        """Send lines as they are stored. A slow client gets those that are still kept when it has read the others."""
        read = ReadJobLogs(
            request.handle,
            namespace=request.namespace,
            tail=request.tail,
            cursor=request.after,
            level=request.level,
            attempt=request.attempt,
        )
        first = await self._read(read, call, EVENT_BYTES)  # raises before the stream begins
        under_way = CallInProgress(
            self._send(read, first, call, feed), lambda _: feed.end(), lambda _: feed.end(), lambda _: feed.end()
        )
        return under_way.end

    async def _send(self, read: ReadJobLogs, answer: Logged, call: Call, feed: Feed) -> None:
        job_id = self._service.handles.parse(read.handle.encode())
        assert self._logs is not None
        assert job_id is not None
        tap, end = self._logs.readers.tap(job_id)
        try:
            while True:
                if answer.items:
                    feed.append("lines", answer.items, answer.next or "")
                if answer.ended:
                    feed.append("end", LogEnd())
                    return
                while not feed.has_room:
                    await Callback[None](lambda done, _: self._service.later(ROOM_INTERVAL, lambda: done(None)))
                read = replace(read, cursor=answer.next, wait=LONGEST_WAIT)
                answer = await self._read(read, call, EVENT_BYTES, tap)
        finally:
            end()

    async def _read(
        self, request: ReadJobLogs, call: Call, largest: int = ANSWER_BYTES, tap: Tap | None = None
    ) -> Logged:
        """Answer a request. With a ``tap``, lines that this node has just written are not read from the store."""
        assert self._logs is not None
        job_id = self._service.handles.parse(request.handle.encode())
        if job_id is None:
            raise call.not_found()
        if _is_tail(request):
            return await self._tail(self._logs, request, job_id, call, largest)
        until = self._service.clock.monotonic() + request.wait
        place = place_of(request.cursor or "")
        while True:
            # Before the lines are read: what is stored between the two is found by the next call.
            ended, holder = await self._state(self._logs, request, job_id, call)
            held = self._service.table.find(job_id)
            if tap is not None:
                tap.check(held)
            if tap is not None and tap.is_whole:
                answer = _from_tap(tap, request, place, call, largest)
            else:
                used = None if held is None else tap
                if used is not None:
                    used.restart(held)
                answer = await self._forward(self._logs, request, job_id, place, call, largest, used, ended=ended)
            if answer.items or answer.ended or self._service.clock.monotonic() >= until:
                return answer
            place = place_of(answer.next or "")
            await _wait(self._logs, job_id, holder)

    async def _forward(
        self,
        logs: LogService,
        request: ReadJobLogs,
        job_id: int,
        place: Place,
        call: Call,
        largest: int,
        tap: Tap | None,
        *,
        ended: bool,
    ) -> Logged:
        """Return the lines after a place; ``tap`` was restarted just before."""
        collected = Collected(place, request, whole=True)
        after: int | None = place.chunk - 1
        while after is not None:
            query = ReadLogs(
                namespace=request.namespace, job=job_id, attempt=request.attempt, after=after, limit=PAGE_CHUNKS
            )
            page = await logs.read(query)
            for chunk in page.items:
                call.check(function_text(chunk.function))
                if not collected.add(chunk, request.limit) or collected.bytes >= largest:
                    return collected.answer(ended=False)
            after = page.next
        if tap is not None:
            tap.caught_up()
        return collected.answer(ended=ended)

    async def _tail(self, logs: LogService, request: ReadJobLogs, job_id: int, call: Call, largest: int) -> Logged:
        """Return the newest lines."""
        ended, _ = await self._state(logs, request, job_id, call)
        level = mask_from(LEVELS.index(request.level))
        newest: list[Chunk] = []
        found = size = 0
        after: int | None = None
        while True:
            query = ReadLogs(
                namespace=request.namespace,
                job=job_id,
                attempt=request.attempt,
                levels=level,
                backward=True,
                after=after,
                limit=PAGE_CHUNKS,
            )
            page = await logs.read(query)
            for chunk in page.items:
                call.check(function_text(chunk.function))
                newest.append(chunk)
                size += len(chunk.body)
                found += sum(1 for line in lines_of(chunk) if level >> line.level & 1)
                if found >= request.tail or size >= largest:
                    break
            after = page.next
            if after is None or found >= request.tail or size >= largest:
                break
        collected = Collected(Place(), request, whole=False)
        for chunk in reversed(newest):
            collected.add(chunk, most=found)
        del collected.lines[: -request.tail]
        return collected.answer(ended=ended)

    async def _state(self, logs: LogService, request: ReadJobLogs, job_id: int, call: Call) -> tuple[bool, int]:
        """Return whether no more lines of a job follow, and the term of the node that holds it, or 0.

        Raises ApiError for a job that does not exist, or is not the caller's.
        """
        held = self._service.table.find(job_id)
        job: Job | None = held.job if held is not None else None
        if job is None:
            job = await Callback(partial(self._service.clients.find, job_id, namespace=request.namespace))
        if job is None:
            if await self._has_lines(logs, request, job_id):
                return True, 0  # lines may be kept for longer than their job
            raise call.not_found()
        namespace, function = split(job.function)
        if namespace != request.namespace:
            raise call.not_found()
        call.check(function_text(function))
        if not State(job.state).ended:
            return False, max(job.term, 0)
        is_late = self._service.clock.wall() - job.ended_us / 1_000_000 > LAST_LINES
        return logs.has_all(job_id) or (is_late and not logs.is_writing(job_id)), 0

    @staticmethod
    async def _has_lines(logs: LogService, request: ReadJobLogs, job_id: int) -> bool:
        return bool((await logs.read(ReadLogs(namespace=request.namespace, job=job_id, limit=1))).items)


def _is_tail(request: ReadJobLogs) -> bool:
    """Return whether the newest lines are wanted."""
    return request.cursor is None and not request.whole


async def _wait(logs: LogService, job_id: int, holder: int) -> None:
    await Callback[None](lambda done, _: logs.wait(job_id, holder, lambda: done(None)))


def _from_tap(tap: Tap, request: ReadJobLogs, place: Place, call: Call, largest: int) -> Logged:
    """Return the lines after a place of a job that this node holds: nobody else writes any."""
    collected = Collected(place, request, whole=True)
    for chunk in tap.take():
        if chunk.id < place.chunk or request.attempt not in {None, chunk.attempt}:
            continue
        call.check(function_text(chunk.function))
        if not collected.add(chunk, request.limit) or collected.bytes >= largest:
            tap.drop()  # the others are read from the store
            break
    return collected.answer(ended=False)
