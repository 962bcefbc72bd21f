"""The failure of an attempt, as it is stored with the job and shown to clients."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.jobs.model import Job, State
from mainspring.sizes import CANNOT_READ, FAILURE_LINE, FAILURE_TEXT, FAILURE_TYPE, STORED_FAILURE, shorten

if TYPE_CHECKING:
    from types import TracebackType

CANCEL_REASON = "cancelled while it ran"


class JobFailure(msgspec.Struct, omit_defaults=True):
    """The reason for which an attempt failed; stored with the job as JSON."""

    type: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobFailure).decode
UNREADABLE: Final = "UnreadableFailure"
"""The type that stands for a stored failure that cannot be read."""


def fitting(found: JobFailure) -> JobFailure:
    """Return a failure with long texts shortened: no job is lost because its error is long."""
    traceback = None if found.traceback is None else shorten(found.traceback, FAILURE_TEXT.most)
    return JobFailure(shorten(found.type, FAILURE_TYPE.most), shorten(found.message, FAILURE_TEXT.most), traceback)


def encode_failure(found: JobFailure) -> bytes:
    """Return the stored form of a failure, with long texts shortened."""
    return _encode(fitting(found))


def brief(stored: bytes) -> bytes:
    """Return a stored failure as a row of another table keeps it: a long one as lists show it, without the traceback."""
    if len(stored) <= STORED_FAILURE.most:
        return stored
    found = decode_failure(stored)
    return encode_failure(JobFailure(found.type, shorten(found.message, FAILURE_LINE.most)))


def failure(kind: str, message: str) -> bytes:
    """Return the stored form of a failure."""
    return encode_failure(JobFailure(kind, message))


def decode_failure(stored: bytes) -> JobFailure:
    """Return a failure by its stored form. Lists read only the first bytes of a long one.

    Bytes that are none are a failure of the type `UNREADABLE`: one such row must not break the list that has it.
    """
    try:
        return _decode(stored)
    except CANNOT_READ:
        return _decode_part(stored)


def _decode_part(stored: bytes) -> JobFailure:
    """Return the failure that begins with ``stored``. The cut may be inside an escape, a character or a key."""
    if stored.startswith(_BEGIN):
        for end in range(len(stored), max(len(stored) - _LONGEST_KEY, len(_BEGIN)), -1):
            for closing in _CLOSINGS:
                try:
                    return _decode(stored[:end] + closing)
                except CANNOT_READ:
                    continue
    return JobFailure(UNREADABLE, f"the stored failure of {len(stored)} bytes cannot be read")


_BEGIN: Final = b'{"type":"'
_CLOSINGS: Final = ('…"}'.encode(), b"}")
_LONGEST_KEY: Final = len(b',"traceback":') + 1


def line_of(stored: bytes) -> str:
    """Return a stored failure as it is shown in lists."""
    found = decode_failure(stored)
    return shorten(f"{found.type}: {found.message}", FAILURE_LINE.most)


def describe_failure(stored: bytes) -> str:
    """Return a failure as one short line for people; empty if the bytes are none."""
    found = decode_failure(stored)
    if found.type == UNREADABLE:
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


_OWN: Final = str(Path(__file__).parents[1]) + os.sep
_LIBRARY: Final = (str(Path(os.__file__).parent) + os.sep, "<frozen")


def is_users(file: str) -> bool:
    """Return whether a file of code belongs neither to Mainspring nor to the standard library."""
    return not file.startswith(_OWN) and (not file.startswith(_LIBRARY) or "-packages" in file)


def place_of(error: BaseException) -> str:
    """Return the innermost line of users' code that an error has passed: `` at FILE:LINE in FUNCTION``; empty if there is none.

    Of code of theirs that uses installed packages, their own line. Of a group, that of its first error.
    """
    while isinstance(error, BaseExceptionGroup):
        first = error.exceptions[0]
        if first.__traceback__ is None:
            break
        error = first
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    own = [frame for frame in frames if "-packages" not in frame.filename] or frames
    return f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def exception_of(job: Job) -> bytes | None:
    """Return the data of a plain worker's exception, for clients that requested exceptions; None if the job ended otherwise.

    The data is the stored text: the first 64 KiB.
    """
    if job.state != State.FAILED or not job.error:
        return None
    failed = decode_failure(job.error)
    return failed.message.encode() if failed.type == "WorkException" else None
