"""Coroutines that need no event loop, because they await callbacks: administrative services and the handlers of the API.

The queues of the store call functions after a commit or a read. A coroutine awaits such a `Callback`, and goes on in the same
turn of the loop, without a task. So a face that works with callbacks gets an answer as soon as the service has it, and tests run
calls on a clock of their own. `CallInProgress` runs a coroutine, `awaited` is for callers in asyncio, and `shielded` is for acts
that have to run to their end.
"""

from __future__ import annotations

import asyncio
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from mainspring.errors import MainspringError
from mainspring.loop_shares import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from mainspring.loop_shares import LoopShare

if TYPE_CHECKING:
    Done = Callable[[Any], None]
    Failed = Callable[[Exception], None]
    Ask = Callable[[Done, Failed], object]
    """Calls one of its two functions, once, now or later."""

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

ITEMS_AT_ONCE: Final = 16
"""Items of a list that are converted without a look at the clock; each takes about 10 µs."""


class Callback(Generic[T]):
    """A value that comes through a callback, to be awaited once."""

    __slots__ = ("ask",)

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def __await__(self) -> Generator[Ask, T, T]:
        return (yield self.ask)


def next_turn(done: Done, failed: Failed) -> None:
    """Continue at once: a `CallInProgress` with a share asks instead whether its piece of work was long enough."""
    del failed
    done(None)


NEXT_TURN: Final[Callback[None]] = Callback(next_turn)


async def converted(items: Iterable[T], convert: Callable[[T], V]) -> list[V]:
    """Return converted items of a list that may be long; requests of other callers come in between."""
    values: list[V] = []
    for number, item in enumerate(items, 1):
        values.append(convert(item))
        if not number % ITEMS_AT_ONCE:
            await NEXT_TURN
    return values


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
        value: T = await Callback(ask)
    finally:
        work.close()
    return value


class CallInProgress:
    """A coroutine that runs. ``done`` or ``failed`` is called once, in the constructor if nothing has to be awaited.

    ``failed`` gets a MainspringError. Any other exception is passed to ``broken``; without ``broken`` it is raised to the caller
    of the callback. The time of its steps is charged to ``share``. While that rests, all steps but the first wait.
    """

    __slots__ = ("_broken", "_done", "_failed", "_is_over", "_is_running", "_next", "_share", "_work")

    def __init__(
        self,
        work: Coroutine[Ask, Any, Any],
        done: Callable[[Any], None],
        failed: Callable[[MainspringError], None],
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
            self._failed(error)
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


def shielded(act: Callable[P, Coroutine[Ask, Any, T]]) -> Callable[P, Coroutine[Ask, Any, T]]:
    """Let a coroutine function run to its end, even if the call that awaits it ends earlier.

    Acts need it if something follows their commit: the node forgets a revoked token also when its client has gone.
    """

    @wraps(act)
    async def run_to_end(*args: P.args, **kwargs: P.kwargs) -> T:
        return await Callback[T](lambda done, failed: CallInProgress(act(*args, **kwargs), done, failed, failed))

    return run_to_end


async def awaited(work: Callback[T] | Coroutine[Ask, Any, T]) -> T:
    """Return in asyncio the value of a callback, or of a coroutine that awaits callbacks; cancelling this ends the coroutine."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    done, failed = partial(resolve, answer), partial(reject, answer)
    call = None
    if isinstance(work, Callback):
        work.ask(done, failed)
    else:
        call = CallInProgress(work, done, failed, failed)
    try:
        return await answer
    finally:
        if call is not None:
            call.end()
        del (
            answer,
            call,
            done,
            failed,
            work,
        )  # its error has this frame in its traceback: together they would keep the request


def resolve(answer: asyncio.Future[Any], value: Any) -> None:
    """Set the result of a future unless its waiter has gone."""
    if not answer.done():
        answer.set_result(value)


def reject(answer: asyncio.Future[Any], error: Exception) -> None:
    """Set the error of a future unless its waiter has gone."""
    if not answer.done():
        answer.set_exception(error)
