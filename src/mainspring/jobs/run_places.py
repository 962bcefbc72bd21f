"""When a node fills the places of workflows with limits of open runs: the waiting jobs get their runs.

A transaction that starts runs fills the places of their workflows itself. This is for everything else: a run has ended, a job has
become due, a limit or a pause has changed, a rate allows another begin, another transaction had the right to fill the places, or
a node has died between the end of a run and its look. So an event asks for one look at the keys that it concerns; without a key
it asks for a walk over all keys, a number of them at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.clock import from_us, to_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError
    from mainspring.jobs.table import Context
    from mainspring.resources.rules import Limits
    from mainspring.turns_of_loop import Timer

BEGINS_AT_ONCE: Final = 250
"""The most runs that one operation begins, and the most keys at which it looks."""
WALK_INTERVAL: Final = 0.25
"""Seconds between two walks over all keys because jobs have become pending: nobody says which ones."""
BUSY_DELAY: Final = 0.02
"""Seconds after which a node asks again whose transaction had no right to fill the places."""
RETRY_DELAY: Final = 0.25
"""Seconds after which a failed operation is repeated."""
LOOK_INTERVAL: Final = 3.0
"""Seconds between two walks on a store that nodes share: one of them may have died before it looked."""


class Filled(NamedTuple):
    """The result of a look at the places of a workflow."""

    begun: int = 0
    more: bool = False
    """Whether more jobs may begin at once: the operation came to its limit."""
    next_us: int = 0
    """When a rate lets the next waiting job begin, by the store's clock; 0: no rate alone keeps one waiting."""
    is_busy: bool = False
    """Whether another transaction fills the places at this time."""
    after: bytes | None = None
    """The last of the keys, if there are more."""


class FillsPlaces(Protocol):
    """The slice that begins the runs."""

    def fill(
        self,
        function: bytes,
        limit: int,
        keys: Sequence[bytes] | None,
        after: bytes | None,
        done: Callable[[Filled], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """Begin runs for up to ``limit`` pending jobs of a function, by its limits; see `workflows.store.FillPlaces`."""


def limits_runs(limits: Limits) -> bool:
    """Return whether limits of a function are limits of open runs, or of their begins."""
    return (
        limits.concurrency is not None
        or limits.concurrency_per_key is not None
        or limits.rate is not None
        or limits.rate_per_key is not None
    )


class _Wanted:
    """The looks at the places of one workflow that are to come."""

    __slots__ = ("after", "is_running", "keys", "timer", "timer_at", "walks", "walks_again")

    def __init__(self) -> None:
        self.keys: dict[bytes, None] = {}
        self.walks = False
        """Whether to look at all keys."""
        self.after: bytes | None = None
        """Where the walk goes on."""
        self.walks_again = False
        """Whether another walk follows the one under way."""
        self.is_running = False
        self.timer: Timer | None = None
        self.timer_at = 0.0


class RunPlaces:
    """Looks at the places of the workflows of a node that have limits. ``roots`` begins the runs."""

    def __init__(self, context: Context, roots: FillsPlaces) -> None:
        self._timers, self._clock = context.timers, context.clock
        self._queues = context.dispatch.queues
        self._roots = roots
        self._wanted: dict[bytes, _Wanted] = {}
        self._look_at = context.clock.monotonic() + LOOK_INTERVAL

    def limits(self, function: bytes) -> Limits | None:
        """Return the limits of the open runs of a workflow, as this node has them; None if it has none."""
        queue = self._queues.get(function)
        if queue is None or queue.admission is None or not limits_runs(queue.admission.limits):
            return None
        return queue.admission.limits

    def _of(self, function: bytes) -> _Wanted:
        wanted = self._wanted.get(function)
        if wanted is None:
            wanted = self._wanted[function] = _Wanted()
        return wanted

    # ---- what asks for looks ----

    def freed(self, function: bytes, key: bytes) -> None:
        """Look soon: a run has ended."""
        if self.limits(function) is not None:
            wanted = self._of(function)
            wanted.keys[key] = None
            self._run(function, wanted)

    def became_pending(self, function: bytes) -> None:
        """Walk soon: some jobs are pending, or the limits have changed."""
        self._walk_at(function, self._of(function), self._clock.monotonic() + WALK_INTERVAL)

    def walk(self, function: bytes) -> None:
        """Walk now."""
        self._walk(function, self._of(function))

    def stored(self, function: bytes, keys: Sequence[bytes], filled: Filled) -> None:
        """Continue what the transaction has begun that stored new jobs with these keys."""
        self._continue(function, self._of(function), list(keys), filled)

    def tick(self, now: float, *, is_shared: bool) -> None:
        """Walk at times, on a store that nodes share."""
        if is_shared and now >= self._look_at:
            self._look_at = now + LOOK_INTERVAL
            for function, queue in list(self._queues.items()):
                if queue.is_root and queue.claimable() and self.limits(function) is not None:
                    self.walk(function)

    # ---- looks ----

    def _walk_at(self, function: bytes, wanted: _Wanted, time: float) -> None:
        """Walk at a time, or before it."""
        if wanted.timer is not None:
            if wanted.timer_at <= time:
                return
            self._timers.cancel(wanted.timer)
        wanted.timer_at = time

        def walk() -> None:
            wanted.timer = None
            self._walk(function, wanted)

        wanted.timer = self._timers.at(time, walk)

    def _walk(self, function: bytes, wanted: _Wanted) -> None:
        if wanted.after is None:
            wanted.walks = True
        else:
            wanted.walks_again = True  # behind the walk under way: it may have passed a key
        self._run(function, wanted)

    def _run(self, function: bytes, wanted: _Wanted) -> None:
        queue = self._queues.get(function)
        if wanted.is_running or not (wanted.keys or wanted.walks):
            return
        if queue is None or queue.admission is None or queue.admission.paused:
            return  # a change of the pause asks again
        keys: list[bytes] | None = None
        if wanted.keys and queue.admission.limits.per_key:
            keys = list(wanted.keys)[:BEGINS_AT_ONCE]
            for key in keys:
                del wanted.keys[key]
        else:
            wanted.keys.clear()
            wanted.walks = False
        wanted.is_running = True

        def done(filled: Filled) -> None:
            wanted.is_running = False
            self._continue(function, wanted, keys, filled)

        def failed(error: MainspringError) -> None:
            del error  # operations with a waiting client report the store's errors
            wanted.is_running, wanted.after = False, None
            self._walk_at(function, wanted, self._clock.monotonic() + RETRY_DELAY)

        self._roots.fill(function, BEGINS_AT_ONCE, keys, None if keys else wanted.after, done, failed)

    def _continue(self, function: bytes, wanted: _Wanted, keys: list[bytes] | None, filled: Filled) -> None:
        now = self._clock.monotonic()
        if filled.next_us:
            seconds = max(from_us(filled.next_us - to_us(self._clock.wall())), 0.0)
            self._walk_at(function, wanted, now + seconds)
        if filled.is_busy or filled.more:
            if keys is None:
                wanted.walks = True
            else:
                wanted.keys |= dict.fromkeys(keys)
        elif keys is None:
            wanted.after = filled.after
            wanted.walks = filled.after is not None or wanted.walks_again
            if filled.after is None:
                wanted.walks_again = False
        if filled.is_busy and not wanted.is_running:
            wanted.is_running = True  # until then, nothing else asks

            def ask_again() -> None:
                wanted.is_running = False
                self._run(function, wanted)

            self._timers.at(now + BUSY_DELAY, ask_again)
        else:
            self._run(function, wanted)
