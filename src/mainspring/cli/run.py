"""``mainspring run``: be a node, and run workers of the tasks in a file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import structlog
from cyclopts import Parameter
from msgspec.structs import replace

from mainspring.cli.app_store import ask_store
from mainspring.cli.failures import DONE
from mainspring.cli.node import run_node, shown
from mainspring.cli.node_options import NODE, PROCESS, NodeOptions
from mainspring.cli.options import flag, option
from mainspring.cli.stop_options import USUAL_STOP, StopOptions
from mainspring.cli.worker import TRACEBACKS, AppSelector, WorkerOptions, supervised
from mainspring.errors import SettingsError
from mainspring.server.addresses import Address, TcpAddress, UnixAddress, is_local, parse_address
from mainspring.server.settings import DEFAULT_STORE, GRACE, parse_store
from mainspring.server.stopping import stop_signals
from mainspring.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mainspring.cli.node import Ready
    from mainspring.cli.worker_process import WorkerOrder
    from mainspring.server.ports import Listening
    from mainspring.server.settings import ServerSettings, StoreSettings

T = TypeVar("T")

log = structlog.get_logger("mainspring.run")

UNSAID: Final = ""
"""No store is named: neither by an option, nor in the environment, nor in the file of defaults."""


def _shown_default(_store: str) -> str:
    return f"the App's, else {DEFAULT_STORE}"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(NodeOptions):
    """The options of a node that may learn its store from the App of its workers."""

    store: Annotated[
        str,
        option(
            "--store",
            "Where jobs are kept: sqlite:///FILE, postgresql://USER@HOST/DATABASE, zookeeper://HOST:2181/CHROOT, or memory:// to"
            " keep nothing.",
            metavar="URL",
            group=NODE,
            show_default=_shown_default,
        ),
    ] = UNSAID
    log_tracebacks: Annotated[bool, flag("--log-tracebacks", TRACEBACKS, group=PROCESS)] = False

    # `super()` is not to be had here: a dataclass with slots is another class than the one that its methods were written in.

    def settings(self, grace: float = GRACE) -> ServerSettings:
        """Return what the options add up to while the App has not said anything.  Raises SettingsError."""
        if self.store != UNSAID:
            return NodeOptions.settings(self, grace)
        # A cluster goes with some stores only: whether with this one, is seen when it is known.
        return NodeOptions.settings(dataclasses.replace(self, store=DEFAULT_STORE, cluster=None), grace)

    def settings_with(self, store: str, grace: float) -> ServerSettings:
        """Return what they add up to with the store that the App says.  Raises SettingsError."""
        settings = NodeOptions.settings(dataclasses.replace(self, store=store), grace)
        return dataclasses.replace(settings, store=settings.store.absolute())


# cyclopts reads the annotations of `__init__` by the names of this module, and those that are inherited have another's.
RunOptions.__init__.__annotations__.update(get_type_hints(RunOptions, include_extras=True))

USUAL_NODE = RunOptions()
USUAL_WORKERS = WorkerOptions()

FAREWELL: Final = 5.0
"""Seconds for the workers to end after the node has drained; what they ran has ended or was handed back by then."""


ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - read, not listened on
"""Where a port is from here that is open on all of the machine's addresses."""


def run(
    app: AppSelector,
    /,
    *,
    workers: WorkerOptions = USUAL_WORKERS,
    node: RunOptions = USUAL_NODE,
    stop: StopOptions = USUAL_STOP,
) -> int:
    """Run a node and workers of the tasks in a file, in one command.

    All that `serve` takes is taken here, and most of what `worker` takes. Prints one line for each port when it is
    ready, such as "listening gearman 127.0.0.1:4730". The workers end with the node.

    Jobs are kept in the store of App(store=…), where no other is given: to learn it, the file is imported once more, in
    a process of its own that ends before the node starts. Where one is given, the node starts at once, and the log says
    afterwards if the App has another.

    EXAMPLES
      mainspring run app.py
      mainspring run app.py --store memory:// --gearman 127.0.0.1:0
      mainspring run app.py --processes 4 --http 127.0.0.1:8080

    SIGNALS
      TERM, INT   stop: running jobs get the time of --grace, then they are handed
                  back
      INT again   stop now: running jobs are handed back at once
      USR1        stop once all running jobs have ended
      HUP         open the log again and read the TLS files again

    EXIT CODES
      0 stopped by a signal, 1 it could not start or go on, 2 the file or an
      option is wrong
    """
    settings = node.settings(stop.seconds)
    log = dataclasses.replace(settings.log, tracebacks=node.log_tracebacks)
    order = replace(workers.order(app, [], stop.seconds), log=log)

    async def main(settings: ServerSettings, ready: Ready) -> int:
        if node.store == UNSAID:
            # Not earlier: the file's code runs as --user says, and what is wrong with it is told to who waits for --daemon.
            answer = await _until_signal(ask_store(app))
            if answer is None:
                return DONE
            settings = node.settings_with(answer.store or DEFAULT_STORE, stop.seconds)
        with contextlib.ExitStack() as stack:
            private = None
            if not any(_is_way_in(address, settings) for address in settings.listen.gearman):
                # The workers' own way in: no port that others could find, and no certificates.
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mainspring-"))
                private = UnixAddress(str(Path(directory) / "workers.sock"))
            return await _node_and_workers(
                settings, ready, order, workers.processes, private, comparing=node.store != UNSAID
            )

    return run_node(settings, main)


async def _node_and_workers(
    settings: ServerSettings,
    ready: Ready,
    order: WorkerOrder,
    processes: int,
    private: UnixAddress | None,
    *,
    comparing: bool,
) -> int:
    """Run the node; once it is ready, the workers; stop the node where they cannot work.

    ``comparing``: look whether the App names another store, which nobody waits for.

    The order at a stop: the node drains, while its workers still run jobs and settle them; then the workers end.
    """
    from mainspring.server.serving import serve  # noqa: PLC0415 - the whole server, which other commands do not need

    supervisor: Supervisor | None = None
    working: asyncio.Task[int] | None = None
    compared: asyncio.Task[None] | None = None

    def start(ports: Sequence[Listening]) -> None:
        nonlocal supervisor, working, compared
        server = str(private) if private is not None else _way_in(ports, settings)
        supervisor = Supervisor(supervised(replace(order, servers=[server]), dies_with_parent=True), processes)
        working = asyncio.create_task(supervisor.run(), name="mainspring workers")
        working.add_done_callback(_stop_node)
        if comparing:
            compared = asyncio.create_task(_compare(order.app, settings.store), name="mainspring store of the App")
        ready([port for port in ports if private is None or shown(port) != str(private)])

    if private is not None:
        listen = dataclasses.replace(settings.listen, gearman=(*settings.listen.gearman, private))
        settings = dataclasses.replace(settings, listen=listen)
    code = failure = DONE
    try:
        code = await serve(settings, ready=start)
    finally:
        if compared is not None:
            compared.cancel()
            await asyncio.wait([compared])
        if supervisor is not None and working is not None:
            working.remove_done_callback(_stop_node)
            # The node takes signals no longer; without this they would end this process before its workers.
            with stop_signals(supervisor):
                supervisor.stop(now=True)
                try:
                    failure = await asyncio.wait_for(asyncio.shield(working), FAREWELL)
                except TimeoutError:
                    supervisor.kill()
                    failure = await working
    return code or failure


async def _compare(app: str, store: StoreSettings) -> None:
    """Log where the App names another store than the one that is open."""
    try:
        answer = await ask_store(app, quiet=True)
    except SettingsError:
        return  # its workers fail in the same way, and say it
    if answer.store is None:
        return
    named = parse_store(answer.store).absolute()
    if named.url != store.url:
        log.warning("the App's store is not used: another one was given", given=store.shown, app=named.shown)


async def _until_signal(asking: Coroutine[Any, Any, T]) -> T | None:
    """Await something before the node takes its signals; None: one of them came, and it was cancelled."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(asking)
    with contextlib.ExitStack() as signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, task.cancel)
            signals.callback(loop.remove_signal_handler, number)
        await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def _stop_node(_working: asyncio.Task[int]) -> None:
    """Stop this process as its user would: its workers have ended for good."""
    os.kill(os.getpid(), signal.SIGTERM)


def _is_way_in(address: Address, settings: ServerSettings) -> bool:
    """Tell whether this machine's workers can use an address without certificates."""
    if isinstance(address, UnixAddress):
        return True
    return settings.listen.tls is None and (is_local(address) or address.host in ANY_ADDRESS)


def _way_in(ports: Sequence[Listening], settings: ServerSettings) -> str:
    """Return where the workers connect, of the ports that are open."""
    for port in ports:
        if port.face != "gearman":
            continue
        address = parse_address(shown(port))
        if _is_way_in(address, settings):
            host = ANY_ADDRESS.get(address.host) if isinstance(address, TcpAddress) else None
            return shown(port) if host is None else f"{host}:{port.port}"
    raise AssertionError("one of the addresses is a way in: that was looked at before the start")
