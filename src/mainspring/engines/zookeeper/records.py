"""The records in the nodes of the tree: JSON, which people can read with ``zkCli.sh``.

Times are microseconds of wall time. Bytes that are UTF-8 text become a string; others a field whose name ends in ``_base64``.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring import namespaces
from mainspring.engines.zookeeper import paths
from mainspring.jobs.model import Job, Options, Priority, State
from mainspring.jobs.store import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

encode = msgspec.json.Encoder().encode
"""Return any object as JSON."""
MAX_RECORD: Final = 1_000_000
"""Bytes of a record: with the other changes of its task it has to fit into one packet of at most 1,048,575 bytes."""


def text(value: bytes, field: str, into: dict[str, Any]) -> None:
    """Put bytes into an object, as text if they are text that JSON does not inflate; leave out empty ones."""
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
    """Return the bytes of an object's field."""
    words: str | None = record.get(field)
    if words is not None:
        return words.encode()
    coded: str | None = record.get(f"{field}_base64")
    return b"" if coded is None else b64decode(coded)


def encode_job(job: Job, handle: str, **more: Any) -> bytes:
    """Return the record of a task: of one that has not ended, all fields that another node needs to run it.

    The record of an ended one has ``state``, ``result``, ``ended_us``. ``more`` are the fields of its place. Fields that are
    empty or have their default are left out.
    """
    record: dict[str, Any] = {"handle": handle, "id": job.id, "state": State(job.state).name.lower(), **more}
    text(namespaces.name_of(job.function), "function", record)
    for field in ("unique", "payload"):
        text(getattr(job, field), field, record)
    if job.priority != Priority.NORMAL:
        record["priority"] = Priority(job.priority).name.lower()
    for field in _NUMBERS:
        value = getattr(job, field)
        if value:
            record[field] = value
    for field in ("result", "error", "key"):
        text(getattr(job, field), field, record)
    if job.options is not None:
        record["options"] = job.options
    if job.foreground:
        record["foreground"] = True
    data = encode(record)
    if len(data) > MAX_RECORD and job.error:
        # A payload and a failure may each fill a node, but not both one. The payload stays, since it can be run again.
        record.pop("error_base64", None)
        record["error"] = _shortened(job.error)
        data = encode(record)
    return data


def _shortened(error: bytes) -> str:
    """Return a failure without its traceback, and with a shortened message."""
    try:
        failure: dict[str, Any] = msgspec.json.decode(error)
        short = {"type": str(failure["type"])[:200], "message": f"{str(failure['message'])[:1000]} (shortened)"}
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
    try:
        record: dict[str, Any] = msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError(f"the record has too many levels: {error}") from None
    return record


def decode_job(record: dict[str, Any]) -> Job:
    """Return the job of a record."""
    options = record.get("options")
    texts: dict[str, Any] = {field: untext(record, field) for field in ("unique", "payload", "result", "error", "key")}
    return Job(
        id=record["id"],
        function=namespaces.key(namespaces.DEFAULT, untext(record, "function")),
        priority=_PRIORITIES[record.get("priority", "normal")],
        state=_STATES[record["state"]],
        options=None if options is None else msgspec.convert(options, Options),
        foreground=record.get("foreground", False),
        **{field: record.get(field, 0) for field in _NUMBERS},
        **texts,
    )


def is_published(result: Mapping[str, Any]) -> bool:
    """Return whether a result contains the outcome; before, it contains the task's location and the waiting nodes."""
    return "state" in result


# ---- a worker's open requests, and the master's notices to it ----
#
# ``/wants/<worker>``, written by the worker::
#
#     {"asked": 17, "wants": {"resize": [{"limit": 64, "slots": [[0, 340]], "overdue_us": 1700000000000000}]}}
#
# ``asked`` rises with each claim that waits for an answer. Slots are ranges, both ends included; without them, all. Requests
# stay open until the worker replaces them.
#
# ``/queues/<worker>``, written by the master::
#
#     {"master": 12, "answered": 17, "number": 340, "tasks": ["resize:a", "resize:b"]}
#
# ``number`` is the count of tasks that this master has assigned to the worker, ``tasks`` are the last of them.


class OpenRequests(NamedTuple):
    """The open requests of a worker, and the number of its last unanswered claim."""

    asked: int
    requests: dict[bytes, list[ClaimRequest]]


def encode_requests(asked: int, requests: Mapping[bytes, Sequence[ClaimRequest]]) -> bytes:
    """Return the record of a worker's open requests."""
    encoded = {
        paths.encode(function): [_encode_request(request) for request in some]
        for function, some in requests.items()
        if some
    }
    return encode({"asked": asked, "wants": encoded})


def decode_requests(data: bytes) -> OpenRequests:
    """Return the open requests of a record."""
    record = decode(data)
    requests = {}
    for name, some in record.get("wants", {}).items():
        function = paths.decode(name)
        requests[function] = [
            ClaimRequest(function, request["limit"], _slots(request.get("slots")), request.get("overdue_us", 0))
            for request in some
        ]
    return OpenRequests(record.get("asked", 0), requests)


def _encode_request(request: ClaimRequest) -> dict[str, Any]:
    record: dict[str, Any] = {"limit": request.limit}
    if request.slots is not None:
        record["slots"] = ranges(request.slots)
    if request.overdue_us:
        record["overdue_us"] = request.overdue_us
    return record


def _slots(runs: list[list[int]] | None) -> frozenset[int] | None:
    return None if runs is None else frozenset(slot for first, last in runs for slot in range(first, last + 1))


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
    """The master's notice to a worker. All zero: there is none yet."""

    master: int = 0
    answered: int = 0
    number: int = 0
    tasks: Sequence[str] = ()

    def since(self, before: Notice) -> Sequence[str] | None:
        """Return the tasks that were assigned after an earlier notice; None if the whole queue has to be listed."""
        new = self.number - before.number
        if self.master != before.master or not 0 <= new <= len(self.tasks):
            return None
        return self.tasks[len(self.tasks) - new :]


def encode_notice(notice: Notice) -> bytes:
    """Return the record of a notice."""
    return encode(notice._asdict())


def decode_notice(data: bytes) -> Notice:
    """Return the notice of a record."""
    return Notice(**decode(data))


# ---- the holder of a task ----

Mark = tuple[int, int]
"""One assignment of a task: the version of the master, and the number of the assignment of that master. Both rise."""
UNMARKED: Final = (0, 0)
"""The mark of a job that a node leased at its submission, without a master."""


def held_by(term: int, record: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """Return the record of a pending task as its worker has it.

    ``master`` shows the worker that the task was assigned and not leased at its submission, ``assignment`` whether it is new.
    """
    return {**record, "state": "leased", "term": term, "master": mark[0], "assignment": mark[1]}


def mark_of(record: Mapping[str, Any]) -> Mark:
    """Return the assignment of a held task's record; its number is 0 if a master of an older version wrote it."""
    return record["master"], record.get("assignment", 0)


def leased(job_id: int, handle: str, attempt: int) -> bytes:
    """Return the record of an assignment that is not recorded as running."""
    return encode({"handle": handle, "id": job_id, "state": "leased", "attempt": attempt})


def running(job: Job, handle: str) -> bytes:
    """Return the record of an assignment that is recorded as running."""
    data: dict[str, Any] = {"handle": handle, "id": job.id, "state": "running", "attempt": job.attempt}
    if job.started_us:
        data["started_us"] = job.started_us
    return encode(data)
