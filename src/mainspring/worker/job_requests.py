"""The worker's requests for jobs to its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.held_jobs import HeldJobs
    from mainspring.worker.link import Link
    from mainspring.worker.prefetch import PrefetchController


class JobRequests:
    """Requests as many jobs from the servers as the worker can hold."""

    def __init__(self, links: Sequence[Link], prefetch: PrefetchController, held_jobs: HeldJobs) -> None:
        self._links = links
        self._prefetch = prefetch
        self._held_jobs = held_jobs

    def send(self) -> None:
        """Request the jobs that are missing.

        Each server may assign all of them, because the worker cannot know which servers have jobs. While jobs are long, an
        assignment of one server reduces the requests to the others.
        """
        target = self._prefetch.target()
        capacity = max(0, target - self._held_jobs.outside_extra_places)
        for link in self._links:
            session = link.session
            if not session.agreed:
                continue
            missing = capacity - session.credit
            if missing < 0 and not session.pausing and not self._prefetch.brief:
                session.pause()
                missing = capacity
            # Combine several requests in one packet while the server has enough credit.
            if missing > 0 and (missing * 4 >= target or session.credit <= missing):
                session.ready(missing)
            link.flush()
