"""Routes that submit jobs: one, a batch, or a clone of another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.api import job_changes, job_data
from mainspring.api.errors import ApiError, Code
from mainspring.api.submitting import NewJob, SubmitJob, SubmitJobs
from mainspring.faces.rest.idempotency import REPLAYED
from mainspring.faces.rest.problems import OF_CALLS
from mainspring.faces.rest.registry import PREFER, N, Route, path_in
from mainspring.faces.rest.replies import Reply
from mainspring.faces.rest.routes.jobs import JOB
from mainspring.faces.rest.shapes import LONGEST_WAIT

if TYPE_CHECKING:
    from mainspring.api.errors import Problem
    from mainspring.api.submitting import Submission, Submissions
    from mainspring.faces.rest.idempotency import Encoded
    from mainspring.faces.rest.registry import Context

LIMIT: Final = 8 << 20
"""Bytes of a submission or of a batch."""
REFUSALS: Final = (Code.TOO_LARGE, Code.TOO_MANY_FUNCTIONS, Code.UNSUPPORTED, Code.REFUSED)
_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")
HANDLE: Final = "H:node:1000000000001"


class Submitted(msgspec.Struct, omit_defaults=True):
    """A stored job, or the one that it joined, and how it ended if the client waited for that."""

    handle: str
    joined: bool
    outcome: job_data.Outcome | None = None


class ItemProblem(msgspec.Struct):
    """The reason why one job of a batch was refused."""

    type: str
    title: str
    status: int
    detail: str


class SubmittedItem(msgspec.Struct, omit_defaults=True):
    """One job of a batch: its handle, or the reason why it was refused."""

    handle: str | None = None
    joined: bool | None = None
    problem: ItemProblem | None = None


class SubmittedBatch(msgspec.Struct):
    """The jobs of a batch, in its order."""

    items: list[SubmittedItem]


async def _await_outcome(context: Context, answer: Encoded) -> Encoded:
    """Wait for the end of a stored job, with ``Prefer: wait``, also if its submission is repeated.

    The outcome is read from the job each time, and is not kept with the key of the request: it ends with the job.
    """
    status, headers, body = answer
    is_replayed = REPLAYED in headers
    seconds = _seconds(context.headers.get(PREFER))
    if status >= 300 or not (is_replayed or seconds is not None):
        return answer
    submitted = msgspec.json.decode(body, type=Submitted)
    submitted.outcome = None  # nodes of the last version have kept it
    if seconds is not None:
        headers = {**headers, b"preference-applied": b"wait=%g" % seconds}
        wait = job_data.Wait(submitted.handle, namespace=context.inputs.namespace)
        status = 202
        try:
            async with context.waits.within(seconds):
                submitted.outcome = await context.api.call(wait, caller=context.caller)
            status = 200
        except TimeoutError:
            pass
        except ApiError as error:
            if not (is_replayed and error.problem.code is Code.JOB_NOT_FOUND):  # it was deleted, or kept long enough
                raise
            return answer[0], answer[1], msgspec.json.encode(submitted)
    return status, headers, msgspec.json.encode(submitted)


def _stored(stored: Submission, inputs: SubmitJob) -> Reply:
    assert stored.handle is not None
    headers = {"Location": path_in(inputs.namespace, "jobs", stored.handle)}
    return Reply(Submitted(stored.handle, bool(stored.joined)), 200 if stored.joined else 201, headers)


def _seconds(prefer: bytes | None) -> float | None:
    """Return the seconds that a client prefers to wait for, at most `LONGEST_WAIT`; None if it does not wait."""
    found = None if prefer is None else _WAIT.search(prefer)
    return None if found is None else min(float(found[1]), LONGEST_WAIT)


def _created(submission: Submission, clone: job_changes.Clone) -> Reply:
    assert submission.handle is not None
    status = 200 if submission.joined else 201
    return Reply(submission, status, {"Location": path_in(clone.namespace, "jobs", submission.handle)})


def _batch(submissions: Submissions, _: SubmitJobs) -> Any:
    """Return the answers of a batch: those without problems are in the form of the API already."""
    if not any(item.problem for item in submissions.items):
        return submissions
    return SubmittedBatch(
        [SubmittedItem(item.handle, item.joined, _problem(item.problem)) for item in submissions.items]
    )


def _problem(problem: Problem | None) -> ItemProblem | None:
    if problem is None:
        return None
    kind = OF_CALLS[problem.code]
    return ItemProblem(kind.uri, kind.title, kind.status, problem.message)


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{N}/jobs",
        request=SubmitJob,
        body="job",
        reply=_stored,
        then=_await_outcome,
        answer=Submitted,
        status=201,
        others={200: "It joined a job of its unique, or it has ended", 202: "It has not ended in the preferred time"},
        name="jobs_submit",
        summary="Submit a job; with Prefer: wait=N, wait so many seconds for its end",
        problems=REFUSALS,
        limit=LIMIT,
        example={"function": "thumbnail", "args": ["cat.png"], "unique": "cat", "delay": 5},
        answered={"handle": HANDLE, "joined": False},
    ),
    Route(
        method="POST",
        path=f"{N}/jobs/batch",
        request=SubmitJobs,
        body="jobs",
        lines=NewJob,
        answer=SubmittedBatch,
        reply=_batch,
        name="jobs_submit_batch",
        summary="Submit up to 10,000 jobs in one commit, as an array or as NDJSON",
        problems=REFUSALS,
        limit=LIMIT,
        example=[{"function": "thumbnail", "args": ["cat.png"]}, {"function": "thumbnail", "args": ["dog.png"]}],
        answered={"items": [{"handle": HANDLE, "joined": False}, {"handle": "H:node:1000000000002", "joined": False}]},
    ),
    Route(
        method="POST",
        path=f"{JOB}/clone",
        request=job_changes.Clone,
        answer=SubmittedItem,
        reply=_created,
        status=201,
        others={200: "It joined a job of its unique"},
        summary="Submit a new job like this one",
        problems=(Code.JOB_NOT_FOUND, Code.NOT_KEPT, *REFUSALS),
        limit=LIMIT,
        example={"args": ["dog.png"], "priority": "low"},
        answered={"handle": "H:node:1000000000002", "joined": False},
    ),
)
