"""An App's tasks in memory, with a clock that the test advances.

::

    def test_it_is_retried() -> None:
        with in_memory(app) as fleet:
            job = flaky.submit()
            fleet.advance("5m")
            assert job.result(timeout=5) == "third time lucky"

A thread of the test's process runs a real worker and a real node, with a store in memory. Only the clock is simulated: delays,
backoffs, timeouts and expiry times pass when the test advances it, or waits for a result while nothing runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import tempfile
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mainspring.client.addresses import parse_servers
from mainspring.client.blocking import Client
from mainspring.client.options import Duration, seconds
from mainspring.errors import UsageError
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import Handles, node_id
from mainspring.quantities import format_duration
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.server.shutdown import Shutdown
from mainspring.storage.agenda import FetchTimes
from mainspring.tasks import Defined
from mainspring.testing import other_seed, runs
from mainspring.testing.blocked import interrupt, place_of
from mainspring.testing.clock import ManualClock
from mainspring.testing.delays import Delays
from mainspring.testing.histories import differences
from mainspring.testing.mocks import Mocks
from mainspring.testing.passing_time import SETTLE_TIMEOUT, PassingTime, until
from mainspring.testing.quiet import quiet
from mainspring.testing.replay_checks import GrowingChecks
from mainspring.worker.event_loop import new_event_loop
from mainspring.worker.executors.process import TASK_PROCESS
from mainspring.worker.functions import check_annotations
from mainspring.worker.link import connector
from mainspring.worker.registry import Registry
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflow_lint import check_workflows
from mainspring.worker.workflows.deciding import WorkflowDecider
from mainspring.workflows.history import decode_events
from mainspring.workflows.history_files import HistoryFile
from mainspring.workflows.model import YEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring.app import App
    from mainspring.client.job import Job
    from mainspring.engines.memory.engine import MemoryEngine
    from mainspring.engines.memory.tables import Tables
    from mainspring.server.node import Node
    from mainspring.testing.runs import History
    from mainspring.workflows.store import RunRow

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
            raise runs.unfinished(self._client, job.handle, reason)
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
        return runs.history(self._client, getattr(job, "key", job.handle), job.handle)

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
        if found := other_seed.find_differences(self._app, [self._history_file(row) for row in rows]):
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
        events = [event for block in list(blocks) for event in decode_events(block)]
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
            server = await self._loop.create_unix_server(lambda: GearmanProtocol(node.face), str(self._socket))
            address = self._app.servers()[0]
            registry = self._substitutes(self._app.registry)
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
                )
            self._worker = worker = Worker(
                registry,
                {str(address): connector(address)},
                options,
                decider=self._decider,
                monotonic=self.clock.monotonic,
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
        declared: asyncio.Future[object] = self._loop.create_future()
        schedules = self._app.schedules
        node.schedules.declare(schedules.name, schedules.all(), declared.set_result, declared.set_exception)
        await declared

    def _substitutes(self, registry: Registry) -> Registry:
        """Return the functions to run, with threads in place of processes: a process could not import the test."""
        copy = Registry(workflows=registry.workflows)
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
    other_seed.refuse_blocks()
    with quiet(), tempfile.TemporaryDirectory(prefix="mainspring-") as directory:
        socket = Path(directory) / "s"
        before = app.connect_to(f"unix:{socket}")
        try:
            app.load_tasks()
            check_annotations(app.registry)
            check_workflows(app.registry)
            other_seed.begin(app)
            fleet = InMemory(app, socket, concurrency, schedules=schedules)
            fleet.start()
            try:
                yield fleet
                fleet.check()
            finally:
                fleet.stop()
        finally:
            app.connect_to(before)
