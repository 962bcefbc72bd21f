"""The routes that differ from their requests on purpose: they have inputs or answers of their own, or are more than one call.

These are submissions, which take a whole body and ``Prefer``; users' data, which are downloaded as they are; the limits of a
function as a whole; long polls of a job or an operation; the open work of a run; and the stream of a live page. All other routes
are declared in their requests.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec

from mainspring.api import functions, jobs, namespaces, operations, values, workflows
from mainspring.api.request import ApiError, Code, FunctionName, Handle, Revision
from mainspring.api.submitting import REFUSALS, SUBMISSION_LIMIT, NewJob, SubmitJob, SubmitJobs
from mainspring.faces.rest.registry import LONGEST_WAIT, PREFER, Route, path_in
from mainspring.faces.rest.replies import PROBLEM_TYPES, REPLAYED, Raw, Reply, version_of
from mainspring.faces.web.exchange import N
from mainspring.namespaces import NamespaceName  # noqa: TC001 - msgspec reads the annotations
from mainspring.resources.rules import RateSpec  # noqa: TC001 - msgspec reads the annotations
from mainspring.sizes import Text, Whole, about

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.api.request import Problem, Request
    from mainspring.api.submitting import Submission, Submissions
    from mainspring.faces.rest.registry import Context
    from mainspring.faces.rest.replies import Encoded

JOB: Final = f"{N}/jobs/{{handle}}"
FOUND: Final = (Code.JOB_NOT_FOUND,)


def _watch(query: Any) -> jobs.FollowJob:
    return jobs.FollowJob(query.handle, namespace=query.namespace)


JOB_ROUTES: Final = (
    Route(
        method="GET",
        path=JOB,
        request=jobs.ShowJob,
        waits=True,
        watch=_watch,
        answer=jobs.JobDetails,
        summary="Show a job; with wait and If-None-Match, once it has changed",
        problems=FOUND,
    ),
)

_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")
HANDLE: Final = "H:node:1000000000001"


class Submitted(msgspec.Struct, omit_defaults=True):
    """A stored job, or the one that it joined, and how it ended if the client waited for that."""

    handle: str
    joined: bool
    outcome: jobs.JobOutcome | None = None


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
        wait = jobs.AwaitJob(submitted.handle, namespace=context.inputs.namespace)
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
    kind = PROBLEM_TYPES[problem.code]
    return ItemProblem(kind.uri, kind.title, kind.status, problem.message)


SUBMISSION_ROUTES: Final = (
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
        limit=SUBMISSION_LIMIT,
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
        limit=SUBMISSION_LIMIT,
        example=[{"function": "thumbnail", "args": ["cat.png"]}, {"function": "thumbnail", "args": ["dog.png"]}],
        answered={"items": [{"handle": HANDLE, "joined": False}, {"handle": "H:node:1000000000002", "joined": False}]},
    ),
)

NOT_KEPT: Final = (Code.JOB_NOT_FOUND, Code.NOT_KEPT)


def _payload(data: jobs.UserData, request: jobs.ReadPayload) -> Raw:
    return Raw(data.data, _filename(request.handle, "payload"))


async def _result(context: Context) -> Raw:
    """Return the result of a job; with ``wait``, once it has ended."""
    inputs = context.inputs
    if inputs.wait:
        wait = jobs.AwaitJob(inputs.handle, namespace=inputs.namespace)
        with contextlib.suppress(TimeoutError):
            async with context.waits.within(inputs.wait):
                await context.api.call(wait, caller=context.caller)
    request = jobs.ReadResult(inputs.handle, namespace=inputs.namespace)
    data: jobs.UserData = await context.api.call(request, caller=context.caller)
    return Raw(data.data, _filename(inputs.handle, "result"))


def _filename(handle: str, what: str) -> str:
    """Return the name under which a browser saves the data."""
    return "".join(one if one.isalnum() or one in "-._" else "-" for one in f"{handle}-{what}")


DATA_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{JOB}/payload",
        request=jobs.ReadPayload,
        answer=bytes,
        reply=_payload,
        name="jobs_payload",
        summary="Get the arguments of a job, as they are",
        problems=NOT_KEPT,
    ),
    Route(
        method="GET",
        path=f"{JOB}/result",
        request=jobs.ReadResult,
        waits=True,
        handler=_result,
        answer=bytes,
        name="jobs_result",
        summary="Get the result of a job, as it is; with wait, once it has ended",
        problems=(*NOT_KEPT, Code.CONFLICT),
    ),
)

LARGEST_TEXT: Final = 64 * 2**20
"""Characters of a log that is downloaded as text: more than the attempts of a job have."""


class TextQuery(msgspec.Struct, kw_only=True):
    """The lines of a text."""

    namespace: NamespaceName
    handle: Handle
    level: jobs.Level = "debug"
    attempt: jobs.AttemptNumber = None


async def _text(context: Context) -> Raw:
    query: TextQuery = context.inputs
    request = jobs.ReadJobLogs(
        query.handle, namespace=query.namespace, whole=True, level=query.level, attempt=query.attempt
    )
    parts: list[str] = []
    size = 0
    while size < LARGEST_TEXT:
        answer = await context.api.call(request, caller=context.caller)
        page = "".join(map(_line, answer.items))
        parts.append(page)
        size += len(page)
        if not answer.items or answer.next is None:
            break
        request = msgspec.structs.replace(request, cursor=answer.next)
    return Raw("".join(parts).encode(), "job.log")


def _line(line: jobs.LogLine) -> str:
    missed = "" if line.missed is msgspec.UNSET else f"({line.missed} lines are not kept)\n"
    logger = f"{line.logger}: " if line.logger else ""
    fields = f" {msgspec.json.encode(line.fields).decode()}" if line.fields else ""
    first, *more = line.message.split("\n")
    text = "\n    ".join([f"{line.at} {line.level.upper():8} {logger}{first}{fields}", *more])
    return f"{missed}{text}\n"


LOG_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/logs/text",
        request=jobs.ReadJobLogs,
        inputs=TextQuery,
        handler=_text,
        answer=bytes,
        summary="Download a job's log as text",
        problems=(Code.JOB_NOT_FOUND,),
        name="jobs_logs_text",
    ),
)


class LimitsInput(msgspec.Struct, kw_only=True):
    """All limits of a function; a limit that is left out is none."""

    namespace: NamespaceName
    function: FunctionName
    concurrency: Annotated[Whole | None, about("The most jobs to run at a time.")] = None
    concurrency_per_key: Annotated[Whole | None, about("The most jobs of one concurrency key to run at a time.")] = None
    rate: Annotated[RateSpec | None, about("The most jobs to start in a period.")] = None
    rate_per_key: Annotated[RateSpec | None, about("The most jobs of one concurrency key to start in a period.")] = None
    revision: Revision = None


class LimitsOrigin(msgspec.Struct, kw_only=True):
    """A function whose limits are to be those of its workers."""

    namespace: NamespaceName
    function: FunctionName
    revision: Revision = None


def _limits(given: LimitsInput) -> functions.LimitFunction:
    return functions.LimitFunction(**msgspec.structs.asdict(given))


def _declared(given: LimitsOrigin) -> functions.LimitFunction:
    return functions.LimitFunction(declared=True, **msgspec.structs.asdict(given))


F: Final = f"{N}/functions/{{function}}"

LIMIT_ROUTES: Final = (
    Route(
        method="PUT",
        path=f"{F}/limits",
        request=functions.LimitFunction,
        inputs=LimitsInput,
        make=_limits,
        if_match="revision",
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Set all limits of a function",
        name="functions_limits_set",
        problems=(*functions.CHANGES, Code.CHANGED, "precondition_required"),
        example={"concurrency": 10, "rate": {"number": 100, "per": 60}},
    ),
    Route(
        method="DELETE",
        path=f"{F}/limits",
        request=functions.LimitFunction,
        inputs=LimitsOrigin,
        make=_declared,
        if_match="revision",
        answer=functions.FunctionInfo,
        version=version_of,
        summary="Go back to the limits that workers declare",
        name="functions_limits_delete",
        problems=(*functions.CHANGES, Code.CHANGED, "precondition_required"),
    ),
)


OPERATION_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}",
        request=operations.ShowOperation,
        waits=True,
        watch=lambda query: operations.FollowOperation(query.id, namespace=query.namespace),
        answer=operations.OperationDetails,
        summary="Show an operation; with wait and If-None-Match, once it has changed",
        problems=(Code.OPERATION_NOT_FOUND,),
    ),
)


class Pending(msgspec.Struct):
    """The open work of a run."""

    status: str
    waits_for: str | None
    activities: list[workflows.ActivityInfo]
    children: list[workflows.ChildInfo]
    timers: list[workflows.TimerInfo]
    steps: list[str]
    """The functions of local steps that run."""
    receives: list[str]
    """The names of the signals that the code waits to receive."""
    unread: dict[str, int]
    """The number of unread signals, by name."""
    parked: workflows.ParkingInfo | None


def _pending(details: workflows.RunDetails, _: workflows.ShowRun) -> Pending:
    return Pending(**{name: getattr(details, name) for name in Pending.__struct_fields__})


W: Final = f"{N}/workflows/{{key}}"

RUN_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{W}/pending",
        request=workflows.ShowRun,
        answer=Pending,
        reply=_pending,
        summary="Show the open work of a run",
        name="workflows_pending",
        problems=(Code.RUN_NOT_FOUND,),
    ),
)


class LiveQuery(msgspec.Struct, kw_only=True):
    """The subjects of a stream."""

    namespace: NamespaceName
    overview: Annotated[bool, about("Whether to send the numbers of the namespace.")] = False
    functions: Annotated[bool, about("Whether to send these, and the numbers of each function.")] = False
    job: Annotated[Text | None, about("The handle of a job whose states and progress are sent.")] = None
    logs: Annotated[Text | None, about("The handle of a job whose log is sent, from its last 200 lines on.")] = None
    values: Annotated[
        Text | None, about("The handle of a job whose published values are sent: at first all, then those that change.")
    ] = None
    after: Annotated[
        Text | None, about("The id of the last event with lines: go on after it. `Last-Event-ID` replaces it.")
    ] = None
    operation: Annotated[Text | None, about("The id of an operation whose progress is sent.")] = None
    troubles: Annotated[
        bool, about("The versions of the first page, and the numbers of the functions that it shows.")
    ] = False
    schedules: Annotated[bool, about("Whether to send the versions of the list of schedules.")] = False
    workers: Annotated[bool, about("Whether to send those of the list of workers.")] = False
    nodes: Annotated[bool, about("Whether to send those of the list of nodes.")] = False
    runs: Annotated[bool, about("Whether to send those of the list of runs of workflows.")] = False
    events: Annotated[bool, about("Whether to send those of the list of events.")] = False
    listeners: Annotated[bool, about("Whether to send those of the list of listeners.")] = False
    webhooks: Annotated[bool, about("Whether to send those of the list of webhooks.")] = False
    schedule: Annotated[Text | None, about("The name of a schedule whose versions are sent.")] = None
    worker: Annotated[Text | None, about("The id of a worker whose versions are sent.")] = None
    run: Annotated[Text | None, about("The key of a run of a workflow whose versions are sent.")] = None
    listener: Annotated[Text | None, about("The name of a listener whose versions are sent.")] = None
    webhook: Annotated[Text | None, about("The name of a webhook whose versions are sent.")] = None


def _follows(query: LiveQuery) -> list[Request[Any]]:
    found: list[Request[Any]] = []
    if query.overview or query.functions:
        numbers = namespaces.FollowNumbers(
            namespace=query.namespace, functions=query.functions, troubled=query.troubles
        )
        found.append(numbers)
    if query.job is not None:
        found.append(jobs.FollowJob(query.job, namespace=query.namespace))
    if query.logs is not None:
        found.append(jobs.FollowLogs(query.logs, namespace=query.namespace, after=query.after))
    if query.values is not None:
        found.append(values.FollowValues(query.values, namespace=query.namespace))
    if query.operation is not None:
        found.append(operations.FollowOperation(query.operation, namespace=query.namespace))
    versions = [namespaces.FollowVersion(*subject, namespace=query.namespace) for subject in _versions(query)]
    if len(versions) > 1:
        one, other = versions[:2]
        raise ApiError(Code.INVALID, f"a stream has the versions of {one.subject} or of {other.subject}, not of both")
    found += versions
    if not found:
        raise ApiError(
            Code.INVALID,
            "choose what to follow: overview, functions, troubles, schedules, workers, nodes, runs, events, listeners or"
            " webhooks (each =true), or job, logs, values, operation, schedule, worker, run, listener or webhook in the query",
        )
    return found


def _versions(query: LiveQuery) -> Iterator[tuple[Any, ...]]:
    """Yield the subjects whose versions are wanted, with the name of the object that a subject may have."""
    for subject in get_args(namespaces.VersionedSubject):
        wanted = getattr(query, subject)
        if wanted:
            yield (subject,) if wanted is True else (subject, wanted)


LIVE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/live",
        request=namespaces.FollowNumbers,
        inputs=LiveQuery,
        follows=_follows,
        answer=None,
        stream=True,
        resume="after",
        name="live",
        summary="Follow numbers, lists and single objects of a namespace in one stream",
        problems=(
            Code.JOB_NOT_FOUND,
            Code.OPERATION_NOT_FOUND,
            Code.SCHEDULE_NOT_FOUND,
            Code.WORKER_NOT_FOUND,
            Code.RUN_NOT_FOUND,
            Code.LISTENER_NOT_FOUND,
            Code.WEBHOOK_NOT_FOUND,
            Code.CONFLICT,
            Code.UNSUPPORTED,
        ),
    ),
)

ROUTES: Final = (
    *JOB_ROUTES,
    *SUBMISSION_ROUTES,
    *DATA_ROUTES,
    *LOG_ROUTES,
    *LIMIT_ROUTES,
    *OPERATION_ROUTES,
    *RUN_ROUTES,
    *LIVE_ROUTES,
)
