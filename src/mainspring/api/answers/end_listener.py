"""A listener that waits for the end of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mainspring.api.answers.waiting import Done, Failed
    from mainspring.jobs.model import Job


class End(NamedTuple):
    """The end of a job, as `jobs.listeners.Listener.ended` gets it."""

    handle: bytes
    job: Job
    exception: bytes | None


class EndListener:
    """Waits for the end of one job, and ignores what the job sends before it."""

    def __init__(self) -> None:
        self.gone = False
        self._end: End | None = None
        self._done: Done | None = None

    def until_ended(self, done: Done, _: Failed) -> None:
        """Call ``done`` with the `End` of the job; at once if it has ended already."""
        if self._end is None:
            self._done = done
        else:
            done(self._end)

    def data(self, handle: bytes, data: bytes) -> None:
        """Ignore a part of the result that is sent before the end."""

    def warning(self, handle: bytes, data: bytes) -> None:
        """Ignore a warning."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Ignore progress."""

    def unknown(self, handle: bytes) -> None:
        """Do nothing. It is never called, because `has_room` always returns True."""

    def has_room(self) -> bool:
        """Return True: the data of one job needs no bound here."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Keep the first end, and pass it to the call that waits for it."""
        if self._end is None:
            self._end = End(handle, job, exception)
            if self._done is not None:
                self._done(self._end)
