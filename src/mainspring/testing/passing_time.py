"""The time of an App in memory: a clock that only tests advance, when all due work is done, and when something is due next.

If code under test blocks, the error shows the frames of the threads that do not go on.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
from heapq import heappop
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mainspring.clock import from_us, to_us
from mainspring.deadlines.store import Item
from mainspring.event_log import types
from mainspring.jobs.model import State, is_users
from mainspring.quantities import format_duration
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.rules import watch
from mainspring.schedules.triggers import next_after
from mainspring.turns_of_loop import Timers
from mainspring.workflows import history
from mainspring.workflows.history import decode_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.held import FunctionQueue
    from mainspring.server.node import Node
    from mainspring.turns_of_loop import Timer
    from mainspring.worker.registry import Registry
    from mainspring.worker.runtime import Worker
    from mainspring.worker.workflows.decider import WorkflowDecider

WALL_START = 1_700_000_000.0


class ManualClock:
    """Both kinds of time for tests. Wall time begins at ``start``, monotonic time at 0; only tests change them."""

    def __init__(self, start: float = WALL_START) -> None:
        self._wall = start
        self._monotonic = 0.0

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Return seconds since this clock was created."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance both kinds of time. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError("time does not go back; to set the wall clock back, use step()")
        self._wall += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Step the wall clock forward or back, as an administrator might; monotonic time does not change."""
        self._wall += seconds


class Delay:
    """A planned call."""

    def __init__(self, timers: Timers, timer: Timer) -> None:
        self._timers = timers
        self._timer = timer

    def cancel(self) -> None:
        """Make no call."""
        self._timers.cancel(self._timer)


class Delays:
    """Planned calls."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._timers = Timers(lambda _: None)

    def later(self, delay: float, function: Callable[[], None]) -> Delay:
        """Plan a call after so many seconds."""
        return Delay(self._timers, self._timers.at(self._clock.monotonic() + delay, function))

    def next(self) -> float | None:
        """Return the monotonic time of the next call."""
        return self._timers.next()

    def run(self) -> None:
        """Make the calls that are due."""
        self._timers.run(self._clock.monotonic())


def next_due(tables: Tables, *, schedules: bool) -> int | None:
    """Return the first time, in microseconds since 1970; None if nothing will happen by itself.

    The ends of runs by their execution timeouts do not count: a test that waits for anything else is wrong.
    """
    return min(_times(tables, schedules=schedules), default=None)


def _times(tables: Tables, *, schedules: bool) -> Iterator[int]:
    jobs = tables.jobs
    for due_us, job_id in tables.due:
        job = jobs.get(job_id)
        if job is not None and job.state == State.SCHEDULED and job.due_us == due_us:
            yield due_us
    for expires_us, job_id in tables.expiring:
        job = jobs.get(job_id)
        if job is not None and job.state <= State.PENDING and job.expires_us == expires_us:
            yield expires_us
    alarms = tables.alarms
    while alarms and not _is_alarm(tables, *alarms[0]):
        heappop(alarms)
    for due_us, run in alarms:
        if _is_alarm(tables, due_us, run) and due_us != _end_us(tables, run):
            yield due_us
            if due_us == alarms[0][0]:
                break  # it is the first one of the heap
    for stored in tables.schedules.values() if schedules else ():
        if stored.state.next_us is not None:
            yield stored.state.next_us
    yield from _late_times(tables, schedules=schedules)


def _late_times(tables: Tables, *, schedules: bool) -> Iterator[int]:
    """Yield the times at which something is late, if somebody wants the event of it: a listener runs at that time."""
    wanted = tables.current_interests.now.types
    for item, due_us in tables.deadlines.items():
        job = tables.jobs.get(item.job)
        if item.schedule:
            if schedules and types.SCHEDULE_OVERDUE in wanted:
                yield due_us
        elif types.OVERDUE in wanted and job is not None and not State(job.state).ended:
            yield due_us


def _is_alarm(tables: Tables, due_us: int, run: int) -> bool:
    """Return whether an entry of the heap is not outdated."""
    row = tables.workflows.get(run)
    return row is not None and row.due_us == due_us


def _end_us(tables: Tables, run: int) -> int:
    """Return the end of a run's execution timeout."""
    _, blocks = tables.histories[run]
    first = decode_events(blocks[0])[0]
    assert isinstance(first, history.WorkflowExecutionStarted)
    return (first.timed_from_us or first.at_us) + int(first.execution_timeout * 1_000_000)


_TASKS: Final = "mainspring-task-"
"""The beginning of the names of the threads that run tasks."""


def place_of(thread: int) -> str:
    """Return the place of the innermost frame of a thread that is no frame of Mainspring or of the standard library."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to another thread's stack
    return "an unknown place" if frame is None else _shown(_user_frame(frame) or frame)


def places_of_tasks() -> list[str]:
    """Return the places of the tasks that run in threads now."""
    frames = sys._current_frames()  # noqa: SLF001
    threads = [one for one in threading.enumerate() if one.name.startswith(_TASKS) and one.ident in frames]
    places = (_user_frame(frames[one.ident]) for one in threads if one.ident is not None)
    return [_shown(frame) for frame in places if frame is not None]


def interrupt(thread: int) -> None:
    """Raise SystemExit in a thread, so that a loop of its code does not go on for the rest of the tests."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


def _user_frame(innermost: FrameType) -> FrameType | None:
    for frame in _outwards(innermost):
        if is_users(frame.f_code.co_filename):
            return frame
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


SETTLE_TIMEOUT: Final = 10.0
"""Seconds of real time in which due jobs must end."""

SKIP_TIMEOUT: Final = 60.0
"""Seconds of real time for which the clock skips from one due time to the next."""

DUE_MARGIN: Final = 0.001
"""Seconds by which the clock passes a due time: clocks are floats, and a job must be due despite rounding."""

POLL_INTERVAL: Final = 0.001
"""Seconds of real time between two checks for a condition."""

BUSY_TURNS: Final = 100
"""Turns of the loop with a check each, before the first pause: what node and worker do by themselves takes fewer."""

HELD_BACK_TURNS: Final = BUSY_TURNS + 5
"""Turns of the loop, the last ones with pauses, after which due jobs of an idle node wait for their limits."""

STALE_US: Final = 1_000_000
"""Microseconds after which a time is no longer waited for at which something is late: the node has not reported it."""

ROUNDING: Final = 0.000_002
"""Seconds by which the clock passes a due time of the store, which has whole microseconds."""


class PassingTime:
    """Lets time pass for a node and a worker. ``registry``: the tasks of the App."""

    def __init__(
        self,
        clock: ManualClock,
        delays: Delays,
        node: Node,
        worker: Worker,
        decider: WorkflowDecider | None,
        tables: Tables,
        registry: Registry,
    ) -> None:
        self._clock = clock
        self._delays = delays
        self._node = node
        self._worker = worker
        self._decider = decider
        self._tables = tables
        self._registry = registry

    async def skip(self, job: int, seconds: float, *, schedules: bool) -> str | None:
        """Skip to each due time until a job has ended, for so many seconds. Return why it has not ended; None: it has.

        Without ``schedules``, the fire times in this time are no due times, and nothing comes of them.
        """
        if schedules:
            return await self._skip(job, seconds, schedules=True)
        self._node.schedules.suspend()
        watched = [name for name, stored in self._tables.schedules.items() if stored.state.late_us > 0]
        for name in watched:
            self._watch(name, 0)
        try:
            reason = await self._skip(job, seconds, schedules=False)
        finally:
            self._pass_over_schedules()
            for name in watched:
                if (one := self._tables.schedules.get(name)) is not None:
                    self._watch(name, watch(None, one, started=True))
            self._node.schedules.resume()
        if reason is not None and self._tables.schedules:
            reason += " (schedules do not fire meanwhile, unless you give schedules=True)"
        return reason

    def _pass_over_schedules(self) -> None:
        """Drop the fire times that have passed."""
        now_us, stored = to_us(self._clock.wall()), self._tables.schedules
        for name, (schedule, state, _) in list(stored.items()):
            if state.next_us is not None and state.next_us <= now_us:
                state = replace(state, version=state.version + 1, next_us=next_after(schedule, now_us))
                stored[name] = Stored(schedule, state)

    def _watch(self, name: str, late_us: int) -> None:
        """Set by when a schedule should start a job; 0: it is never late."""
        schedule, state, _ = self._tables.schedules[name]
        self._tables.schedules[name] = Stored(schedule, replace(state, late_us=late_us))
        self._tables.deadlines.pop(Item(0, 0, name), None)
        if late_us:
            self._tables.deadlines[Item(0, 0, name)] = late_us

    async def _skip(self, job: int, seconds: float, *, schedules: bool) -> str | None:
        target = self._clock.monotonic() + seconds
        deadline = asyncio.get_running_loop().time() + SKIP_TIMEOUT
        while True:
            is_held_back = await self._quiet_or_held_back(any_function=True)
            found = self._tables.jobs.get(job)
            if found is None or State(found.state).ended:
                return None
            now, wall = self._clock.monotonic(), self._clock.wall()
            due_us = next_due(self._tables, schedules=schedules)
            next_start = self._node.service.timers.next() if is_held_back else None
            times = [
                time for time in (next_start, self._delays.next(), due_us and now + from_us(due_us) - wall) if time
            ]
            if not times or (moment := min(times)) > target:
                return f"nothing is due within {format_duration(seconds)}"
            if asyncio.get_running_loop().time() > deadline:
                return (
                    f"other things have been due for {format_duration(SKIP_TIMEOUT)}, such as a schedule's fire times"
                )
            if moment > now and not is_held_back:
                # The timers alone: periodic maintenance would take most of the time of a skip over hours.
                self._move(moment - now + ROUNDING)
                self._node.service.timers.run(self._clock.monotonic())
            else:
                self._move(max(moment - now, 0) + DUE_MARGIN)
                self._node.tick()

    def _move(self, seconds: float) -> None:
        self._clock.advance(seconds)
        now = self._clock.monotonic()
        if self._decider is not None and self._decider.pausing():
            # The worker sends its heartbeats in real time: without them, the node would give its decisions to another worker.
            for worker in list(self._node.service.dispatch.workers):
                for held in worker.running.values():
                    held.beat = now
        self._delays.run()

    async def advance(self, seconds: float, *, settle: bool) -> None:
        """Advance the clock, stopping at each due time; with ``settle``, until its jobs have run. Raises TimeoutError."""
        target = self._clock.monotonic() + seconds
        while True:
            if settle:
                await self.settle()
            now = self._clock.monotonic()
            wall_us = to_us(self._clock.wall())
            late = [
                now + from_us(us - wall_us)
                for us in _late_times(self._tables, schedules=True)
                if us > wall_us - STALE_US
            ]
            planned = (self._node.service.timers.next(), self._delays.next(), min(late, default=None))
            times = [time for time in planned if time is not None]
            moment = min(max(min(times), now) + DUE_MARGIN, target) if times else target
            self._move(max(moment - now, 0))
            self._node.tick()
            if moment >= target:
                break
            await asyncio.sleep(0)
        if settle:
            await self.settle()

    async def settle(self) -> None:
        """Wait until no job runs and all due jobs have run, except those that limits or a pause hold back.

        Raises TimeoutError.
        """
        await self._quiet_or_held_back(any_function=False)

    async def _quiet_or_held_back(self, *, any_function: bool) -> bool:
        """Wait as `settle` does. Return True if due jobs do not start: of functions with limits, or also of any other one."""
        idle_turns = 0

        def done() -> bool:
            nonlocal idle_turns
            if not self._is_idle() or (not any_function and any(self._startable())):
                idle_turns = 0
                return False
            idle_turns += 1
            return idle_turns > HELD_BACK_TURNS or not any(queue.waiting() for queue in self._queues())

        if not await until(done):
            raise self._too_long()
        return idle_turns > HELD_BACK_TURNS

    def _too_long(self) -> TimeoutError:
        running = sorted({delivery.function.name for delivery in self._worker.held})
        problem = f"these tasks still run: {', '.join(running)}"
        if not running:
            problem = f"due jobs of {', '.join(sorted(self._startable()))} do not start"
        elif places := places_of_tasks():
            problem += f", in threads at {', '.join(places)}"
        return TimeoutError(
            f"after {format_duration(SETTLE_TIMEOUT)} {problem} (advance(…, settle=False) lets time pass while tasks run)"
        )

    def _startable(self) -> Iterator[str]:
        """Yield the names of tasks with due jobs that nothing holds back."""
        for queue in self._queues():
            if queue.waiting() and (queue.admission is None or not queue.admission.limited):
                yield queue.name.decode()

    def _queues(self) -> list[FunctionQueue]:
        """Return the queues of the App's tasks."""
        names = {function.name.encode() for function in self._registry}
        return [queue for queue in self._node.service.dispatch.queues.values() if queue.name in names]

    def _is_idle(self) -> bool:
        """Return whether no job and no decision runs."""
        node, worker = self._node, self._worker
        if not node.commits.idle or (node.deliverer is not None and node.deliverer.is_busy):
            return False
        pausing = 0 if self._decider is None else self._decider.pausing()
        if pausing is None or node.running() != pausing:
            return False
        # A decision is running at the node until it is reported, so the work of the decider need not be asked for.
        return not (worker.held or any(link.session.unsettled for link in worker.links))


async def until(done: Callable[[], bool]) -> bool:
    """Poll a condition in real time, because no single component reports it; return whether it became true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_TIMEOUT
    turns = 0
    while not done():
        if loop.time() > deadline:
            return False
        turns += 1
        await asyncio.sleep(0 if turns < BUSY_TURNS else POLL_INTERVAL)
    return True
