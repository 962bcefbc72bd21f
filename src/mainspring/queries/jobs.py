"""The read side of jobs: filters and pages. It never writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs.model import State  # noqa: TC001 - msgspec reads the annotation
from mainspring.storage.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.model import Job


class JobFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs to list; what is None does not matter. ``before`` is the id of the last job of the page before."""

    state: State | None = None
    function: bytes | None = None
    unique: bytes | None = None
    before: int | None = None
    limit: int = 100


class ListJobs(Operation):
    """List jobs, newest first. Outcome: ``list[Job]``, without payloads and results."""

    __slots__ = ("filter",)

    def __init__(
        self, which: JobFilter, done: Callable[[list[Job]], None], failed: Callable[[StoreError], None]
    ) -> None:
        super().__init__(done, failed)
        self.filter = which
        self.rows = which.limit
