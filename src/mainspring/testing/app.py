"""An App's tasks in memory, with a clock that the test advances.

::

    def test_it_is_retried() -> None:
        with in_memory(app) as fleet:
            job = flaky.submit()
            fleet.advance("5m")
            assert job.result(timeout=5) == "third time lucky"

A thread of the test's process runs a real worker and a real node, with a store in memory. Only the clock is simulated: delays,
backoffs, timeouts and expiry times pass when the test advances it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.options import Duration, seconds
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.ids import node_id
from mainspring.quantities import format_duration
from mainspring.server.build import build_engine, open_node
from mainspring.server.settings import ServerSettings, parse_store
from mainspring.server.shutdown import Shutdown
from mainspring.testing.clock import ManualClock
from mainspring.worker.link import connector
from mainspring.worker.registry import Registry
from mainspring.worker.runtime import Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.workflow_lint import check_workflows

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring.app import App
    from mainspring.server.node import Node

SETTLE_TIMEOUT: Final = 10.0
"""Seconds of real time in which due jobs must end."""

DUE_MARGIN: Final = 0.001
"""Seconds by which the clock passes a due time: clocks are floats, and a job must be due despite rounding."""

POLL_INTERVAL: Final = 0.001
"""Seconds of real time between two checks for a condition."""


class InMemory:
    """A node and a worker for an App's tasks, run by ``in_memory``. Tests call its methods."""

    def __init__(self, app: App, socket: Path, concurrency: int) -> None:
        self.clock = ManualClock()
        self._app = app
        self._socket = socket
        self._concurrency = concurrency
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mainspring-in-memory", daemon=True)

    @property
    def now(self) -> datetime:
        """The simulated time, in UTC."""
        return datetime.fromtimestamp(self.clock.wall(), UTC)

    def settle(self) -> None:
        """Wait until all due jobs have run and no job runs.

        Raises TimeoutError after 10 s, for example because a task waits for something.
        """
        self._run_on_loop(self._quiet)

    def advance(self, span: Duration, *, settle: bool = True) -> None:
        """Advance the clock by a duration (``"10m"``, a timedelta or seconds), stopping at each due time.

        At each due time, due jobs run to their end before the clock moves on, so that a job's second attempt becomes due at the
        right time. With ``settle=False`` time passes while tasks run: so a test can make a task exceed its timeout.

        Raises TimeoutError as ``settle`` does.
        """
        length = seconds(span, "the time to advance")
        self._run_on_loop(lambda: self._advance(length, settle=settle))

    def _run_on_loop(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(None)

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
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        settings = ServerSettings(name=node_id("test"), store=parse_store("memory://"))
        built = await open_node(
            settings, build_engine(settings.store), self.clock, Shutdown(self.clock, settings.process.grace)
        )
        self._node = node = built.node
        try:
            await self._declare(node)
            server = await self._loop.create_unix_server(lambda: GearmanProtocol(node.face), str(self._socket))
            address = self._app.servers()[0]
            self._worker = worker = Worker(
                _in_threads(self._app.registry),
                {str(address): connector(address)},
                WorkerSettings(concurrency=self._concurrency, name="test", check_replay=True),
                wall=self.clock.wall,
            )
            working = asyncio.create_task(worker.run())
            if await self._until(lambda: self._is_registered() or working.done()):
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
        node.schedules.declare(schedules.name or "test", schedules.all(), declared.set_result, declared.set_exception)
        await declared

    # Time.

    async def _advance(self, seconds: float, *, settle: bool) -> None:
        target = self.clock.monotonic() + seconds
        while True:
            if settle:
                await self._quiet()
            now = self.clock.monotonic()
            due = self._node.service.timers.next()
            moment = target if due is None else min(max(due, now) + DUE_MARGIN, target)
            self.clock.advance(max(moment - now, 0))
            self._node.tick()
            if moment >= target:
                break
            await asyncio.sleep(0)
        if settle:
            await self._quiet()

    async def _quiet(self) -> None:
        if not await self._until(self._is_quiet):
            running = sorted({delivery.function.name for delivery in self._worker.held})
            problem = f"these tasks still run: {', '.join(running)}" if running else "due jobs do not start"
            raise TimeoutError(
                f"after {format_duration(SETTLE_TIMEOUT)} {problem} (advance(…, settle=False) lets time pass while tasks run)"
            )

    def _is_quiet(self) -> bool:
        node, worker = self._node, self._worker
        if not node.commits.idle or node.running():
            return False
        # A decision is running at the node until it is reported, so the work of the decider need not be asked for.
        if worker.held or any(link.session.unsettled for link in worker.links):
            return False
        names = {function.name.encode() for function in self._app.registry}
        return not any(queue.waiting() for queue in node.service.queues() if queue.name in names)

    async def _until(self, done: Callable[[], bool]) -> bool:
        """Poll a condition in real time, because no single component reports it; return whether it became true in time."""
        deadline = self._loop.time() + SETTLE_TIMEOUT
        while not done():
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(POLL_INTERVAL)
        return True


def _in_threads(registry: Registry) -> Registry:
    """Return the same functions and workflows, with threads in place of processes: a process could not import the test."""
    copy = Registry(workflows=registry.workflows)
    for function in registry:
        copy.add(replace(function, executor="thread") if function.executor == "process" else function)
    return copy


@contextlib.contextmanager
def in_memory(app: App, *, concurrency: int = 4) -> Iterator[InMemory]:
    """Run an App's tasks in memory, and connect the App to them, until the block ends.

    Tasks with ``executor="process"`` run in threads here. No network port is opened.
    """
    with tempfile.TemporaryDirectory(prefix="mainspring-") as directory:
        socket = Path(directory) / "s"
        before = app.connect_to(f"unix:{socket}")
        try:
            app.load_tasks()
            check_workflows(app.registry)
            fleet = InMemory(app, socket, concurrency)
            fleet.start()
            try:
                yield fleet
            finally:
                fleet.stop()
        finally:
            app.connect_to(before)
