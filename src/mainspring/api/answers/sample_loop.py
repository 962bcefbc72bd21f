"""Takes a sample again and again while somebody watches, at a pace that leaves most of the time to other work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.api.answers.waiting import CallInProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.api.answers.waiting import Ask
    from mainspring.jobs.service import JobService

INTERVAL: Final = 1.0
"""Seconds from one sample to the next, at least."""

log = structlog.get_logger("mainspring.api")


class SampleLoop:
    """Calls ``take`` at once, and again until ``is_watched`` returns False; then it calls ``ended``.

    A sample takes at most one of so many parts of the time as ``parts`` returns. ``interval`` returns the seconds from one sample
    to the next.
    """

    def __init__(
        self,
        service: JobService,
        take: Callable[[], Coroutine[Ask, Any, None]],
        is_watched: Callable[[], bool],
        ended: Callable[[], object],
        *,
        parts: Callable[[], int] = lambda: 2,
        interval: Callable[[], float] = lambda: INTERVAL,
    ) -> None:
        self._service = service
        self._take = take
        self._is_watched = is_watched
        self._ended = ended
        self._parts = parts
        self._interval = interval
        self._begun = 0.0

    def run_once(self) -> None:
        """Take a sample, and the next one in time."""
        if not self._is_watched():
            self._ended()
            return
        self._begun = self._service.monotonic()
        CallInProgress(self._take(), self._go_on, self._go_on, self._broken)

    def wait(self) -> None:
        """Take the first sample in time."""
        self._begun = self._service.monotonic()
        self._go_on(None)

    def _go_on(self, _: object) -> None:
        """Take the next sample in time, also after the store could not be read."""
        took = self._service.monotonic() - self._begun
        self._service.later(max(self._interval() - took, took * (self._parts() - 1)), self.run_once)

    def _broken(self, error: Exception) -> None:
        log.error("a sample for live pages failed", exc_info=error)
        self._go_on(error)
