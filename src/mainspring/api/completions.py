"""Calls that complete jobs whose functions have asked for a completion token: by the token alone, or by hand."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import post
from mainspring.api.request import Code, Handle, Request, Touches
from mainspring.api.submitting import SUBMISSION_LIMIT
from mainspring.features import Feature
from mainspring.sizes import FAILURE_TEXT, FAILURE_TYPE, Text, about, described

CompletionToken = Annotated[str, msgspec.Meta(max_length=200), about("The completion token of the job.")]
ErrorType = Annotated[str, msgspec.Meta(min_length=1, max_length=FAILURE_TYPE.most)]
ErrorText = Annotated[str, msgspec.Meta(max_length=FAILURE_TEXT.most)]
Result = Annotated[msgspec.Raw | UnsetType, about("The result, any JSON value: the job succeeds with it.")]


NO_TOKEN_FOUND: Final = "there is no such completion token: it was never given, or is forgotten"  # noqa: S105 - a sentence


class CompletionFailure(msgspec.Struct, forbid_unknown_fields=True):
    """Why the work failed."""

    message: ErrorText
    type: ErrorType = "ExternalFailure"
    retry: bool = True
    """Whether the job is tried again, if its retry policy has an attempt left."""


class CompletionProgress(msgspec.Struct, forbid_unknown_fields=True):
    """How far the work is."""

    done: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0
    total: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0
    text: Annotated[str, msgspec.Meta(max_length=256)] = ""


Failed = Annotated[CompletionFailure | None, about("Why the work failed: the attempt fails with it.")]


class CompletionInfo(msgspec.Struct):
    """The state of a completion token after an answer."""

    number: int
    """Names the token; the first one of a job is 1."""
    state: str
    """``open``; ``kept``: the answer is kept until the job's function returns; ``completed``; ``expired``; or ``void``."""
    expires_at: str | None
    repeated: bool = False
    """Whether the same answer was accepted before."""


class AnswerCompletion(Request[CompletionInfo]):
    """Complete a job by its completion token, or report about it.

    A result or a failure ends the attempt, once: another answer is refused, and the same one is acknowledged again. Progress and
    a heartbeat are signs of life. The token is all that is needed: a request has no other credential.
    """

    permission = Permission.BY_TOKEN
    touches = Touches.NONE
    requires = Feature.COMPLETIONS
    call = "completions.answer"
    http = post(
        "/completions/{token}",
        problems=(Code.COMPLETION_NOT_FOUND, Code.COMPLETION_GONE, Code.CONFLICT, Code.TOO_LARGE),
        example={"result": {"approved": True}},
        limit=SUBMISSION_LIMIT,
        secret=True,
    )
    is_small = True
    token: CompletionToken
    result: Result = UNSET
    failure: Failed = None
    progress: Annotated[CompletionProgress | None, about("How far the work is; a sign of life, too.")] = None
    heartbeat: Annotated[bool, about("A sign of life.")] = False


class CompleteJob(Request[CompletionInfo]):
    """Complete a job by hand that awaits its completion, in place of the system that has its token."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    requires = Feature.COMPLETIONS
    call = "jobs.complete"
    http = post(
        "jobs/{handle}/complete",
        problems=(Code.COMPLETION_GONE, Code.CONFLICT, Code.TOO_LARGE),
        example={"result": {"approved": True}},
        limit=SUBMISSION_LIMIT,
    )
    handle: Handle
    result: Result = UNSET
    failure: Failed = None
    reason: Annotated[Text, described("Why, for the audit.")] = ""
