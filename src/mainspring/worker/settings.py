"""How a worker works, as its owner chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainspring.client.validation import check_number, check_text, check_whole

DRAIN_GRACE: Final = 30.0
"""Seconds that a stop waits for running jobs, by default."""

WAITING_PLACES: Final = 64
"""Extra places, at most, by default."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works; the defaults suit tasks that mostly wait."""

    concurrency: int = 16
    """Jobs that run at a time."""

    waiting_places: int = WAITING_PLACES
    """Extra places, at most, for the jobs that tasks wait for while those tasks hold all places."""

    name: str = ""
    """What servers call it; the machine's name and the process's number where empty."""

    grace: float = DRAIN_GRACE
    """Seconds that running jobs have to end after the worker is stopped; then they are handed back."""

    max_jobs: int | None = None
    """The worker ends after so many jobs, to be started anew."""

    max_rss: int | None = None
    """The worker ends when it takes so many bytes of memory, to be started anew."""

    log_tracebacks: bool = False
    """Log the tracebacks of failed attempts, too."""

    def __post_init__(self) -> None:
        check_whole(self.concurrency, "concurrency", 1)
        check_whole(self.waiting_places, "waiting_places", 0)
        check_text(self.name, "name")
        check_number(self.grace, "grace", "a number of seconds, not negative", 0)
        for name in ("max_jobs", "max_rss"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, 1)
