"""The surroundings of a client's call: a task of a worker, or a workflow.

A worker sets ``waiter`` in the context of each task. Both clients call it when a wait for jobs begins and ends, so that the
worker can run the awaited jobs although tasks hold its places. Outside of tasks, ``waiter`` is None. A blocking call in a
coroutine would stop the worker's event loop, and with it all other jobs of the process. It may also wait for a job that this
process would have to run. `check_may_block` refuses it.

The event loop of a workflow has the attribute ``workflow_calls``; the package that runs the code of workflows sets it.
"""

from __future__ import annotations

import contextlib
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mainspring.errors import UsageError, WorkflowUsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator

    from mainspring.client.options import Options


class Awaited:
    """A job that a task waits for.

    ``refuse`` ends the wait with an error that is raised in the task. It may be called from any thread; it does nothing if the
    wait is over.
    """

    __slots__ = ("handle", "refuse")

    def __init__(self, handle: str, refuse: Callable[[BaseException], None]) -> None:
        self.handle = handle
        self.refuse = refuse


class Waiter(Protocol):
    """A running task that can wait for jobs, on the worker's side.  Called from any thread."""

    @property
    def loop(self) -> AbstractEventLoop | None:
        """Return the event loop that runs the task's coroutine; None for a plain function."""

    @property
    def depth(self) -> int:
        """Return how many deliveries of events have led to the task's job."""

    def waits(self, awaited: Awaited) -> None:
        """Record that a wait begins."""

    def continues(self, awaited: Awaited) -> None:
        """Record that a wait is over, with or without the job's outcome."""


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None. Commands that need no event loop do not load asyncio for it."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - the public form raises an error for none


waiter: Final[ContextVar[Waiter | None]] = ContextVar("mainspring_waiter", default=None)


def current_depth() -> int:
    """Return the depth of the job whose code makes a request; 0 outside of jobs. Nodes stop circles by it."""
    task = waiter.get()
    return 0 if task is None else task.depth


def check_may_block() -> None:
    """Raise UsageError in a task's coroutine: the call would block the event loop that runs it.

    A plain function may block, and a coroutine may call it in a thread. Loops of a program's own are not checked: they may have
    nothing else to do.
    """
    loop = running_loop()
    if loop is None:
        return
    task = waiter.get()
    if task is not None and task.loop is loop:
        raise UsageError(
            "a blocking call does not work inside of an `async def` task, because it would stop the event loop and so all other "
            "jobs of the worker: use the method that begins with `a`, such as `await f.asubmit(…)` or `await job.aresult()`, or "
            "define the task with `def`"
        )


@contextlib.contextmanager
def announced(handle: str, refuse: Callable[[BaseException], None]) -> Iterator[None]:
    """Notify the worker of this context's task, if there is one, while the block waits for a job."""
    task = waiter.get()
    if task is None:
        yield
        return
    awaited = Awaited(handle, refuse)
    task.waits(awaited)
    try:
        yield
    finally:
        task.continues(awaited)


class ActivityCall(NamedTuple):
    """A submission as a workflow needs it."""

    name: str
    codec: Any
    options: Options
    unique: bool
    key: Any
    transactional: bool
    """Whether it was given a database connection."""
    connections: Any
    decode: Callable[[bytes], Any]


class ChildCall(NamedTuple):
    """The start of a run as a workflow needs it."""

    name: str
    codec: Any
    options: Options
    unique: str
    connections: Any
    decode: Callable[[bytes], Any]
    is_part: bool = False
    """Whether it runs a part of a map in place of the workflow's function."""


class WorkflowCalls(Protocol):
    """The calls that workflow code makes on tasks."""

    def log(self, line: Any, size: int) -> None:
        """Add a line of the code, of about so many bytes, to the log of the run."""

    def submit(self, call: ActivityCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Schedule an activity."""

    def start_child(self, call: ChildCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a child."""

    def step(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a task as a local step."""

    def hold_slots(self, uses: Any, timeout: float | None, pick: Callable[[dict[str, Any]], Any]) -> Any:
        """Return a block that has slots of resources: an asynchronous context manager, whose value ``pick`` returns."""


def workflow_calls() -> WorkflowCalls | None:
    """Return the receiver of calls in the workflow whose code is running; None outside of workflows."""
    loop = running_loop()
    return None if loop is None else getattr(loop, "workflow_calls", None)


def keeps_inexact_values() -> bool:
    """Return whether the running code belongs to a run that began before values which JSON changes were refused.

    Its replay has to record what it recorded then. The loop's ``semantics`` is that of `mainspring.workflows.model`.
    """
    loop = running_loop()
    return loop is not None and getattr(loop, "semantics", _REFUSES_INEXACT) < _REFUSES_INEXACT


_REFUSES_INEXACT: Final = 2


def check_outside(what: str, remedy: str) -> None:
    """Raise WorkflowUsageError inside of a workflow."""
    if workflow_calls() is not None:
        raise WorkflowUsageError(f"{what} does not work inside of a workflow: {remedy}")
