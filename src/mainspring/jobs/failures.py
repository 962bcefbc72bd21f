"""The failure of an attempt, as it is stored with the job and shown to clients."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from types import TracebackType

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


def encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates, as in names of files, are shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """Return the text of an error, also if its own code cannot show it."""
    try:
        return encodable(str(error))
    except BaseException as worse:  # noqa: BLE001 - code of users, which may raise anything
        return f"(the error cannot be shown: {type(worse).__name__})"


def traceback_of(error: BaseException, frames: TracebackType | None) -> str:
    """Return the traceback of an error from ``frames`` on; empty if its own code cannot show it."""
    try:
        return encodable("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException:  # noqa: BLE001 - as above
        return ""


def exception_of(job: Job) -> bytes | None:
    """Return the data of a plain worker's exception, for clients that requested exceptions; None if the job ended otherwise.

    The data is the stored text: the first 64 KiB.
    """
    if job.state != State.FAILED or not job.error:
        return None
    failed = decode_failure(job.error)
    return failed.message.encode() if failed.type == "WorkException" else None
