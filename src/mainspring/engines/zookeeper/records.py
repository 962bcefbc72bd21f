"""What the nodes of the tree contain: JSON for people who look with ``zkCli.sh``, and back.

Times are microseconds of wall time. Bytes that are UTF-8 text are a string; others have a field of the same name with
``_base64`` behind it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.engines.zookeeper import paths
from mainspring.jobs.model import Job, Options, Priority, State
from mainspring.jobs.store import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

encode = msgspec.json.Encoder().encode
"""Return any object as JSON."""
MOST: Final = 1_000_000
"""Bytes of a record: with the other changes of its task it has to go into one packet, of which a server takes 1,048,575 bytes."""


def text(value: bytes, field: str, into: dict[str, Any]) -> None:
    """Put bytes into an object, as text where they are text that JSON does not blow up; empty ones are left out."""
    if not value:
        return
    try:
        words = value.decode()
    except UnicodeDecodeError:
        words = None
    if words is None or (not words.isprintable() and any(sign < " " and sign not in "\t\n\r" for sign in words)):
        into[f"{field}_base64"] = b64encode(value).decode()
    else:
        into[field] = words


def untext(record: dict[str, Any], field: str) -> bytes:
    """Take bytes out of an object."""
    words: str | None = record.get(field)
    if words is not None:
        return words.encode()
    coded: str | None = record.get(f"{field}_base64")
    return b"" if coded is None else b64decode(coded)


def encode_job(job: Job, handle: str, **more: Any) -> bytes:
    """Return the record of a task: of one that has not ended, everything that another node needs in order to run it.

    An ended one says ``state``, ``result``, ``ended_us``; ``more`` are fields of the place where it stands. What is empty or as
    it usually is, is left out.
    """
    record: dict[str, Any] = {"handle": handle, "id": job.id, "state": State(job.state).name.lower(), **more}
    text(job.function, "function", record)
    text(job.unique, "unique", record)
    text(job.payload, "payload", record)
    if job.priority != Priority.NORMAL:
        record["priority"] = Priority(job.priority).name.lower()
    for field in _NUMBERS:
        value = getattr(job, field)
        if value:
            record[field] = value
    text(job.result, "result", record)
    text(job.error, "error", record)
    text(job.key, "key", record)
    if job.options is not None:
        record["options"] = job.options
    if job.namespace != "default":
        record["namespace"] = job.namespace
    if job.foreground:
        record["foreground"] = True
    data = encode(record)
    if len(data) > MOST and job.error:
        # Payload and failure may be as large as a node takes, together they are not: the payload can be run again.
        record.pop("error_base64", None)
        record["error"] = _shortened(job.error)
        data = encode(record)
    return data


def _shortened(error: bytes) -> str:
    """Return a failure without its traceback, and with the beginning of its message."""
    try:
        told: dict[str, Any] = msgspec.json.decode(error)
        short = {"type": str(told["type"])[:200], "message": f"{str(told['message'])[:1000]} (shortened)"}
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    return encode(short).decode()


_NUMBERS: Final = (
    "created_us", "due_us", "expires_us", "term", "attempt", "suspects", "started_us", "ended_us", "input_size",
    "output_size",
)  # fmt: skip
_STATES: Final = {state.name.lower(): int(state) for state in State}
_PRIORITIES: Final = {priority.name.lower(): int(priority) for priority in Priority}


def decode(data: bytes) -> dict[str, Any]:
    """Return any record as an object; an empty node is an empty object."""
    if not data:
        return {}
    record: dict[str, Any] = msgspec.json.decode(data)
    return record


def decode_job(record: dict[str, Any]) -> Job:
    """Return the job of a record."""
    options = record.get("options")
    return Job(
        id=record["id"],
        function=untext(record, "function"),
        payload=untext(record, "payload"),
        unique=untext(record, "unique"),
        priority=_PRIORITIES[record.get("priority", "normal")],
        state=_STATES[record["state"]],
        options=None if options is None else msgspec.convert(options, Options),
        result=untext(record, "result"),
        error=untext(record, "error"),
        key=untext(record, "key"),
        namespace=record.get("namespace", "default"),
        foreground=record.get("foreground", False),
        **{field: record.get(field, 0) for field in _NUMBERS},
    )


def is_published(result: Mapping[str, Any]) -> bool:
    """Return whether what a result says is the outcome: before, it says where the task is and who waits."""
    return "state" in result


# ---- what a worker would take, and what the master has told it ----
#
# ``/wants/<worker>``, written by the worker::
#
#     {"asked": 17, "wants": {"resize": [{"limit": 64, "slots": [[0, 340]], "overdue_us": 1700000000000000}]}}
#
# ``asked`` rises with each claim that waits for an answer. Slots are ranges, both ends included; without them, all. Wants stay
# open until the worker replaces them.
#
# ``/queues/<worker>``, written by the master::
#
#     {"master": 12, "answered": 17, "number": 340, "tasks": ["resize:a", "resize:b"]}
#
# ``number`` is how many tasks this master has assigned to the worker, ``tasks`` are the last of them.


class Asked(NamedTuple):
    """What a worker would take."""

    asked: int
    wants: dict[bytes, list[ClaimRequest]]


def encode_wants(asked: int, wants: Mapping[bytes, Sequence[ClaimRequest]]) -> bytes:
    """Return what a worker writes."""
    told = {paths.encode(function): [_want(want) for want in some] for function, some in wants.items() if some}
    return encode({"asked": asked, "wants": told})


def decode_wants(data: bytes) -> Asked:
    """Return what a worker has written."""
    record = decode(data)
    wants = {}
    for name, some in record.get("wants", {}).items():
        function = paths.decode(name)
        wants[function] = [
            ClaimRequest(function, want["limit"], _slots(want.get("slots")), want.get("overdue_us", 0)) for want in some
        ]
    return Asked(record.get("asked", 0), wants)


def _want(want: ClaimRequest) -> dict[str, Any]:
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
    return encode(notice._asdict())


def decode_notice(data: bytes) -> Notice:
    """Return what a master has written."""
    return Notice(**decode(data))


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
    return encode({"handle": handle, "id": job_id, "state": "leased", "attempt": attempt})


def running(job: Job, handle: str) -> bytes:
    """Return an assignment that is recorded as running."""
    data: dict[str, Any] = {"handle": handle, "id": job.id, "state": "running", "attempt": job.attempt}
    if job.started_us:
        data["started_us"] = job.started_us
    return encode(data)
