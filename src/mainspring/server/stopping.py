"""A stop: the signals that ask for it, and the messages about it.

==================  ==============================================================
first SIGTERM       polite: running jobs get the grace, then they are handed back
another SIGTERM     nothing more
first SIGINT        the same as the first SIGTERM
SIGINT in a stop    stop now: running jobs are handed back at once
==================  ==============================================================
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

    from mainspring.server.settings import LogSettings


class Stoppable(Protocol):
    """A node, a worker, or a supervisor of workers."""

    def stop(self) -> None:
        """Stop politely; does nothing more in a stop."""

    def interrupt(self) -> None:
        """Stop politely; in a stop: stop now."""


@contextlib.contextmanager
def stop_signals(target: Stoppable) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop something while the block lasts; use it on the event loop of the main thread."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as signals:
        for number, function in ((signal.SIGTERM, target.stop), (signal.SIGINT, target.interrupt)):
            loop.add_signal_handler(number, function)
            signals.callback(loop.remove_signal_handler, number)
        yield


class ReportedStop:
    """Stops something, and shows a message when the stop begins to wait and another when it is hurried; each once."""

    def __init__(self, target: Stoppable, waits: Callable[[], None], hurries: Callable[[], None]) -> None:
        self._target = target
        self._to_tell = [hurries, waits]

    def stop(self) -> None:
        """Stop politely; does nothing more in a stop."""
        self._target.stop()
        self._tell(2)

    def interrupt(self) -> None:
        """Stop politely; in a stop: stop now."""
        self._target.interrupt()
        self._tell(1)

    def _tell(self, least: int) -> None:
        if len(self._to_tell) >= least:
            self._to_tell.pop()()


def tell(log: LogSettings, sentence: str, **figures: object) -> None:
    """Show a message: as plain text on a terminal, whatever the log is; as a log line where there is none."""
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        sys.stderr.write(f"mainspring: {sentence}\n")
        sys.stderr.flush()
    if not on_terminal or log.file is not None or log.syslog:
        structlog.get_logger("mainspring.stop").info(sentence, **figures)


def tell_waiting(log: LogSettings, jobs: int, grace: float | None) -> None:
    """Say what a stop waits for; ``grace`` in seconds, None: without a limit."""
    end = "until it ends" if jobs == 1 else "until they end"
    limit = end if grace is None else f"up to {spell_duration(grace)}"
    way_out = "Ctrl-C to wait no longer than the grace" if grace is None else "Ctrl-C again to stop now"
    tell(log, f"{_jobs(jobs)} running; waiting {limit}; {way_out}", jobs=jobs, grace=grace)


def tell_handed_back(log: LogSettings, jobs: int) -> None:
    """Say that jobs that did not end in time were handed back."""
    tell(log, f"{_jobs(jobs)} handed back", jobs=jobs)


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
