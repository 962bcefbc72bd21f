"""Calls that complete jobs by tokens, or by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from mainspring.api.completions import NO_TOKEN_FOUND, AnswerCompletion, CompleteJob, CompletionInfo
from mainspring.api.handlers.job_records import JobLookup
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import size_problem
from mainspring.jobs.completion_rules import Answer, Refusal, digest_of
from mainspring.jobs.completions import Accepted, Refused, Sign
from mainspring.jobs.model import JobFailure, State, encode_failure
from mainspring.namespaces import namespace_of
from mainspring.sizes import LEVELS, is_too_deep

if TYPE_CHECKING:
    from mainspring.access.caller import Act
    from mainspring.api.completions import CompletionFailure
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.jobs.service import JobService

_ONE: Final = "give one of result, failure, progress and heartbeat"


class CompletionCalls:
    """Answers about completion tokens. ``largest`` is the number of bytes of a result that the store takes."""

    def __init__(self, service: JobService, *, largest: int) -> None:
        self._service = service
        self._largest = largest
        self._lookup = JobLookup(service)
        self.handlers: Handlers = {AnswerCompletion: self._answer, CompleteJob: self._complete}

    async def _answer(self, request: AnswerCompletion, call: Call) -> CompletionInfo:
        given = (
            request.result is not UNSET,
            request.failure is not None,
            request.progress is not None,
            request.heartbeat,
        )
        if sum(given) != 1:
            raise ApiError(Code.INVALID, _ONE)
        answer: Answer | Sign
        if request.progress is not None:
            answer = Sign(request.progress.done, request.progress.total, request.progress.text)
        elif request.heartbeat:
            answer = Sign()
        else:
            answer = self._answer_of(request.result, request.failure)
        digest = digest_of(request.token)
        completion = await self._service.completions.of_token(request.token)
        if completion is None:
            raise ApiError(Code.COMPLETION_NOT_FOUND, NO_TOKEN_FOUND)
        act = call.act(of=self._name(completion.job, completion.number), namespace=namespace_of(completion.function))
        return await self._given(digest, answer, act, by_token=True)

    async def _complete(self, request: CompleteJob, call: Call) -> CompletionInfo:
        if (request.result is not UNSET) + (request.failure is not None) != 1:
            raise ApiError(Code.INVALID, "give a result or a failure")
        answer = self._answer_of(request.result, request.failure)
        job = await self._lookup.read(request.handle, request.namespace)
        tokens = sorted(await self._service.completions.of_jobs([job.id]), key=lambda one: one.number)
        if not tokens:
            raise ApiError(Code.CONFLICT, f"{request.handle} awaits no completion: its function has asked for no token")
        return await self._given(tokens[-1].digest, answer, call.act(request.reason), by_token=False)

    def _name(self, job_id: int, number: int) -> str:
        return f"{self._service.handles.of(job_id).decode()} token {number}"

    def _answer_of(self, result: Any, failed: CompletionFailure | None) -> Answer:
        """Return an answer. Raises ApiError for one that is too large."""
        if failed is not None:
            error = encode_failure(JobFailure(failed.type, failed.message))
            return Answer(error=error, final=not failed.retry)
        data = bytes(result)
        if is_too_deep(data):
            raise ApiError(
                Code.INVALID, f"the result has more than {LEVELS.most} levels of arrays and objects", field="result"
            )
        if (problem := size_problem(data, self._largest)) is not None:
            raise ApiError(problem.code, problem.message)
        return Answer(result=data)

    async def _given(self, digest: bytes, answer: Answer | Sign, act: Act, *, by_token: bool) -> CompletionInfo:
        """Give an answer, and return what has become of the token. Raises ApiError and StoreError."""
        outcome = await self._service.completions.answer(digest, answer, act, by_token=by_token)
        if outcome is None:
            raise ApiError(Code.COMPLETION_NOT_FOUND, NO_TOKEN_FOUND)
        if isinstance(outcome, Refused):
            raise self._refusal(outcome)
        return self._info(outcome)

    def _info(self, accepted: Accepted) -> CompletionInfo:
        completion = accepted.completion
        state = ("open", "kept", "completed")[completion.status]
        return CompletionInfo(completion.number, state, rfc3339(completion.expires_us), accepted.repeated)

    def _refusal(self, refused: Refused) -> ApiError:
        """Return the problem of an answer that came too late, or twice."""
        why, completion, job = refused
        if why is Refusal.ANSWERED:
            return ApiError(
                Code.CONFLICT,
                f"this job was completed at {rfc3339(completion.ended_us)} with another answer: that one counts",
            )
        if why is Refusal.EXPIRED:
            if completion.limit_us < completion.expires_us and completion.ended_us < completion.expires_us:
                text = f"no sign of life came by {rfc3339(completion.limit_us)}, and the attempt has failed"
            else:
                text = f"the token expired at {rfc3339(completion.expires_us)}"
            return ApiError(Code.COMPLETION_GONE, f"this answer is late: {text}")
        if job is None:
            text = "its job is no longer kept"
        elif State(job.state).ended:
            text = f"its job is {State(job.state).name.lower()}, since {rfc3339(job.ended_us)}"
        else:
            text = "its attempt is over, and the job runs once more, with another token"
        return ApiError(Code.COMPLETION_GONE, f"this answer is late: {text}")
