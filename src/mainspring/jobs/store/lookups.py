"""Operations that read stored jobs by id and by unique, and that count them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.namespaces import ANY, DEFAULT
from mainspring.storage.engine import Operation, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class Count(Operation):
    """Read the counts. Outcome: ``dict[tuple[bytes, int, int], int]``: by function, state and priority.

    Held jobs are counted as LEASED, whether or not they are recorded as running.
    """

    __slots__ = ()

    phase = Phase.READ
    reads = True


class CountLive(Operation):
    """Count the jobs of some functions that have not ended, including all earlier operations. Outcome: ``Counted``."""

    __slots__ = ("functions",)

    phase = Phase.READ
    reads = True

    def __init__(self, functions: Sequence[bytes]) -> None:
        super().__init__()
        self.functions = functions
        self.rows = len(functions)


class ShowLive(Query["Counted"], frozen=True):
    """Count the live jobs of all functions, page by page, for display. Callers that keep counts use ``CountLive``.

    The functions are all that the store has ever seen, in the store's own order. The cost of a page depends on its length alone.
    A page is empty if all jobs of its functions have ended.
    """

    after: bytes = b""
    limit: int = 1000


class CountDead(Query[dict[bytes, int]], frozen=True):
    """Count the dead letters of some functions. The answer is without zeros."""

    functions: tuple[bytes, ...]


class ShowDead(Query["DeadCounted"], frozen=True):
    """Count the dead letters of a page of all functions: of ``limit`` of them ``after`` a place (empty: the first)."""

    after: bytes = b""
    limit: int = 1000


class DeadCounted(NamedTuple):
    """The outcome of ShowDead."""

    numbers: dict[bytes, int]
    """By function, without zeros."""
    next: bytes | None = None
    """The place ``after`` which the next page begins; None on the last page."""


def numbered(place: bytes) -> int:
    """Return a place as the number that it is in most stores. Clients send places back; an invalid one means the first page."""
    return int(place) if place.isdigit() and len(place) <= 9 else 0


class Counted(NamedTuple):
    """The outcome of CountLive and of ShowLive."""

    counts: dict[tuple[bytes, int, int], int]
    """By function, state and priority, as that of ``Count``, without zeros."""
    next: bytes | None = None
    """The place ``after`` which the next page begins; None on the last page."""
