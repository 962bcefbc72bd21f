"""Stops: their signals and messages.

====================  ==================================================================
first SIGTERM         graceful: running jobs get the grace period, then they are released
another SIGTERM       no further effect
first SIGINT          the same as the first SIGTERM
SIGINT during a stop  immediate: running jobs are released at once
====================  ==================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Protocol

import structlog

from mainspring.quantities import spell_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.server.log_settings import LogSettings


class Stoppable(Protocol):
    """A node, a worker, or a supervisor of workers."""

    def stop(self) -> None:
        """Stop gracefully; do nothing during a stop."""

    def interrupt(self) -> None:
        """Stop gracefully; during a stop: stop immediately."""


@contextlib.contextmanager
def stop_signals(target: Stoppable) -> Iterator[None]:
    """Stop ``target`` at SIGTERM and SIGINT inside this block; use it on the event loop of the main thread."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as signals:
        for number, function in ((signal.SIGTERM, target.stop), (signal.SIGINT, target.interrupt)):
            loop.add_signal_handler(number, function)
            signals.callback(loop.remove_signal_handler, number)
        yield


class ReportedStop:
    """Stops a target; calls ``waits`` when the stop begins and ``hurries`` when it becomes immediate, each once."""

    def __init__(self, target: Stoppable, waits: Callable[[], None], hurries: Callable[[], None]) -> None:
        self._target = target
        self._reports = [hurries, waits]

    def stop(self) -> None:
        """Stop gracefully; do nothing during a stop."""
        self._target.stop()
        self._report(2)

    def interrupt(self) -> None:
        """Stop gracefully; during a stop: stop immediately."""
        self._target.interrupt()
        self._report(1)

    def _report(self, least: int) -> None:
        if len(self._reports) >= least:
            self._reports.pop()()


def show(log: LogSettings, sentence: str, **figures: object) -> None:
    """Show a message as plain text on a terminal; log it if there is no terminal, or if the log is not the terminal."""
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        sys.stderr.write(f"mainspring: {sentence}\n")
        sys.stderr.flush()
    if not on_terminal or log.file is not None or log.syslog:
        structlog.get_logger("mainspring.stop").info(sentence, **figures)


def show_waiting(log: LogSettings, jobs: int, grace: float | None) -> None:
    """Show how many running jobs a stop waits for; ``grace`` in seconds, None: no limit."""
    end = "until it ends" if jobs == 1 else "until they end"
    limit = end if grace is None else f"up to {spell_duration(grace)}"
    way_out = "Ctrl-C to wait no longer than the grace" if grace is None else "Ctrl-C again to stop now"
    show(log, f"{_jobs(jobs)} running; waiting {limit}; {way_out}", jobs=jobs, grace=grace)


def show_released(log: LogSettings, jobs: int) -> None:
    """Show how many jobs did not end in time and were released."""
    show(log, f"{_jobs(jobs)} released", jobs=jobs)


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
