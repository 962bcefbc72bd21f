"""The job of a workflow: an activity or a local step, which is also a future of the workflow's loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mainspring.client.job import Job
from mainspring.client.outcomes import Reason
from mainspring.errors import JobCancelled, JobFailed, JobTimedOut, PayloadError, WorkflowUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mainspring.client.options import CancelMode
    from mainspring.deciding.loop import WorkflowLoop

R = TypeVar("R")


class WorkflowJob(Job[R], asyncio.Future[R]):  # result, cancel and others are chosen here
    """An activity or a local step. ``await job`` returns its result, or raises as ``Job.result`` does outside of workflows.

    ``handle`` names it in errors, such as ``charge #3``. ``number`` is that of its command or step.
    """

    def __init__(
        self,
        loop: WorkflowLoop,
        connections: Any,
        title: str,
        number: int,
        decode: Callable[[bytes], R],
        request_cancel: Callable[[WorkflowJob[R]], None],
        mode: CancelMode = "try",
    ) -> None:
        asyncio.Future.__init__(self, loop=loop)
        Job.__init__(self, connections, f"{title} #{number}", decode)
        self.number = number
        self._hash = loop.next_hash()
        self._request_cancel = request_cancel
        self._mode = mode
        self._cancel_message: object = None
        self._is_cancelling = False
        """Whether the code has cancelled it."""

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"WorkflowJob({self.handle!r}, {self.state})"

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.Future.__await__(self)

    __iter__ = __await__

    def result(self, timeout: object = None) -> R:
        """Return the result of an ended job, or raise its error.

        Raises WorkflowUsageError before its end: ``await job`` waits.
        """
        if not self.done() or timeout is not None:
            raise WorkflowUsageError(
                f"{self.handle} may not have ended, and workflow code cannot block: write `await job` instead of job.result()"
            )
        try:
            return asyncio.Future.result(self)
        finally:
            del self  # the error's traceback refers to this frame, and the job to the error

    async def aresult(self, timeout: object = None) -> R:  # noqa: ASYNC109 - as in Job
        """Wait for the result, like ``await job``."""
        if timeout is not None:
            raise WorkflowUsageError(
                f"{self.handle}: aresult has no timeout inside of a workflow: write `async with asyncio.timeout(…): await job`"
            )
        return await self

    def cancel(self, reason: object = None, msg: object = None) -> bool:  # type: ignore[override]
        """Cancel the job as its option ``cancel`` says. Returns whether it had not ended yet.

        ``try`` and ``wait`` ask an activity's worker to stop. With ``wait``, the job ends when the activity has ended; otherwise
        its waiters get CancelledError at once. asyncio calls this too, when it cancels a task that waits for the job.
        """
        if self.done():
            return False
        message = reason if msg is None else msg
        if not self._is_cancelling:
            self._is_cancelling = True
            self._cancel_message = message
            if self._mode != "abandon":
                self._request_cancel(self)
        return self.waits or asyncio.Future.cancel(self, msg=message)

    @property
    def waits(self) -> bool:
        """Whether a cancelled job ends only when its activity has ended."""
        return self._mode == "wait"

    @property
    def state(self) -> str:
        """``running`` until the job has ended; then ``succeeded``, ``failed`` or ``cancelled``."""
        if not self.done():
            return "running"
        if self.cancelled():
            return "cancelled"
        error = self.exception()
        return "succeeded" if error is None else "cancelled" if isinstance(error, JobCancelled) else "failed"

    def info(self) -> dict[str, Any]:
        """Raise WorkflowUsageError: the server is asked outside of workflows."""
        raise WorkflowUsageError(f"{self.handle}: workflow code cannot ask the server about a job; use job.state")

    # Used by the run.

    def succeed(self, data: bytes) -> None:
        """Set the result from its encoded form. One that cannot be decoded becomes the job's error."""
        if self.done():
            return
        try:
            value = self.decode(data)
        except Exception as error:  # noqa: BLE001 - raised in the workflow, where it can be handled
            if isinstance(error, PayloadError):
                error.received = True
            self.fail(error)
        else:
            self.set_result(value)

    def fail(self, error: Exception) -> None:
        """Set the error."""
        if not self.done():
            self.set_exception(error)
            self._log_traceback = False  # an activity that nobody awaits may fail

    def end_cancelled(self) -> None:
        """Note that an activity has ended as cancelled: by the code, or from outside."""
        if self._is_cancelling:
            asyncio.Future.cancel(self, msg=self._cancel_message)
        else:
            self.fail(JobCancelled(self.handle, f"{self.handle} was cancelled"))

    def end(self, result: bytes, attempt: int, *, failed: bool) -> None:
        """Set the result or the error of a local step."""
        if failed:
            self.fail(error_of(self.handle, result, attempt))
        else:
            self.succeed(result)


def error_of(handle: str, details: bytes, attempt: int, reason: str = "") -> JobFailed:
    """Return the error of a failed activity or step. ``details`` is a JobFailure as JSON, or text of a foreign worker."""
    found = read_failure(details, reason)
    if found.type == "Timeout" and found.traceback is None:  # a task may raise an exception of this name
        return JobTimedOut(handle, found.type, found.message, found.traceback, attempt)
    return JobFailed(handle, found.type, found.message, found.traceback, attempt)


def read_failure(details: bytes, reason: str) -> Reason:
    """Return a recorded failure."""
    try:
        return msgspec.json.decode(details, type=Reason)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Reason(reason, details.decode("utf-8", "replace"))
