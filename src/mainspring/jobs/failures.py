"""Why an attempt failed, as it is stored with the job and told to whoever asks."""

from __future__ import annotations

import msgspec

ASKED = "cancelled while it ran"


class JobFailure(msgspec.Struct, omit_defaults=True):
    """Why an attempt failed; stored with the job as JSON."""

    type: str
    message: str
    traceback: str | None = None


_encode = msgspec.json.Encoder().encode


def failure(kind: str, message: str) -> bytes:
    """Return the stored form of a failure."""
    return _encode(JobFailure(kind, message))
