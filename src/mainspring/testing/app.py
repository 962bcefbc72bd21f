"""An App's tasks in memory, with a clock that the test advances.

Tests may give stand-ins for the code of tasks. The log of the node and of the worker goes to ``logging``, and not to standard
output. Runs of workflows are replayed: often enough to find a difference early, and in the end of each whole history.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import logging
import tempfile
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import structlog
from msgspec import convert

from mainspring.api.listeners import DeclareListeners
from mainspring.callbacks import awaited
from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers
from mainspring.client.options import Duration, seconds
from mainspring.definitions import Defined
from mainspring.errors import UsageError
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import Handles, node_id
from mainspring.quantities import format_duration
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.node import Shutdown
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.storage.agenda import FetchTimes
from mainspring.testing import histories
from mainspring.testing.histories import differences
from mainspring.testing.passing_time import SETTLE_TIMEOUT, Delays, ManualClock, PassingTime, interrupt, place_of, until
from mainspring.worker.around import Life
from mainspring.worker.executors.process import TASK_PROCESS
from mainspring.worker.functions import check_annotations, check_workflows
from mainspring.worker.link import connector
from mainspring.worker.processes import new_event_loop
from mainspring.worker.registry import Registry
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflows.decider import WorkflowDecider
from mainspring.worker.workflows.replay_checks import CHECKED_EVENTS, ReplayChecks
from mainspring.workflows.history import decode_events
from mainspring.workflows.history_json import HistoryFile
from mainspring.workflows.model import YEAR
from mainspring.workflows.payloads import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring.api.handlers.registry import Api
    from mainspring.app import App
    from mainspring.client.job import Job
    from mainspring.engines.memory.engine import MemoryEngine
    from mainspring.engines.memory.tables import Tables
    from mainspring.server.node import Node
    from mainspring.testing.histories import History
    from mainspring.worker.registry import Function
    from mainspring.worker.workflows.runs import Run
    from mainspring.workflows.store import RunRow

PACKAGE: Final = "mainspring"
_lock = threading.Lock()
_blocks = 0
_before: Any = None
"""The factory of loggers before the first block, if structlog was configured: by `structlog.testing.capture_logs`, say."""


class _ToLogging:
    """A logger of structlog that passes rendered lines to the logger ``mainspring`` of ``logging``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(logging.getLogger(PACKAGE), name)


def _logger(*arguments: Any) -> Any:
    """Return the logger for ``structlog.get_logger(name)``: our own goes to ``logging``, others print as by default."""
    is_own = bool(arguments) and str(arguments[0]).partition(".")[0] == PACKAGE
    return _ToLogging() if is_own else structlog.PrintLogger()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print no log in this block. pytest shows the lines of a failed test. A program with its own factory of loggers keeps it."""
    global _blocks, _before  # noqa: PLW0603 - structlog's configuration is the process's, and blocks may overlap
    with _lock:
        factory = structlog.get_config()["logger_factory"]
        is_ours = bool(_blocks) or type(factory) is structlog.PrintLoggerFactory
        if is_ours:
            if not _blocks:
                _before = factory if structlog.is_configured() else None
            _blocks += 1
            structlog.configure(logger_factory=_logger)
    try:
        yield
    finally:
        with _lock:
            if is_ours:
                _blocks -= 1
                if not _blocks and _before is None:
                    structlog.reset_defaults()
                elif not _blocks:
                    structlog.configure(logger_factory=_before)


class Mocks:
    """The outcomes of mocked functions, by name. Functions call their own code until they are mocked."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Any] = {}

    def set(self, name: str, outcome: Any) -> None:
        """Give a function an outcome from its next call on: a result, an exception to raise, or a function to call instead."""
        self._outcomes[name] = outcome

    def substitute(self, function: Function) -> Function:
        """Return a function that calls the given one, unless it is mocked."""
        name, call = function.name, function.call
        is_coroutine = inspect.iscoroutinefunction(call)
        if is_coroutine:

            @functools.wraps(call)
            async def substitute(*args: Any, **named: Any) -> Any:
                found = self._call(name, call, args, named)
                return await found if inspect.isawaitable(found) else found
        else:

            @functools.wraps(call)
            def substitute(*args: Any, **named: Any) -> Any:
                return self._call(name, call, args, named)

        return replace(function, call=substitute)

    def has(self, name: str) -> bool:
        """Return whether a function is mocked: it then needs no values of providers."""
        return name in self._outcomes

    def _call(self, name: str, call: Any, args: Any, named: Any) -> Any:
        if name not in self._outcomes:
            return call(*args, **named)
        outcome = self._outcomes[name]
        if isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException)):
            raise outcome
        return outcome(*args, **named) if callable(outcome) else outcome


EACH_UP_TO: Final = 100
"""Events of a history up to which the run is replayed for each decision; above, whenever the history has doubled."""


class GrowingChecks(ReplayChecks):
    """Chooses decisions of cached runs so that the time for replays stays proportional to the events."""

    def __init__(self) -> None:
        super().__init__(each=True)
        self._checked: dict[int, int] = {}
        """The events of the last check, by run."""

    def choose(self, run: Run, last: int) -> bool:
        """Return whether to replay a cached run with ``last`` events for the decision that was assigned."""
        if not self._is_due(run, last) or not super().choose(run, last):
            return False
        self._checked[run.id] = last
        return True

    def prevent_fusing(self, run: Run) -> bool:
        """Return whether to check the decision that follows ended activities."""
        return self._is_due(run, run.instance.position) and super().prevent_fusing(run)

    def _is_due(self, run: Run, last: int) -> bool:
        return last <= EACH_UP_TO or 2 * self._checked.get(run.id, EACH_UP_TO) <= last <= CHECKED_EVENTS


BLOCKED_AFTER: Final = 10.0
"""Seconds of real time without a turn of the event loop after which the code that blocks it is named."""
LOOK_INTERVAL: Final = 0.5
"""Seconds of real time between two looks at the event loop, while the test waits for it."""
ALL_ALARMS: Final = FetchTimes(2 * YEAR, 2 * YEAR)
"""The node knows the alarms of all runs in advance: it has no other nodes, and its clock skips over long times."""

R = TypeVar("R")


class InMemory:
    """A node and a worker for an App's tasks, run by ``in_memory``. Tests call its methods."""

    def __init__(self, app: App, socket: Path, concurrency: int, *, schedules: bool = True) -> None:
        self.clock = ManualClock()
        self._mocks = Mocks()
        self._delays = Delays(self.clock)
        """The pauses before further attempts of local steps."""
        self._client = Client(parse_servers(f"unix:{socket}"))
        self._checked: dict[int, int] = {}
        """The events of the histories that were replayed, by run."""
        self._app = app
        self._socket = socket
        self._concurrency = concurrency
        self._schedules = schedules
        self._turned = 0.0
        """The monotonic time at which the loop has turned last, as far as it was asked."""
        self._blocked = ""
        """Where code has blocked the loop; empty: nowhere."""
        self._loop = new_event_loop()
        self._decider: WorkflowDecider | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mainspring-in-memory", daemon=True)

    @property
    def now(self) -> datetime:
        """The simulated time, in UTC."""
        return datetime.fromtimestamp(self.clock.wall(), UTC)

    def settle(self) -> None:
        """Wait until no job runs and all due jobs have run, except those that limits or a pause hold back.

        Raises TimeoutError after 10 s, for example because a task waits for something.
        """
        self._run_on_loop(self._time.settle)

    def advance(self, span: Duration, *, settle: bool = True) -> None:
        """Advance the clock by a duration (``"10m"``, a timedelta or seconds), stopping at each due time.

        At each due time, due jobs run to their end before the clock moves on, so that a job's second attempt becomes due at the
        right time. With ``settle=False`` time passes while tasks run: so a test can make a task exceed its timeout.

        Raises TimeoutError as ``settle`` does.
        """
        length = seconds(span, "the time to advance")
        self._run_on_loop(lambda: self._time.advance(length, settle=settle))

    def result(self, job: Job[R], *, within: Duration = "366d", schedules: bool = False) -> R:
        """Return the result of a job or of a run. While nothing runs, the clock skips to the next due time.

        Timers of workflows, delays and retries therefore take no real time. Schedules do not fire meanwhile, unless you ask for
        it with ``schedules``: each fire time of a month would be run. Raises as ``job.result`` does.

        Raises TimeoutError if nothing is due within this time of the clock, or if the clock has skipped for a minute of real
        time, and says what the run waits for. A run whose code differs from its history raises AssertionError with both sides.
        """
        length = seconds(within, "the time to skip")
        identity = Handles.parse(job.handle.encode())
        if identity is None:
            raise UsageError(f"{job.handle!r} is no job of this fleet")
        reason = self._run_on_loop(lambda: self._time.skip(identity, length, schedules=schedules))
        if reason is not None:
            raise histories.unfinished(self._client, job.handle, reason)
        self._check(identity)
        return job.result(timeout=SETTLE_TIMEOUT)

    def mock(self, task: object, outcome: object) -> None:
        """Replace the code of a task until the block ends, also where workflows call it as a local step.

        ``outcome`` is the result, an exception to raise, or a function that is called with the arguments. Give the task, a
        function that is a local step, or the name of either.
        """
        name = task if isinstance(task, str) else getattr(task, "name", None) or getattr(task, "__qualname__", "")
        if not name or any(name == workflow for workflow, _ in self._app.registry.workflows):
            raise UsageError(f"mock takes a task or the function of a local step, not {task!r}")
        if isinstance(task, str | Defined) and self._app.registry.get(name) is None:
            raise UsageError(f"the App has no task {name!r}: define it, or give the function of a local step")
        self._mocks.set(name, outcome)

    def crash_worker(self) -> None:
        """Drop all runs from the worker's memory, as the end of its process would: each goes on by a replay of its history."""
        if self._decider is not None:
            self._run_on_loop(self._forget)

    def history(self, job: Job[Any]) -> History:
        """Return the history of a run."""
        return histories.history(self._client, getattr(job, "key", job.handle), job.handle)

    def _run_on_loop(self, action: Callable[[], Coroutine[Any, Any, R]]) -> R:
        future = asyncio.run_coroutine_threadsafe(action(), self._loop)
        self._await_turns(lambda: bool(concurrent.futures.wait([future], LOOK_INTERVAL).done))
        return future.result()

    def _await_turns(self, done: Callable[[], bool]) -> None:
        """Wait until something of the loop's thread is done. ``done`` returns whether it is, after `LOOK_INTERVAL` at most.

        Raises TimeoutError with the place of the code if it blocks the loop for `BLOCKED_AFTER`.
        """
        self._turned = time.monotonic()
        while not done():
            if time.monotonic() - self._turned > BLOCKED_AFTER:
                assert self._thread.ident is not None
                self._blocked = place_of(self._thread.ident)
                interrupt(self._thread.ident)
                raise TimeoutError(
                    f"code has blocked the event loop for {format_duration(BLOCKED_AFTER)} of real time, at {self._blocked}: "
                    "await what takes long, also within loops, or make a task that blocks a plain def"
                )
            self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._turned = time.monotonic()

    async def _forget(self) -> None:
        assert self._decider is not None
        self._decider.forget()

    def check(self) -> None:
        """Replay the histories of all runs that are not parked. Raises AssertionError for the first one that differs.

        They are also replayed in another process, where sets of strings have other orders: see ``other_seed``.
        """
        self._check(None)
        rows = [row for row in self._tables().workflows.values() if not row.parked_us]
        if found := histories.find_differences(self._app, [self._history_file(row) for row in rows]):
            raise AssertionError(
                "the code depends on the order of a set, or on another hash: a replay in another process differs\n\n"
                + found
            )

    def _check(self, root: int | None) -> None:
        """Replay the histories of the runs of a root job; None: of all. The replay covers each decision."""
        tables = self._tables()
        for row in list(tables.workflows.values()):
            if row.root == (root or row.root) and not row.parked_us and self._checked.get(row.id) != row.events:
                self._checked[row.id] = row.events
                if found := differences(self._app.registry, [self._history_file(row)]):
                    raise AssertionError(found)

    def _history_file(self, row: RunRow) -> HistoryFile:
        """Return the history of a run as a file has it."""
        _, blocks = self._tables().histories[row.id]
        stored = [event for block in list(blocks) for event in decode_events(block)]
        events = joined(stored, self._tables().payloads.get(row.id, {}))
        return HistoryFile(row.workflow_id, row.type, row.version, events, redacted=False)

    def _tables(self) -> Tables:
        return cast("MemoryEngine", self._engine).tables

    # The thread.

    def start(self) -> None:
        """Start the node and the worker. ``in_memory`` calls this."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """Stop the worker and the node; running jobs are released."""
        with contextlib.suppress(RuntimeError):  # the loop is closed after a failure
            self._loop.call_soon_threadsafe(functools.partial(self._worker.stop, now=True))
        if self._blocked:  # an error is being raised for it
            self._thread.join(LOOK_INTERVAL)
        else:
            with contextlib.suppress(RuntimeError):
                self._await_turns(self._has_ended)
            self._thread.join()
        self._client.close()
        if self._blocked:
            return
        if self._failure is not None:
            raise self._failure

    def _has_ended(self) -> bool:
        self._thread.join(LOOK_INTERVAL)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        settings = ServerSettings(name=node_id("test"), store=parse_store("memory://"))
        self._engine = engine = build_engine(settings.store)
        shutdown = Shutdown(self.clock, settings.process.grace)
        built = await open_node(settings, engine, self.clock, shutdown, fetching=ALL_ALARMS)
        self._node = node = built.node
        try:
            if self._schedules:
                await self._declare(node)
            await self._declare_listeners(built.api)
            server = await self._loop.create_unix_server(lambda: GearmanProtocol(node.face), str(self._socket))
            address = self._app.servers()[0]
            registry = self._substitutes(self._app.registry)
            life = Life(registry, leaves_out=self._mocks.has)
            # It sends its heartbeats in real time: in the time that tests skip, it would be silent.
            options = WorkerSettings(concurrency=self._concurrency, name="test", frozen_after=0)
            if registry.workflows:
                self._decider = WorkflowDecider(
                    registry.workflows,
                    options,
                    selector=None,
                    task_process=TASK_PROCESS,
                    monotonic=self.clock.monotonic,
                    checks=GrowingChecks(),
                    later=self._delays.later,
                    substitute=self._mocks.substitute,
                    surround=life.surround,
                    codecs=registry.codecs,
                    external=[one.name for one in registry if one.elsewhere],
                )
            self._worker = worker = Worker(
                registry,
                {str(address): connector(address)},
                options,
                decider=self._decider,
                monotonic=self.clock.monotonic,
                life=life,
            )
            self._time = PassingTime(
                self.clock, self._delays, node, worker, self._decider, self._tables(), self._app.registry
            )
            working = asyncio.create_task(worker.run())
            if await until(lambda: self._is_registered() or working.done()):
                self._ready.set()
            try:
                await working
            finally:
                server.close()
        finally:
            await node.close()

    def _is_registered(self) -> bool:
        """Return whether the node has recorded the worker's workflows; before that, a submission begins no run."""
        workflows = self._node.workflows
        return self._worker.links[0].session.agreed and (
            workflows is None
            or all(workflows.definitions.is_workflow(name.encode()) for name, _ in self._app.registry.workflows)
        )

    async def _declare(self, node: Node) -> None:
        """Create the App's schedules."""
        schedules = self._app.schedules
        await awaited(node.schedules.declare(schedules.name, schedules.all()))

    async def _declare_listeners(self, api: Api) -> None:
        """Create the App's listeners."""
        if self._app.listeners:
            params = self._app.listeners.params(self._app.name)
            code = {"functions": self._app.registry.names(), "namespace": self._app.namespace}
            await api.call(convert({**params, **code}, DeclareListeners))

    def _substitutes(self, registry: Registry) -> Registry:
        """Return the functions to run, with threads in place of processes: a process could not import the test."""
        copy = Registry(
            workflows=registry.workflows,
            middleware=registry.middleware,
            hooks=registry.hooks,
            replaced=registry.replaced,
            resources=registry.resources,
            codecs=registry.codecs,
        )
        for function in registry:
            substitute = self._mocks.substitute(function)
            copy.add(replace(substitute, executor="thread") if function.executor == "process" else substitute)
        return copy


@contextlib.contextmanager
def in_memory(app: App, *, concurrency: int = 4, schedules: bool = True) -> Iterator[InMemory]:
    """Run an App's tasks in memory, and connect the App to them, until the block ends.

    Without ``schedules``, the App's schedules do not exist there: ``advance`` over a month is then quick, too.
    Tasks with ``executor="process"`` run in threads here. No network port is opened. Nothing is printed: the log of the node and
    of the worker goes to the logger ``mainspring`` of ``logging``, unless the program configures structlog.
    """
    histories.refuse_blocks()
    with quiet(), tempfile.TemporaryDirectory(prefix="mainspring-") as directory:
        socket = Path(directory) / "s"
        before = app.connect_to(f"unix:{socket}")
        try:
            app.load_tasks()
            check_annotations(app.registry)
            check_workflows(app.registry)
            histories.begin(app)
            fleet = InMemory(app, socket, concurrency, schedules=schedules)
            fleet.start()
            try:
                yield fleet
                fleet.check()
            finally:
                fleet.stop()
        finally:
            app.connect_to(before)
