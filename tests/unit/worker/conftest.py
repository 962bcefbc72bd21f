from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer

from mainspring.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from mainspring import App
    from mainspring.worker.runtime import Ending, Worker


class Running:
    """A worker in a thread with its own loop."""

    def __init__(
        self, app: App, servers: list[ExtensionServer], settings: WorkerSettings, selector: str | None
    ) -> None:
        self.ending: Ending | BaseException | None = None
        self._created = threading.Event()
        self._app = app
        self._servers = [server.address for server in servers]
        self._settings = settings
        self._selector = selector
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._created.wait(10)

    def _run(self) -> None:
        async def work() -> Ending:
            self.loop = asyncio.get_running_loop()
            self.worker: Worker = self._app.worker(self._settings, servers=self._servers, selector=self._selector)
            self._created.set()
            try:
                return await self.worker.run()
            finally:
                await self._app.aclose()  # the client that coroutines have used

        try:
            self.ending = asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.ending = error

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the worker's loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(15)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.worker.stop)

    def stop_now(self) -> None:
        self.loop.call_soon_threadsafe(functools.partial(self.worker.stop, now=True))

    def ended(self, timeout: float = 15) -> Any:
        self.thread.join(timeout)
        assert not self.thread.is_alive(), "the worker does not end"
        return self.ending


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def run(server: ExtensionServer) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(
        app: App, *, servers: list[ExtensionServer] | None = None, selector: str | None = None, **settings: Any
    ) -> Running:
        running = Running(app, servers or [server], WorkerSettings(**settings), selector)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.thread.is_alive():
            running.stop_now()
            running.ended()
