"""All errors of Mainspring, as one tree.

MainspringError
├── UsageError                the request is wrong, whatever the state of the system
│   ├── PayloadError          a payload or a result does not fit the task's types, or cannot be written as JSON
│   │   └── CodecError        the App's codec cannot encode or decode a payload
│   │       └── LostKeyError  it lacks the key, or the App the codec, with which a payload was encoded
│   ├── SettingsError         a setting, an option or an address is wrong
│   └── WorkflowUsageError    workflow code does what it cannot repeat; or a call works only inside of workflows
├── ServerError               a server answered with an error, or could not answer
│   ├── ConnectionLostError   no server could be reached, or the connection ended: the outcome is unknown
│   │   └── NoAnswerError     the server did not answer in time: the outcome is unknown
│   ├── RefusedError          the server refused one request
│   ├── NotFoundError         no job has that handle
│   ├── ForbiddenError        the caller lacks a permission for the request
│   └── ConflictError         the state of the job does not allow the request
├── StoreError                the store failed
│   ├── StoreFullError        no space is left; no accepted job is lost
│   ├── StoreBusyError        another node has the store open, or another program has locked it
│   ├── StoreUnavailableError the store's server or file cannot be reached, or refuses connections
│   ├── StoreFencedError      other nodes ended the node's term, because they found it dead
│   ├── StoreCorruptError     the store's content is damaged
│   ├── StoreBrokenError      the disk failed; the process must end
│   └── StoreForeignError     the file belongs to another program or to a newer version
├── CompensationFailed        compensations of a saga failed; an ExceptionGroup of their errors
├── MapFailed                 items of a workflow's map failed; an ExceptionGroup of their errors
├── WorkerStartError          a function of on_worker_start failed: the process of the worker ends
├── WorkerFullError           a task waits for a job that its worker has no place for
├── IllegalTransitionError    the state of a job does not allow a transition: a defect of Mainspring
└── JobError                  how a job ended, for code that waits for it
    ├── JobFailed             all attempts failed; has the last error
    │   └── JobTimedOut       the last attempt, or the job, did not end in time
    ├── JobCancelled          a client, an operator or its schedule cancelled it
    ├── JobExpired            it was not started in time
    └── JobLost               the server does not have the handle, or no longer has it

Errors have data as attributes; the faces translate them into codes of their protocol.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self


class MainspringError(Exception):
    """The root of the tree."""


class UsageError(MainspringError):
    """A request that is wrong, whatever the state of the system."""


class PayloadError(UsageError):
    """A payload or a result does not fit the task's types, or cannot be written as JSON."""

    received = False
    """Whether the value came to a workflow from elsewhere, such as a result, a signal or its input."""


class CodecError(PayloadError):
    """The codec of an App (`mainspring.codecs`) cannot encode or decode a payload."""


class LostKeyError(CodecError):
    """A payload was encoded with a key that the reader does not have. A codec raises it as ``LostKeyError(context.key)``.

    ``codec`` is the codec's name; ``codecs`` names those of the App, if this one is not among them.
    """

    def __init__(self, key: str, codec: str = "", codecs: str | None = None) -> None:
        named = f"key {key!r}" if key else "no key"
        if codecs is None:
            text = f"a payload was encoded with {named} of codec {codec!r}, which does not have it: give the codec this key again"
        else:
            text = (
                f"a payload was encoded with codec {codec!r} and {named}, and the App has {codecs or 'no codec'}: give the"
                " App this codec, App(codec=…)"
            )
        super().__init__(text)
        self.key = key
        self.codec = codec


class SettingsError(UsageError):
    """A setting, an option or an address is wrong."""


class WorkflowUsageError(UsageError):
    """Workflow code does something that it cannot repeat, such as reading the clock, or something that works only outside of it.

    Also raised outside of a workflow for calls that only work inside of one.
    """


class ServerError(MainspringError):
    """A server answered with an error, or could not answer."""


class ConnectionLostError(ServerError):
    """No server could be reached, or the connection ended; the outcome of pending requests is unknown."""


class NoAnswerError(ConnectionLostError):
    """The server did not answer a request within ``limit`` seconds. It may have done it, or may still do it.

    A submit with the same ``request_key``, or with a unique whose job is live, joins the job of the first one.
    """

    def __init__(self, message: str, limit: float) -> None:
        super().__init__(message)
        self.limit = limit


class RefusedError(ServerError):
    """The server refused one request.

    ``code`` is the code of the protocol's ``ERROR`` packet.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(ServerError):
    """No job has that handle."""


class ForbiddenError(ServerError):
    """The caller lacks a permission for the request."""


class ConflictError(ServerError):
    """The state of the job does not allow the request. ``live_handle`` is the handle of the job that has its unique, if any."""

    def __init__(self, message: str, *, live_handle: str | None = None) -> None:
        super().__init__(message)
        self.live_handle = live_handle


class Kind(StrEnum):
    """The classes of the codes of problems (`api.request.Code`): ``FAULT`` of the protocol contains one.

    Each has the error that a client raises, and the exit code of a command.
    """

    USAGE = "usage", UsageError, 2
    """The request is invalid, or not possible at this node: the same one fails again."""
    FORBIDDEN = "forbidden", ForbiddenError, 1
    """The caller lacks a permission."""
    NOT_FOUND = "not_found", NotFoundError, 4
    CONFLICT = "conflict", ConflictError, 1
    """The state of the job, schedule or node does not allow the request."""
    UNAVAILABLE = "unavailable", ConnectionLostError, 3
    """The same request may succeed later."""

    error: type[UsageError | ServerError]
    exit_code: int

    def __new__(cls, text: str, error: type[UsageError | ServerError], exit_code: int) -> Self:  # noqa: D102 - of an enumeration
        kind = str.__new__(cls, text)
        kind._value_ = text
        kind.error, kind.exit_code = error, exit_code
        return kind


class StoreError(MainspringError):
    """The store failed."""


class StoreFullError(StoreError):
    """No space is left; no accepted job is lost."""


class StoreBusyError(StoreError):
    """Another node has the store open, or another program has locked it: a retry may succeed."""


class StoreUnavailableError(StoreError):
    """The store's server cannot be reached, or refuses connections; or the store's file is not in its place."""


class StoreFencedError(StoreError):
    """The node's term was ended: other nodes have its jobs, and the group was not committed."""


class StoreCorruptError(StoreError):
    """The store's content is damaged."""


class StoreBrokenError(StoreError):
    """The disk failed, and its contents are unknown until the next start: the process must end.

    After a failed ``fsync`` the system may have discarded the unwritten pages, so that the next ``fsync`` succeeds although
    they are lost.
    """


class StoreForeignError(StoreError):
    """The file belongs to another program, or to a newer version of this one."""


class WorkerStartError(MainspringError):
    """A function of ``on_worker_start`` failed, so the process of the worker ends; the cause is chained."""


class WorkerFullError(MainspringError):
    """A task waits for a job that has not started, while waiting tasks occupy all places of its worker."""


class CompensationFailed(ExceptionGroup[Exception], MainspringError):  # noqa: N818 - an outcome, as JobFailed
    """Compensations of a saga failed. ``exceptions`` are their errors, and ``__cause__`` is the error that the saga got.

    ``failures`` has the errors with the names of their compensations, in the order in which they ran.
    """

    failures: tuple[tuple[str, Exception], ...] = ()

    @classmethod
    def of(cls, failures: Sequence[tuple[str, Exception]], number: int, cause: str) -> CompensationFailed:
        """Return the error for failures of a saga with a number of compensations. ``cause`` describes the error that it got."""
        lines = [f"{name}: {_line_of(error)}" for name, error in failures[:_SHOWN]]
        if len(failures) > _SHOWN:
            lines.append(f"{len(failures) - _SHOWN} more")
        group = cls(
            f"{len(failures)} of {number} compensations failed after {cause}: {'; '.join(lines)}",
            [error for _, error in failures],
        )
        group.failures = tuple(failures)
        return group

    def derive(self, excs: Sequence[Exception], /) -> CompensationFailed:  # type: ignore[override]
        """Return an error with some of the exceptions (used by ``except*``)."""
        group = CompensationFailed(self.message, excs)
        group.failures = tuple(pair for pair in self.failures if any(pair[1] is one for one in excs))
        return group


class MapFailed(ExceptionGroup[Exception], MainspringError):  # noqa: N818 - an outcome, as JobFailed
    """Items of ``workflow.map`` failed. ``exceptions`` are their errors, and ``failures`` has them by the index of the item.

    ``results`` has the results of the other items by their indices.
    """

    failures: dict[int, Exception]
    results: dict[int, Any]

    @classmethod
    def of(cls, outcomes: Sequence[Any]) -> MapFailed:
        """Return the error for the outcomes of a map: results and errors, at least one of these, in the order of the items."""
        failures = {index: one for index, one in enumerate(outcomes) if isinstance(one, Exception)}
        first, error = next(iter(failures.items()))
        group = cls(
            f"{len(failures):,} of {len(outcomes):,} items failed, the first is item {first}: {error}",
            list(failures.values()),
        )
        group.failures = failures
        group.results = {index: one for index, one in enumerate(outcomes) if index not in failures}
        return group

    def derive(self, excs: Sequence[Exception], /) -> MapFailed:  # type: ignore[override]
        """Return an error with some of the exceptions (used by ``except*``)."""
        group = MapFailed(self.message, excs)
        group.failures = {index: error for index, error in self.failures.items() if any(error is one for one in excs)}
        group.results = self.results
        return group


_SHOWN: Final = 3
"""Compensations that a message names."""
_LINE: Final = 200
"""Characters of an error in such a message."""


def _line_of(error: Exception) -> str:
    try:
        text = str(error) if isinstance(error, JobError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001 - the error's own code fails
        return type(error).__name__
    text = text.partition("\n")[0]
    return text if len(text) <= _LINE else f"{text[:_LINE]}…"


class HoldTimedOut(MainspringError, TimeoutError):  # noqa: N818 - an outcome, as JobTimedOut
    """A workflow has waited for slots of resources, and has got none in time.

    ``lacking`` has the names of the resources whose slots were missing, and ``before`` the number of requests that were before
    it. If ``impossible``, the resources could not serve the request even if nobody held anything.
    """

    def __init__(self, resources: str, lacking: Sequence[str], before: int, *, impossible: bool = False) -> None:
        missing = ", ".join(lacking) or resources
        why = (
            "it does not have them, even if nobody holds any"
            if impossible
            else f"{before} requests were before it"
            if before
            else "others hold them"
        )
        super().__init__(f"no slots of {resources} in time: slots of {missing} were missing ({why})")
        self.resources = resources
        self.lacking = (*lacking,)
        self.before = before
        self.impossible = impossible


class IllegalTransitionError(MainspringError):
    """The state of a job does not allow a transition: a defect of Mainspring itself."""


class JobError(MainspringError):
    """How a job ended, for code that waits for it; ``handle`` names the job."""

    def __init__(self, handle: str, message: str) -> None:
        super().__init__(message)
        self.handle = handle


class JobFailed(JobError):  # noqa: N818 - an outcome, named in the users' words
    """All attempts failed.

    ``type_name``, ``reason`` and ``traceback`` are those of the last attempt; ``attempt`` is its number, 1 is the first.
    """

    def __init__(self, handle: str, type_name: str, reason: str, traceback: str | None, attempt: int) -> None:
        super().__init__(handle, f"job {handle} failed at attempt {attempt}: {type_name}: {reason}")
        self.type_name = type_name
        self.reason = reason
        self.traceback = traceback
        self.attempt = attempt


class JobTimedOut(JobFailed):
    """The last attempt did not end in time, or the job did not start or end in time.

    ``kind`` is the clock that ran out: ``start_to_close`` (an attempt), ``heartbeat`` (its worker was silent),
    ``schedule_to_start`` or ``schedule_to_close`` (over all attempts).
    """

    def __init__(
        self,
        handle: str,
        type_name: str,
        reason: str,
        traceback: str | None,
        attempt: int,
        kind: str = "start_to_close",
    ) -> None:
        super().__init__(handle, type_name, reason, traceback, attempt)
        self.kind = kind


class JobCancelled(JobError):  # noqa: N818
    """A client, an operator or its schedule cancelled the job."""


class JobExpired(JobError):  # noqa: N818
    """The job was not started in time."""


class JobLost(JobError):  # noqa: N818
    """The server does not have the handle: it never existed there, or its result is no longer kept."""
