"""``mainspring worker``: run workers for the tasks in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from msgspec.structs import replace

from mainspring.cli.node import run_loop
from mainspring.cli.options import (
    LOCAL,
    SIZE_OPTION,
    OptionGroup,
    ServerOptions,
    at_least,
    count,
    flag,
    option,
    reading,
)
from mainspring.cli.process_options import DEFAULT_STOP, LOG_LEVEL_HELP, StopOptions, size_text
from mainspring.cli.process_options import log_level as read_log_level
from mainspring.cli.worker_order import WorkerOrder
from mainspring.client.environment import parse_servers
from mainspring.errors import SettingsError
from mainspring.namespaces import check
from mainspring.quantities import format_duration, parse_size
from mainspring.server.log_writer import LogSettings, unblock_standard_error
from mainspring.server.logs import start_logging
from mainspring.server.process import ReportedStop, show_released, show_waiting, stop_signals
from mainspring.worker.settings import FROZEN_AFTER, WAITING_PLACES, WORKFLOW_CACHE
from mainspring.worker.supervisor import INTERVAL, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import Token

    from mainspring.worker.supervisor import Start

WORKERS_GROUP = OptionGroup("Workers", sort_key=0)

SHORTEST_FROZEN_AFTER = 2 * INTERVAL
"""Seconds."""

TRACEBACKS_HELP = "Log the tracebacks of failed attempts at every log level, not only at debug."

SMALLEST_MEMORY = 32 << 20
"""Bytes: Python and Mainspring alone take more. `worker_process` checks the memory of the loaded App."""


def _patterns(_type: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the patterns of an option with commas, which may be given several times."""
    return tuple(pattern for token in tokens for part in token.value.split(",") if (pattern := part.strip()))


PATTERNS_OPTION: dict[str, Any] = {
    "converter": _patterns,
    "n_tokens": 1,
    "json_list": False,  # a pattern may begin as a list in JSON does
    "negative": "",
    "metavar": "PATTERN",
    "show_default": False,
}

AppSelector = Annotated[
    str,
    Parameter(name="FILE.py[:NAME]", help="The file or module that defines the App; add NAME if it defines several."),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of ``worker`` and ``run`` for workers."""

    processes: Annotated[int, WORKERS_GROUP.option("--processes", "The number of worker processes.")] = 1
    concurrency: Annotated[int, WORKERS_GROUP.option("--concurrency", "How many jobs one process runs at a time.")] = 16
    waiting_places: Annotated[
        int,
        WORKERS_GROUP.option(
            "--waiting-places",
            "The most extra places, in which a process runs jobs that its own tasks wait for while they occupy all places.",
        ),
    ] = WAITING_PLACES
    functions: Annotated[
        tuple[str, ...],
        WORKERS_GROUP.option(
            "--functions",
            "The tasks to run: names or patterns such as 'mail.*', several with commas; by default all tasks of the App.",
            **PATTERNS_OPTION,
        ),
    ] = ()
    unwanted: Annotated[
        tuple[str, ...],
        WORKERS_GROUP.option("--not", "Tasks not to run, in the same form.", **PATTERNS_OPTION),
    ] = ()
    no_workflows: Annotated[
        bool,
        WORKERS_GROUP.flag(
            "--no-workflows",
            "Leave out all workflows of the App, and their schedules: for servers whose store keeps none.",
        ),
    ] = False
    strict: Annotated[
        bool,
        WORKERS_GROUP.flag(
            "--strict", "Refuse workflows with code that a replay cannot repeat, in place of a warning in the log."
        ),
    ] = False
    max_jobs: Annotated[
        int | None,
        WORKERS_GROUP.option(
            "--max-jobs",
            "Replace a worker process after this many jobs; by default never.",
            **at_least(1, count, str, "would never run a job: give {least} or more, or leave it out for never"),
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        WORKERS_GROUP.option(
            "--max-memory",
            "Replace a worker process that uses this much memory; by default never.",
            **SIZE_OPTION
            | at_least(
                SMALLEST_MEMORY,
                parse_size,
                size_text,
                "is less than a process uses before its first job, so it would be replaced again and again: give more than"
                " {least}, such as 512M",
            ),
        ),
    ] = None

    frozen_after: Annotated[
        float,
        WORKERS_GROUP.duration(
            "--frozen-after", "Replace a worker process whose event loop is blocked for this time; 0: never."
        ),
    ] = FROZEN_AFTER
    workflow_cache: Annotated[
        int,
        WORKERS_GROUP.option(
            "--workflow-cache",
            "How much memory a worker process uses for runs of workflows between their decisions; 0: none. A run that is not"
            " there is replayed from its history.",
            show_default=size_text,
            **SIZE_OPTION,
        ),
    ] = WORKFLOW_CACHE
    check_replay: Annotated[
        bool,
        WORKERS_GROUP.flag(
            "--check-replay",
            "Replay a run of a workflow from its start for each of its decisions while it has up to 1,000 events, and not for one"
            " decision in 1,000; also in a second process, in which sets of strings have other orders. If the code differs from"
            " the history, the run is parked. For development: it takes time and memory.",
        ),
    ] = False

    def order(self, app: str, servers: list[str], grace: float) -> WorkerOrder:
        """Return the order for each process; ``grace`` in seconds. Raises SettingsError."""
        for name, value, least in (
            ("--processes", self.processes, 1),
            ("--concurrency", self.concurrency, 1),
            ("--waiting-places", self.waiting_places, 0),
        ):
            if value < least:
                raise SettingsError(f"{name} must be at least {least}; it is {value}")
        if 0 < self.frozen_after < SHORTEST_FROZEN_AFTER:
            raise SettingsError(
                f"--frozen-after {format_duration(self.frozen_after)} is so short that a busy worker would seem to be frozen:"
                f" give {format_duration(SHORTEST_FROZEN_AFTER)} or more, or 0 for never"
            )
        check_app(app)
        return WorkerOrder(
            app=app,
            servers=servers,
            concurrency=self.concurrency,
            waiting_places=self.waiting_places,
            grace=grace,
            functions=self.functions,
            unwanted=self.unwanted,
            no_workflows=self.no_workflows,
            strict=self.strict,
            max_jobs=self.max_jobs,
            max_memory=self.max_memory,
            frozen_after=self.frozen_after,
            workflow_cache=self.workflow_cache,
            check_replay=self.check_replay,
        )


DEFAULT_WORKERS = WorkerOptions()


def worker(
    app: AppSelector,
    /,
    *,
    workers: WorkerOptions = DEFAULT_WORKERS,
    stop: StopOptions = DEFAULT_STOP,
    log_level: Annotated[str, option("--log-level", LOG_LEVEL_HELP, converter=reading(read_log_level))] = "info",
    log_format: Annotated[
        Literal["auto", "text", "json"], option("--log-format", "auto: text on a terminal, JSON elsewhere.")
    ] = "auto",
    log_tracebacks: Annotated[bool, flag("--log-tracebacks", TRACEBACKS_HELP)] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Run workers for the tasks in a file.

    A worker takes jobs from all servers of --server, and keeps trying those that it cannot reach. If the store of one of them
    cannot serve a task, such as a workflow, a warning says so, and the task runs for the other servers. It writes its log to
    standard error.

    EXAMPLES
      mainspring worker app.py
      mainspring worker app.py:billing --server 10.0.0.5:4730,10.0.0.6:4730 --concurrency 32 --processes 4
      mainspring worker app.py --functions 'mail.*,report' --not mail.bulk

    SIGNALS
      TERM, INT   stop: wait up to --grace for running jobs, then release them; this does not count as a failed attempt
      second INT  stop now: release running jobs at once

    EXIT CODES
      0 stopped by a signal, 2 the file or an option is wrong, 3 a server is not a Mainspring server
    """
    log = LogSettings(level=log_level, format=log_format, tracebacks=log_tracebacks)
    server.tls()  # raises errors here, not in each process
    order = replace(
        workers.order(app, [str(address) for address in parse_servers(server.server)], stop.seconds),
        log=log,
        tls=server.tls_files().absolute(),
        namespace=check(server.namespace),
        named=workers.processes > 1,
    )
    unblock_standard_error()
    start_logging(log)
    return run_loop(_supervise(order, workers.processes))


async def _supervise(order: WorkerOrder, processes: int) -> int:
    supervisor = Supervisor(supervised(order), processes, order.frozen_after)

    def log_waiting() -> None:
        if supervisor.running:
            show_waiting(order.log, supervisor.running, order.grace)

    def log_released() -> None:
        if supervisor.running:
            show_released(order.log, supervisor.running)

    with stop_signals(ReportedStop(supervisor, log_waiting, log_released)):
        return await supervisor.run()


def supervised(order: WorkerOrder, *, dies_with_parent: bool = False) -> Callable[[Start], list[str]]:
    """Return a function that builds the command of a supervised process."""
    parent = os.getpid()

    def command(start: Start) -> list[str]:
        return replace(
            order, parent=parent, dies_with_parent=dies_with_parent, counters=start.counters, left_out=start.left_out
        ).command()

    return command


def check_app(selector: str) -> None:
    """Raise SettingsError if the file does not exist, before any process starts."""
    place = selector.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise SettingsError(f"there is no file {place}: name the file that defines the App, as FILE.py or FILE.py:NAME")
