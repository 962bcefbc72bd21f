"""The heartbeats of a worker process, and whatever else it says regularly: one pacer for all of it, see `pacing`.

| item | its action | period |
|---|---|---|
| a connection | one HEARTBEAT with all of its jobs that have no heartbeat timeout, also without jobs | `INTERVAL` |
| a delivery with a heartbeat timeout | names itself in a HEARTBEAT, with the others whose turn it is | a third of the timeout |
| the figures of the pacer | go to each server that does not have them | `INTERVAL` |

*What arrives.* A HEARTBEAT that is written to a connection arrives, or the connection ends; so it is done when it is written. A
server that does not answer throttles: at most `WINDOW` packets wait for it.

*Beyond the capacity.* A delivery that does not fit goes back to its server at once, to be due again after a moment. That does not
count as an attempt. Before that, the worker tells its servers that it is full. They then assign it no jobs of functions with
heartbeat timeouts until it has room; older ones do not know the report.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from mainspring.worker.execution import Settlement
from mainspring.worker.pacing import GRAIN, Figures, Pacer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.link import Link
    from mainspring.worker.session import Assigned, Key

PACE: Final = 1000.0
"""Turns in a second, at most. Each of them costs the worker and the server some microseconds."""

INTERVAL: Final = 5.0
"""Seconds between the heartbeats of a connection."""

BEATS_PER_LIMIT: Final = 3
"""Periods within the silence after which a server counts a job as lost. From one turn to the next there may be two of them."""

MIN_PERIOD: Final = 0.05
"""Seconds of the shortest period."""

STEPS: Final = 4
"""Different periods from one to its double: clients choose the timeouts, and each period has a round of its own."""

TICK_INTERVAL: Final = 0.5
"""Seconds between the periodic checks of the worker."""

WINDOW: Final = 20
"""Packets that may wait for an answer while a connection sends heartbeats of deliveries: those of half a second."""

THROTTLE_PAUSE: Final = 0.1
"""Seconds until a throttled connection has another turn."""

MAX_UNANSWERED_BEATS: Final = 3
"""Heartbeats without an answer after which a server is silent, and its connection is ended."""

SHORTEST_SILENCE: Final = 1.0
"""Seconds for which a server may be silent however often heartbeats are sent: it may wait for its disk."""

LAGS: Final = 12
"""Figures whose longest lag is shown: those of a minute."""

NO_ROOM: Final = Settlement(b"snoozed", b'{"delay":1.0}', b"")
"""The end of a delivery that does not fit."""

_log = structlog.get_logger("mainspring.worker")


class Action(Hashable, Protocol):
    """The act for the items whose turn has come."""

    def act(self, keys: Sequence[Any], pace: Pace) -> None:
        """Begin to act. An answer for each key follows: ``done``, ``throttled``, ``failed`` or ``drop`` of the pacer."""


class _Info(msgspec.Struct):
    heartbeat: float | None = None


_decode_info = msgspec.json.Decoder(_Info).decode


@functools.lru_cache(maxsize=1024)
def period_of(limit: float) -> float:
    """Return the period of a job that is lost after ``limit`` seconds of silence: one of a few, a third of it or shorter."""
    longest = limit / BEATS_PER_LIMIT
    period = MIN_PERIOD
    while period * 2 <= longest:
        period *= 2
    finer = [period * 2 ** (step / STEPS) for step in range(STEPS)]
    return max(one for one in finer if one <= longest or one == period)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Pace:
    """The one pacer of a worker process, used on its running loop. ``tick`` is called about twice a second."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._pacer: Pacer[Action, Hashable] = Pacer(PACE)
        self._next_tick = 0.0
        self._wakes_at = 0.0
        self._sooner = asyncio.Event()
        self._is_nearly_full = False
        self._figures = Figures(0, round(PACE), PACE, 0.0, 0.0, 0, 0, 0, full=False)
        self._lags: deque[float] = deque(maxlen=LAGS)

    # ---- items ----

    def expect(self, period: float) -> None:
        """Be full as soon as an item of this period would not fit."""
        self._pacer.expect(period)

    def add(self, key: Hashable, action: Action, period: float, *, always: bool = False) -> bool:
        """Act for a key once in each period from now on; return False if that does not fit. ``always``: even so."""
        now = _now()
        if not self._pacer.add(key, action, period, now, always=always):
            return False
        if now + period < self._wakes_at:
            self._sooner.set()
        return True

    def __contains__(self, key: Hashable) -> bool:
        return key in self._pacer

    def drop(self, key: Hashable) -> None:
        """Act for a key no more; do nothing if there is no such item."""
        self._pacer.drop(key)

    def done(self, keys: Sequence[Hashable]) -> None:
        """Note that the action of these keys is done for this period."""
        for key in keys:
            self._pacer.done(key)

    def throttled(self, keys: Sequence[Hashable], pause: float) -> None:
        """Repeat the action for these keys after a pause, before all others of this action."""
        now = _now()
        for key in reversed(keys):
            self._pacer.throttled(key, pause, now)

    def failed(self, keys: Sequence[Hashable]) -> None:
        """Repeat the action for these keys after the others."""
        now = _now()
        for key in keys:
            self._pacer.failed(key, now)

    def figures(self) -> Figures:
        """Return the last figures; the lag is the longest of a minute."""
        return self._figures

    def room(self, period: float) -> int:
        """Return how many more items of a period fit."""
        return self._pacer.room(period)

    def check_full(self) -> bool:
        """Return whether the next delivery with a heartbeat timeout may not fit."""
        return self._pacer.check_full()

    # ---- the loop ----

    async def run(self) -> None:
        """Act until cancelled."""
        self._next_tick = _now() + TICK_INTERVAL
        while True:
            self._sooner.clear()
            now = _now()
            at = self._pacer.next(now)
            self._wakes_at = self._next_tick if at is None else min(self._next_tick, max(at, now + GRAIN / 2))
            try:
                async with asyncio.timeout(self._wakes_at - now):
                    await self._sooner.wait()
            except TimeoutError:
                self.run_once()

    def run_once(self) -> None:
        """Act for the keys whose turn has come, and check what is due."""
        now = _now()
        if now >= self._next_tick:
            self._next_tick = now + TICK_INTERVAL
            self._tick()
        for action, keys in self._pacer.take(now).items():
            try:
                action.act(keys, self)
            except Exception:  # noqa: BLE001 - one action must not end the heartbeats of all jobs
                _log.exception("an action of the pacer has failed", action=type(action).__name__)
                self.failed(keys)

    def read_figures(self) -> Figures:
        """Compute the figures, and warn if there is little room."""
        figures = self._pacer.figures()
        self._lags.append(figures.lag)
        self._figures = figures._replace(lag=max(self._lags))
        if not self._pacer.nearly_full:
            self._is_nearly_full = False
        elif not self._is_nearly_full:
            self._is_nearly_full = True
            _log.warning(
                "the worker sends nearly as many heartbeats as it can: start more processes, or give tasks a longer heartbeat",
                items=figures.items,
                capacity=figures.capacity,
            )
        return self._figures


class Heartbeats:
    """The heartbeats of all connections of a worker, and the reports about their pace."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self.pace = Pace(tick)
        self._beats: dict[Link, Beats] = {}
        self._runs = False
        self._was_full = False

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._runs = True
        self.pace.add(self, self, INTERVAL, always=True)
        for link, beats in self._beats.items():
            self.pace.add(link, beats, INTERVAL, always=True)
        await self.pace.run()

    def expect(self, limit: float) -> None:
        """Expect jobs that are lost after ``limit`` seconds of silence."""
        self.pace.expect(period_of(limit))

    def watch(self, link: Link) -> None:
        """Send heartbeats over a connection."""
        beats = self._beats[link] = Beats(link)
        if self._runs:
            self.pace.add(link, beats, INTERVAL, always=True)

    def leave(self, link: Link) -> None:
        """Send no more heartbeats over a connection that has no deliveries."""
        self.pace.drop(link)
        del self._beats[link]

    def begin(self, link: Link, assigned: Assigned) -> bool:
        """Send heartbeats for a delivery with a heartbeat timeout; return False if that does not fit."""
        limit = _decode_info(assigned.info).heartbeat
        key = (assigned.handle, assigned.token)
        if limit is None or key in self.pace:
            return True
        period = period_of(limit)
        beats = self._beats[link]
        fits = self.pace.add(key, beats, period)
        if fits:
            beats.begun(key, period)
        self.tell_full()
        return fits

    def ended(self, key: Key) -> None:
        """Send no more heartbeats for a delivery."""
        self.pace.drop(key)
        if self._was_full:
            self.tell_full()

    def tell_full(self) -> None:
        """Tell the servers if the worker has become full, or has room again."""
        if self.pace.check_full() != self._was_full:
            self._was_full = not self._was_full
            self._report()

    def act(self, keys: Sequence[Any], pace: Pace) -> None:
        """Send the figures to the servers that do not have them."""
        self._report()
        pace.done(keys)

    def _report(self) -> None:
        figures = self.pace.read_figures()
        report = figures._replace(load=round(figures.load, 1), lag=round(figures.lag, 1))
        numbers = msgspec.json.encode(report._asdict())
        for link in self._beats:
            link.session.report_pace(numbers)
            link.flush()


class Beats:
    """The heartbeats of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._shortest = INTERVAL
        self._looked_at = 0.0
        self._answers = 0
        self._quiet = 0.0

    def begun(self, key: Key, period: float) -> None:
        """Note a delivery whose heartbeats are sent alone: a HEARTBEAT of the connection leaves it out."""
        self._link.session.paced.add(key)
        self._shortest = min(self._shortest, period)

    def act(self, keys: Sequence[Any], pace: Pace) -> None:
        """Send one HEARTBEAT for these deliveries, and one for the connection if its turn has come."""
        session = self._link.session
        deliveries = [key for key in keys if key is not self._link]
        if not session.paced:
            self._shortest = INTERVAL
        if self._check_server():
            pace.done(keys)
            return
        if len(deliveries) < len(keys):
            session.heartbeat()
            pace.done([self._link])
        if deliveries and session.unanswered >= WINDOW:
            pace.throttled(deliveries, THROTTLE_PAUSE)
        elif deliveries:
            session.heartbeat(deliveries)
            pace.done(deliveries)
        self._link.flush()

    def _check_server(self) -> bool:
        """Return whether the server is silent, and end its connection then.

        A look counts for the shortest period at most: a worker that was stopped itself has not read the answers yet.
        """
        now, session = _now(), self._link.session
        passed = min(now - self._looked_at, self._shortest)
        self._looked_at = now
        if not session.unanswered or session.answers != self._answers:
            self._answers = session.answers
            self._quiet = 0.0
            return False
        self._quiet += passed
        is_silent = self._quiet >= max(MAX_UNANSWERED_BEATS * self._shortest, SHORTEST_SILENCE)
        if is_silent:
            self._quiet = 0.0
            self._link.drop_silent()
        return is_silent
