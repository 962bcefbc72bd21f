"""The code around the attempts of functions, and around the life of a process that runs them.

An attempt is inside of the App's middleware, its task's middleware, and the values that its function and their providers need.
They are entered in this order and left in the reverse one, whatever the outcome. Reading the arguments and writing the result are
inside, too, so that middleware sees their errors. A value per worker is made for the first attempt that needs it, and closed at
the end of the process.

One coroutine does this for all executors (`Around.run`). For a plain function it never suspends: a thread drives it, and waits
where the loop has to do something.

The order of the end of a process: attempts in threads that have not ended are left with JobStopped, so that their transactions
and locks end; then the values per worker, the newest first; then the hooks, in the reverse of their order.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from contextvars import Context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.client.providers import name_of, needs_of
from mainspring.errors import WorkerStartError
from mainspring.jobs.model import text_of, traceback_of
from mainspring.private_data import hide_secrets
from mainspring.worker.current import JobStopped
from mainspring.worker.execution import Settlement, error_settlement, failure_of, returned_early
from mainspring.worker.frames import AsyncFrame, Frame, HeldFrame, Host, PlainFrame, drive, frame_of, in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mainspring.client.providers import Provided, Provider
    from mainspring.worker.current import CurrentJob, Inside
    from mainspring.worker.registry import Function, Middleware, Registry

END_LIMIT: Final = 10.0
"""Seconds that each hook and each value has at the end of a process."""

_log = structlog.get_logger("mainspring.worker")


def _includes_all(_name: str) -> bool:
    return False


class Life:
    """One process that runs the functions of a registry: a worker, or a task process.

    ``leaves_out`` returns whether the values of a function are not made at present, by its name: tests have replaced its code.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        is_task_process: bool = False,
        leaves_out: Callable[[str], bool] = _includes_all,
    ) -> None:
        self.registry = registry
        self.leaves_out = leaves_out
        self._hooks = [hook for hook in registry.hooks if hook.in_task_processes or not is_task_process]
        self._started: dict[int, Frame] = {}
        """The generators among the hooks that have started, by the index of the hook."""
        self.attempts: set[Attempt] = set()
        """Those that run."""
        self._lock = threading.Lock()
        self._values: dict[Provider, Future[Any]] = {}
        """Values per worker, also those that are being made."""
        self._frames: list[Frame] = []
        """The frames of these values, in the order in which they were entered."""
        self._making: set[asyncio.Task[None]] = set()
        self._needs: dict[Provider, dict[str, Provided]] = {}
        self.host: Host
        self.over = False

    def surround(self, function: Function) -> Function:
        """Return the function as this process runs it; the same one if nothing is around it."""
        middleware = (*self.registry.middleware, *function.middleware)
        provided = function.signature.provided
        return replace(function, around=Around(middleware, provided, self)) if middleware or provided else function

    @property
    def has_ends(self) -> bool:
        """Whether task processes have something to do at their end."""
        registry = self.registry
        return (
            any(hook.in_task_processes for hook in registry.hooks)
            or bool(registry.middleware)
            or any(function.middleware or function.signature.provided for function in registry)
        )

    # Hooks.

    async def start(self, stopping: asyncio.Event | None = None) -> None:
        """Run the hooks of the start, on the loop that is the process's from then on. ``stopping`` ends that early.

        Raises WorkerStartError if one fails, with the error chained, after `close`.
        """
        self.host = Host(asyncio.get_running_loop())
        if not self._hooks:
            return
        starting = asyncio.create_task(self._start(), name="mainspring start hooks")
        stopped = asyncio.create_task((stopping or asyncio.Event()).wait())
        try:
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        except BaseException:
            await self.close()
            raise
        finally:
            stopped.cancel()
            starting.cancel()
            await asyncio.wait([starting, stopped])

    async def _start(self) -> None:
        for index, hook in enumerate(self._hooks):
            if hook.at_stop:
                continue
            try:
                frame = await self._run_hook(hook.call)
            except (Exception, SystemExit) as error:
                raise WorkerStartError(
                    f"the worker cannot start: {name_of(hook.call)}, a function of on_worker_start, failed: "
                    f"{type(error).__name__}: {text_of(error)}"
                ) from error
            if frame is not None:
                self._started[index] = frame

    async def _run_hook(self, call: Callable[[], Any]) -> Frame | None:
        """Run a hook up to its end, or to its ``yield``; then return its frame."""
        if not _is_async(call):
            found = await in_thread(lambda: _entered(call))
            return found if isinstance(found, PlainFrame) else None
        if inspect.iscoroutinefunction(call):
            await call()
            return None
        found = frame_of(call)
        if not isinstance(found, AsyncFrame):
            return None
        held = HeldFrame(found, self.host)
        await held.enter()
        return held

    async def close(self) -> None:
        """End everything, in the order that the module describes. Errors are logged."""
        self.over = True
        for attempt in list(self.attempts):
            reason = JobStopped(attempt.job.stop_reason or "drain")
            await self._end(attempt.job.function, _abandoned(attempt, reason), reason)
        for frame in reversed(self._frames):
            await self._end(frame.name, _left(frame))
        self._frames.clear()
        self._values.clear()
        for index in reversed(range(len(self._hooks))):
            hook = self._hooks[index]
            if hook.at_stop:
                await self._end(name_of(hook.call), _stopped(hook.call))
            elif (started := self._started.pop(index, None)) is not None:
                await self._end(started.name, _left(started))
        self.host.close()

    async def _end(
        self, name: str, end: Awaitable[BaseException | None], expected: BaseException | None = None
    ) -> None:
        """Await an end within its limit. Log its error, unless it is the ``expected`` one."""
        try:
            async with asyncio.timeout(END_LIMIT):
                error = await end
        except TimeoutError:
            _log.error("the worker ends before this has ended", function=name, seconds=END_LIMIT)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - the rest ends, too
            _log_end(name, raised)
        else:
            if error is not None and error is not expected:
                _log_end(name, error)

    # Values per worker.

    def needs(self, provider: Provider) -> Mapping[str, Provided]:
        """Return the provided parameters of a provider."""
        found = self._needs.get(provider)
        if found is None:
            found = self._needs[provider] = needs_of(provider, name_of(provider))
        return found

    def provider(self, mark: Provided) -> Provider:
        """Return the provider of a mark, or the one that tests use in its place."""
        return self.registry.replaced.get(mark.provider, mark.provider)

    async def shared(self, provider: Provider) -> Any:
        """Return the value per worker of a provider. The first call makes it; all of them raise the error of its failure."""
        with self._lock:
            future = self._values.get(provider)
            is_first = future is None
            if future is None:
                future = self._values[provider] = Future()
        if is_first:
            # In a context of its own: the value outlives the job for which it is made, and that job's cancellation.
            if self.host.is_here:
                making = self.host.loop.create_task(self._make(provider, future), context=Context())
                self._making.add(making)
                making.add_done_callback(self._making.discard)
            else:
                Context().run(drive, self._make(provider, future))
        return await self.host.wait(future)

    async def _make(self, provider: Provider, future: Future[Any]) -> None:
        try:
            named = {name: await self.shared(self.provider(mark)) for name, mark in self.needs(provider).items()}

            def make() -> Any:
                found = frame_of(provider, **named)
                return (found, found.enter_now()) if isinstance(found, PlainFrame) else found

            found = await in_thread(make) if self.host.is_here and not _is_async(provider) else make()
            if isinstance(found, tuple) and isinstance(found[0], PlainFrame):
                frame, value = found
                self._frames.append(frame)
            elif isinstance(found, AsyncFrame):
                held = HeldFrame(found, self.host, Context())
                value = await held.enter()
                self._frames.append(held)
            else:
                value = found
        except BaseException as error:  # noqa: BLE001 - raised by those that wait for the value
            with self._lock:
                self._values.pop(provider, None)  # the next attempt tries again
            future.set_exception(error)
        else:
            future.set_result(value)


def _is_async(call: Callable[..., Any]) -> bool:
    """Return whether calling it only makes something that the loop then runs."""
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call) or hasattr(call, "__aenter__")


def _entered(call: Callable[[], Any]) -> Any:
    """Call a plain hook in this thread, and enter it if it is a generator."""
    found = frame_of(call)
    if isinstance(found, PlainFrame):
        found.enter_now()
    return found


async def _abandoned(attempt: Attempt, reason: JobStopped) -> BaseException | None:
    """Leave the frames of an attempt that has not ended. Those around a plain function may block: a thread leaves them."""
    if attempt.job.loop is None:
        return await in_thread(lambda: drive(attempt.leave(reason, None)))
    return await attempt.leave(reason, None)


async def _left(frame: Frame) -> BaseException | None:
    """Leave a frame. A plain one may block: a thread leaves it."""
    if isinstance(frame, PlainFrame):
        return await in_thread(lambda: frame.leave_now(None, None))
    return await frame.leave(None, None)


async def _stopped(call: Callable[[], Any]) -> None:
    """Run a hook of the end."""
    if _is_async(call):
        await call()
    else:
        await in_thread(call)


def _log_end(name: str, error: BaseException) -> None:
    _log.error(
        "the end of something around a worker failed",
        function=name,
        error=f"{type(error).__name__}: {text_of(error)}",
        traceback=hide_secrets(traceback_of(error, error.__traceback__)),
    )


class Attempt:
    """The frames of one attempt, from the outermost one on."""

    def __init__(self, job: CurrentJob, inside: Inside, life: Life) -> None:
        self.job = job
        self.inside = inside
        self._life = life
        self._frames: list[Frame] = []
        self.defect: BaseException | None = None
        """The error of a frame that each attempt would repeat."""
        life.attempts.add(self)

    async def enter(self, given: Any) -> Any:
        """Enter a frame and return what it yields. Another value is returned as it is. Raises the errors of the frame."""
        if isinstance(given, AsyncFrame) and not self._life.host.is_here:
            given = HeldFrame(given, self._life.host)
        if not isinstance(given, Frame):
            return given
        try:
            value = await given.enter()
        finally:
            self.defect = given.defect or self.defect
        self._frames.append(given)
        if self._life.over:  # the end of the process has left the frames of this attempt
            raise JobStopped(self.job.stop_reason or "drain")
        return value

    async def leave(self, error: BaseException | None, result: Any) -> BaseException | None:
        """Leave all frames, and return the error with which the attempt ends.

        The end of a process leaves the frames of a thread that does not end. So each one is taken before it is left.
        """
        self.inside.close()
        while True:
            try:
                frame = self._frames.pop()
            except IndexError:
                self._life.attempts.discard(self)
                return error
            error = await frame.leave(error, None if error is not None else result)
            self.defect = frame.defect or self.defect


class Around:
    """Runs the attempts of one function inside of middleware, and with the values of its provided parameters."""

    def __init__(self, middleware: Sequence[Middleware], provided: Mapping[str, Provided], life: Life) -> None:
        self._middleware = middleware
        self._provided = provided
        self._life = life

    def execute(self, function: Function, payload: bytes, job: CurrentJob) -> Settlement:
        """Run a plain function in this thread. Raises nothing."""
        return drive(self.run(function, payload, job))

    async def run(self, function: Function, payload: bytes, job: CurrentJob) -> Settlement:
        """Run a function, and return the settlement of its attempt. Raises nothing."""
        attempt = Attempt(job, job.surround(function.retry), self._life)
        signature = function.signature
        error: BaseException | None = None
        result, data = None, b""
        try:
            await self._begin(attempt)
            try:
                args, named = signature.decode(payload)
            except BaseException as raised:
                attempt.inside.final = raised
                raise
            named = {**named, **await self._values(function, attempt)}
            result = function.call(*args, **named)  # here, since a StopIteration may not leave a coroutine
            if function.executor == "coroutine":
                result = await result
            if not (function.kept.ignores_result or job.awaits or job.must_await):
                try:
                    data = signature.encode_result(result)
                except BaseException as raised:
                    attempt.inside.final = raised  # a retry would fail in the same way
                    raise
        except BaseException as raised:  # noqa: BLE001 - every error is the outcome of the attempt
            error = raised
        error = await attempt.leave(error, result)
        if error is None and (job.awaits or job.must_await):
            return returned_early(job, result)
        if error is None:
            return Settlement(b"succeeded", b"", data)
        if error is attempt.inside.final or error is attempt.defect:
            return failure_of(error, final=True)
        return error_settlement(function, error, job)

    async def call(self, function: Function, job: CurrentJob, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function whose arguments are read, and return its result. Raises the error of the attempt."""
        attempt = Attempt(job, job.surround(function.retry), self._life)
        error: BaseException | None = None
        result = None
        try:
            await self._begin(attempt)
            result = function.call(*args, **named, **await self._values(function, attempt))
            if function.executor == "coroutine":
                result = await result
        except BaseException as raised:  # noqa: BLE001 - as in `run`
            error = raised
        error = await attempt.leave(error, result)
        if error is not None:
            raise error
        return result

    async def _begin(self, attempt: Attempt) -> None:
        for middleware in self._middleware:
            await attempt.enter(frame_of(middleware, attempt.job))

    async def _values(self, function: Function, attempt: Attempt) -> dict[str, Any]:
        if not self._provided or self._life.leaves_out(function.name):
            return {}
        return await self._provide(self._provided, attempt, {})

    async def _provide(
        self, provided: Mapping[str, Provided], attempt: Attempt, values: dict[Any, Any]
    ) -> dict[str, Any]:
        """Return the values of parameters. ``values`` has those of the attempt so far: each provider is called once."""
        life, named = self._life, {}
        for name, mark in provided.items():
            provider = life.provider(mark)
            key = provider, mark.per
            if key not in values:
                if mark.per == "worker":
                    values[key] = await life.shared(provider)
                else:
                    inner = await self._provide(life.needs(provider), attempt, values)
                    values[key] = await attempt.enter(frame_of(provider, **inner))
            named[name] = values[key]
        return named
