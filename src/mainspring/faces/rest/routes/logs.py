"""Routes about the logs of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from mainspring.api import logs
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items, Raw
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Context

LARGEST_TEXT: Final = 64 * 2**20
"""Characters of a log that is downloaded as text: more than the attempts of a job have."""


class LinesQuery(msgspec.Struct, kw_only=True):
    """The lines of a page."""

    namespace: Text
    handle: Text
    tail: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 200
    """On the first page: so many lines, the newest ones."""
    whole: bool = False
    """Whether the first page begins with the first line."""
    cursor: Text | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = PAGE_LIMIT
    level: logs.Level = "debug"
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class TextQuery(msgspec.Struct, kw_only=True):
    """The lines of a text."""

    namespace: Text
    handle: Text
    level: logs.Level = "debug"
    attempt: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


def _page(query: LinesQuery) -> logs.Logs:
    return logs.Logs(
        query.handle,
        namespace=query.namespace,
        tail=query.tail,
        after="" if query.whole and query.cursor is None else query.cursor,
        limit=query.limit,
        level=query.level,
        attempt=query.attempt,
    )


def _items(logged: logs.Logged, _: LinesQuery) -> Items[logs.LogLine]:
    return Items(logged.lines, None if logged.ended else logged.next)


async def _text(context: Context) -> Raw:
    query: TextQuery = context.inputs
    request = logs.Logs(query.handle, namespace=query.namespace, after="", level=query.level, attempt=query.attempt)
    parts: list[str] = []
    size = 0
    while size < LARGEST_TEXT:
        answer = await context.api.call(request, caller=context.caller)
        if not answer.lines:
            break
        page = "".join(map(_line, answer.lines))
        parts.append(page)
        size += len(page)
        request = msgspec.structs.replace(request, after=answer.next)
    return Raw("".join(parts).encode(), "job.log")


def _line(line: logs.LogLine) -> str:
    missed = "" if line.missed is msgspec.UNSET else f"({line.missed} lines are not kept)\n"
    logger = f"{line.logger}: " if line.logger else ""
    fields = f" {msgspec.json.encode(line.fields).decode()}" if line.fields else ""
    first, *more = line.message.split("\n")
    text = "\n    ".join([f"{line.at} {line.level.upper():8} {logger}{first}{fields}", *more])
    return f"{missed}{text}\n"


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/logs",
        request=logs.Logs,
        inputs=LinesQuery,
        make=_page,
        answer=Items[logs.LogLine],
        reply=_items,
        summary="List lines of a job's log, the oldest first",
        problems=(Code.JOB_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/logs/text",
        request=logs.Logs,
        inputs=TextQuery,
        handler=_text,
        answer=bytes,
        summary="Download a job's log as text",
        problems=(Code.JOB_NOT_FOUND,),
        name="jobs_logs_text",
    ),
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/logs/stream",
        request=logs.FollowLogs,
        answer=None,
        summary="Follow a job's log: events `lines`, and `end` when the job has ended",
        stream=True,
        resume="after",
        problems=(Code.JOB_NOT_FOUND,),
        name="jobs_logs_stream",
    ),
)
