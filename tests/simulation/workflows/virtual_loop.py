"""The event loop of one simulated worker: the simulation runs its callbacks one by one, and time passes only when it says so."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context

    from mainspring.clock import Clock


class VirtualLoop(asyncio.AbstractEventLoop):
    """Callbacks run in the order of their calls, timers at their times. ``owner`` is what the callbacks belong to."""

    def __init__(self, clock: Clock, owner: Any) -> None:
        self.owner = owner
        self.ready: deque[asyncio.Handle] = deque()
        self.errors: list[str] = []
        """The errors of callbacks, as asyncio reports them."""
        self._clock = clock
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._skipped = 0.0

    # ---- the simulation ----

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def run_one(self) -> None:
        """Run the next callback."""
        handle = self.ready.popleft()
        if not handle.cancelled():
            with self.running():
                handle._run()

    def run_due(self) -> None:
        """Make the due timers ready."""
        now = self.time()
        while self._timers and self._timers[0][0] <= now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self.ready.append(handle)

    def next(self) -> float | None:
        """Return the time of the next timer."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Run until a task has ended, at times of this loop's own: nobody else sees it."""
        for _ in range(100_000):
            if task.done():
                return
            if self.ready:
                self.run_one()
                continue
            at = self.next()
            assert at is not None, f"{task} never ends"
            self._skipped += max(at - self.time(), 0.0)
            self.run_due()
        raise AssertionError(f"{task} never ends")

    # ---- asyncio ----

    def time(self) -> float:
        return self._clock.monotonic() + self._skipped

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment] # nothing here has threads

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `next` and `run_due` pass over cancelled timers."""
