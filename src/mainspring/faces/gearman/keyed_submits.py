"""SUBMIT with a request key: a repeated one joins the job of the first, even if that job has ended or its answer was lost."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.access.once import Once, RepeatedError
from mainspring.access.replies import FindReply, KeptReply, Reservation
from mainspring.api.answers.waiting import CallInProgress, Later
from mainspring.api.errors import ApiError, Code, Problem
from mainspring.wire.gearman.uniques import unique_of_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.access.reply_service import ReplyService
    from mainspring.api.answers.submitting import SubmitCalls
    from mainspring.api.submitting import JobOptions, Submission
    from mainspring.jobs.service import JobService

KEY_LIMIT: Final = 255
"""Characters of a request key."""
KEYS_NOT_KEPT: Final = (
    "this node's store keeps no request keys (SQLite, PostgreSQL and memory do): leave out request_key"
)
_PATH: Final = b"SUBMIT"
DEFECT: Final = Problem(
    Code.UNAVAILABLE, "the node could not submit the job because of a defect: its log has the reason"
)

log = structlog.get_logger("mainspring.gearman")


class KeyedSubmits:
    """Submits jobs with request keys. A key belongs to its caller and namespace, and is kept for a day."""

    def __init__(self, submits: SubmitCalls, replies: ReplyService, service: JobService) -> None:
        self._submits = submits
        self._replies = replies
        self._put = service.put

    def start(
        self,
        caller: Caller,
        namespace: str,
        key: str,
        args: list[bytes],
        options: JobOptions,
        done: Callable[[str, bool], None],
        failed: Callable[[Problem], None],
    ) -> CallInProgress:
        """Submit the job of a SUBMIT with these arguments.

        ``done`` is called with its handle, and with whether it was submitted before. If the call is ended before, nothing or
        all of it is done.
        """

        def broken(error: Exception) -> None:
            log.error("a submit has failed because of a defect", exc_info=error)
            failed(DEFECT)

        work = self._submit(caller, namespace, key, args, options)
        return CallInProgress(work, lambda answer: done(*answer), failed, broken)

    async def _submit(
        self, caller: Caller, namespace: str, key: str, args: list[bytes], options: JobOptions
    ) -> tuple[str, bool]:
        if not 0 < len(key) <= KEY_LIMIT:
            raise ApiError(Code.INVALID, f"a request key has 1 to {KEY_LIMIT} characters, and this one has {len(key)}")
        if not self._replies.atomic:
            raise ApiError(Code.UNSUPPORTED, KEYS_NOT_KEPT)
        owner = (caller.token or caller.name).encode()
        request = self._replies.key(_digest(owner, _PATH, namespace.encode(), key.encode()), _digest(*args))
        earlier: Reservation | None = await Later(
            lambda done, failed: self._put(FindReply(request.key, request.expired_us), done, failed)
        )  # before the checks: a full queue must not refuse a job that is stored already
        if earlier is None:
            function, unique, _, payload = args
            if unique == b"-" and payload:
                unique = unique_of_payload(payload)
            job = self._submits.job(namespace, function, payload, unique, options, caller)
            try:
                stored = await self._submits.stored(job, Once(request, _reply))
            except RepeatedError as repeated:
                earlier = repeated.earlier
            else:
                return stored.handle or "", bool(stored.joined)
        if earlier.request != request.request:
            raise ApiError(Code.CONFLICT, "this request key was used for another submit: use a new one")
        if earlier.reply is None:
            raise ApiError(Code.CONFLICT, "the submit with this request key is under way: submit again")
        return earlier.reply.body.decode(), True


def _reply(answer: Submission) -> KeptReply:
    return KeptReply(200, {}, (answer.handle or "").encode())


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()
