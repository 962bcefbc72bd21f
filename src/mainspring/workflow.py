"""The names that a workflow imports: ``from mainspring import workflow``.

They work inside of a workflow only, except ``log``; outside they raise WorkflowUsageError.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

from mainspring.client.inbox import DEFAULT_SCHEMA, check_schema
from mainspring.client.options import Duration, check_progress, check_short, check_text, seconds
from mainspring.client.resources import LabelledResource
from mainspring.client.resources import hold as hold_slots
from mainspring.client.run import check_run_key, encode_signal
from mainspring.client.submission import Submission
from mainspring.errors import UsageError, WorkflowUsageError
from mainspring.jobs.completion_rules import DEFAULT_EXPIRY, check_spans
from mainspring.streams.model import check_name as check_stream
from mainspring.workflow_code.api import Calls, current, log
from mainspring.workflow_code.endings import Saga
from mainspring.workflow_code.guards import unguarded
from mainspring.workflow_code.handlers import HandlerKind, SignalMethod, build_handler
from mainspring.workflow_code.mapping import run_map
from mainspring.workflow_code.model import ContinueAsNew, Transaction
from mainspring.workflows.model import RunProgress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from random import Random
    from uuid import UUID

    from mainspring.client.job import Job
    from mainspring.client.resources import HeldSlots, Resource
    from mainspring.client.run import SignalType
    from mainspring.workflow_code.model import Record

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_MOST_TEXT = 256
"""Characters of the text of progress."""

_IN_QUERIES = frozenset({"info", "now", "should_continue"})
"""Calls that change nothing."""

__all__ = [
    "ContinueAsNew",
    "External",
    "Held",
    "Info",
    "Saga",
    "Stream",
    "continue_as_new",
    "external",
    "external_event",
    "hold",
    "info",
    "log",
    "map",
    "now",
    "on_signal",
    "patched",
    "progress",
    "publish",
    "rng",
    "should_continue",
    "side_effect",
    "signal",
    "sleep",
    "step",
    "stream",
    "unguarded",
    "uuid",
    "wait_until",
]


class Info(NamedTuple):
    """The run whose code asks."""

    run: int
    id: str
    """The workflow id."""
    type: str
    version: str
    started_at: datetime
    events: int
    """Events of the history that the code has been given."""
    attempt: int
    """The number of the attempt, from 1 on: see ``retry`` of ``app.workflow``."""


def info() -> Info:
    """Return the run."""
    calls = _calls("info")
    started = calls.started
    return Info(
        calls.state.run,
        started.workflow_id,
        started.type,
        started.version,
        calls.started_at(),
        calls.state.seen,
        started.attempt,
    )


def progress(done: int, total: int, text: str = "") -> None:
    """Report how much of the run is done, for people and for clients that wait for it. Only the newest report counts.

    It goes to the node with the next decision, and is in no history. Raises UsageError for numbers that are not whole or are
    negative, and for a text of more than 256 characters.
    """
    calls = _calls("progress")
    numbers = check_progress(done, total)
    if len(check_text(text, "text")) > _MOST_TEXT:
        raise UsageError(f"the text of progress has {len(text)} characters; at most {_MOST_TEXT} are shown: shorten it")
    calls.progress = RunProgress(*numbers, text)


def publish(name: str, value: Any, /) -> None:
    """Publish a value of the run, which programs and people can read while it runs and afterwards: the last one of each name.

    It is what JSON makes of it. It goes to the node with the next report about the run, and is stored together with that: a value
    is never ahead of the history, and replays do not publish again. It is in no history. The runs of a chain share their names.

    Raises UsageError for a name that is empty, longer than 100 characters or not printable, for more than 100 names, for a value
    of more than 64 KiB, and for more than 1 MiB in all; PayloadError for a value that JSON cannot represent.
    """
    _calls("publish").publish(name, value)


class Stream:
    """A stream of a run, for the code of its workflow; ``stream`` returns it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = check_stream(name)

    def write(self, item: Any, /) -> None:
        """Append an item: a text, or any value that JSON can represent.

        It goes to the node with the next report about the run, and is stored together with that: an item is never ahead of the
        history, and replays do not write again. It is in no history.

        Raises UsageError for an item of more than 64 KiB, for more than 20 streams, and for more than 16 MiB in all, where each
        item counts 16 bytes more; PayloadError for an item that JSON cannot represent.
        """
        _calls("stream").write_item(self.name, item)


def stream(name: str, /) -> Stream:
    """Return a stream of the run, to which its code appends items that others read live or later.

    The runs of a chain share their streams. Raises UsageError for a name that is empty, longer than 100 characters or not
    printable.
    """
    return Stream(name)


def now() -> datetime:
    """Return the time of the decision, aware and in UTC, by the node's clock. It never goes back, and replays repeat it."""
    return _calls("now").now()


def rng() -> Random:
    """Return the run's generator of random numbers, which replays repeat."""
    return _calls("rng").rng


def uuid() -> UUID:
    """Return a random UUID, which replays repeat."""
    return _calls("uuid").uuid()


async def sleep(duration: Duration) -> None:
    """Sleep, up to a year: a durable timer. A time of 0 is none."""
    _calls("sleep")
    await asyncio.sleep(seconds(duration, "duration"))


@overload
def signal(method: Callable[[Any, T], object], /) -> SignalMethod[T]: ...
@overload
def signal(method: Callable[[Any], object], /) -> SignalMethod[None]: ...
@overload
def signal(*, name: str) -> MarkSignal: ...
def signal(method: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Mark a method of a workflow's class as the handler of signals: ``@workflow.signal``.

    It is called with the value of each signal of its name, by default the method's, in the order in which signals arrive. It has
    one parameter, or none. A coroutine method begins in this order, and goes on beside ``run``; the run ends after it. An
    error that leaves the method leaves the workflow. A signal whose value does not have the declared type is logged and ignored.

    Raises UsageError for a method that cannot be a handler.
    """
    return SignalMethod(method, name) if method is not None else MarkSignal(name)


def on_signal(signal: SignalType[Any] | str, handler: Callable[..., Any], /) -> None:
    """Call a function with each signal of a name, as a marked method of a class is called: see ``signal``.

    It also gets the signals of the name that have arrived before, and takes the place of an earlier handler. ``signal`` is a
    declared signal or a name.

    Raises UsageError for a function that cannot be a handler, and WorkflowUsageError if code waits to receive the signal.
    """
    handlers = _calls("on_signal").use_handlers()
    name = signal if isinstance(signal, str) else signal.name
    handlers.add(HandlerKind.SIGNAL, build_handler(HandlerKind.SIGNAL, name, handler))
    handlers.handle_soon()


class MarkSignal:
    """The decorator ``@workflow.signal(name=…)``."""

    def __init__(self, name: str | None) -> None:
        self._name = name

    @overload
    def __call__(self, method: Callable[[Any, T], object], /) -> SignalMethod[T]: ...
    @overload
    def __call__(self, method: Callable[[Any], object], /) -> SignalMethod[None]: ...
    def __call__(self, method: Callable[..., Any], /) -> SignalMethod[Any]:
        """Mark a method. Raises UsageError for one that cannot be a handler."""
        return SignalMethod(method, self._name)


async def wait_until(condition: Callable[[], object], timeout: Duration | None = None) -> None:  # noqa: ASYNC109 - durable
    """Wait until a condition is true. It is checked after each activation, in the order of the calls.

    Raises TimeoutError if it does not become true in time, and the errors of the condition.
    """
    calls = _calls("wait_until")
    if condition():
        return
    if timeout is None:
        await calls.wait_until(condition)
        return
    limit = seconds(timeout, "timeout")
    calls.loop.guarded = "a condition"
    async with asyncio.timeout(limit):
        calls.loop.guarded = ""  # a timeout of 0 has no timer
        await calls.wait_until(condition)


@overload
def step(  # type checkers use the first overload that fits
    function: Callable[Concatenate[Any, ...], Coroutine[Any, Any, R]],
    /,
    *args: Any,
    connection: Callable[[], Any],
    schema: str = DEFAULT_SCHEMA,
    name: str | None = None,
    record: Record = "each",
    **kwargs: Any,
) -> Job[R]: ...
@overload
def step(
    function: Callable[Concatenate[Any, ...], R],
    /,
    *args: Any,
    connection: Callable[[], Any],
    schema: str = DEFAULT_SCHEMA,
    name: str | None = None,
    record: Record = "each",
    **kwargs: Any,
) -> Job[R]: ...
@overload
def step(
    function: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    name: str | None = None,
    record: Record = "each",
    **kwargs: Any,
) -> Job[R]: ...
@overload
def step(
    function: Callable[..., R], /, *args: Any, name: str | None = None, record: Record = "each", **kwargs: Any
) -> Job[R]: ...
def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    connection: Callable[[], Any] | None = None,
    name: str | None = None,
    record: Record = "each",
    **kwargs: Any,
) -> Any:
    """Run a function or a task as a local step: on this worker, with a recorded result, which replays repeat.

    ``record="each"``: the result is on disk before the next effect starts. ``"together"``: it is recorded with the decision; a
    crash may repeat the step with another result, so use it for reads and computations.

    ``connection`` opens a connection to the database of a PostgreSQL store, whose schema is ``schema``. The function gets it as
    its first argument, in a transaction that also records the step: what the function has written there is committed exactly
    once. It is called without arguments for each attempt, and returns a connection of asyncpg, psycopg, SQLAlchemy or
    Django, or a session of SQLAlchemy, an awaitable of one, or its context manager: ``pool.acquire``, ``engine.connect``.
    """
    transaction = None
    if connection is not None:
        transaction = Transaction(connection, check_schema(kwargs.pop("schema", DEFAULT_SCHEMA)))
    return _calls("step").step(function, args, kwargs, name, record, transaction)


def external_event(
    task: Submission[P, R],
    /,
    *args: Any,
    expires: Duration = DEFAULT_EXPIRY,
    heartbeat: Duration | None = None,
    **kwargs: Any,
) -> Job[R]:
    """Submit a task that starts something elsewhere, and wait for its answer: the result of the job is that of its completion.

    The task asks for its completion token, ``current_job().completion_token()``, and gives it to the other system, which answers
    with it. Awaiting the job raises JobFailed if the task returns without asking, if it or the other system fails, if no answer
    comes before the token ``expires``, or if no sign of life comes in a span of ``heartbeat``. The task's own time limit is for
    the task alone. ``schedule_to_close`` of ``task.options(…)`` bounds all attempts and waits together.
    """
    calls = _calls("external_event")
    given: object = task
    call = given.activity() if isinstance(given, Submission) else None
    if call is None:
        raise WorkflowUsageError(f"workflow.external_event takes a task and its arguments, and not {task!r}")
    spans = seconds(expires, "expires"), 0.0 if heartbeat is None else seconds(heartbeat, "heartbeat")
    check_spans(spans[0], spans[1] or None)
    return cast("Job[R]", calls.submit(call, args, kwargs, spans))


def continue_as_new(*args: Any, **kwargs: Any) -> ContinueAsNew:
    """Return an exception that ends the run, and begins the workflow anew with these arguments: ``raise`` it.

    The new run has the same workflow id, the same handle and an empty history. Signals that the code has not received go along
    in their order. Raise it out of the workflow function, directly or from a function or task that it awaits. It is no
    Exception, so ``except Exception`` lets it pass.

    Raises TypeError or PayloadError if the arguments do not fit the workflow.
    """
    return _calls("continue_as_new").continue_as_new(args, kwargs)


def patched(patch: str, /) -> bool:
    """Return whether the code of a run goes the new way at a change: ``if workflow.patched("check-stock"): …``, else the old one.

    It is true in each new decision, and in replayed ones from the first that has recorded it on. Within one decision it does not
    change.
    """
    return _calls("patched").patches.patched(patch)


def should_continue() -> bool:
    """Return whether the history has become long, so that the run should continue as new: from 10,000 events or 10 MiB on.

    It may become true with each decision. Replays repeat it.
    """
    return _calls("should_continue").should_continue()


@overload
async def map(  # noqa: A001 - the name that users expect
    task: Submission[..., R] | Callable[..., Awaitable[R]],
    items: Iterable[Any],
    *,
    limit: int = 100,
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
async def map(  # noqa: A001
    task: Submission[..., R] | Callable[..., Awaitable[R]],
    items: Iterable[Any],
    *,
    limit: int = 100,
    return_exceptions: bool,
) -> list[R | Exception]: ...
async def map(  # noqa: A001
    task: Any, items: Iterable[Any], *, limit: int = 100, return_exceptions: bool = False
) -> list[Any]:
    """Submit a task for each item, at most ``limit`` at a time, and return the results in the order of the items.

    ``task`` is a task or a function of workflow code, such as ``f.step`` or a coroutine function. An item is a tuple of
    positional arguments, a dict of keyword arguments, or the only argument. All items are tried.

    Raises MapFailed if some fail. With ``return_exceptions``, their errors take the places of their results instead.
    """
    return await run_map(_calls("map"), task, items, limit, return_exceptions=return_exceptions)


def side_effect(function: Callable[[], R]) -> R:
    """Call a short function at once, and record its result with the decision; replays repeat the result.

    The result is what JSON makes of it.
    """
    return cast("R", _calls("side_effect").side_effect(function))


class Held:
    """The slots of several resources that a block of a workflow has."""

    def __init__(self, slots: Mapping[str, HeldSlots]) -> None:
        self._slots = slots

    def __getitem__(self, resource: Resource | LabelledResource) -> HeldSlots:
        """Return what the block has of a resource."""
        name = (resource.resource if isinstance(resource, LabelledResource) else resource).name
        slots = self._slots.get(name)
        if slots is None:
            raise UsageError(f"the block has nothing of the resource {name!r}: hold(…) must name it")
        return slots

    def __repr__(self) -> str:
        return f"Held({dict(self._slots)})"


def hold(
    uses: Mapping[Any, int],
    *,
    timeout: Duration | None = None,
) -> AbstractAsyncContextManager[Held]:
    """Hold slots of several resources in a block, all or none.

    ``async with workflow.hold({licences: 2, printers["colour"]: 1}, timeout="1h") as held`` begins when the run has all of
    them, and gives them back at its end. The run keeps them over restarts of workers and nodes, and loses them with its own end,
    whatever that is. ``held[printers]`` says which it has.

    Raises HoldTimedOut if they are not free within ``timeout``.
    """
    _calls("hold")
    return hold_slots(uses, timeout, Held)


class External:
    """Another run, to which a workflow sends requests. They arrive in the order in which the code makes them."""

    def __init__(self, key: str) -> None:
        self.key = check_run_key(key)

    def __repr__(self) -> str:
        return f"External({self.key!r})"

    @overload
    def signal(self, signal: SignalType[T], value: T) -> asyncio.Future[None]: ...
    @overload
    def signal(self, signal: SignalType[None] | str, value: Any = None) -> asyncio.Future[None]: ...
    def signal(self, signal: SignalType[Any] | str, value: Any = None) -> asyncio.Future[None]:
        """Send a signal. Awaiting it returns when the run has it.

        Awaiting raises NotFoundError if no such run is open, or its history is full. Raises PayloadError if the value does not
        have the signal's type.
        """
        return _calls("external").signal_run(self.key, *encode_signal(signal, value))

    def cancel(self, reason: str = "") -> asyncio.Future[None]:
        """Ask the run to cancel itself. Awaiting it returns when the run has the request, and raises as that of ``signal``."""
        return _calls("external").cancel_run(self.key, check_short(reason, "a reason"))


def external(key: str) -> External:
    """Return another run by its handle or workflow id, to signal or cancel it.

    Raises UsageError if the text can be neither.
    """
    _calls("external")
    return External(key)


def _calls(name: str) -> Calls:
    calls = current()
    if calls is None:
        raise WorkflowUsageError(
            f"workflow.{name} works only inside of a workflow: call it in an @app.workflow function"
        )
    if calls.state.query and name not in _IN_QUERIES:
        calls.check_query(f"workflow.{name}")
    return calls
