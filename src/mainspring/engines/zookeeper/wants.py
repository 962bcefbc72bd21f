"""The records by which a node says what it would take, the master what it has assigned, and both who has a task.

``/wants/<worker>``, written by the worker::

    {"asked": 17, "wants": {"resize": [{"limit": 64, "slots": [[0, 340]], "overdue_us": 1700000000000000}]}}

``asked`` rises with each claim that waits for an answer. Slots are ranges, both ends included; without them, all. Wants stay open
until the worker replaces them.

``/queues/<worker>``, written by the master::

    {"master": 12, "answered": 17, "number": 340, "tasks": ["resize:a", "resize:b"]}

``number`` is how many tasks this master has assigned to the worker, ``tasks`` are the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.zookeeper import paths, records
from mainspring.jobs.store import Want

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job


class Asked(NamedTuple):
    """What a worker would take."""

    asked: int
    wants: dict[bytes, list[Want]]


def encode_wants(asked: int, wants: Mapping[bytes, Sequence[Want]]) -> bytes:
    """Return what a worker writes."""
    told = {paths.encode(function): [_want(want) for want in some] for function, some in wants.items() if some}
    return records.encode({"asked": asked, "wants": told})


def decode_wants(data: bytes) -> Asked:
    """Return what a worker has written."""
    record = records.decode(data)
    wants = {}
    for name, some in record.get("wants", {}).items():
        function = paths.decode(name)
        wants[function] = [
            Want(function, want["limit"], _slots(want.get("slots")), want.get("overdue_us", 0)) for want in some
        ]
    return Asked(record.get("asked", 0), wants)


def _want(want: Want) -> dict[str, Any]:
    told: dict[str, Any] = {"limit": want.limit}
    if want.slots is not None:
        told["slots"] = ranges(want.slots)
    if want.overdue_us:
        told["overdue_us"] = want.overdue_us
    return told


def _slots(told: list[list[int]] | None) -> frozenset[int] | None:
    return None if told is None else frozenset(slot for first, last in told for slot in range(first, last + 1))


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return the runs of a set of numbers, both ends included."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


class Notice(NamedTuple):
    """What the master tells a worker. All zero: nobody has said anything yet."""

    master: int = 0
    answered: int = 0
    number: int = 0
    tasks: Sequence[str] = ()

    def since(self, before: Notice) -> Sequence[str] | None:
        """Return the tasks that were assigned after an earlier notice; None where only the whole queue can tell."""
        new = self.number - before.number
        if self.master != before.master or not 0 <= new <= len(self.tasks):
            return None
        return self.tasks[len(self.tasks) - new :]


def encode_notice(notice: Notice) -> bytes:
    """Return what the master writes."""
    return records.encode(notice._asdict())


def decode_notice(data: bytes) -> Notice:
    """Return what a master has written."""
    return Notice(**records.decode(data))


# ---- who has a task ----

Mark = tuple[int, int]
"""One assignment of a task: the version of the master, and the number of the assignment among that master's. They rise."""
UNMARKED: Final = (0, 0)
"""What a node leased as it submitted it, which no master has assigned."""


def held_by(term: int, record: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """Return the record of a pending task as its worker has it.

    By ``master`` the worker knows that it was assigned, and not submitted so, and by ``assignment`` whether it has seen it.
    """
    return {**record, "state": "leased", "term": term, "master": mark[0], "assignment": mark[1]}


def mark_of(record: Mapping[str, Any]) -> Mark:
    """Return which assignment a held task's record is of; the number is 0 where a master of an older version wrote it."""
    return record["master"], record.get("assignment", 0)


def leased(job_id: int, handle: str, attempt: int) -> bytes:
    """Return an assignment that nobody has recorded as running."""
    return records.encode({"handle": handle, "id": job_id, "state": "leased", "attempt": attempt})


def running(job: Job, handle: str) -> bytes:
    """Return an assignment that is recorded as running."""
    data: dict[str, Any] = {"handle": handle, "id": job.id, "state": "running", "attempt": job.attempt}
    if job.started_us:
        data["started_us"] = job.started_us
    return records.encode(data)
