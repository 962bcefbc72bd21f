"""The handlers of runs: methods of a workflow's class, or functions that a run registers.

A handler of a signal is called with each signal of its name. Signals of all names that have handlers are handled in the order of
their arrival: a plain handler runs to its end before the next one begins, and one that is a coroutine function begins in this
order as a task. An error that leaves a handler leaves the workflow: it fails the run, or parks it. A run ends when its handlers
have ended.

`Handlers` has the handlers of one run by kind and name. Most runs have none, and no such object. A class becomes a coroutine
function, by `function_of`, which creates the object of the run and awaits its ``run``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from enum import StrEnum
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from mainspring.client.inside import workflow_calls
from mainspring.client.options import check_short
from mainspring.client.payload import EMPTY, Signature
from mainspring.errors import PayloadError, UsageError, WorkflowUsageError
from mainspring.workflow_code.model import Evicted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.workflow_code.loop import WorkflowLoop, WorkflowTask

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

MOST_HANDLERS: Final = 200
"""Handlers of one kind that a run may have: their names are shown."""


class RunsWorkflow(Protocol[P, R_co]):
    """An object of a workflow's class."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run the workflow."""


class HandlerKind(StrEnum):
    """The requests for which a run may have handlers."""

    SIGNAL = "signal"
    QUERY = "query"


class Handler(NamedTuple):
    """A function for the requests of one kind and name."""

    name: str
    call: Callable[..., Any]
    signature: Signature


class HandlerMethod:
    """A marked method of a workflow's class. On an object, it is the method."""

    kind: HandlerKind
    has_result = False
    """Whether the method's result is sent."""

    def __init__(self, method: Callable[..., Any], name: str | None = None) -> None:
        if not inspect.isfunction(method):
            raise UsageError(
                f"{method!r} is no method: write @workflow.{self.kind} before `def …(self, …)` in the class of a workflow"
            )
        given = list(inspect.signature(method).parameters.values())
        if not given or given[0].kind not in {
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        }:
            raise UsageError(f"{method.__qualname__} has no `self`: a handler is a method of the class of a workflow")
        self.method = method
        self.name = handler_name(self.kind, method.__name__ if name is None else name)
        self.signature = Signature(_without_self(method), self.name)
        check_handler(self.kind, method, self.signature)
        update_wrapper(cast("Any", self), method)

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "run":
            raise UsageError(f"{owner.__name__}.run is the workflow itself: give the handler another name")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.method.__get__(instance, owner)

    def handler(self, instance: object) -> Handler:
        """Return the handler that calls the method of an object."""
        return Handler(self.name, self.method.__get__(instance), self.signature)


class SignalMethod(HandlerMethod, Generic[T]):
    """A method that is called with each signal of its name. ``run.signal(Order.approve, value)`` sends one."""

    kind = HandlerKind.SIGNAL

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> SignalMethod[T]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...

    def encode(self, value: T) -> bytes:
        """Encode a value for the wire. Raises PayloadError if JSON cannot represent it, or its type is wrong."""
        signature = self.signature
        if value is None:
            data = b""
        elif signature.raw or not signature.first:
            data = value if isinstance(value, bytes) else b""
            if not signature.first or not isinstance(value, bytes):
                raise PayloadError(
                    f"signal {self.name} takes {'bytes' if signature.raw else 'no value'}, not {value!r}"
                )
            if not data:
                raise PayloadError(f"the value of signal {self.name} is empty bytes, {EMPTY}")
        else:
            data = signature.encode((value,), {})[1:-1]
        arguments_of_signal(signature, data)
        return data


class QueryMethod(HandlerMethod, Generic[P, R]):
    """A method that answers queries of its name."""

    kind = HandlerKind.QUERY
    has_result = True

    if TYPE_CHECKING:

        def __init__(self, method: Callable[Concatenate[Any, P], R], name: str | None = None) -> None: ...

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> QueryMethod[P, R]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]: ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...


def handler_name(kind: HandlerKind, name: object) -> str:
    """Return the name of a handler. Raises UsageError for one that cannot be."""
    found = check_short(name, f"the name of a {kind}")
    if not found:
        raise UsageError(f"the name of a {kind} must not be empty")
    return found


def check_handler(kind: HandlerKind, call: Callable[..., Any], signature: Signature) -> None:
    """Raise UsageError for a handler with parameters that its requests do not give, and for one of queries that would wait."""
    name = getattr(call, "__qualname__", signature.name)
    waits = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if kind is HandlerKind.QUERY and any(check(call) for check in waits):
        raise UsageError(
            f"{name} would wait, and a query is answered at once from what the run has: write it as a plain `def`"
        )
    if signature.provided:
        raise UsageError(
            f"{name} has provided parameters, and code of workflows has none: use them in a task or a step"
        )
    if kind is HandlerKind.SIGNAL:
        try:
            signature.bound((None,), {})
        except TypeError:
            if signature.first or signature.bound((), {}):
                raise UsageError(
                    f"{name} takes one argument, as a handler of signals does: the value of the signal"
                ) from None


def build_handler(kind: HandlerKind, name: object, call: Any) -> Handler:
    """Return the handler that a run registers. Raises UsageError for a value that cannot be one."""
    found = handler_name(kind, name)
    if not callable(call) or hasattr(call, "submit"):
        raise UsageError(f"the handler of the {kind} {found!r} is a function of workflow code, and not {call!r}")
    try:
        signature = Signature(call, found)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the parameters of the handler of the {kind} {found!r} cannot be read: {error}") from None
    check_handler(kind, call, signature)
    return Handler(found, call, signature)


def arguments_of_signal(signature: Signature, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a signal's handler. Raises PayloadError for a value that does not have the declared type."""
    if not signature.first:
        return (), {}
    if signature.raw:
        return (data,), {}
    return signature.decode(b"[" + (data or b"null") + b"]")


def _without_self(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the parameters of a method that its callers give."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    update_wrapper(call, method)
    whole = inspect.signature(method)
    call.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


# ---- classes ----


def methods_of(kind: type) -> tuple[HandlerMethod, ...]:
    """Return the marked methods of a class and of its bases, each once. Raises UsageError if two have one name."""
    found: dict[str, HandlerMethod] = {}
    for base in reversed(kind.__mro__):
        for attribute, value in vars(base).items():
            found.pop(attribute, None)  # a subclass may replace a handler by another method
            if isinstance(value, HandlerMethod):
                found[attribute] = value
    names: dict[tuple[HandlerKind, str], str] = {}
    for attribute, method in found.items():
        other = names.setdefault((method.kind, method.name), attribute)
        if other != attribute:
            raise UsageError(
                f"{kind.__name__}.{other} and {kind.__name__}.{attribute} are both handlers of the {method.kind} "
                f"{method.name!r}: give one of them another name, @workflow.{method.kind}(name=…)"
            )
    return tuple(found.values())


def function_of(kind: type) -> tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[HandlerMethod, ...]]:
    """Return the coroutine function of a workflow's class, which has the parameters of its ``run``, and the marked methods.

    Raises UsageError for a class that cannot be a workflow.
    """
    run = getattr(kind, "run", None)
    if not inspect.isfunction(run) or not inspect.iscoroutinefunction(run):
        raise UsageError(f"{kind.__name__} has no method `async def run(self, …)`, as the class of a workflow has")
    try:
        inspect.signature(kind).bind()
    except TypeError:
        raise UsageError(
            f"{kind.__name__} cannot be created without arguments: the arguments of a run are those of its method `run`"
        ) from None
    methods = methods_of(kind)

    async def call(*args: Any, **kwargs: Any) -> Any:
        calls: Any = workflow_calls()
        instance = kind()
        if methods:
            handlers: Handlers = calls.use_handlers()
            for method in methods:
                handlers.add(method.kind, method.handler(instance))
            handlers.handle_arrived()
            handlers.check()
        return await instance.run(*args, **kwargs)

    described: Any = _without_self(run)
    update_wrapper(call, described)
    call.__signature__ = described.__signature__  # type: ignore[attr-defined]
    call.__name__, call.__qualname__ = kind.__name__, kind.__qualname__
    call.__module__, call.__doc__ = kind.__module__, kind.__doc__ or run.__doc__
    call.workflow_class = kind  # type: ignore[attr-defined]
    return call, methods


# ---- the handlers of a run ----


class Handlers:
    """The handlers of one run, and the signals that wait for them.

    ``cancel_main`` cancels the main task; ``take_signals`` empties the queue of a name, and returns the events and values;
    ``may_handle`` returns whether the run goes on, so that signals may be taken.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        cancel_main: Callable[[], None],
        take_signals: Callable[[str], list[tuple[int, bytes]]],
        may_handle: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._cancel_main = cancel_main
        self._take_signals = take_signals
        self._may_handle = may_handle
        self._warn = warn
        self._by_kind: dict[HandlerKind, dict[str, Handler]] = {kind: {} for kind in HandlerKind}
        self._arrived: deque[tuple[int, str, bytes]] = deque()
        """The signals that no handler has got: event, name and value, in the order of arrival."""
        self._is_due = False
        """Whether the loop is about to handle them."""
        self._running: dict[WorkflowTask, None] = {}
        """The tasks of handlers that have not ended, in order."""
        self._ends_anew = False
        """Whether the run continues as new, so that signals are for the next run."""
        self.error: BaseException | None = None
        """The first error that has left a handler."""

    # ---- registering ----

    def add(self, kind: HandlerKind, handler: Handler) -> None:
        """Add a handler, in place of one with its kind and name. Signals that have arrived wait for ``handle_arrived``."""
        present = self._by_kind[kind]
        if handler.name not in present and len(present) >= MOST_HANDLERS:
            raise WorkflowUsageError(
                f"the run has {MOST_HANDLERS} handlers of {kind} requests, and no more are allowed"
            )
        present[handler.name] = handler
        if kind is HandlerKind.SIGNAL and (waiting := self._take_signals(handler.name)):
            signals = [*self._arrived, *((event, handler.name, data) for event, data in waiting)]
            self._arrived = deque(sorted(signals))

    def find(self, kind: HandlerKind, name: str) -> Handler | None:
        """Return a handler; None if there is none."""
        return self._by_kind[kind].get(name)

    def names(self, kind: HandlerKind) -> tuple[str, ...]:
        """Return the names of the handlers of a kind, in the order of their registrations."""
        return tuple(self._by_kind[kind])

    # ---- signals ----

    def arrived(self, event: int, name: str, data: bytes) -> bool:
        """Take a signal for which there is a handler; return False if there is none. The loop handles it."""
        if name not in self._by_kind[HandlerKind.SIGNAL]:
            return False
        self._arrived.append((event, name, data))
        self.handle_soon()
        return True

    def handle_soon(self) -> bool:
        """Let the loop handle the signals that have arrived, after what is ready. Return whether it is going to."""
        if self._arrived and not (self._is_due or self._ends_anew) and self.error is None:
            self._is_due = True
            self._loop.call_soon(self.handle_arrived, context=self._loop.context.copy())
        return self._is_due

    def handle_arrived(self) -> None:
        """Call the handlers of the signals that have arrived, in order, unless the run ends."""
        self._is_due = False
        while self._arrived and self.error is None and not self._ends_anew and self._may_handle():
            _, name, data = self._arrived.popleft()
            self._handle(self._by_kind[HandlerKind.SIGNAL][name], data)

    def _handle(self, handler: Handler, data: bytes) -> None:
        try:
            args, named = arguments_of_signal(handler.signature, data)
        except PayloadError as error:
            self._warn(f"a signal was ignored: {error}")
            return
        try:
            result = handler.call(*args, **named)
        except Evicted:
            raise
        except BaseException as error:  # noqa: BLE001 - it leaves the workflow
            self._fail(error)
            return
        if inspect.iscoroutine(result):
            _ = self.start(result, f"signal {handler.name}")

    def unread(self) -> tuple[int, ...]:
        """Return the events of the signals that no handler has got."""
        return tuple(event for event, _, _ in self._arrived)

    # ---- tasks ----

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> WorkflowTask:
        """Run a coroutine of a handler as a task. The run ends after it; an error that leaves it leaves the workflow."""
        task: Any = self._loop.create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task  # type: ignore[no-any-return]

    def _ended(self, task: Any) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let an error leave the workflow in its main task."""
        if self.error is None:
            self.error = error
            self._cancel_main()

    def check(self) -> None:
        """Raise the first error that has left a handler."""
        if self.error is not None:
            raise self.error

    async def finish(self, *, ends_anew: bool = False) -> None:
        """Wait until the handlers have ended. Raises the first error that leaves one.

        ``ends_anew``: signals that arrive from now on are for the next run.
        """
        self._ends_anew = ends_anew
        self.check()
        while self._running:
            try:
                await asyncio.wait(list(self._running))
            except asyncio.CancelledError:
                self.check()
                raise
            self.check()

    def close(self) -> None:
        """Forget the handlers, their objects and their errors."""
        for handlers in self._by_kind.values():
            handlers.clear()
        self._arrived.clear()
        self._running.clear()
        self.error = None
        self._cancel_main = lambda: None
        self._warn = lambda _: None
        self._take_signals = lambda _: []
