"""Guards at run time: workflow code may not read the clock, use chance, open files or sockets, or start threads and processes.

A replay would get other values, or do it a second time. The first activation of a process replaces the guarded functions of the
standard library in their modules, for good: to replace them in each activation would add a tenth to it. The replacements
act only while workflow code runs, in its thread. An audit hook reports files, sockets, processes and threads. Both
judge the direct caller: logging, for example, reads the clock for its own purposes. They do not reach ``datetime.now``, and names
from ``from time import time``: `lint` finds those in the code. Functions of asyncio are replaced in the same way.

`REPLACED` has asyncio's ``gather``, ``wait_for`` and ``as_completed`` for workflow code, the same with every version of Python.

CPython has changed when they resume their callers: ``gather`` no longer waits a turn for futures that have ended (3.12), and
``wait_for`` no longer makes a task (3.12). A run that was begun with one version has to go on with the next one in the same
order. These functions replace asyncio's, and call them outside of workflows.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import functools
import os
import random
import secrets
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import WorkflowUsageError
from mainspring.workflow_code.loop import WorkflowFuture, WorkflowLoop
from mainspring.workflow_code.model import ContinueAsNew
from mainspring.workflow_code.workflow_jobs import WorkflowJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

_GATHER: Final = asyncio.tasks.gather
_WAIT_FOR: Final = asyncio.tasks.wait_for
_AS_COMPLETED: Final = asyncio.tasks.as_completed


class _Gathering(WorkflowFuture):
    """The future of ``gather``. A cancellation of it cancels its children."""

    __slots__ = ("children", "stopping")

    def __init__(self, loop: WorkflowLoop, children: Sequence[asyncio.Future[Any]]) -> None:
        super().__init__(loop)
        self.children = children
        self.stopping = False
        loop.gatherings.add(self)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        cancelled = [child.cancel(msg=msg) for child in self.children]
        self.stopping = self.stopping or any(cancelled)
        return any(cancelled)

    def fail(self, error: BaseException) -> None:
        """Set the error. A cancellation is not logged if nobody awaits it, as that of a task; asyncio's ``gather`` logs it."""
        self.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            self._log_traceback = False


def gather(*coros_or_futures: Any, return_exceptions: bool = False) -> Any:
    """Run ``asyncio.gather``."""
    loop = _workflow_loop()
    if loop is None:
        return _GATHER(*coros_or_futures, return_exceptions=return_exceptions)
    children_of: dict[Any, asyncio.Future[Any]] = {}
    for one in coros_or_futures:
        if one not in children_of:
            children_of[one] = asyncio.ensure_future(one)
    children = [children_of[one] for one in coros_or_futures]
    outer = _Gathering(loop, children)
    if not children:
        outer.set_result([])
        return outer
    open_children = len(children_of)

    def end(child: asyncio.Future[Any]) -> None:
        nonlocal open_children
        open_children -= 1
        error = _error_of(child)
        if outer.done():
            return
        if error is not None and (not return_exceptions or isinstance(error, ContinueAsNew)):
            outer.fail(error)
        elif not open_children:
            if outer.stopping:
                outer.fail(asyncio.CancelledError())
            else:
                outer.set_result([_value_of(one) for one in children])

    for child in children_of.values():
        child.add_done_callback(end)
    return outer


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if not future.cancelled():
        return future.exception()
    try:
        future.result()
    except asyncio.CancelledError as error:
        return error.with_traceback(None)  # which refers to this frame, and so to the error itself
    return None


def _value_of(future: asyncio.Future[Any]) -> Any:
    error = _error_of(future)
    return future.result() if error is None else error


async def wait_for(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - asyncio's function
    """Run ``asyncio.wait_for``."""
    loop = _workflow_loop()
    if loop is None:
        return await _WAIT_FOR(fut, timeout)
    if timeout is not None and timeout <= 0:
        fut = asyncio.ensure_future(fut)
        if not fut.done():
            fut.cancel()
            await asyncio.wait([fut])
        try:
            return fut.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error
    loop.guarded = fut.handle if isinstance(fut, WorkflowJob) else ""
    async with asyncio.timeout(timeout):
        loop.guarded = ""  # without a limit there is no timer
        return await fut


def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
    """Run ``asyncio.as_completed`` on tasks: it keeps coroutines in a set, in the order of their addresses."""
    if _workflow_loop() is not None:
        fs = [asyncio.ensure_future(one) for one in dict.fromkeys(fs)]
    return _AS_COMPLETED(fs, timeout=timeout)


def _workflow_loop() -> WorkflowLoop | None:
    loop = asyncio._get_running_loop()  # noqa: SLF001 - None outside of loops
    return loop if isinstance(loop, WorkflowLoop) else None


REPLACED: Final = {"gather": gather, "wait_for": wait_for, "as_completed": as_completed}
"""The functions by their names in asyncio."""


_STEP: Final = "or do it in a step, `await workflow.step(f, …)`"
_NOW: Final = f"use `workflow.now()`, {_STEP}"
_RNG: Final = f"use `workflow.rng()`, {_STEP}"
_UUID: Final = f"use `workflow.uuid()`, {_STEP}"
_THREAD: Final = "do it in a step, `await workflow.step(f, …)`, which runs in a thread"
_BYTES: Final = f"use `workflow.rng().randbytes(…)`, {_STEP}"

CLOCK: Final = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "clock_gettime",
    "clock_gettime_ns",
)
"""The functions of ``time`` that read a clock."""
GUARDED: Final[dict[ModuleType, dict[str, str]]] = {
    time: dict.fromkeys(CLOCK, _NOW)
    | dict.fromkeys(("localtime", "gmtime", "ctime", "asctime", "strftime"), _NOW)
    | {"sleep": f"use `await workflow.sleep(…)`, {_STEP}"},
    random: dict.fromkeys(
        [
            "random",
            "uniform",
            "triangular",
            "randint",
            "choice",
            "randrange",
            "sample",
            "shuffle",
            "choices",
            "normalvariate",
            "lognormvariate",
            "expovariate",
            "vonmisesvariate",
            "gammavariate",
            "gauss",
            "betavariate",
            "binomialvariate",
            "paretovariate",
            "weibullvariate",
            "getrandbits",
            "randbytes",
            "seed",
            "getstate",
            "setstate",
            "SystemRandom",
        ],
        _RNG,
    ),
    uuid: dict.fromkeys(("uuid1", "uuid4", "uuid6", "uuid7", "getnode"), _UUID),
    os: {"urandom": _BYTES, "getrandom": _BYTES},
    threading: dict.fromkeys(("_start_new_thread", "_start_joinable_thread"), _THREAD),
    secrets: dict.fromkeys(("token_bytes", "token_hex", "token_urlsafe", "choice", "randbelow", "randbits"), _RNG),
}
"""The guarded functions, with what to use instead."""
WITH_TIME: Final = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
"""Functions of ``time`` that use the clock only without an argument at this place."""

ALLOWED: Final = frozenset(
    [
        "asyncio",
        "importlib",
        "linecache",
        "logging",
        "mainspring",
        "msgspec",
        "structlog",
        "tokenize",
        "traceback",
        "warnings",
        "weakref",
        "zipimport",
    ]
)
"""Packages that may call guarded functions."""
_IMPORT: Final = "importlib._bootstrap"

_EVENTS: Final = {
    "open": "opens a file",
    "os.chmod": "changes a file",
    "os.link": "links a file",
    "os.listdir": "lists a directory",
    "os.mkdir": "creates a directory",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.rmdir": "removes a directory",
    "os.scandir": "lists a directory",
    "os.symlink": "links a file",
    "os.truncate": "changes a file",
    "sqlite3.connect": "opens a database",
    "socket.__new__": "creates a socket",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "socket.getaddrinfo": "resolves a name",
    "socket.gethostbyname": "resolves a name",
    "socket.sendto": "sends to a socket",
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.kill": "sends a signal",
    "os.posix_spawn": "starts a process",
    "os.spawn": "starts a process",
    "os.startfile": "starts a process",
    "os.system": "starts a process",
    "subprocess.Popen": "starts a process",
}
"""Audit events that workflow code may not cause."""
_THROUGH: Final = frozenset(
    [
        "_io",
        "_pyio",
        "_thread",
        "concurrent",
        "contextlib",
        "glob",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "shutil",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "urllib",
        "http",
    ]
)
"""Packages that act for their callers."""


class _Guarding:
    """Whether workflow code runs, and in which thread."""

    __slots__ = ("installed", "lifted", "thread")

    def __init__(self) -> None:
        self.thread = 0
        self.lifted = 0
        self.installed = False


_active: Final = _Guarding()
ORIGINALS: Final[dict[Any, Any]] = {}
"""The guarded functions by the functions that replace them."""


def enter() -> None:
    """Begin to guard: workflow code runs in this thread until ``leave``."""
    if not _active.installed:
        _install()
    _active.thread = threading.get_ident()


def leave() -> None:
    """End to guard."""
    _active.thread = 0


@contextmanager
def unguarded() -> Iterator[None]:
    """Lift the guards for a block of workflow code, on your own responsibility: a replay runs the block again.

    The block must not contain ``await``.
    """
    _active.lifted += 1
    try:
        yield
    finally:
        _active.lifted -= 1


def _install() -> None:
    _active.installed = True
    for module, remedies in GUARDED.items():
        for name, remedy in remedies.items():
            original = getattr(module, name, None)
            title = f"{module.__name__}.{name}"
            if isinstance(original, type):  # still a class: others may derive from it
                original.__new__ = staticmethod(_guard(title, original.__new__, remedy))  # type: ignore[method-assign]
            elif original is not None:
                setattr(module, name, _guard(title, original, remedy))
    for module in (asyncio, asyncio.tasks):
        vars(module).update(REPLACED)
    sys.addaudithook(_audit)


# ---- functions of modules ----


def _guard(name: str, original: Callable[..., Any], remedy: str) -> Callable[..., Any]:
    short = name.partition(".")[2]
    harmless = WITH_TIME.get(short) if name.startswith("time.") else None

    @functools.wraps(original)
    def guard(*args: Any, **kwargs: Any) -> Any:
        if harmless is not None and len(args) > harmless:
            return original(*args, **kwargs)
        if _active.thread and _active.thread == threading.get_ident() and not _active.lifted:
            caller = sys._getframe(1)  # noqa: SLF001 - the guard judges it
            if _is_workflow(caller):
                raise WorkflowUsageError(f"workflow code calls {name}, which a replay cannot repeat: {remedy}")
        return original(*args, **kwargs)

    ORIGINALS[guard] = original
    return guard


def _is_workflow(caller: FrameType) -> bool:
    """Return whether a caller is neither a package that is allowed, nor a module that is being imported."""
    if caller.f_globals.get("__name__", "").partition(".")[0] in ALLOWED:
        return False
    frame: FrameType | None = caller
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_IMPORT):
            return False
        if name == "mainspring.workflow_code.loop":
            return True
        frame = frame.f_back
    return True


# ---- files, sockets, processes, threads ----


def _audit(event: str, _args: Any) -> None:
    if _active.thread and event in _EVENTS and not _active.lifted and _active.thread == threading.get_ident():
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the hook's caller
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _THROUGH:
            frame = frame.f_back
        if frame is not None and _is_workflow(frame):
            raise WorkflowUsageError(
                f"workflow code {_EVENTS[event]} ({event}), which a replay would repeat: do it in a step, `await "
                "workflow.step(f, …)`, or in an activity, `await f.submit(…)`"
            )
