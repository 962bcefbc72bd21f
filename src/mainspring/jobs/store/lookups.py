"""Lookups of jobs by id and by unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.namespaces import ANY, DEFAULT
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase
from mainspring.storage.query import Query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.jobs.model import Job


class Find(Operation):
    """Look jobs up by id. Outcome: ``dict[int, Job]``, without payloads, and with the results that fit into ``room`` bytes.

    No engine reads a result before it has read its size. The other results stay in the store; ``Job.unread`` is their size.
    Jobs of another namespace are not found.
    """

    __slots__ = ("ids", "namespace", "room")

    phase = Phase.READ
    is_request = True
    reads = True

    def __init__(
        self,
        ids: list[int],
        room: int = 0,
        namespace: str = DEFAULT,
    ) -> None:
        super().__init__()
        self.ids = ids
        self.room = room
        self.namespace = namespace
        self.rows = len(ids)


class ShowJob(Query["Job | None"], frozen=True):
    """Read a job of a namespace from what is committed, beside the groups. The answer has neither payload nor result."""

    is_small = True
    id: int
    namespace: str = ANY


def fitting(jobs: Mapping[int, Job], room: int) -> list[Job]:
    """Return the jobs whose results are read: in order, each job whose result fits into the rest of ``room`` bytes."""
    fit: dict[int, Job] = {}
    for job in jobs.values():
        if 0 < job.output_size <= room and job.id not in fit:
            fit[job.id] = job
            room -= job.output_size
    return list(fit.values())


def leave_unread(jobs: Mapping[int, Job], room: int) -> None:
    """Drop the results that do not fit, for engines that read results at no cost."""
    fit = {job.id for job in fitting(jobs, room)}
    for job in jobs.values():
        if job.id not in fit:
            job.result = b""


class InNamespace(NamedTuple):
    """Any function of a namespace."""

    namespace: str


class FindUnique(Operation):
    """Look live jobs up by function and unique.

    Outcome: ``list[Found | None]``, one for each key.
    """

    __slots__ = ("keys",)

    phase = Phase.READ
    is_request = True
    reads = True

    def __init__(
        self,
        keys: list[tuple[bytes | InNamespace, bytes]],
    ) -> None:
        super().__init__()
        self.keys = keys
        self.rows = len(keys)
