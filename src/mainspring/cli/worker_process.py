"""One worker process: ``python -m mainspring.cli.worker_process ORDER``, where ORDER is a `worker_order.WorkerOrder` as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import structlog

from mainspring.cli.display import EXIT_DONE, EXPECTED_ERRORS, exit_code, explain, print_error
from mainspring.cli.node import run_loop
from mainspring.cli.task_process import read_path, start_task_logging, task_process
from mainspring.cli.worker_order import WorkerOrder, select_tasks
from mainspring.client import environment
from mainspring.client.aio import AsyncClient
from mainspring.client.blocking import Client
from mainspring.client.declarations import Declarations
from mainspring.client.environment import (
    NAMESPACE_VARIABLE,
    SERVER_VARIABLE,
    TOKEN_VARIABLE,
    namespace_or_default,
    parse_address,
    token_of_environment,
)
from mainspring.client.listening import Listeners
from mainspring.client.sockets import TLS_OPTIONS, TLS_VARIABLES
from mainspring.errors import ConflictError, MainspringError, SettingsError, UsageError, WorkerStartError
from mainspring.quantities import format_size
from mainspring.server.log_writer import exit_now
from mainspring.server.logs import importing
from mainspring.worker import selector
from mainspring.worker.functions import check_annotations, check_workflows
from mainspring.worker.link import connector
from mainspring.worker.loop_watch import Frozen, LoopWatch, params_of
from mainspring.worker.processes import die_with, disown, ignore_interrupts, resident_bytes
from mainspring.worker.runtime import Ending, Worker
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.supervisor import FROZEN_EXIT, RECYCLED_EXIT, STOP_NOW_SIGNAL, JobCounters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from mainspring.worker.link import Connector
    from mainspring.worker.registry import Registry
    from mainspring.worker.selector import HasRegistry


REPORT_TIMEOUT: Final = 3.0
"""Seconds for a server to answer the report that the worker is frozen."""

LEFT_BEHIND_GRACE: Final = 5.0
"""Seconds that threads and processes left behind by tasks have to end after a worker's last job is settled."""

DECLARE_INTERVAL: Final = 20.0
"""Seconds between declarations. Servers apply the newest version of the code that was declared within the last minute."""
RETRY_DELAY: Final = 2.0
"""Seconds until the next attempt if the server could not be reached."""


class Declared(NamedTuple):
    """The schedules or the listeners of an App, as its code has them."""

    call: str
    """The call that declares them."""
    what: str
    params: dict[str, Any]
    """As all versions of servers with the call read them."""
    is_needed: bool = True
    """Whether there are any. Without, the call only removes what earlier code has declared, and nothing is logged if a server
    refuses it."""

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """The log of their changes."""
        log: structlog.stdlib.BoundLogger = structlog.get_logger(f"mainspring.{self.what}")
        return log


AboutCode: TypeAlias = "Callable[[], Awaitable[Mapping[str, Any]]]"
"""Waits until a server has answered a worker's registrations, and returns what a declaration to it says about the code."""


def settings_of(order: WorkerOrder) -> WorkerSettings:
    """Return the settings of the worker."""
    return WorkerSettings(
        concurrency=order.concurrency,
        waiting_places=order.waiting_places,
        grace=order.grace,
        max_jobs=order.max_jobs,
        max_rss=order.max_memory,
        frozen_after=order.frozen_after,
        workflow_cache=order.workflow_cache,
        check_replay=order.check_replay,
        log_tracebacks=order.log.tracebacks or order.log.level == "debug",
    )


def work(order: WorkerOrder) -> int:
    """Run the worker and return the exit code. Raises the errors that `mainspring.cli.display` explains."""
    start_task_logging(order.log)
    _set_task_environment(order)
    # Before any code of the user may change the working directory or the environment.
    start = environment.now()
    place, task_command = selector.absolute(order.app), task_process(order.log)
    try:
        with importing(order.app):
            app = selector.load(order.app)
    except SettingsError as error:
        selector.show_cause(error)
        raise
    environment.keep(start)
    registry = _chosen(app.registry, order)
    check_annotations(registry)
    check_workflows(registry, strict=order.strict)
    _check_memory(order.max_memory, resident_bytes())
    settings = settings_of(order)

    async def main() -> int:
        counters = JobCounters(order.counters, [function.name for function in registry])
        worker = Worker(
            registry,
            _connectors(order),
            settings,
            selector=place,
            task_process=task_command,
            counters=counters,
            left_out=order.left_out,
            token=token_of_environment(),
            namespace=namespace_of(app),
        )
        loop = asyncio.get_running_loop()
        disown(lambda: [number for link in worker.links if (number := link.descriptor) is not None])
        loop.add_signal_handler(signal.SIGTERM, worker.stop)
        loop.add_signal_handler(STOP_NOW_SIGNAL, functools.partial(worker.stop, now=True))
        declaring = loop.create_task(_declare(app, registry, order, worker))
        watch = _watch(worker, counters, order, namespace_of(app))
        try:
            ending = await worker.run()
        finally:
            if watch is not None:
                watch.stop()
            declaring.cancel()
            await asyncio.wait([declaring])
        code = RECYCLED_EXIT if ending is Ending.RECYCLED else EXIT_DONE
        _force_exit(code)
        return code

    try:
        return run_loop(main())
    except WorkerStartError as error:
        selector.show_cause(error)
        raise


def _chosen(registry: Registry, order: WorkerOrder) -> Registry:
    """Return the tasks that the worker runs, and the workflows whose runs it decides. Raises SettingsError."""
    if not order.functions and not order.unwanted and not order.no_workflows:
        return registry
    names = select_tasks(registry.names(), order.functions, order.unwanted)
    if order.no_workflows:
        workflows = {name for name, _ in registry.workflows}
        names = [name for name in names if name not in workflows]
    structlog.get_logger("mainspring.worker").info("the worker runs some of the App's tasks", functions=names)
    return registry.subset(names)


def _check_memory(limit: int | None, used: int) -> None:
    """Raise SettingsError if the App alone uses more than the limit: each job would then be the last one of its process."""
    if limit is not None and used >= limit:
        raise SettingsError(
            f"--max-memory {format_size(limit)} is less than the {format_size(used)} that a process uses before its first job, "
            "so it would be replaced again and again: give more, such as 512M"
        )


def namespace_of(app: object) -> str:
    """Return the namespace of a worker for an App: the App's own, or that of the command."""
    return namespace_or_default(getattr(app, "namespace", None))


async def _declare(app: HasRegistry, registry: Registry, order: WorkerOrder, worker: Worker) -> None:
    """Declare the schedules and listeners in the App's code to each server, until cancelled.

    It declares all of them, and names the tasks that this worker leaves out, and those that the server cannot serve: servers
    apply the newest code of an App, and workers for different tasks of the same code must declare the same.
    """
    declarations = getattr(app, "schedules", None)
    if not isinstance(declarations, Declarations):
        return
    listeners = getattr(app, "listeners", None)
    declared = []
    if declarations.needed:
        declared.append(Declared("schedules.declare", "schedules", declarations.params()))
    if isinstance(listeners, Listeners) and (listeners or declarations.is_named):
        params = listeners.params(declarations.name)
        declared.append(Declared("listeners.declare", "listeners", params, is_needed=bool(listeners)))
    servers = list(dict.fromkeys(order.servers))
    async with asyncio.TaskGroup() as group:
        for server, one in product(servers, declared):

            async def about_code(server: str = server, one: Declared = one) -> dict[str, object]:
                about = _about_code(declarations, app.registry, registry, await worker.unserved(server))
                if one.call == "listeners.declare":  # a run of a workflow is no delivery
                    del about["workflows"]
                return about

            client = AsyncClient(
                [parse_address(server)],
                tls=order.tls.context(TLS_OPTIONS),
                token=token_of_environment(),
                namespace=namespace_of(app),
            )
            group.create_task(
                _declare_to(client, one, about_code, server if len(servers) > 1 else None),
                name=f"mainspring {one.what} to {server}",
            )


async def _declare_to(client: AsyncClient, declared: Declared, about_code: AboutCode, server: str | None) -> None:
    try:
        await keep_declaring(client, declared, about_code, server)
    except MainspringError as error:
        where = {} if server is None else {"server": server}
        line = f"the {declared.what} cannot be declared"
        declared.log.error(line, error=str(error), **where)  # noqa: TRY400 - its text says all
    finally:
        await client.close()


def _about_code(
    declarations: Declarations, registry: Registry, chosen: Registry, unserved: Collection[str] = ()
) -> dict[str, object]:
    """Return what a declaration says about the App's code, this worker's choice of its tasks, and those that the server lacks."""
    workflows = {
        name for name, _ in registry.workflows
    }  # a node without workflows leaves out their schedules, and says so
    run = set(chosen.names()) - (set(unserved) - workflows)
    return {
        "functions": registry.names(),
        "workflows": sorted(workflows),
        "left_out": [name for name in registry.names() if name not in run],
        "is_named": declarations.is_named,
    }


class Caller(Protocol):
    """A client."""

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Call a method of a server.  Raises MainspringError."""


async def keep_declaring(client: Caller, declared: Declared, about_code: AboutCode, server: str | None = None) -> None:
    """Declare schedules or listeners to a server again and again until cancelled; log the changes, with the ``server``.

    Servers of earlier versions refuse the parameters about the code: they get ``params`` alone.
    """
    server_log = declared.log if server is None else declared.log.bind(server=server)
    logged = ""
    while True:
        wait = DECLARE_INTERVAL
        code = await about_code()
        try:
            answer = await _declare_once(client, declared, code)
        except (UsageError, ConflictError) as error:
            if str(error) != logged and declared.is_needed:
                logged = str(error)
                server_log.error(f"the {declared.what} were refused", error=logged)
        except MainspringError:
            wait = RETRY_DELAY
        else:
            logged = _log_changes(server_log, answer, declared, logged)
        await asyncio.sleep(wait)


async def _declare_once(client: Caller, declared: Declared, code: Mapping[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = await client.call(declared.call, {**declared.params, **code})
    except UsageError as error:
        if not code or "unknown field" not in str(error):
            raise
        answer = await client.call(declared.call, declared.params)
    return answer


def _log_changes(log: structlog.stdlib.BoundLogger, answer: dict[str, Any], declared: Declared, logged: str) -> str:
    """Log the changes in an answer that are not yet logged; return the lasting ones, which the next answer repeats."""
    lasting: dict[str, bool] = {}
    for change in answer["changes"]:
        text, warning = change["text"], change.get("warning", False)
        if change["kind"] == "left alone":
            lasting[text] = warning
        else:
            (log.warning if warning else log.info)(f"{declared.what.removesuffix('s')} {text}")
    if not answer["governs"]:
        app = declared.params["app"]
        lasting = {f"the {declared.what} of this version are not applied: a newer version of {app} also runs": False}
    for text, warning in lasting.items():
        if text not in logged.splitlines():
            (log.warning if warning else log.info)(text)
    return "\n".join(lasting)


def _watch(worker: Worker, counters: JobCounters, order: WorkerOrder, namespace: str) -> LoopWatch | None:
    """Watch the running loop, if the order says so."""
    if not order.frozen_after:
        return None

    def report(frozen: Frozen) -> None:
        client = Client(
            [parse_address(frozen.server)],
            tls=order.tls.context(TLS_OPTIONS),
            connect_timeout=REPORT_TIMEOUT,
            token=token_of_environment(),
            namespace=namespace,
        )
        try:
            client.call("worker.frozen", params_of(frozen), REPORT_TIMEOUT)
        except (MainspringError, TimeoutError) as error:  # the jobs come back when the connection ends
            structlog.get_logger("mainspring.worker").warning(
                "a server did not take the report that the worker is frozen", server=frozen.server, error=str(error)
            )
        finally:
            client.close()

    def end() -> None:
        exit_now(FROZEN_EXIT)

    watch = LoopWatch(worker, counters, order.frozen_after, report, end)
    watch.start()
    return watch


def _force_exit(code: int) -> None:
    """Exit with the code after `LEFT_BEHIND_GRACE`, even if threads or processes that tasks left behind still run.

    The interpreter would wait for them without a limit, and no other worker would replace this one.
    """

    def end() -> None:
        print_error(f"worker {os.getpid()}: ends although threads or processes that its tasks started still run")
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        exit_now(code)

    timer = threading.Timer(LEFT_BEHIND_GRACE, end)
    timer.daemon = True
    timer.start()


def _set_task_environment(order: WorkerOrder) -> None:
    """Set the environment so that tasks submit jobs to this worker's servers, unless their App names others.

    An order without TLS removes TLS files from the environment: workers of ``run`` need none.
    """
    os.environ[SERVER_VARIABLE] = ",".join(order.servers)
    if order.namespace:
        os.environ[NAMESPACE_VARIABLE] = order.namespace
    for name, path in zip(TLS_VARIABLES, order.tls, strict=True):
        if path is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = path
    if (
        order.dies_with_parent
    ):  # a worker of `run` uses its own node, not the server that a token in the environment is for
        os.environ.pop(TOKEN_VARIABLE, None)


def _connectors(order: WorkerOrder) -> dict[str, Connector]:
    tls = order.tls.context(TLS_OPTIONS)
    return {server: connector(parse_address(server), tls) for server in order.servers}


def main() -> int:
    """Run the process that a supervisor started."""
    ignore_interrupts()  # the supervisor receives them and stops this process
    order = msgspec.json.decode(sys.argv[1], type=WorkerOrder, dec_hook=read_path)
    die_with(order.parent, signal.SIGKILL if order.dies_with_parent else signal.SIGTERM)
    try:
        return work(order)
    except EXPECTED_ERRORS as error:
        print_error(f"worker {os.getpid()}: {explain(error)}" if order.named else explain(error))
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
