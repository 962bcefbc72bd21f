"""``mainspring worker``: run workers of the tasks in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from msgspec.structs import replace

from mainspring.cli.node import run_loop
from mainspring.cli.node_options import log_level as read_log_level
from mainspring.cli.node_options import shown_size
from mainspring.cli.options import LOCAL, SIZE, ServerOptions, at_least, count, flag, option, reading
from mainspring.cli.stop_options import USUAL_STOP, StopOptions
from mainspring.cli.worker_process import WorkerOrder
from mainspring.client.addresses import parse_servers
from mainspring.errors import SettingsError
from mainspring.quantities import parse_size
from mainspring.server.logs import start_logging
from mainspring.server.settings import LogSettings
from mainspring.server.stopping import ReportedStop, stop_signals, tell_handed_back, tell_waiting
from mainspring.worker.settings import WAITING_PLACES
from mainspring.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import Token

    from mainspring.worker.supervisor import Start

WORKERS = Group("Workers", sort_key=0)

TRACEBACKS = "Log the tracebacks of failed attempts at any level, not at debug alone."

LEAST_MEMORY = 32 << 20
"""Bytes: Python and Mainspring alone take more. What the App takes besides is seen where it is loaded."""


def _patterns(_type: object, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read patterns with commas between, from an option that may be given several times."""
    return tuple(pattern for token in tokens for part in token.value.split(",") if (pattern := part.strip()))


PATTERNS: dict[str, Any] = {
    "converter": _patterns,
    "n_tokens": 1,
    "json_list": False,  # a pattern may begin as a list in JSON does
    "negative": "",
    "metavar": "PATTERN",
    "show_default": False,
}

AppSelector = Annotated[
    str,
    Parameter(name="FILE.py[:NAME]", help="The file, or module, that defines the App; NAME where it has several."),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of ``worker`` and ``run`` about workers."""

    processes: Annotated[int, option("--processes", "Worker processes.", group=WORKERS)] = 1
    concurrency: Annotated[int, option("--concurrency", "Jobs that one process runs at a time.", group=WORKERS)] = 16
    waiting_places: Annotated[
        int,
        option(
            "--waiting-places",
            "Extra places, at most, for the jobs that tasks wait for while those tasks hold all places.",
            group=WORKERS,
        ),
    ] = WAITING_PLACES
    functions: Annotated[
        tuple[str, ...],
        option(
            "--functions",
            "The tasks of the App that these workers run: names or patterns such as 'mail.*', several with commas; all where not"
            " given.",
            group=WORKERS,
            **PATTERNS,
        ),
    ] = ()
    unwanted: Annotated[
        tuple[str, ...],
        option("--not", "Tasks that they do not run, in the same form.", group=WORKERS, **PATTERNS),
    ] = ()
    max_jobs: Annotated[
        int | None,
        option(
            "--max-jobs",
            "Start a process anew after so many jobs; never where not given.",
            group=WORKERS,
            **at_least(1, count, str, "would never run a job: give {least} or more, or leave it out for never"),
        ),
    ] = None
    max_memory: Annotated[
        int | None,
        option(
            "--max-memory",
            "Start a process anew when it takes so much memory.",
            group=WORKERS,
            **SIZE
            | at_least(
                LEAST_MEMORY,
                parse_size,
                shown_size,
                "is less than a process takes before its first job, which would start anew for ever: give more than {least}, "
                "such as 512M",
            ),
        ),
    ] = None

    def order(self, app: str, servers: list[str], grace: float) -> WorkerOrder:
        """Return what each process is to do; ``grace`` in seconds.  Raises SettingsError."""
        for name, value, least in (
            ("--processes", self.processes, 1),
            ("--concurrency", self.concurrency, 1),
            ("--waiting-places", self.waiting_places, 0),
        ):
            if value < least:
                raise SettingsError(f"{name} must be at least {least}; it is {value}")
        check_app(app)
        return WorkerOrder(
            app=app,
            servers=servers,
            concurrency=self.concurrency,
            waiting_places=self.waiting_places,
            grace=grace,
            functions=self.functions,
            unwanted=self.unwanted,
            max_jobs=self.max_jobs,
            max_memory=self.max_memory,
        )


USUAL = WorkerOptions()


def worker(
    app: AppSelector,
    /,
    *,
    workers: WorkerOptions = USUAL,
    stop: StopOptions = USUAL_STOP,
    log_level: Annotated[str, option("--log-level", "How much is logged.", converter=reading(read_log_level))] = "info",
    log_format: Annotated[
        Literal["auto", "text", "json"], option("--log-format", "auto: text on a terminal, JSON elsewhere.")
    ] = "auto",
    log_tracebacks: Annotated[bool, flag("--log-tracebacks", TRACEBACKS)] = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Run workers of the tasks in a file.

    Takes jobs from all of the servers, and waits for those that cannot be reached. Logs go to standard error.

    EXAMPLES
      mainspring worker app.py
      mainspring worker app.py:billing --server 10.0.0.5:4730,10.0.0.6:4730 --concurrency 32 --processes 4
      mainspring worker app.py --functions 'mail.*,report' --not mail.bulk

    SIGNALS
      TERM, INT  stop: running jobs get the time of --grace, then they are handed
                 back without counting as a failure
      INT again  stop now: running jobs are handed back at once

    EXIT CODES
      0 stopped by a signal, 2 the file or an option is wrong, 3 a server is not
      one of Mainspring's
    """
    log = LogSettings(level=log_level, format=log_format, tracebacks=log_tracebacks)
    server.tls()  # errors now, not in each process
    order = replace(
        workers.order(app, [str(address) for address in parse_servers(server.server)], stop.seconds),
        log=log,
        tls=server.tls_files().absolute(),
        named=workers.processes > 1,
    )
    start_logging(log)
    return run_loop(_supervise(order, workers.processes))


async def _supervise(order: WorkerOrder, processes: int) -> int:
    supervisor = Supervisor(supervised(order), processes)

    def waits() -> None:
        if supervisor.running:
            tell_waiting(order.log, supervisor.running, order.grace)

    def hurries() -> None:
        if supervisor.running:
            tell_handed_back(order.log, supervisor.running)

    with stop_signals(ReportedStop(supervisor, waits, hurries)):
        return await supervisor.run()


def supervised(order: WorkerOrder, *, dies_with_parent: bool = False) -> Callable[[Start], list[str]]:
    """Return the commands of processes that this process supervises."""
    parent = os.getpid()

    def command(start: Start) -> list[str]:
        return replace(
            order, parent=parent, dies_with_parent=dies_with_parent, slate=start.slate, left_out=start.left_out
        ).command()

    return command


def check_app(selector: str) -> None:
    """Raise SettingsError for a file that does not exist, before any process is started."""
    place = selector.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise SettingsError(f"there is no file {place}: name the file that defines the App, as FILE.py or FILE.py:NAME")
