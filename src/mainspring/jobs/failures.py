"""The failure of an attempt, as it is stored with the job and shown to clients."""

from __future__ import annotations

import msgspec

from mainspring.jobs.model import Job, State

CANCEL_REASON = "cancelled while it ran"


class JobFailure(msgspec.Struct, omit_defaults=True):
    """The reason for which an attempt failed; stored with the job as JSON."""

    type: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder().encode
decode_failure = msgspec.json.Decoder(JobFailure).decode
"""Return a failure by its stored form."""


def failure(kind: str, message: str) -> bytes:
    """Return the stored form of a failure."""
    return _encode(JobFailure(kind, message))


def describe_failure(stored: bytes) -> str:
    """Return a failure as one short line for people; empty if the bytes are none."""
    try:
        found = decode_failure(stored)
    except msgspec.DecodeError:
        return ""
    line = f"{found.type}: {found.message}".partition("\n")[0]
    return line if len(line) <= _SHORT else f"{line[:_SHORT]}…"


_SHORT = 300
"""Characters of a failure in one line."""


def exception_of(job: Job) -> bytes | None:
    """Return the data of a plain worker's exception, for clients that requested exceptions; None if the job ended otherwise.

    The data is the stored text: the first 64 KiB.
    """
    if job.state != State.FAILED or not job.error:
        return None
    failed = decode_failure(job.error)
    return failed.message.encode() if failed.type == "WorkException" else None
