"""Why an attempt failed, as it is stored with the job and told to whoever asks."""

from __future__ import annotations

import msgspec

from mainspring.jobs.model import Job, State

CANCEL_REASON = "cancelled while it ran"


class JobFailure(msgspec.Struct, omit_defaults=True):
    """Why an attempt failed; stored with the job as JSON."""

    type: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobFailure).decode


def failure(kind: str, message: str) -> bytes:
    """Return the stored form of a failure."""
    return _encode(JobFailure(kind, message))


def exception_of(job: Job) -> bytes | None:
    """Return what a plain worker said with its exception, for clients that asked for that; None where a job ended otherwise.

    It is what was stored: the first 64 KiB, as text.
    """
    if job.state != State.FAILED or not job.error:
        return None
    failed = _decode(job.error)
    return failed.message.encode() if failed.type == "WorkException" else None
