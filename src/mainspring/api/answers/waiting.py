"""Calls in progress: coroutines that need no event loop, because they await callbacks of the services.

A face that works with callbacks therefore gets an answer in the same turn of the loop as the service, without a task for each
call, and tests run calls on a clock of their own. `Api.call` awaits the same coroutines from asyncio.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mainspring.api.errors import problem_of
from mainspring.errors import MainspringError
from mainspring.loop_shares import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from mainspring.api.errors import Problem
    from mainspring.loop_shares import LoopShare
    from mainspring.storage.query import Page, PageQuery

    Done = Callable[[Any], None]
    Failed = Callable[[Exception], None]
    Ask = Callable[[Done, Failed], object]
    """Calls one of its two functions, once, now or later."""

T = TypeVar("T")
V = TypeVar("V")

ITEMS_AT_ONCE: Final = 16
"""Items of a list that are converted without a look at the clock; each takes about 10 µs."""


class Later(Generic[T]):
    """A value that a service returns through a callback, to be awaited once by the coroutine of a call."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __await__(self) -> Generator[Ask, T, T]:
        return (yield self._ask)


def next_turn(done: Done, failed: Failed) -> None:
    """Continue at once: a `CallInProgress` with a share asks instead whether its piece of work was long enough."""
    del failed
    done(None)


NEXT_TURN: Final[Later[None]] = Later(next_turn)


async def converted(items: Iterable[T], convert: Callable[[T], V]) -> list[V]:
    """Return converted items of a list that may be long; requests of other callers come in between."""
    values: list[V] = []
    for number, item in enumerate(items, 1):
        values.append(convert(item))
        if not number % ITEMS_AT_ONCE:
            await NEXT_TURN
    return values


async def read_page(ask: Callable[..., object], query: PageQuery[T]) -> Page[T]:
    """Return the answer to a query. When the call ends, the query is no longer wanted."""
    is_wanted = True
    try:
        page: Page[T] = await Later(lambda done, failed: ask(query, done, failed, lambda: is_wanted))
    finally:
        is_wanted = False
    return page


async def in_slices(run_sliced: Callable[[Generator[None, None, None]], None], work: Generator[None, None, T]) -> T:
    """Run long work in slices that end at each ``yield``, with other work in between, and return its result.

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


class CallInProgress:
    """A call in progress. ``done`` or ``failed`` is called once, in the constructor if nothing has to be awaited.

    An unexpected exception of the handler is passed to ``broken``; without ``broken`` it is raised to the caller of the callback.
    The time of its steps is charged to ``share``. While that rests, all steps but the first wait.
    """

    __slots__ = ("_broken", "_done", "_failed", "_is_over", "_is_running", "_next", "_share", "_work")

    def __init__(
        self,
        work: Coroutine[Ask, Any, Any],
        done: Callable[[Any], None],
        failed: Callable[[Problem], None],
        broken: Callable[[Exception], None] | None = None,
        share: LoopShare | None = None,
    ) -> None:
        self._work = work
        self._share = share
        self._broken = broken
        self._done = done
        self._failed = failed
        self._next: Callable[[], Ask] | None = None
        self._is_running = False
        self._is_over = False
        self._run(partial(work.send, None))

    @property
    def is_over(self) -> bool:
        """Return whether the call has ended."""
        return self._is_over

    def end(self) -> None:
        """End the call without an answer. Its coroutine is closed, and no function is called."""
        self._is_over = True
        self._work.close()

    def _succeeded(self, value: Any) -> None:
        self._resume(partial(self._work.send, value))

    def _raised(self, error: Exception) -> None:
        self._resume(partial(self._work.throw, error))

    def _resume(self, step: Callable[[], Ask]) -> None:
        share = self._share
        if self._is_running or share is None or not share.rests(share.shares.monotonic()):
            self._run(step)
        else:
            share.when_rested(partial(self._run, step))

    def _run(self, step: Callable[[], Ask]) -> None:
        """Run a step and all steps that follow at once, in a loop: their number is unbounded, and recursion is not."""
        if self._is_over:
            return
        self._next = step
        if self._is_running:
            return
        self._is_running = True
        piece = None if self._share is None else Piece(self._share)
        try:
            while (following := self._next) is not None:
                self._next = None
                self._step(following, piece)
        finally:
            self._is_running = False
            if piece is not None:
                piece.end()

    def _step(self, step: Callable[[], Ask], piece: Piece | None) -> None:
        try:
            ask = step()
        except StopIteration as end:
            self._is_over = True
            self._done(end.value)
        except MainspringError as error:
            self._is_over = True
            self._failed(problem_of(error))
            error.__traceback__ = (
                None  # its frames have the error: together they would keep the request until a collection
            )
        except Exception as defect:
            self._is_over = True
            if self._broken is None:
                raise
            self._broken(defect)
        else:
            if piece is not None and ask is next_turn and piece.is_long():
                piece.share.when_rested(partial(self._resume, partial(self._work.send, None)))
            else:
                ask(self._succeeded, self._raised)
