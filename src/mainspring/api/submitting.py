"""Submitting jobs: in the background, or in the foreground, where the answer is the job's result."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.request import (
    Code,
    FunctionName,
    Problem,
    Request,
    Touches,
)
from mainspring.clock import to_us
from mainspring.conflicts.rules import OnConflict, rule_of
from mainspring.errors import UsageError
from mainspring.features import Feature
from mainspring.jobs.lateness import timed
from mainspring.jobs.model import (
    FUNCTION_LIMIT,
    MAX_WAIT,
    OWN_FUNCTION,
    UNIQUE_LIMIT,
    Job,
    Options,
    Priority,
    Retry,
    check_retry,
    is_own,
)
from mainspring.jobs.user_data import check_tags
from mainspring.namespaces import Namespaced
from mainspring.resources.rules import key_of
from mainspring.sizes import LEVELS, Seconds, Text, TextTuple, Time, about, described, is_too_deep
from mainspring.workflows.model import check_stated_version

if TYPE_CHECKING:
    from collections.abc import Container

    from mainspring.conflicts.rules import Rule

PriorityName = Literal["high", "normal", "low"]
PRIORITY_BY_NAME = {priority.name.lower(): priority for priority in Priority}

BATCH_LIMIT = 10_000
"""Jobs in a batch."""
SUBMISSION_LIMIT = 8 << 20
"""Bytes of the body of a submission or of a batch."""
REFUSALS = (Code.TOO_LARGE, Code.TOO_MANY_FUNCTIONS, Code.UNSUPPORTED, Code.REFUSED)
"""The problems of submissions."""
LONG_NAME = f"a function's name has at most {FUNCTION_LIMIT} bytes"
NO_CONCURRENCY_KEY = f"concurrency_key was given, and {Feature.LIMITS.refusal}"


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a job: the one list of them for all ways to submit.

    `NewJob` and the options of SUBMIT have these fields and a few more. The option of a command has the same name. A field
    without a description is none of the command line.
    """

    priority: Annotated[PriorityName, described("Jobs of a higher priority start first.")] = "normal"
    delay: Annotated[Seconds | None, described("Start the job this long from now, or later.", "--delay", "--in")] = None
    run_at: Annotated[
        Time | None,
        described("Start the job at this time or later, such as 2030-01-31T12:00:00Z.", "--run-at", "--at"),
    ] = None
    timeout: Annotated[
        Seconds | None, described("Stop an attempt that runs longer than this.", "--run-timeout", label="Time limit")
    ] = None
    heartbeat: Annotated[Seconds | None, about("End an attempt whose worker reports nothing for this long.")] = None
    expires: Annotated[Seconds | None, described("End the job as expired if it has not started within this time.")] = (
        None
    )
    start_within: Annotated[
        Seconds | None,
        described(
            "The job is overdue if it has not begun within this time from its due time.",
            label="Late if not begun within",
        ),
    ] = None
    deadline: Annotated[
        Seconds | None,
        described(
            "The job is overdue if it has not ended within this time from its due time.",
            label="Late if not ended within",
        ),
    ] = None
    retry: Annotated[Retry | None, about("When to try again. By default as the task says.")] = None
    keep_unique: Annotated[Seconds | None, about("Keep the unique taken for this long after the end.")] = None
    concurrency_key: Annotated[Text, about("The key for the limits of one concurrency key.")] = ""
    version: Annotated[
        Text | None, about("The version of a run. Empty: the submission starts a run of the newest version.")
    ] = None
    tags: Annotated[
        TextTuple,
        described("A tag of the job, by which mainspring jobs list --tag finds it; may be repeated.", "--tag"),
    ] = ()
    on_conflict: Annotated[
        OnConflict | None,
        described(
            "If a job of the unique is live: join or skip it, cancel it (cancel_old), or give it the new input (replace_input).",
            label="If the unique is live",
        ),
    ] = None
    debounce: Annotated[
        Seconds | None,
        described("Start once no other submit of the unique has come for this long; the last input wins."),
    ] = None
    debounce_max: Annotated[
        Seconds | None, described("With a debounce: start at most this long after the first submit.")
    ] = None

    def rule(self, unique: bytes) -> Rule | None:
        """Return the rule about a live job of the unique; None for a plain join. Raises UsageError."""
        if self.on_conflict is None and self.debounce is None and self.debounce_max is None:
            return None
        check_seconds(self, "debounce", "debounce_max")
        return rule_of(self.on_conflict, self.debounce, self.debounce_max, unique)

    def apply_to(self, job: Job, now: float) -> None:
        """Set these options on a new job. Raises UsageError for an invalid one."""
        check_seconds(self, "delay", "timeout", "heartbeat", "expires", "keep_unique", "start_within", "deadline")
        if self.delay is not None and self.run_at is not None:
            raise UsageError("give delay or run_at, not both")
        at = now + self.delay if self.delay is not None else self.run_at.timestamp() if self.run_at else None
        if at is not None and at > now:
            if at > now + MAX_WAIT:
                raise UsageError(f"run_at is {self.run_at}, more than a century away")
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
            check_stated_version(job.function, self.version)
            job.options = msgspec.structs.replace(job.options or Options(), version=self.version)
        if self.tags:
            job.options = msgspec.structs.replace(job.options or Options(), tags=check_tags(self.tags))
        if self.start_within is not None or self.deadline is not None:
            times = msgspec.structs.replace(
                job.options or Options(), start_within=self.start_within, deadline=self.deadline
            )
            job.options = timed(times, job.due_us or to_us(now))
        job.priority = PRIORITY_BY_NAME[self.priority]

    def unsupported(self, lacks: Container[Feature]) -> str:
        """Return why a store that lacks some features keeps no job with these options; empty if it does."""
        if self.concurrency_key and Feature.LIMITS in lacks:
            return NO_CONCURRENCY_KEY
        if (self.start_within is not None or self.deadline is not None) and Feature.DEADLINES in lacks:
            return Feature.DEADLINES.refusal
        if (self.on_conflict not in {None, "join"} or self.debounce is not None) and Feature.CONFLICTS in lacks:
            return Feature.CONFLICTS.refusal
        return ""


KEYED_RULE = "a submit with a request key joins the job of its key: leave out on_conflict and debounce, or the key"
"""The refusal of a submit with a request key and a rule."""

NO_OPTIONS = JobOptions()
"""The options of most jobs, which need not be applied."""


Payload = Annotated[bytes | UnsetType, about("The arguments as base64 of any bytes, in place of `args`.")]


class Arguments(Namespaced, kw_only=True, omit_defaults=True):
    """The arguments of a job: JSON, or base64 of any bytes."""

    args: Annotated[
        msgspec.Raw | UnsetType, described("Other arguments: text, or - for standard input.", label="Arguments")
    ] = UNSET
    payload: Payload = UNSET


def has_arguments(arguments: Arguments) -> bool:
    """Return whether a request has arguments."""
    return arguments.args is not UNSET or arguments.payload is not UNSET


def bytes_of(arguments: Arguments | NewJob, default: bytes = b"") -> bytes:
    """Return arguments as bytes, the default if there are none. Raises UsageError if both forms are given."""
    if arguments.args is UNSET:
        return default if arguments.payload is UNSET else arguments.payload
    if arguments.payload is not UNSET:
        raise UsageError("give args or payload, not both")
    return checked_levels(bytes(arguments.args))


def checked_levels(text: bytes) -> bytes:
    """Return JSON. Raises UsageError if it has too many levels to be read again."""
    if is_too_deep(text):
        raise UsageError(f"the arguments have more than {LEVELS.most} levels of arrays and objects: make them flatter")
    return text


def check_seconds(options: msgspec.Struct, *names: str) -> None:
    """Raise UsageError for an option of these names that is not a valid number of seconds."""
    for name in names:
        seconds = getattr(options, name)
        if seconds is not None and not 0 <= seconds < MAX_WAIT:
            raise UsageError(f"{name} is a number of seconds from 0 on, not {seconds}")
        if seconds == 0 and name in {"debounce", "debounce_max"}:
            raise UsageError(f"{name} is 0: leave it out for none")
        if seconds == 0 and name in {"timeout", "heartbeat"}:
            raise UsageError(f"{name} is 0, which would end each attempt at once: leave it out for none")
        if seconds == 0 and name in {"start_within", "deadline"}:
            raise UsageError(f"{name} is 0, so that each job would be late: leave it out for none")


def submission_problem(function: bytes, unique: bytes, payload: bytes, largest: int) -> Problem | None:
    """Return the problem of a job that no node accepts; None for a valid one.

    ``largest`` is the store's limit for payloads, in bytes.
    """
    if not function:
        return Problem(Code.INVALID, "a job needs the name of a function")
    if len(function) > FUNCTION_LIMIT:
        return Problem(Code.TOO_LARGE, LONG_NAME)
    if is_own(function):
        return Problem(Code.INVALID, OWN_FUNCTION)
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


class NewJob(JobOptions, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job to submit, in JSON: its options (`JobOptions`), and these."""

    function: FunctionName
    args: Annotated[msgspec.Raw | UnsetType, about("The arguments: any JSON value.")] = UNSET
    payload: Payload = UNSET
    unique: Annotated[Text, about("A name: while a job of it is open, a second one joins it.")] = ""

    def options(self) -> JobOptions:
        """Return the options: `NO_OPTIONS` if the client has set none."""
        return NO_OPTIONS if _values_of(self) == _NONE_SET else self


_values_of = attrgetter(*JobOptions.__struct_fields__)
"""Returns the values of all options, without a step of Python for each: every job in a batch is compared."""
_NONE_SET = _values_of(NO_OPTIONS)


class Submission(msgspec.Struct, omit_defaults=True):
    """A stored job, or the existing one that it joined; or the reason why it was refused, in a batch."""

    handle: str | None = None
    joined: bool | None = None
    skipped: bool | None = None
    """The job was skipped because another one is live, by its ``on_conflict``."""
    problem: Problem | None = None


class Submissions(msgspec.Struct):
    """The jobs of a batch, in its order."""

    items: list[Submission]


class SubmitJob(Request[Submission]):
    """Submit a job."""

    permission = Permission.DEVELOP
    touches = Touches.EACH
    keeps_answer = True
    name_in_audit = "jobs.submit"
    job: NewJob


class SubmitJobs(Request[Submissions]):
    """Submit jobs in one commit. Each has its own answer; if the store fails, the whole request fails."""

    permission = Permission.DEVELOP
    touches = Touches.EACH
    keeps_answer = True
    name_in_audit = "jobs.submit_many"
    jobs: Annotated[list[NewJob], msgspec.Meta(max_length=BATCH_LIMIT)]


class Ended(msgspec.Struct):
    """The end of a job."""

    handle: str
    succeeded: bool
    result: bytes = b""
    """All parts that its worker has sent, concatenated; empty if the job did not succeed."""
    exception: bytes | None = None
    """The data of ``WORK_EXCEPTION`` from a plain Gearman worker."""


class Submit(Request[Submitted]):
    """Submit a job with its bytes."""

    permission = Permission.DEVELOP
    touches = Touches.FUNCTION
    name_in_audit = "jobs.submit"
    function: bytes
    payload: bytes
    unique: bytes = b""
    options: JobOptions = JobOptions()


class RunJob(Request[Ended]):
    """Run a job that ends with this call, or join one that others wait for."""

    permission = Permission.DEVELOP
    touches = Touches.FUNCTION
    name_in_audit = "jobs.run"
    function: bytes
    payload: bytes
    unique: bytes = b""
    priority: PriorityName = "normal"
