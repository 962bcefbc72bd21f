"""Calls are coroutines that need no event loop: they wait for the callbacks of the services.

So a face that works with callbacks gets its answer in the turn of the loop in which it is known, without a task for each call,
and tests run calls on a clock of their own. `Api.call` awaits the same coroutines from asyncio.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.api.errors import problem_of
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from mainspring.api.errors import Problem
    from mainspring.storage.query import Page, PageQuery

    Done = Callable[[Any], None]
    Failed = Callable[[Exception], None]
    Ask = Callable[[Done, Failed], object]
    """Calls one of both functions, once, now or later."""

T = TypeVar("T")


class Later(Generic[T]):
    """A value that a service brings by a callback: to be awaited, once, in what answers a call."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __await__(self) -> Generator[Ask, T, T]:
        return (yield self._ask)


async def found_by(ask: Callable[..., object], query: PageQuery[T]) -> Page[T]:
    """Return the answer to a query. When the call ends, nothing more is read for it."""
    there = True
    try:
        page: Page[T] = await Later(lambda done, failed: ask(query, done, failed, lambda: there))
    finally:
        there = False
    return page


async def in_turns(run_sliced: Callable[[Generator[None, None, None]], None], work: Generator[None, None, T]) -> T:
    """Run long work, up to each of its ``yield`` at a time, in turns with everything else, and return what it returns.

    When the call ends, the work ends at its next ``yield``.
    """

    def ask(done: Done, failed: Failed) -> None:
        def steps() -> Generator[None, None, None]:
            try:
                value = yield from work
            except MainspringError as error:
                failed(error)
            else:
                done(value)

        run_sliced(steps())

    try:
        value: T = await Later(ask)
    finally:
        work.close()
    return value


class Answering:
    """A call under way. ``done`` or ``failed`` is called once, in the constructor where nothing has to be waited for.

    A defect of what answers is raised to whatever brought the value, or given to ``broken``.
    """

    __slots__ = ("_broken", "_done", "_failed", "_is_over", "_is_running", "_next", "_work")

    def __init__(
        self,
        work: Coroutine[Ask, Any, Any],
        done: Callable[[Any], None],
        failed: Callable[[Problem], None],
        broken: Callable[[Exception], None] | None = None,
    ) -> None:
        self._work = work
        self._broken = broken
        self._done = done
        self._failed = failed
        self._next: Callable[[], Ask] | None = None
        self._is_running = False
        self._is_over = False
        self._go_on(partial(work.send, None))

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be done for it any more."""
        return self._is_over

    def end(self) -> None:
        """Nobody waits for the answer any more: what the call has to undo it undoes, and no function is called."""
        self._is_over = True
        self._work.close()

    def _came(self, value: Any) -> None:
        self._go_on(partial(self._work.send, value))

    def _went_wrong(self, error: Exception) -> None:
        self._go_on(partial(self._work.throw, error))

    def _go_on(self, step: Callable[[], Ask]) -> None:
        """Take a step, and those that follow it at once, one after the other: their number has no bound, the stack has one."""
        if self._is_over:
            return
        self._next = step
        if self._is_running:
            return
        self._is_running = True
        try:
            while (following := self._next) is not None:
                self._next = None
                self._step(following)
        finally:
            self._is_running = False

    def _step(self, step: Callable[[], Ask]) -> None:
        try:
            ask = step()
        except StopIteration as end:
            self._is_over = True
            self._done(end.value)
        except MainspringError as error:
            self._is_over = True
            self._failed(problem_of(error))
        except Exception as defect:
            self._is_over = True
            if self._broken is None:
                raise
            self._broken(defect)
        else:
            ask(self._came, self._went_wrong)
