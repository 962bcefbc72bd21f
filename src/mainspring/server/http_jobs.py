"""Jobs for gearmand's HTTP protocol: one submission, awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.errors import RefusedError
from mainspring.faces.gearman.uniques import unique_of_payload
from mainspring.faces.http.gearmand_http import HttpReply
from mainspring.jobs.model import Job, Priority, State

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.http.gearmand_http import Priority as PriorityName
    from mainspring.jobs.service import JobService

_PRIORITIES: dict[str, int] = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}


class NodeHttpJobs:
    """Submits to a node."""

    def __init__(self, service: JobService, face: GearmanFace, clock: Clock) -> None:
        self._service = service
        self._face = face
        self._clock = clock

    async def submit(
        self, function: bytes, unique: bytes, payload: bytes, priority: PriorityName, *, background: bool
    ) -> HttpReply:
        """Submit a job, and wait for its end where it is in the foreground."""
        service, face = self._service, self._face
        if unique == b"-":
            unique = unique_of_payload(payload)
        job = Job(face.next_id(), function, payload, unique, _PRIORITIES[priority])
        job.created_us = round(self._clock.wall() * 1_000_000)
        if not service.admits(function):
            raise RefusedError("TOO_MANY_FUNCTIONS", face.too_many_functions().decode())
        queue = service.known(function)
        if queue is not None and queue.is_full(job.priority):
            raise RefusedError("QUEUE_ERROR", "Job queue is full")
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def refuse(error: Exception) -> None:
            if not accepted.done():
                accepted.set_exception(RefusedError("QUEUE_ERROR", str(error)))

        def accept(job_id: int) -> None:
            if not accepted.done():
                accepted.set_result(job_id)

        if background:
            service.submit([job], lambda ids, _: accept(ids[0]), refuse)
            return HttpReply("JOB_CREATED", service.handle_of(await accepted))
        waiting = _Waiting()
        try:
            service.submit_foreground(job, waiting, accept, refuse)
            await accepted
            return await waiting.reply
        finally:
            service.client_gone(waiting)


class _Waiting:
    """Listens for the end of a job, and gathers what comes before it."""

    def __init__(self) -> None:
        self.gone = False
        self.reply: asyncio.Future[HttpReply] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []

    def data(self, handle: bytes, data: bytes) -> None:
        """Part of the result."""
        del handle
        self._parts.append(data)

    def warning(self, handle: bytes, data: bytes) -> None:
        """Warnings have no place in the answer."""

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Nor has progress."""

    def unknown(self, handle: bytes) -> None:
        """Never said: there is always room."""

    def has_room(self) -> bool:
        """It waits for one job."""
        return True

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """The answer is known."""
        if self.reply.done():
            return
        if job.state == State.SUCCEEDED:
            self.reply.set_result(HttpReply("WORK_COMPLETE", handle, b"".join(self._parts) + job.result))
        elif exception is not None:
            self.reply.set_result(HttpReply("WORK_EXCEPTION", handle, exception))
        else:
            self.reply.set_result(HttpReply("WORK_FAIL", handle))
