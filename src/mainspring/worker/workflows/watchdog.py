"""The watchdog of activations: code of a workflow that blocks the worker's loop is reported, with its stack."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.workflows.runs import Run

LIMIT: Final = 1.0
"""Seconds of an activation after which its stack is logged."""
INTERVAL: Final = 0.5

_log = structlog.get_logger("mainspring.workflows")


class Watchdog:
    """Watches the activations of one thread. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run: Run | None = None
        self._begun = 0.0
        self._reported = False
        self._stopped = threading.Event()
        self._thread = 0

    def start(self) -> None:
        """Watch the activations of the calling thread."""
        self._thread = threading.get_ident()
        threading.Thread(target=self._watch, name="mainspring watchdog of workflows", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    @property
    def run(self) -> Run | None:
        """The run whose code runs at the moment. Any thread may read it."""
        return self._run

    def begin(self, run: Run) -> None:
        """An activation begins."""
        self._begun = self._clock()
        self._reported = False
        self._run = run

    def end(self) -> None:
        """The activation has ended."""
        self._run = None

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        """Log the stack of an activation that takes too long, once. The watching thread calls this."""
        run, seconds = self._run, self._clock() - self._begun
        if run is None or self._reported or seconds < LIMIT:
            return
        self._reported = True
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to another thread's stack
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        _log.warning(
            "the code of a workflow blocks its worker",
            run=run.id,
            seconds=round(seconds, 1),
            do="move the computation into a task, and await task.step(…) or task.submit(…)",
            stack=stack,
        )
