"""Calls in progress: coroutines that need no event loop, because they await callbacks of the services.

A face that works with callbacks therefore gets an answer in the same turn of the loop as the service, without a task for each
call, and tests run calls on a clock of their own. `Api.call` awaits the same coroutines from asyncio.

Several calls share one reading of the store, and use its value for some seconds (`Readings`). A call whose request has a key
keeps its answer in the transaction of its act (`act_if_new`, `act_once`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from mainspring.access.idempotency import KeyedAct, RepeatedError, Reservation
from mainspring.api.request import problem_of
from mainspring.errors import MainspringError
from mainspring.loop_shares import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from mainspring.access.idempotency import IdempotencyKey, KeptReply
    from mainspring.api.request import Problem
    from mainspring.loop_shares import LoopShare
    from mainspring.storage.engine import Page, PageQuery

if TYPE_CHECKING:
    Done = Callable[[Any], None]
    Failed = Callable[[Exception], None]
    Ask = Callable[[Done, Failed], object]
    """Calls one of its two functions, once, now or later."""

T = TypeVar("T")
V = TypeVar("V")

ITEMS_AT_ONCE: Final = 16
"""Items of a list that are converted without a look at the clock; each takes about 10 µs."""


class Callback(Generic[T]):
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


NEXT_TURN: Final[Callback[None]] = Callback(next_turn)


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
        page: Page[T] = await Callback(lambda done, failed: ask(query, done, failed, lambda: is_wanted))
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
        value: T = await Callback(ask)
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


K = TypeVar("K")


class _Reading(NamedTuple, Generic[V]):
    """A value, and the monotonic time at which its reading began."""

    read_at: float
    value: V


class _EndedError(Exception):
    """The call that was reading has ended, so another one has to read."""


class Readings(Generic[K, V]):
    """The newest values by key, at most ``most`` of them; ``seconds`` is for how long a value is used."""

    def __init__(self, monotonic: Callable[[], float], seconds: float, most: int) -> None:
        self._monotonic = monotonic
        self._seconds = seconds
        self._most = most
        self._kept: dict[K, _Reading[V]] = {}
        self._under_way: dict[K, list[tuple[Done, Failed]]] = {}
        """The calls that wait for a reading of another call."""

    async def get(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        """Return a value, with ``read`` if it is too old and no other call reads it. Raises what ``read`` raises."""
        while True:
            kept = self._kept.get(key)
            if kept is not None and self._monotonic() - kept.read_at < self._seconds:
                return kept.value
            waiting = self._under_way.get(key)
            if waiting is None:
                return await self._read(key, read)
            try:
                return await Callback[V](lambda done, failed, calls=waiting: calls.append((done, failed)))  # type: ignore[misc]
            except _EndedError:
                continue

    def forget(self, key: K) -> None:
        """Read a value anew the next time."""
        self._kept.pop(key, None)

    async def _read(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        waiting = self._under_way[key] = []
        began = self._monotonic()
        try:
            value = await read()
        except BaseException as error:
            del self._under_way[key]
            for _, failed in waiting:
                failed(error if isinstance(error, MainspringError) else _EndedError())
            raise
        del self._under_way[key]
        self._keep(key, _Reading(began, value))
        for done, _ in waiting:
            done(value)
        return value

    def _keep(self, key: K, kept: _Reading[V]) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = kept


async def act_if_new(
    once: IdempotencyKey | None, act: Callable[[KeyedAct | None, Done, Failed], object], answer: Callable[[Any], T]
) -> T:
    """Return the answer to a request of one operation, with a key or without one; ``act`` puts the operation."""
    if once is None:
        return answer(await Callback[Any](lambda done, failed: act(None, done, failed)))
    key = once.key
    return await act_once(
        once,
        lambda reply, done, failed: act(KeyedAct(key, lambda outcomes: reply(outcomes[0])), done, failed),
        answer,
    )


async def act_once(
    once: IdempotencyKey,
    act: Callable[[Callable[[Any], KeptReply], Done, Failed], object],
    answer: Callable[[Any], T],
) -> T:
    """Return the answer to a request with a key; ``answer`` returns it for the outcome of the act.

    ``act`` gets the function that returns what is kept for an outcome, before the commit, and those that are called with the
    outcome or the earlier `Reservation` of the key, or with an error. Raises RepeatedError.
    """
    outcome = await Callback[Any](lambda done, failed: act(lambda found: once.reply(answer(found)), done, failed))
    if isinstance(outcome, Reservation):
        raise RepeatedError(outcome)
    return answer(outcome)
