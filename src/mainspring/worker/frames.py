"""Generators around other code: the part before their ``yield`` runs when they are entered, the rest when they are left.

A frame is entered and left once. Leaving it never raises: it returns the error with which the code inside ends from then on. A
generator may raise another error in place of the one that it gets; one that catches the error without raising any leaves it as it
was. (`contextlib` suppresses it then, but a job must not succeed because something around it has a broad ``except``.)

Threads and task processes do not run on the event loop. They hold asynchronous generators by tasks of it (`HeldFrame`), so that
everything between the two halves is in one task and one context.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.client.providers import name_of
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from contextvars import Context

T = TypeVar("T")

_UNSET: Final = object()


class Host:
    """The event loop of a process that runs tasks, as code on it and beside it uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.get_ident()
        self._is_open = True

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the loop."""
        return asyncio._get_running_loop() is self.loop  # noqa: SLF001 - get_running_loop raises where there is none

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop, soon. Any thread may do so. Raises RuntimeError if the loop has ended."""
        if not self._is_open:
            raise RuntimeError("the worker has ended")
        self.loop.call_soon_threadsafe(function, *args)

    async def wait(self, future: Future[T]) -> T:
        """Return what a future gets, or raise its error. Beside the loop, this waits without suspending the coroutine."""
        if future.done():
            return future.result()
        if self.is_here:
            mirror = asyncio.wrap_future(future)
            mirror.add_done_callback(_retrieve)
            return await asyncio.shield(mirror)  # others may wait for it, too
        if threading.get_ident() == self._thread:  # a task process: its loop runs only meanwhile
            return self.loop.run_until_complete(_of(future))
        return future.result()

    def close(self) -> None:
        """Refuse further calls."""
        self._is_open = False


async def _of(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Take the error of a future that nobody may wait for any more, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because `Host.wait` waits in its place."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise AssertionError("the coroutine waits for an event loop")


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, which ends with the process if it hangs."""
    future: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:  # noqa: BLE001 - the coroutine raises it
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=work, name="mainspring-hook", daemon=True).start()
    return await asyncio.wrap_future(future)


class Frame:
    """Code around other code. ``defect`` is an error of its form, which each attempt would repeat."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.defect: UsageError | None = None

    async def enter(self) -> Any:
        """Run the part before the ``yield``, and return what it yields. Raises its errors."""
        raise NotImplementedError

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Run the rest after the code inside has ended with an error, or with a result; return the error from then on."""
        raise NotImplementedError

    def _unyielding(self) -> UsageError:
        self.defect = UsageError(f"{self.name} ends without a yield: yield once, where the job runs, or raise an error")
        return self.defect

    def _yields_again(self) -> UsageError:
        self.defect = UsageError(f"{self.name} yields a second time: yield once, where the job runs")
        return self.defect


class PlainFrame(Frame):
    """A generator. It runs where it is entered or left."""

    def __init__(self, name: str, generator: Generator[Any, Any, Any]) -> None:
        super().__init__(name)
        self._generator = generator

    def enter_now(self) -> Any:
        """Enter it, in this thread."""
        try:
            return next(self._generator)
        except StopIteration:
            raise self._unyielding() from None

    def leave_now(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Leave it, in this thread."""
        trace = None if error is None else error.__traceback__
        try:
            if error is None:
                self._generator.send(result)
            else:
                self._generator.throw(error)
        except StopIteration as end:
            return error if end is not error else _with_trace(error, trace)
        except BaseException as raised:  # noqa: BLE001 - it is the outcome
            return _outcome(error, trace, raised)
        try:
            self._generator.close()
        except BaseException as raised:  # noqa: BLE001
            return raised
        return self._yields_again()

    async def enter(self) -> Any:
        """Enter it, in this thread."""
        return self.enter_now()

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Leave it, in this thread."""
        return self.leave_now(error, result)


class AsyncFrame(Frame):
    """An asynchronous generator. It runs in the task that enters and leaves it."""

    def __init__(self, name: str, generator: AsyncGenerator[Any, Any]) -> None:
        super().__init__(name)
        self._generator = generator

    async def enter(self) -> Any:
        """Enter it."""
        try:
            return await anext(self._generator)
        except StopAsyncIteration:
            raise self._unyielding() from None

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Leave it."""
        trace = None if error is None else error.__traceback__
        try:
            if error is None:
                await self._generator.asend(result)
            else:
                await self._generator.athrow(error)
        except StopAsyncIteration as end:
            return error if end is not error else _with_trace(error, trace)
        except BaseException as raised:  # noqa: BLE001
            return _outcome(error, trace, raised)
        try:
            await self._generator.aclose()
        except BaseException as raised:  # noqa: BLE001
            return raised
        return self._yields_again()


class HeldFrame(Frame):
    """An asynchronous generator that a task of its own holds on the loop. It can be entered and left from anywhere.

    It runs in a copy of the context that enters it, or in ``context``. Variables that it sets in the copy before its ``yield``
    are then set in the context that enters it, too.
    """

    def __init__(self, frame: AsyncFrame, host: Host, context: Context | None = None) -> None:
        super().__init__(frame.name)
        self._frame = frame
        self._host = host
        self._context = context
        self._entered: Future[Any] = Future()
        self._left: Future[BaseException | None] = Future()
        self._end: asyncio.Future[tuple[BaseException | None, Any]] | None = None
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> Any:
        """Enter it on the loop."""
        context = self._context or copy_context()
        self._host.call(self._begin, context)
        try:
            value = await self._host.wait(self._entered)
        except asyncio.CancelledError:
            self._host.call(self.cancel)
            raise
        finally:
            self.defect = self._frame.defect
        if self._context is None:
            for variable, now in context.items():
                if variable.get(_UNSET) is not now:
                    variable.set(now)
        return value

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Leave it on the loop."""
        try:
            self._host.call(self._finish, error, result)
            return await self._host.wait(self._left)
        except BaseException as raised:  # noqa: BLE001 - the loop has ended, or the waiting task is cancelled
            return error or raised
        finally:
            self.defect = self._frame.defect

    def cancel(self) -> None:
        """Cancel its task; called on the loop."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self, context: Context) -> None:
        self._task = self._host.loop.create_task(self._hold(), name=f"mainspring {self.name}", context=context)

    def _finish(self, error: BaseException | None, result: Any) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result((error, result))

    async def _hold(self) -> None:
        try:
            value = await self._frame.enter()
        except BaseException as raised:  # noqa: BLE001 - raised where it is entered
            self._entered.set_exception(raised)
            return
        self._end = self._host.loop.create_future()
        self._entered.set_result(value)
        error: BaseException | None
        try:
            error, result = await self._end
        except asyncio.CancelledError as cancelled:  # the loop ends
            error, result = cancelled, None
        self._left.set_result(await self._frame.leave(error, result))


def _with_trace(error: BaseException | None, trace: Any) -> BaseException | None:
    if error is not None:
        error.__traceback__ = trace
    return error


def _outcome(error: BaseException | None, trace: Any, raised: BaseException) -> BaseException:
    """Return the error after a generator has raised ``raised``: the same one keeps the traceback that it had."""
    if error is not None and (
        raised is error
        # A generator cannot raise these two: Python raises a RuntimeError because of it.
        or (isinstance(error, (StopIteration, StopAsyncIteration)) and raised.__cause__ is error)
    ):
        error.__traceback__ = trace
        return error
    return raised


def _of_manager(manager: Any) -> Generator[Any, None, None]:
    with manager as value:
        yield value


async def _of_async_manager(manager: Any) -> AsyncGenerator[Any, None]:
    async with manager as value:
        yield value


async def _of_awaitable(awaitable: Any) -> AsyncGenerator[Any, None]:
    yield await awaitable


def frame_of(call: Callable[..., Any], *args: Any, **named: Any) -> PlainFrame | AsyncFrame | Any:
    """Call a provider or a middleware. Return a frame for a generator, an awaitable or a context manager, or else the value."""
    found = call(*args, **named)
    name = name_of(call)
    if inspect.isgenerator(found):
        return PlainFrame(name, found)
    if inspect.isasyncgen(found):
        return AsyncFrame(name, found)
    of_class = isinstance(call, type)
    if isinstance(found, AsyncContextDecorator) or (of_class and hasattr(call, "__aenter__")):
        return AsyncFrame(name, _of_async_manager(found))
    if isinstance(found, ContextDecorator) or (of_class and hasattr(call, "__enter__")):
        return PlainFrame(name, _of_manager(found))
    if inspect.isawaitable(found):
        return AsyncFrame(name, _of_awaitable(found))
    return found
