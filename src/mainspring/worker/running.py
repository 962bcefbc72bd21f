"""A worker as a process: event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mainspring.worker.link import tcp
from mainspring.worker.mortality import die_with
from mainspring.worker.runtime import Ending, Worker, WorkerSettings
from mainspring.worker.selector import load_registry
from mainspring.worker.supervisor import PARENT_VARIABLE, RECYCLED_EXIT, Supervisor

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from mainspring.client.addresses import Address


@dataclass(frozen=True, slots=True)
class Launch:
    """What a worker process runs, for whom."""

    selector: str
    servers: tuple[Address, ...]
    tls: ssl.SSLContext | None = None
    settings: WorkerSettings = field(default_factory=WorkerSettings)


def run_worker(launch: Launch, *, ready: Callable[[], None] | None = None) -> int:
    """Load the App and work until SIGTERM or SIGINT; return the exit code, RECYCLED_EXIT where a new start is wanted.

    A second signal hands running jobs back without waiting for them. ``ready`` is called before the first connection.

    Raises SettingsError where the App cannot be loaded, and ServerError where a server does not speak the extension.
    """
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None:
        die_with(int(parent), signal.SIGTERM)
    registry = load_registry(launch.selector)
    connectors = {str(address): tcp(address, launch.tls) for address in launch.servers}

    async def work() -> int:
        worker = Worker(registry, connectors, launch.settings, selector=launch.selector)
        _on_signals(worker.stop)
        if ready is not None:
            ready()
        return RECYCLED_EXIT if await worker.run() is Ending.RECYCLED else 0

    # What was imported stays: the collector need not look at it again, and less often at what jobs leave behind.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    return run_loop(work())


def run_workers(command: Callable[[int], Sequence[str]], processes: int) -> int:
    """Run several worker processes until SIGTERM or SIGINT; return the exit code."""

    async def supervise() -> int:
        supervisor = Supervisor(command, processes)
        _on_signals(supervisor.stop)
        return await supervisor.run()

    return run_loop(supervise())


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine on the fastest event loop there is."""
    try:
        import uvloop  # noqa: PLC0415 - not everywhere there is one
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
