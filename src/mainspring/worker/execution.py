"""Execution of one job: runs its function with the payload, and returns a settlement even if the function raises.

`FailedAttempts` is the worker's log of the failures that it reports to the server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.client.inside import waiter
from mainspring.errors import CodecError, LostKeyError
from mainspring.jobs.model import Retry, backoff, encodable, is_users, text_of, traceback_of
from mainspring.private_data import hide_secrets
from mainspring.worker.current import CurrentJob, JobStopped, Snooze, running_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.codecs import Codecs
    from mainspring.log_limit import AttemptLog
    from mainspring.worker.registry import Function


MAX_MESSAGE: Final = 4_096
MAX_TRACEBACK: Final = 16_384
_THIS_FILE: Final = __file__


class Settlement(NamedTuple):
    """The end of a delivery: the protocol's outcome, its detail as JSON or empty, and the result."""

    outcome: bytes
    detail: bytes
    data: bytes


RELEASED: Final = Settlement(b"released", b"", b"")
CANCELLED: Final = Settlement(b"cancelled", b"", b"")


def stop_settlement(job: CurrentJob) -> Settlement:
    """Return the settlement of a job that stopped on request."""
    return RELEASED if job.stop_reason == "drain" else CANCELLED


def execute(function: Function, payload: bytes, job: CurrentJob) -> Settlement:
    """Run a function in this thread.  Raises nothing."""
    running_job.set(job)
    waiter.set(job)
    if function.around is not None:
        settlement: Settlement = function.around.execute(function, payload, job)
        return settlement
    try:
        args, kwargs = function.signature.decode(payload)
    except BaseException as error:  # noqa: BLE001 - decoding may run code of users' types, which may raise anything
        return failure_of(error, final=True)
    try:
        result = function.call(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - every error of a task is its outcome, including SystemExit
        return error_settlement(function, error, job)
    return _result_settlement(function, result, job)


async def execute_coroutine(function: Function, payload: bytes, job: CurrentJob) -> Settlement:
    """Run a coroutine function.  Raises only the errors that stop the loop."""
    job.loop = asyncio.get_running_loop()
    running_job.set(job)
    waiter.set(job)
    if function.around is not None:
        settlement: Settlement = await function.around.run(function, payload, job)
        return settlement
    try:
        args, kwargs = function.signature.decode(payload)
    except BaseException as error:  # noqa: BLE001
        return failure_of(error, final=True)
    try:
        result = await function.call(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001
        return error_settlement(function, error, job)
    return _result_settlement(function, result, job)


def returned_early(job: CurrentJob, result: Any) -> Settlement:
    """Return the settlement of a function that has asked for a completion token, or should have.

    The result that it is annotated with is that of the completion.
    """
    if not job.awaits:
        return failure(
            "NoCompletionToken",
            f"{job.function} has returned, and has asked for no completion token, so nothing can complete it: call "
            "current_job().completion_token(), and give the token to the system that answers",
            final=True,
        )
    if result is not None:
        job.log.warning("the function has asked for a completion token, so what it has returned is ignored")
    return Settlement(b"succeeded", b"", b"")


def _result_settlement(function: Function, result: Any, job: CurrentJob) -> Settlement:
    if job.awaits or job.must_await:
        return returned_early(job, result)
    if function.kept.ignores_result:
        return Settlement(b"succeeded", b"", b"")
    try:
        return Settlement(b"succeeded", b"", function.signature.encode_result(result))
    except BaseException as error:  # noqa: BLE001
        return failure_of(error, final=True)  # a retry would fail in the same way


def error_settlement(function: Function, error: BaseException, job: CurrentJob) -> Settlement:
    """Return the settlement of a function that raised.  Raises nothing: the thread of the job would end, and the job not."""
    try:
        if isinstance(error, Snooze):
            return Settlement(b"snoozed", msgspec.json.encode({"delay": error.delay}), b"")
        if isinstance(error, (JobStopped, asyncio.CancelledError)) and job.cancel_requested:
            return stop_settlement(job)
        return failure_of(error, final=function.retry is not None and not function.retry.allows(error))
    except BaseException as worse:  # noqa: BLE001 - a class of users, such as a Snooze without a delay
        return failure_of(worse, final=False)


def failure_of(error: BaseException, *, final: bool) -> Settlement:
    """Return the failure of an error, with its type, message and traceback."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == _THIS_FILE:
        frames = frames.tb_next
    users = frames
    while users is not None and not is_users(users.tb_frame.f_code.co_filename):
        users = users.tb_next
    frames = users or frames  # it begins with users' code, unless none has run
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in {"builtins", "mainspring.errors"} else _full_name(kind)
    return failure(name, text_of(error), traceback_of(error, frames), final=final)


def failure(name: str, message: str, text: str | None = None, *, final: bool = False) -> Settlement:
    """Return a failure of a given type; long texts are cut in the middle."""
    detail: dict[str, Any] = {
        "error": {
            "type": encodable(name),
            "message": _cut(message, MAX_MESSAGE),
            "traceback": text and _cut(text, MAX_TRACEBACK),
        }
    }
    if final:
        detail["final"] = True
    return Settlement(b"failed", msgspec.json.encode(detail), b"")


def _full_name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def codec_failure(error: CodecError) -> Settlement:
    """Return the failure of a job whose arguments cannot be decoded, or whose result cannot be encoded.

    With a lost key, attempts go on as the job's retry policy says: another worker may have the key already, or get it. A dead
    letter keeps its arguments, so it can be retried once a worker has the key. Damaged payloads, and those that a strict codec
    refuses, fail for good.
    """
    return failure_of(error, final=not isinstance(error, LostKeyError))


def encoded_settlement(settlement: Settlement, codecs: Codecs, function: str) -> Settlement:
    """Return a settlement with its result encoded, or the failure if that is impossible."""
    try:
        return settlement._replace(data=codecs.encode(settlement.data, "result", function))
    except CodecError as error:
        return codec_failure(error)


def read_error(detail: bytes) -> bytes:
    """Return the error in the detail of a failure, as JSON."""
    return bytes(_decode_raw(detail).error)


def _cut(text: str, limit: int) -> str:
    text = hide_secrets(encodable(text))
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[…]\n{text[-limit // 2 :]}"


UNKNOWN_RETRY = "unknown"
"""The job has its own retry policy, which this worker's server does not send."""


class _Error(msgspec.Struct):
    type: str
    message: str
    traceback: str | None = None


class _Detail(msgspec.Struct):
    error: _Error
    final: bool = False


class _RawDetail(msgspec.Struct):
    error: msgspec.Raw


_decode = msgspec.json.Decoder(_Detail).decode
_decode_raw = msgspec.json.Decoder(_RawDetail).decode


class FailedAttempts:
    """The log of failed attempts. ``wall`` returns seconds since 1970; ``tracebacks``: log the tracebacks."""

    def __init__(self, log: AttemptLog, wall: Callable[[], float], *, tracebacks: bool) -> None:
        self._log = log
        self._wall = wall
        self._tracebacks = tracebacks

    def failed(self, job: CurrentJob, function: Function | None, settlement: Settlement) -> None:
        """Log an attempt that is reported as failed. ``function`` is None if this worker does not have the job's function."""
        if not self._log.allows(job.function):
            return
        detail = _decode(settlement.detail)
        self._log.write(
            "failed",
            job.function,
            job.handle,
            job.attempt,
            f"{detail.error.type}: {detail.error.message}",
            None if detail.final else self._next_retry(job, function),
            detail.error.traceback if self._tracebacks else None,
        )

    def _next_retry(self, job: CurrentJob, function: Function | None) -> float | str | None:
        """Return the time of the next attempt, without the jitter, which the server adds; None for a last attempt."""
        info = job.info
        if info.max_attempts is None or info.attempt >= info.max_attempts or job.stop_reason == "cancelled":
            return None
        policy: dict[str, Any] | None = None
        if info.retry is not None:
            policy = msgspec.structs.asdict(info.retry)
        elif function is not None and function.retry is not None:
            policy = function.retry.wire()
        if policy is None or policy["max_attempts"] != info.max_attempts:
            return UNKNOWN_RETRY
        return self._wall() + backoff(Retry(**policy), info.attempt, 0.5)
