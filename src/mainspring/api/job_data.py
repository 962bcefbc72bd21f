"""Requests for the data of users: arguments, results and outcomes of jobs."""

from __future__ import annotations

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.jobs import JobInfo
from mainspring.api.request import Request
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations


class Data(msgspec.Struct):
    """Bytes of a user."""

    data: bytes


class Outcome(msgspec.Struct):
    """How a job ended; docs/reference/cli.md explains the keys."""

    handle: str
    state: str
    attempt: int
    result: msgspec.Raw | str | None = None
    encoding: str | None = None
    """None with a result: it is too long for this answer, or the caller may not see it."""
    error: str | None = None
    traceback: str | None = None


class Payload(Request[Data]):
    """The arguments of a job. Codes: ``job_not_found``, ``not_kept``."""

    permission = Permission.PAYLOADS
    name_in_audit = "jobs.payload"
    handle: Text


class Result(Request[Data]):
    """The result of a job that has succeeded. Codes: ``job_not_found``, ``not_kept``, ``conflict`` if it has not."""

    permission = Permission.PAYLOADS
    name_in_audit = "jobs.result"
    handle: Text


class Wait(Request[Outcome]):
    """How a job ended, once it has. Codes: ``job_not_found``."""

    permission = Permission.READ
    name_in_audit = "jobs.wait"
    only_reads = True
    handle: Text


class Progress(msgspec.Struct):
    """How much of a job is done."""

    done: int
    total: int


class Follow(Request[JobInfo]):
    """The changes of one job until it ends: `JobInfo` as the event ``job``, and `Progress`. Codes: ``job_not_found``."""

    permission = Permission.READ
    name_in_audit = "jobs.follow"
    handle: Text
