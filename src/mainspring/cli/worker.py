"""``mainspring worker``: run workers of the tasks in a file."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter
from msgspec.structs import replace

from mainspring.cli.node import run_loop
from mainspring.cli.node_options import log_level as read_log_level
from mainspring.cli.node_options import shown_size
from mainspring.cli.options import DURATION, LOCAL, SIZE, ServerOptions, at_least, count, option, reading, shown
from mainspring.cli.worker_process import WorkerOrder, work
from mainspring.client.addresses import parse_servers
from mainspring.errors import SettingsError
from mainspring.server.logs import start_logging
from mainspring.server.quantities import parse_size
from mainspring.server.settings import LogSettings
from mainspring.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = Group("Workers", sort_key=0)

LEAST_MEMORY = 32 << 20
"""Bytes: Python and Mainspring alone take more. What the App takes besides is seen where it is loaded."""

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
    grace: Annotated[
        float,
        option(
            "--grace",
            "How long a stop waits for running jobs before they are handed back.",
            group=WORKERS,
            show_default=shown,
            **DURATION,
        ),
    ] = 30.0

    def order(self, app: str, servers: list[str]) -> WorkerOrder:
        """Return what each process is to do.  Raises SettingsError."""
        for name, value in (("--processes", self.processes), ("--concurrency", self.concurrency)):
            if value < 1:
                raise SettingsError(f"{name} must be at least 1; it is {value}")
        check_app(app)
        return WorkerOrder(
            app=app,
            servers=servers,
            concurrency=self.concurrency,
            grace=self.grace,
            max_jobs=self.max_jobs,
            max_memory=self.max_memory,
        )


USUAL = WorkerOptions()


def worker(
    app: AppSelector,
    /,
    *,
    workers: WorkerOptions = USUAL,
    log_level: Annotated[str, option("--log-level", "How much is logged.", converter=reading(read_log_level))] = "info",
    log_format: Annotated[
        Literal["auto", "text", "json"], option("--log-format", "auto: text on a terminal, JSON elsewhere.")
    ] = "auto",
    server: ServerOptions = LOCAL,
) -> int:
    """Run workers of the tasks in a file.

    Takes jobs from all of the servers, and waits for those that cannot be reached. Logs go to standard error.

    EXAMPLES
      mainspring worker app.py
      mainspring worker app.py:billing --server 10.0.0.5:4730,10.0.0.6:4730 --concurrency 32 --processes 4

    SIGNALS
      TERM, INT  stop: running jobs get the time of --grace, then they are handed
                 back without counting as a failure; a second one stops at once

    EXIT CODES
      0 stopped by a signal, 2 the file or an option is wrong
    """
    server.tls()  # errors now, not in each process
    order = replace(
        workers.order(app, [str(address) for address in parse_servers(server.server)]),
        log_level=log_level,
        log_format=log_format,
        tls=server.tls_files().absolute(),
    )
    if workers.processes == 1 and workers.max_jobs is None and workers.max_memory is None:
        return work(order)
    start_logging(LogSettings(level=log_level, format=log_format))
    return run_loop(_supervise(order, workers.processes))


async def _supervise(order: WorkerOrder, processes: int) -> int:
    supervisor = Supervisor(supervised(order), processes)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()


def supervised(order: WorkerOrder, *, dies_with_parent: bool = False) -> Callable[[int], list[str]]:
    """Return the commands of processes that this process supervises."""
    command = replace(order, parent=os.getpid(), dies_with_parent=dies_with_parent).command()
    return lambda _number: command


def check_app(selector: str) -> None:
    """Raise SettingsError for a file that does not exist, before any process is started."""
    place = selector.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise SettingsError(f"there is no file {place}: name the file that defines the App, as FILE.py or FILE.py:NAME")
