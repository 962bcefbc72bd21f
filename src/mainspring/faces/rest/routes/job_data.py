"""Routes with users' data: the arguments and the results of jobs, as they are."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from mainspring.api import job_data
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import Route
from mainspring.faces.rest.replies import Raw
from mainspring.faces.rest.routes.jobs import JOB

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Context

NOT_KEPT: Final = (Code.JOB_NOT_FOUND, Code.NOT_KEPT)


def _payload(data: job_data.Data, request: job_data.Payload) -> Raw:
    return Raw(data.data, _filename(request.handle, "payload"))


async def _result(context: Context) -> Raw:
    """Return the result of a job; with ``wait``, once it has ended."""
    inputs = context.inputs
    if inputs.wait:
        wait = job_data.Wait(inputs.handle, namespace=inputs.namespace)
        with contextlib.suppress(TimeoutError):
            async with context.waits.within(inputs.wait):
                await context.api.call(wait, caller=context.caller)
    request = job_data.Result(inputs.handle, namespace=inputs.namespace)
    data: job_data.Data = await context.api.call(request, caller=context.caller)
    return Raw(data.data, _filename(inputs.handle, "result"))


def _filename(handle: str, what: str) -> str:
    """Return the name under which a browser saves the data."""
    return "".join(one if one.isalnum() or one in "-._" else "-" for one in f"{handle}-{what}")


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{JOB}/payload",
        request=job_data.Payload,
        answer=bytes,
        reply=_payload,
        name="jobs_payload",
        summary="Get the arguments of a job, as they are",
        problems=NOT_KEPT,
    ),
    Route(
        method="GET",
        path=f"{JOB}/result",
        request=job_data.Result,
        waits=True,
        handler=_result,
        answer=bytes,
        name="jobs_result",
        summary="Get the result of a job, as it is; with wait, once it has ended",
        problems=(*NOT_KEPT, Code.CONFLICT),
    ),
)
