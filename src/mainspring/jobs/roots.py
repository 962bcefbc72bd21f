"""Functions whose jobs stand for runs of workflows: the jobs slice's requests to the slice that begins and ends the runs.

A job of such a function is never handed to a worker. Once it is due it becomes a *root job* (``model.RUNS``), at its submission
or later, and that slice ends it. Until then it is stored as any waiting job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import MainspringError
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Found

    Joined = dict[int, Found]
    """For each job that was not stored (by its id), the one that it joins, as in the outcome of ``Submit``."""


class Roots(Protocol):
    """The workflows of a node, for its jobs. All methods are called on the node's thread."""

    def is_root(self, function: bytes) -> bool:
        """Return whether jobs of a function stand for runs.

        When the answer turns to True, ``JobService.became_root`` has to be called with the function.
        """

    def begin(self, jobs: list[Job], done: Callable[[Joined], None], failed: Callable[[MainspringError], None]) -> None:
        """Store new jobs of such functions, which are due, as root jobs, and begin their runs.

        ``failed`` is called if one of them could not begin; the others may have begun then.
        """

    def begin_waiting(
        self, function: bytes, limit: int, done: Callable[[int], None], failed: Callable[[MainspringError], None]
    ) -> None:
        """Begin runs for up to ``limit`` pending jobs of a function, in the order of a claim.

        ``done`` is called with the number of jobs that became root jobs; fewer than ``limit`` if no more are pending.
        """

    def cancel(
        self, job_id: int, reason: str, done: Callable[[str], None], failed: Callable[[MainspringError], None]
    ) -> None:
        """Cancel the run of a live root job; ``done`` is called as by ``JobService.cancel``: ``running`` after a request."""
