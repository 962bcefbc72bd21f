"""Routes about the attempts and the arguments of jobs."""

from __future__ import annotations

from typing import Final

from mainspring.api.errors import Code
from mainspring.api.job_records import Arguments, Attempts, ListAttempts, ShowArguments
from mainspring.faces.rest.registry import N, Route

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/attempts",
        request=ListAttempts,
        answer=Attempts,
        summary="List the attempts at a job, the oldest first",
        problems=(Code.JOB_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}/arguments",
        request=ShowArguments,
        answer=Arguments,
        summary="Show the arguments of a job, without redacted values",
        problems=(Code.JOB_NOT_FOUND, Code.UNSUPPORTED),
    ),
)
