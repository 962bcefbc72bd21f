"""The settings of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainspring.client.options import check_number, check_text, check_whole

DRAIN_GRACE: Final = 30.0
"""The default of the seconds that a stop waits for running jobs."""

FROZEN_AFTER: Final = 10.0
"""The default of the seconds for which the event loop may be blocked."""

WAITING_PLACES: Final = 64
"""The default of the largest number of extra places."""


WORKFLOW_CACHE: Final = 256 * 2**20
"""The default of the bytes of runs in memory."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a worker; the defaults suit tasks that mostly wait for input and output."""

    concurrency: int = 16
    """Jobs that run at a time."""

    waiting_places: int = WAITING_PLACES
    """Extra places, at most, for awaited jobs while the tasks that wait for them hold all places."""

    name: str = ""
    """The worker's name on the servers; empty: the host name and the process id."""

    grace: float = DRAIN_GRACE
    """Seconds that running jobs have to end after the worker is stopped; then they are released."""

    frozen_after: float = FROZEN_AFTER
    """Seconds for which the event loop may be blocked; then the worker's servers give it no work, and its supervisor replaces its
    process. 0: any time."""

    max_jobs: int | None = None
    """Jobs after which the worker ends in order to be restarted."""

    max_rss: int | None = None
    """Bytes of resident memory above which the worker ends in order to be restarted."""

    workflow_cache: int = WORKFLOW_CACHE
    """Bytes of the runs of workflows that are kept in memory between their decisions."""

    check_replay: bool = False
    """Whether to replay a run of a workflow from its start for each of its decisions, and not for one in 1,000."""

    log_tracebacks: bool = False
    """Whether to log the tracebacks of failed attempts."""

    def __post_init__(self) -> None:
        check_whole(self.concurrency, "concurrency", 1)
        check_whole(self.waiting_places, "waiting_places", 0)
        check_text(self.name, "name")
        check_number(self.grace, "grace", "a number of seconds, not negative", 0)
        check_number(self.frozen_after, "frozen_after", "a number of seconds, not negative", 0)
        check_whole(self.workflow_cache, "workflow_cache", 0)
        for name in ("max_jobs", "max_rss"):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, 1)
