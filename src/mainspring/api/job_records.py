"""Calls about what is kept of a job: its attempts and its arguments."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.request import Request
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations

SHOWN_BYTES = 1 << 20
"""Bytes of the largest payload in an answer."""


class Attempt(msgspec.Struct):
    """One attempt at a job; docs/reference/protocol.md explains the keys."""

    number: int
    outcome: str
    """``running``, or a value of `jobs.rules.Outcome`."""
    started_at: str | None
    ended_at: str | None
    duration: float | None
    """Seconds."""
    node: str | None
    worker: str | None
    error_type: str | None
    error: str | None
    stop_requested_at: str | None = None
    """When its worker was asked to stop because of a cancel; None if it was not."""
    done: int = 0
    """The last progress that its worker reported, as the next two; 0 and None if it reported none."""
    total: int = 0
    text: str | None = None


class Attempts(msgspec.Struct):
    """The attempts at a job, oldest first."""

    handle: str
    attempts: list[Attempt]


class Arguments(msgspec.Struct):
    """The arguments of a job."""

    handle: str
    size: int
    """Bytes of the payload, as it was submitted."""
    kept: bool
    """Whether the payload, or what may be shown of it, is still there."""
    redacted: bool
    """Whether values were replaced, or the whole payload is withheld because it is not JSON."""
    value: Any | UnsetType = UNSET
    """The payload, if it is JSON."""
    payload: bytes | UnsetType = UNSET
    """The payload, if it is not JSON. Base64 in JSON."""


class ListAttempts(Request[Attempts]):
    """The attempts at a job. Codes: ``job_not_found``."""

    permission = Permission.READ
    call = "jobs.attempts"
    handle: Text


class ShowArguments(Request[Arguments]):
    """The arguments of a job. Codes: ``job_not_found``, ``unsupported``."""

    permission = Permission.PAYLOADS
    call = "jobs.arguments"
    handle: Text
