"""The read side of jobs: filters and pages. It never writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs.model import State  # noqa: TC001 - msgspec reads the annotation
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    phase = Phase.READ
    reads = True

    def __init__(self, which: JobFilter) -> None:
        super().__init__()
        self.filter = which
        self.rows = which.limit
        self.overtakes = True


MOST_KEYS = 20
"""Concurrency keys of a function and priority whose first jobs are looked at, where a store has a line for each key."""


class FirstInLine(Operation):
    """Read since when the pending jobs have waited that are the first in line for a worker. Only where `Engine.lines`.

    Outcome: ``dict[bytes, int]``: for each function that has pending jobs, the earliest wall time in microseconds at which one
    of these first jobs was submitted or became due. Each priority has a line, or each priority and key. Only the beginnings
    of the lines are read, however long they are.
    """

    __slots__ = ("functions",)

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        functions: Sequence[bytes],
    ) -> None:
        super().__init__()
        self.functions = functions
        self.overtakes = True
