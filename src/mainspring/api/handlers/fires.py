"""Calls about the fire times of all schedules. They read many histories together, in pages, beside the groups."""

from __future__ import annotations

import heapq
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring import queries
from mainspring.api.handlers.pages import number_of, numbered, rfc3339
from mainspring.api.handlers.schedules import run_of
from mainspring.api.request import ApiError, Code, Page, Touches
from mainspring.api.schedules import (
    LONGEST_TIMELINE,
    FireInfo,
    ListFires,
    ReadOutcomes,
    ReadTimeline,
    ScheduleLine,
    Timeline,
    TimelineBucket,
)
from mainspring.callbacks import in_slices
from mainspring.clock import to_us, us_of
from mainspring.namespaces import key_of_text, name_text
from mainspring.schedules import triggers
from mainspring.schedules.catalogue import ComputedTimes
from mainspring.schedules.model import FireState
from mainspring.schedules.reconcile import fault_of
from mainspring.schedules.specification import row_with_names, stored_with_names
from mainspring.schedules.store import ListSchedules

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.schedules.model import Fire
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import ScheduleService
    from mainspring.storage.reads import Reads

MOST_READS: Final = 200
"""Reads of one list."""
ROWS_AT_ONCE: Final = 100
"""Rows that a list reads at once, if it reads no more histories than this."""
HISTORIES: Final = 100
"""Histories that are read together."""
FEW: Final = 1
"""Rows of a history with which it is read further as soon as another one is."""
MOST_COUNTED: Final = 400_000
"""Rows that one timeline counts; further schedules follow in the next one."""
ROWS: Final = 10_000
"""Rows that a timeline has in memory."""
MOST_ROWS: Final = 2000
"""Fire times of one schedule that a timeline counts, in the past and in the future each."""
MOST_STEPS: Final = 20_000
"""Future fire times that one timeline computes; further schedules follow in the next one."""
DAY: Final = 86_400

Place = tuple[int, str]
"""A fire time in microseconds and a schedule."""


class _History:
    """The fire times of a schedule in a list, newest first."""

    def __init__(self, name: str, after: int | None) -> None:
        self.name = name
        self.after = after
        """Only rows before this time are left to list."""
        self.rows: deque[Fire] = deque()
        self.ended = False

    def read_to(self) -> int:
        """Return the time before which its rows are left to read."""
        if self.rows:
            return self.rows[-1].fire_us
        return triggers.LAST_US if self.after is None else self.after


def _begin(
    stored: Sequence[Stored], first: Place | None, since_us: int, until_us: int
) -> tuple[dict[str, _History], list[Place]]:
    """Return the histories of schedules, and a heap with the newest place that each of them may have in the range.

    ``first`` is the place at which the page begins. Rows of the same time are in the order of their schedules' names.
    """
    histories: dict[str, _History] = {}
    heap: list[Place] = []
    for one in stored:
        name = one.schedule.name
        limit = until_us if first is None else min(until_us, first[0] + (name >= first[1]))
        histories[name] = _History(name, None if limit == sys.maxsize else limit)
        newest = min(_newest(one), limit - 1)
        if newest >= since_us:
            heap.append((-newest, name))
    heapq.heapify(heap)
    return histories, heap


class FireCalls:
    """Answers about the fire times of a node's schedules."""

    def __init__(self, service: ScheduleService, reads: Reads, handles: Handles, clock: Clock) -> None:
        self._service = service
        self._reads = reads
        self._handles = handles
        self._clock = clock
        self._computed = ComputedTimes()
        self.handlers: Handlers = {
            ListFires: self._list,
            ReadOutcomes: self._outcomes,
            ReadTimeline: self._timeline,
        }

    async def _all(self, request: ListFires, caller: Caller) -> list[Stored]:
        """Return the schedules of a list that the caller may see, by name. Raises ApiError.

        A list of all needs each of them: only a schedule's own state says when it fired last.
        """
        namespace, name = request.namespace, request.schedule
        names = None if name is None else (key_of_text(namespace, name),)
        stored, _ = await self._seen(
            ListSchedules(limit=sys.maxsize, names=names, namespace=namespace), request, caller
        )
        if name is not None and not stored:
            raise Touches.SCHEDULE.not_found(name)
        return stored

    async def _some(self, request: ReadTimeline, caller: Caller) -> list[Stored]:
        """Return the next schedules of a timeline that the caller may see, by name: one more than its limit if there are more."""
        namespace, number = request.namespace, request.limit + 1
        after = None if request.cursor is None else key_of_text(namespace, request.cursor)
        names = None if request.schedules is None else tuple(key_of_text(namespace, one) for one in request.schedules)
        found: list[Stored] = []
        while True:
            query = ListSchedules(after=after, limit=number, names=names, namespace=namespace)
            stored, after = await self._seen(query, request, caller)
            found += stored
            if after is None or len(found) >= number:
                return found[:number]

    async def _seen(
        self, query: ListSchedules, request: ListFires | ReadOutcomes | ReadTimeline, caller: Caller
    ) -> tuple[list[Stored], str | None]:
        """Return the schedules of a page that the caller may see, and the place of the next page."""
        page = await self._reads.read_pages(query)
        stored = [
            one
            for one in map(stored_with_names, page.items)
            if caller.may(request.permission, request.namespace, name_text(one.schedule.function))
        ]
        return stored, page.next

    # ---- the list ----

    async def _list(self, request: ListFires, call: Call) -> Page[FireInfo]:
        first = _place(request.cursor)
        until_us = sys.maxsize if request.until is None else us_of(request.until)
        since_us = 0 if request.since is None else max(us_of(request.since), 0)
        histories, heap = _begin(await self._all(request, call.caller), first, since_us, until_us)
        is_filtered = request.state is not None or request.outcome is not None
        number = ROWS_AT_ONCE if is_filtered else min(ROWS_AT_ONCE, request.limit)
        found: list[Fire] = []
        reads = 0
        while heap:
            negative, name = heap[0]
            if -negative < since_us:
                break
            if len(found) >= request.limit or reads >= MOST_READS:
                return Page([run_of(row, self._handles) for row in found], f"{-negative}:{name}")
            history = histories[name]
            if not history.rows and not history.ended:
                reads += 1
                nearest = (histories[one] for newest, one in heapq.nsmallest(HISTORIES, heap) if -newest >= since_us)
                some = [one for one in nearest if len(one.rows) <= FEW and not one.ended]
                await self._read(request.namespace, some, number)
            elif history.rows and -negative == history.rows[0].fire_us:
                row = history.rows.popleft()
                if _matches(row, request):
                    found.append(row)
                history.after = row.fire_us
            if history.rows:
                heapq.heapreplace(heap, (-history.rows[0].fire_us, name))
            elif history.ended:
                heapq.heappop(heap)
            elif history.after is not None:
                heapq.heapreplace(heap, (1 - history.after, name))  # its next row is earlier than the last one
        return Page([run_of(row, self._handles) for row in found])

    async def _read(self, namespace: str, histories: Sequence[_History], number: int) -> None:
        """Read a number of further rows, in equal parts of some histories."""
        each = number if len(histories) == 1 else max(-(-number // len(histories)), FEW + 1)
        query = queries.NewestFires(
            names=tuple(key_of_text(namespace, one.name) for one in histories),
            before_us=tuple(one.read_to() for one in histories),
            each=each,
            limit=each * len(histories),
        )
        found: dict[str, list[Fire]] = {one.name: [] for one in histories}
        for row in map(row_with_names, (await self._reads.read_pages(query)).items):
            found[row.schedule].append(row)
        for one in histories:
            one.rows.extend(reversed(found[one.name]))
            one.ended = len(found[one.name]) < each

    # ---- last outcomes ----

    async def _outcomes(self, request: ReadOutcomes, call: Call) -> Page[FireInfo]:
        namespace = request.namespace
        keys = tuple(dict.fromkeys(key_of_text(namespace, name) for name in request.schedules))
        if call.is_restricted:  # only the schedules know their functions
            query = ListSchedules(limit=len(keys), names=keys, namespace=namespace)
            seen, _ = await self._seen(query, request, call.caller)
            keys = tuple(key_of_text(namespace, one.schedule.name) for one in seen)
        outcomes = queries.LastOutcomes(keys)
        rows = await self._reads.read(outcomes)
        runs = [run_of(row_with_names(row), self._handles) for row in rows]
        return numbered(request, sorted(runs, key=lambda run: run.schedule))

    # ---- the timeline ----

    async def _timeline(self, request: ReadTimeline, call: Call) -> Timeline:
        now = self._clock.wall()
        since = now // DAY * DAY if request.since is None else request.since.timestamp()
        until = since + DAY if request.until is None else request.until.timestamp()
        if not 0 <= since < until <= since + LONGEST_TIMELINE or until > triggers.LAST_US / 1e6:
            raise ApiError(Code.INVALID, "a timeline begins before it ends, after 1970, and has at most 31 days")
        since_us, until_us, step_us = to_us(since), to_us(until), to_us(request.step)
        stored = await self._some(request, call.caller)
        part, lines = stored[: request.limit], list[ScheduleLine]()
        left, counted = MOST_STEPS, 0
        for first in range(0, len(part), HISTORIES):
            if left <= 0 or counted >= MOST_COUNTED:
                break
            some = [_Line(one, since_us, step_us) for one in part[first : first + HISTORIES]]
            counted += await self._count(request.namespace, some, since_us, min(until_us, to_us(now) + 1))
            for line in some:
                if left <= 0:
                    break
                left -= await in_slices(self._service.run_sliced, line.count_next(to_us(now), until_us, self._computed))
                lines.append(line.answer())
        following = lines[-1].schedule if len(lines) < len(stored) and lines else None
        return Timeline(
            lines, following, since=rfc3339(since_us) or "", until=rfc3339(until_us) or "", step=request.step
        )

    async def _count(self, namespace: str, lines: Sequence[_Line], since_us: int, until_us: int) -> int:
        """Count the decided fire times of some schedules in a time, and return how many there are."""
        wanted = {one.name: one for one in lines if one.newest_us >= since_us}
        number = 0
        after: Any = None
        while wanted:
            query = queries.NewestFires(
                names=tuple(key_of_text(namespace, name) for name in wanted),
                before_us=(until_us,) * len(wanted),
                since_us=since_us,
                each=MOST_ROWS,
                after=after,
                limit=ROWS,
            )
            rows, after, *_ = await self._reads.read(query)
            for row in map(row_with_names, rows):
                wanted[row.schedule].count(row)
            number += len(rows)
            if after is None:
                break
        return number


class _Line:
    """A schedule of a timeline."""

    def __init__(self, stored: Stored, since_us: int, step_us: int) -> None:
        self._stored = stored
        self.name = stored.schedule.name
        self._since_us = since_us
        self._step_us = step_us
        self._buckets: dict[int, TimelineBucket] = {}
        self.newest_us = _newest(stored)
        self._past = 0
        self.complete = True

    def _bucket(self, time_us: int) -> TimelineBucket:
        number = (time_us - self._since_us) // self._step_us
        found = self._buckets.get(number)
        if found is None:
            at = rfc3339(self._since_us + number * self._step_us) or ""
            found = self._buckets[number] = TimelineBucket(at, 0, 0, 0, 0, 0)
        return found

    def count(self, row: Fire) -> None:
        """Count a decided fire time."""
        bucket = self._bucket(row.fire_us)
        if row.state is FireState.SKIPPED:
            bucket.skipped += 1
        else:
            bucket.fired += 1
            bucket.succeeded += row.outcome == "succeeded"
            bucket.failed += row.outcome not in {"", "succeeded"}
        self._past += 1
        if self._past >= MOST_ROWS:
            self.complete = False

    def count_next(self, now_us: int, until_us: int, computed: ComputedTimes) -> Generator[None, None, int]:
        """Count fire times to come, before a time; return the number of steps."""
        schedule, number = self._stored.schedule, 0
        after_us = max(self._since_us, self._stored.state.next_us or now_us) - 1
        if self._stored.state.paused or after_us >= until_us or fault_of(self._stored):
            return number
        times = computed.find(schedule, after_us, until_us)
        if times is None:
            found: list[int] = []
            for at in triggers.running_steps(schedule, after_us, until_us - 1):
                number += 1
                if number > MOST_ROWS:
                    self.complete = False
                    break
                if at is not None:
                    found.append(at)
                yield
            else:
                computed.keep(schedule, after_us, until_us, found)
            times = found
        for at in times:
            self._bucket(at).due += 1
        return number or len(times)

    def answer(self) -> ScheduleLine:
        """Return the line as the API describes it."""
        schedule, state, _ = self._stored
        buckets = [bucket for _, bucket in sorted(self._buckets.items())]
        return ScheduleLine(
            self.name, name_text(schedule.function), "paused" if state.paused else "active", self.complete, buckets
        )


def _newest(stored: Stored) -> int:
    """Return a time that no decided fire time of a schedule exceeds."""
    state = stored.state
    if stored.schedule.parents:  # it has the fire times of its parents
        return triggers.LAST_US
    return max(state.last_us, state.triggered_us, state.fired_us)


def _matches(row: Fire, request: ListFires) -> bool:
    return (request.state is None or row.state.value == request.state) and (
        request.outcome is None or row.outcome == request.outcome
    )


def _place(token: str | None) -> Place | None:
    """Read the place of a token. Raises ApiError."""
    if token is None:
        return None
    time, _, name = token.partition(":")
    return number_of(time), name
