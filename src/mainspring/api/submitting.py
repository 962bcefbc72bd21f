"""Submitting jobs: in the background, or in the foreground, where the answer is the job's result."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.errors import Code, Problem
from mainspring.api.request import Request
from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.jobs.model import DECISIONS, FUNCTION_LIMIT, UNIQUE_LIMIT, Job, Options, Priority, Retry
from mainspring.jobs.retry import MAX_WAIT
from mainspring.jobs.retry import check as check_retry
from mainspring.jobs.tags import check_tags
from mainspring.resources.limit_specs import key_of
from mainspring.workflows.model import decision_function

PriorityName = Literal["high", "normal", "low"]
PRIORITY_BY_NAME = {priority.name.lower(): priority for priority in Priority}

LONG_NAME = f"a function's name has at most {FUNCTION_LIMIT} bytes"
_RESERVED = DECISIONS[0]
"""As a number, because bytes look for a number ten times faster than for other bytes, and each submission is checked."""
RESERVED_NAME = "names with the character U+001F are those of a node's own functions: leave it out"


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a submission; docs/reference/protocol.md explains the keys."""

    priority: PriorityName = "normal"
    delay: float | None = None
    run_at: float | None = None
    timeout: float | None = None
    heartbeat: float | None = None
    expires: float | None = None
    retry: Retry | None = None
    keep_unique: float | None = None
    concurrency_key: str = ""
    version: str = ""
    tags: tuple[str, ...] = ()

    def apply_to(self, job: Job, now: float) -> None:
        """Set these options on a new job. Raises UsageError for an invalid one."""
        check_seconds(self, "delay", "timeout", "heartbeat", "expires", "keep_unique")
        if self.delay is not None and self.run_at is not None:
            raise UsageError("give delay or run_at, not both")
        at = now + self.delay if self.delay is not None else self.run_at
        if at is not None and at > now:
            if at > now + MAX_WAIT:
                raise UsageError(f"run_at is {at}, more than a century away")
            job.due_us = to_us(at)
        if self.expires is not None:
            job.expires_us = to_us(now + self.expires)
        if self.retry is not None:
            check_retry(self.retry)
        if self.concurrency_key:
            job.key = key_of(self.concurrency_key)
        if (self.retry, self.timeout, self.heartbeat, self.keep_unique) != (None, None, None, None):
            job.options = Options(self.retry, self.timeout, self.heartbeat, self.keep_unique)
        if self.version:
            check_version(job.function, self.version)
            job.options = msgspec.structs.replace(job.options or Options(), version=self.version)
        if self.tags:
            job.options = msgspec.structs.replace(job.options or Options(), tags=check_tags(self.tags))
        job.priority = PRIORITY_BY_NAME[self.priority]


def check_seconds(options: msgspec.Struct, *names: str) -> None:
    """Raise UsageError for an option of these names that is not a valid number of seconds."""
    for name in names:
        seconds = getattr(options, name)
        if seconds is not None and not 0 <= seconds < MAX_WAIT:
            raise UsageError(f"{name} is a number of seconds from 0 on, not {seconds}")
        if seconds == 0 and name in {"timeout", "heartbeat"}:
            raise UsageError(f"{name} is 0, which would end each attempt at once: leave it out for none")


def check_version(function: bytes, version: str) -> None:
    """Raise UsageError unless a workflow can have this version."""
    name = function.decode("utf-8", "backslashreplace")
    if not version.isprintable() or "@" in version or len(decision_function("default", name, version)) > FUNCTION_LIMIT:
        raise UsageError(
            f"{version!r} is not a version of a workflow: give short printable text without @, such as '2'"
        )


def submission_problem(function: bytes, unique: bytes, payload: bytes, largest: int) -> Problem | None:
    """Return the problem of a job that no node accepts; None for a valid one.

    ``largest`` is the store's limit for payloads, in bytes.
    """
    if not function:
        return Problem(Code.INVALID, "a job needs the name of a function")
    if len(function) > FUNCTION_LIMIT:
        return Problem(Code.TOO_LARGE, LONG_NAME)
    if _RESERVED in function:
        return Problem(Code.INVALID, RESERVED_NAME)
    if len(unique) > UNIQUE_LIMIT:
        return Problem(Code.TOO_LARGE, f"a unique has at most {UNIQUE_LIMIT} bytes, and this one has {len(unique)}")
    return size_problem(payload, largest) if len(payload) > largest else None


def size_problem(payload: bytes, largest: int) -> Problem | None:
    """Return the problem of a payload that is too large for the store; None for one of at most ``largest`` bytes."""
    if len(payload) <= largest:
        return None
    return Problem(
        Code.TOO_LARGE,
        f"a payload has {len(payload)} bytes, and this node's store takes {largest}: store larger data elsewhere, and"
        " submit its location",
    )


class Submitted(msgspec.Struct):
    """A stored background job, or the existing one that it joined."""

    handle: str


class Ended(msgspec.Struct):
    """The end of a job."""

    handle: str
    succeeded: bool
    result: bytes = b""
    """All parts that its worker has sent, concatenated; empty if the job did not succeed."""
    exception: bytes | None = None
    """The data of ``WORK_EXCEPTION`` from a plain Gearman worker."""


class Submit(Request[Submitted]):
    """Store a job. Codes: ``invalid``, ``too_large``, ``unsupported``, ``too_many_functions``, ``refused``."""

    permission = Permission.DEVELOP
    function: bytes
    payload: bytes
    unique: bytes = b""
    options: JobOptions = JobOptions()


class Run(Request[Ended]):
    """Run a job that ends with this call, or join one that others wait for. Codes: as of `Submit`."""

    permission = Permission.DEVELOP
    function: bytes
    payload: bytes
    unique: bytes = b""
    priority: PriorityName = "normal"
