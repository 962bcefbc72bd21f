"""Jobs by the handles in requests, for callers with the permission for their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring import namespaces
from mainspring.api.answers.waiting import Later
from mainspring.api.errors import ApiError, Code
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.access.roles import Permission
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService


class JobLookup:
    """Finds the jobs of a node and of its store."""

    def __init__(self, service: JobService) -> None:
        self._service = service

    def job_id(self, handle: str) -> int:
        """Return the id of a handle. Raises ApiError."""
        job_id = self._service.id_of(handle.encode())
        if job_id is None:
            raise unknown(handle)
        return job_id

    async def functions_of(self, request: Any, caller: Caller) -> list[str]:
        """Return the function of the job of a request. Raises ApiError; see `registry.Finder`."""
        del caller
        return [function_text((await self.read(request.handle, request.namespace)).function)]

    async def find(self, handle: str, namespace: str, caller: Caller, permission: Permission) -> Job:
        """Return a job of a namespace, without payload and result. Raises ApiError and ForbiddenError."""
        job = await self.read(handle, namespace)
        caller.check(permission, namespace, function_text(job.function))
        return job

    async def read(self, handle: str, namespace: str) -> Job:
        """Return a job of a namespace, without payload and result; its access is not checked. Raises ApiError."""
        job_id = self.job_id(handle)
        job: Job | None = await Later(
            lambda done, failed: self._service.find(job_id, done, failed, overtakes=True, namespace=namespace)
        )
        if job is None or namespaces.namespace_of(job.function) != namespace:
            raise unknown(handle)
        return job


def check_access(job: Job, handle: str, namespace: str, caller: Caller, permission: Permission) -> None:
    """Raise ApiError for a job of another namespace, and ForbiddenError if the caller lacks the permission for its function."""
    if namespaces.namespace_of(job.function) != namespace:
        raise unknown(handle)
    caller.check(permission, namespace, function_text(job.function))


def unknown(handle: str) -> ApiError:
    """Return the refusal of a handle without a job."""
    return ApiError(Code.JOB_NOT_FOUND, f"no job has the handle {handle}: it never existed here, or is no longer kept")
