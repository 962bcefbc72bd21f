"""What the nodes of the tree contain: JSON for people who look with ``zkCli.sh``, and back.

Times are microseconds of wall time. Bytes that are UTF-8 text are a string; others have a field of the same name with
``_base64`` behind it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec

from mainspring.jobs.model import Job, Options, Priority, State

_encode = msgspec.json.Encoder().encode
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
    data = _encode(record)
    if len(data) > MOST and job.error:
        # Payload and failure may be as large as a node takes, together they are not: the payload can be run again.
        record.pop("error_base64", None)
        record["error"] = _shortened(job.error)
        data = _encode(record)
    return data


def _shortened(error: bytes) -> str:
    """Return a failure without its traceback, and with the beginning of its message."""
    try:
        told: dict[str, Any] = msgspec.json.decode(error)
        short = {"type": str(told["type"])[:200], "message": f"{str(told['message'])[:1000]} (shortened)"}
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    return _encode(short).decode()


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


encode = _encode
"""Any object as JSON."""
