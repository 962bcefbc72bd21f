"""``mainspring run``: run a node, and workers for the tasks in a file."""

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

from mainspring.cli.app_store import read_app_store
from mainspring.cli.display import EXIT_DONE
from mainspring.cli.node import client_address, run_node, serve_node
from mainspring.cli.options import reading
from mainspring.cli.process_options import DEFAULT_STOP, PROCESS_GROUP, StopOptions, http_address
from mainspring.cli.serve import HTTP_HELP, NODE_GROUP, PORTS_GROUP, STORE_HELP, NodeOptions
from mainspring.cli.worker import (
    DEFAULT_WORKERS,
    TRACEBACKS_HELP,
    WORKERS_GROUP,
    AppSelector,
    WorkerOptions,
    supervised,
)
from mainspring.cli.worker_order import LISTED_TASKS, select_tasks
from mainspring.client.environment import parse_address as parse_server
from mainspring.errors import SettingsError
from mainspring.namespaces import check
from mainspring.server.process import stop_signals
from mainspring.server.settings import (
    DEFAULT_HTTP,
    STOP_GRACE,
    Address,
    TcpAddress,
    UnixAddress,
    is_local,
    parse_address,
    parse_store,
)
from mainspring.stores import DEFAULT_STORE
from mainspring.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mainspring.cli.app_store import StoreAnswer
    from mainspring.cli.node import Ready
    from mainspring.cli.worker_order import WorkerOrder
    from mainspring.server.ports import Listening
    from mainspring.server.settings import ServerSettings, StoreSettings

T = TypeVar("T")

log = structlog.get_logger("mainspring.run")

NOT_GIVEN: Final = ""
"""No store is given: neither by an option, nor in the environment, nor in ``mainspring.toml``."""


def _shown_default(_store: str) -> str:
    return f"the App's, else {DEFAULT_STORE}"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(NodeOptions):
    """The options of a node whose store may come from the App of its workers."""

    store: Annotated[
        str,
        NODE_GROUP.option("--store", STORE_HELP, metavar="URL", show_default=_shown_default),
    ] = NOT_GIVEN
    http: Annotated[
        Address | None,
        PORTS_GROUP.option(
            "--http",
            f"{HTTP_HELP} If the default is taken, the node starts without it.",
            metavar="HOST:PORT",
            converter=reading(http_address),
            n_tokens=1,
            accepts_keys=False,
        ),
    ] = DEFAULT_HTTP
    log_tracebacks: Annotated[bool, PROCESS_GROUP.flag("--log-tracebacks", TRACEBACKS_HELP)] = False

    # `super()` fails here: `dataclass(slots=True)` replaces the class in which these methods were defined.

    def settings(self, grace: float = STOP_GRACE) -> ServerSettings:
        """Return the settings before the App's store is read. Raises SettingsError."""
        if self.store != NOT_GIVEN:
            return NodeOptions.settings(self, grace)
        # Only some stores allow a cluster: `settings_with` checks that for the App's store.
        return NodeOptions.settings(dataclasses.replace(self, store=DEFAULT_STORE, cluster=None), grace)

    def settings_with(self, store: str, grace: float) -> ServerSettings:
        """Return the settings with the App's store. Raises SettingsError."""
        settings = NodeOptions.settings(dataclasses.replace(self, store=store), grace)
        return dataclasses.replace(settings, store=settings.store.absolute())


# cyclopts resolves the annotations of `__init__` in this module, where the names of inherited annotations are missing.
RunOptions.__init__.__annotations__.update(get_type_hints(RunOptions, include_extras=True))

DEFAULT_NODE = RunOptions()

WORKER_EXIT_TIMEOUT: Final = 5.0
"""Seconds for the workers to end after the node has drained. By then their jobs have ended or were released."""


LOOPBACK_OF_WILDCARD: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - read, not listened on
"""The loopback address for a port that is open on all addresses of the machine."""


def run(
    app: AppSelector,
    /,
    *,
    workers: WorkerOptions = DEFAULT_WORKERS,
    namespace: Annotated[
        str,
        WORKERS_GROUP.option(
            "--namespace",
            "The namespace of an App that names none; by default that of the Gearman ports, if all have the same.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    node: RunOptions = DEFAULT_NODE,
    stop: StopOptions = DEFAULT_STOP,
) -> int:
    """Run a server together with workers for the tasks in a file.

    The command has all options of serve, and most of worker. When a port is ready, it prints a line such as "listening gearman
    127.0.0.1:4730". The workers end with the server.

    The store is the first of these that is set: --store, MAINSPRING_STORE, store in mainspring.toml, App(store=…) in the file.
    To read App(store=…), the command first imports the file in a separate process, which ends before the server starts. If
    another store is set, the log warns that the App's is not used. Workflows need a store on SQLite or PostgreSQL, or in memory.

    EXAMPLES
      mainspring run app.py
      mainspring run app.py --store memory:// --gearman 127.0.0.1:0
      mainspring run app.py --processes 4 --http 127.0.0.1:8080

    SIGNALS
      TERM, INT   stop: wait up to --grace for running jobs, then release them
      second INT  stop now: release running jobs at once
      USR1        stop as soon as all running jobs have ended
      HUP         reopen the log file and reload the TLS files

    EXIT CODES
      0 stopped by a signal, 1 failed to start or to continue, 2 the file or an option is wrong
    """
    settings = node.settings(stop.seconds)
    log = dataclasses.replace(settings.log, tracebacks=node.log_tracebacks)
    order = replace(
        workers.order(app, [], stop.seconds),
        log=log,
        namespace=check(namespace) if namespace else namespace_of_ports(settings.listen.gearman),
    )

    async def main(settings: ServerSettings, ready: Ready) -> int:
        answer = None
        given = "" if node.store == NOT_GIVEN else settings.store.url
        if not given or not settings.store.keeps_workflows:
            # Only now: the file's code runs as the user of --user, and its errors reach the caller that waits for --daemon.
            answer = await _until_signal(read_app_store(app, given))
            if answer is None:
                return EXIT_DONE
            if not given:
                settings = node.settings_with(answer.store or DEFAULT_STORE, stop.seconds)
            refuse_workflows(answer, settings.store, order)
        with contextlib.ExitStack() as stack:
            private = None
            if not any(_usable_locally(address, settings) for address in settings.listen.gearman):
                # A private socket for the workers: others cannot find it, it needs no certificates, and it has no namespace.
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mainspring-"))
                private = UnixAddress(str(Path(directory) / "workers.sock"))
            return await _node_and_workers(
                settings, ready, order, workers.processes, private, compare_store=bool(given), answer=answer
            )

    return run_node(settings, main)


async def _node_and_workers(
    settings: ServerSettings,
    ready: Ready,
    order: WorkerOrder,
    processes: int,
    private: UnixAddress | None,
    *,
    compare_store: bool,
    answer: StoreAnswer | None,
) -> int:
    """Run the node and, when it is ready, the workers; stop the node if they cannot work.

    ``compare_store``: log, in the background, if the App names another store. ``answer``: that of the App, if it is read.

    The order of a stop: the node drains while its workers still run and settle jobs; then the workers end.
    """
    supervisor: Supervisor | None = None
    working: asyncio.Task[int] | None = None
    compared: asyncio.Task[None] | None = None

    def stopping() -> None:
        if supervisor is not None:
            supervisor.hurry()  # the node waits for the jobs of its workers

    def start(ports: Sequence[Listening]) -> None:
        nonlocal supervisor, working, compared
        server = str(private) if private is not None else _local_address(ports, settings)
        server = str(parse_server(server))  # with an absolute path: the App may change the working directory
        supervisor = Supervisor(
            supervised(replace(order, servers=[server]), dies_with_parent=True), processes, order.frozen_after
        )
        working = asyncio.create_task(supervisor.run(), name="mainspring workers")
        working.add_done_callback(_stop_node)
        if compare_store:
            compared = asyncio.create_task(
                _compare(order.app, settings.store, answer), name="mainspring store of the App"
            )
        ready([port for port in ports if private is None or client_address(port) != str(private)])

    if private is not None:
        listen = dataclasses.replace(settings.listen, gearman=(*settings.listen.gearman, private))
        settings = dataclasses.replace(settings, listen=listen)
    code = failure = EXIT_DONE
    try:
        code = await serve_node(settings, start, stopping)
    finally:
        if compared is not None:
            compared.cancel()
            await asyncio.wait([compared])
        if supervisor is not None and working is not None:
            working.remove_done_callback(_stop_node)
            # The node no longer handles signals. Without this, a signal would end this process before its workers.
            with stop_signals(supervisor):
                supervisor.stop(now=True)
                try:
                    failure = await asyncio.wait_for(asyncio.shield(working), WORKER_EXIT_TIMEOUT)
                except TimeoutError:
                    supervisor.kill()
                    failure = await working
    return code or failure


def refuse_workflows(answer: StoreAnswer, store: StoreSettings, order: WorkerOrder) -> None:
    """Raise SettingsError if the workers would run workflows, and the store keeps none."""
    if order.no_workflows:
        return
    names = set(answer.names)
    if answer.workflows and (order.functions or order.unwanted):
        names = set(select_tasks(answer.names, order.functions, order.unwanted))
    workflows = [name for name in answer.workflows if name in names]
    if not workflows:
        return
    few = workflows[:LISTED_TASKS]
    more = f" and {len(workflows) - len(few)} more" if len(workflows) > len(few) else ""
    raise SettingsError(
        f"the store {store.shown} keeps no workflows, and {order.app} defines {', '.join(few)}{more}: use a store on SQLite or"
        f" PostgreSQL, such as --store {DEFAULT_STORE}, or leave them out with --no-workflows"
    )


async def _compare(app: str, store: StoreSettings, answer: StoreAnswer | None) -> None:
    """Log a warning if the App names another store than the open one."""
    try:
        answer = answer or await read_app_store(app, quiet=True)
    except SettingsError:
        return  # the workers fail in the same way and log it
    if answer.store is None:
        return
    named = parse_store(answer.store).absolute()
    if named.url != store.url:
        log.warning("the App's store is not used: the settings name another store", given=store.shown, app=named.shown)


async def _until_signal(coroutine: Coroutine[Any, Any, T]) -> T | None:
    """Await a coroutine before the node handles signals. Return None if a signal arrived: the coroutine is then cancelled."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(coroutine)
    with contextlib.ExitStack() as signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.add_signal_handler(number, task.cancel)
            signals.callback(loop.remove_signal_handler, number)
        await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def _stop_node(_working: asyncio.Task[int]) -> None:
    """Stop this process as its user would: its workers have ended and do not restart."""
    os.kill(os.getpid(), signal.SIGTERM)


def namespace_of_ports(addresses: Sequence[Address]) -> str:
    """Return the namespace of an App that names none: that of all Gearman ports, or empty if they differ."""
    found = {address.namespace for address in addresses}
    return (found.pop() or "") if len(found) == 1 else ""


def _usable_locally(address: Address, settings: ServerSettings) -> bool:
    """Return whether workers of any namespace on this machine can connect to an address without certificates and tokens."""
    if isinstance(address, UnixAddress) or address.namespace is not None:
        return address.namespace is None
    return (
        settings.listen.tls is None
        and not settings.listen.require_token
        and (is_local(address) or address.host in LOOPBACK_OF_WILDCARD)
    )


def _local_address(ports: Sequence[Listening], settings: ServerSettings) -> str:
    """Return the address of the open port to which the workers connect."""
    for port in ports:
        if port.face != "gearman" or port.namespace is not None:
            continue
        address = parse_address(client_address(port))
        if _usable_locally(address, settings):
            host = LOOPBACK_OF_WILDCARD.get(address.host) if isinstance(address, TcpAddress) else None
            return client_address(port) if host is None else f"{host}:{port.port}"
    raise AssertionError("no address is usable locally, although one was before the start")
