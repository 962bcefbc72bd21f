"""Calls about operations on many jobs: start, list, show and abort them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import asdict, replace

from mainspring.access.roles import Permission
from mainspring.api.answers.job_filters import filter_of
from mainspring.api.answers.job_info import info_of
from mainspring.api.answers.once import act_if_new
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import Later, read_page
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code
from mainspring.api.job_filters import JobCriteria
from mainspring.api.operations import (
    Abort,
    FailureInfo,
    Jobs,
    List,
    Listed,
    OperationDetails,
    OperationInfo,
    Show,
    Start,
    Started,
    StateName,
    TouchedJob,
    TouchedJobs,
)
from mainspring.api.request import Touches
from mainspring.bulk import rules
from mainspring.bulk.model import PREFIX, Action, Spec, Status
from mainspring.bulk.store import ListBulk, ListTouched, ShowBulk
from mainspring.clock import to_us
from mainspring.jobs.store import Find
from mainspring.namespaces import split_text
from mainspring.queries.jobs import ListJobs
from mainspring.sizes import PAGE
from mainspring.storage.set_aside import REMEDY
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mainspring.access.caller import Caller
    from mainspring.access.once import Once
    from mainspring.api.answers.registry import Finder, Handlers
    from mainspring.bulk.model import BulkOperation
    from mainspring.bulk.service import BulkService
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.queries.filters import JobFilter

COUNT_SECONDS: Final = 1.0
"""Seconds after which the count of matching jobs ends."""
SAMPLE: Final = 5
"""Jobs in the sample of an operation."""
STEPS_PER_PAGE: Final = 20
"""Steps whose jobs are listed in one answer, each with up to a thousand jobs."""
_encode = msgspec.json.Encoder().encode
_decode_criteria = msgspec.json.Decoder(JobCriteria).decode


class OperationCalls:
    """Answers for the operations on many jobs of a store.

    ``find_run`` returns the number of a run of a workflow.
    """

    def __init__(
        self,
        operations: BulkService,
        jobs: JobService,
        find_run: Callable[[str, str], Awaitable[int]],
    ) -> None:
        self._operations = operations
        self._jobs = jobs
        self._find_run = find_run
        self.handlers: Handlers = {
            Start: self._start,
            List: self._list,
            Show: self._show,
            Jobs: self._list_jobs,
            Abort: self._abort,
        }
        self.objects: Mapping[Touches, Finder] = {Touches.OPERATION: self._functions_of}

    # ---- starting ----

    async def _start(self, request: Start, caller: Caller, once: Once | None) -> Started:
        where = None
        if request.filter is not None:
            where = await filter_of(request.filter, request.namespace, self._find_run)
            patterns = caller.functions(Permission.OPERATE, request.namespace)
            if patterns is not None:
                where = replace(where, functions=patterns)
        bulk = self._operations.new(
            request.namespace,
            Spec(
                action=Action(request.action),
                where=where,
                ids=tuple(dict.fromkeys(map(self._job_id, request.handles or ()))),
                reason=request.reason,
                caller=caller,
                rate=request.rate,
                most=request.expect,
                due_us=None if request.run_at is None else max(to_us(request.run_at.timestamp()), 1),
                criteria=b"" if request.filter is None else _encode(request.filter),
            ),
        )
        matched, is_least, sample = await self._count(bulk, caller)
        if request.expect is not None and matched > request.expect:
            raise ApiError(
                Code.CONFLICT,
                f"{'at least ' if is_least else ''}{matched} jobs match, and at most {request.expect} are expected:"
                " narrow the filter, or expect more",
            )
        bulk = replace(bulk, spec=replace(bulk.spec, matched=matched, is_least=is_least))
        shown = [info_of(self._jobs, job) for job in sample]
        answer = Started(None if request.dry_run else id_of(bulk), matched, is_least, shown)
        if not request.dry_run:
            act = caller.act(
                request.call,
                id_of(bulk),
                request.reason,
                namespace=request.namespace,
                after=msgspec.to_builtins(request),
            )
            await act_if_new(
                once,
                lambda keyed, done, failed: self._operations.begin(bulk, done, failed, act, keyed),
                lambda _: answer,
            )
        return answer

    async def _count(self, bulk: BulkOperation, caller: Caller) -> tuple[int, bool, list[Job]]:
        """Return how many jobs match, whether more may match, and the first of them."""
        where = bulk.spec.where
        if where is None:
            return await self._count_ids(bulk, caller)
        return await self._count_matches(where)

    async def _count_ids(self, bulk: BulkOperation, caller: Caller) -> tuple[int, bool, list[Job]]:
        ids = list(bulk.spec.ids)
        find = Find(ids, namespace=bulk.namespace)
        found: dict[int, Job] = await Later(lambda done, failed: self._jobs.put(find, done, failed))
        permitted = {
            job_id: job
            for job_id, job in found.items()
            if caller.may(Permission.OPERATE, bulk.namespace, function_text(job.function))
        }
        chosen = rules.choose(bulk.spec, ids, permitted, bulk.namespace).ids
        return len(chosen), False, [permitted[job_id] for job_id in chosen[:SAMPLE]]

    async def _count_matches(self, where: JobFilter) -> tuple[int, bool, list[Job]]:
        until = self._jobs.monotonic() + COUNT_SECONDS
        query = ListJobs(where=where, limit=PAGE_LIMIT)
        matched = 0
        sample: list[Job] = []
        while True:
            page = await read_page(self._jobs.ask, query)
            matched += len(page.items)
            sample += page.items[: SAMPLE - len(sample)]
            if page.next is None:
                return matched, False, sample
            if self._jobs.monotonic() >= until:
                return matched, True, sample
            query = replace(query, after=page.next)

    def _job_id(self, handle: str) -> int:
        job_id = self._jobs.id_of(handle.encode())
        if job_id is None:
            raise ApiError(Code.INVALID, f"{handle} is no handle of a job")
        return job_id

    # ---- the others ----

    async def _list(self, request: List, caller: Caller) -> Listed:
        before = None if request.before is None else _number(request.before)
        query = ListBulk(namespace=request.namespace, after=before, limit=request.limit, bytes=PAGE.most)
        page = await read_page(self._jobs.gather, query)
        following = None if page.next is None or not page.items else id_of(page.items[-1])
        return Listed([operation_info(bulk) for bulk in page.items if _is_shown(bulk, caller)], following)

    async def _show(self, request: Show, caller: Caller) -> OperationDetails:
        bulk = await self.find(request.namespace, request.id, caller)
        spec = bulk.spec
        return OperationDetails(
            **asdict(operation_info(bulk)),
            filter=_decode_criteria(spec.criteria) if spec.criteria else None,
            handles=len(spec.ids) if spec.ids else None,
            schedule=split_text(spec.schedule)[1] or None,
            from_=rfc3339(spec.from_us) if spec.schedule else None,
            to=rfc3339(spec.to_us) if spec.schedule else None,
            run_at=None if spec.due_us is None else rfc3339(spec.due_us),
            rate=spec.rate,
            expect=spec.most,
            failures=[
                FailureInfo(self._handle(failure.job), failure.outcome.value, failure.message)
                for failure in bulk.progress.failures
            ],
        )

    async def _list_jobs(self, request: Jobs, caller: Caller) -> TouchedJobs:
        bulk = await self.find(request.namespace, request.id, caller)
        page = await read_page(
            self._jobs.gather, ListTouched(id=bulk.id, after=request.after or None, limit=STEPS_PER_PAGE)
        )
        jobs = [
            TouchedJob(self._handle(job_id), outcome.value)
            for step in page.items
            for outcome, ids in step.items()
            for job_id in ids
        ]
        return TouchedJobs(jobs, page.next)

    async def _abort(self, request: Abort, caller: Caller) -> OperationInfo:
        number = (await self.find(request.namespace, request.id, caller)).id
        why = f"aborted by {caller.name}" + (f": {request.reason}" if request.reason else "")
        act = caller.act(request.call, request.id, request.reason, namespace=request.namespace)
        bulk: BulkOperation | None = await Later(
            lambda done, failed: self._operations.abort(request.namespace, number, why, done, failed, act)
        )
        if bulk is None:
            raise _unknown(request.id)
        if bulk.unread:
            raise ApiError(Code.CONFLICT, f"this node cannot read the operation {request.id}: {bulk.unread}; {REMEDY}")
        return operation_info(bulk)

    async def _functions_of(self, request: Abort, caller: Caller) -> list[str] | None:
        """Return the functions whose jobs an operation may change; none for the caller's own operation."""
        bulk = await self.find(request.namespace, request.id, caller)
        if _is_own(bulk, caller):
            return []
        where = bulk.spec.where
        if where is None or where.function is None:
            return None
        return [function_text(where.function)]

    async def find(self, namespace: str, name: str, caller: Caller) -> BulkOperation:
        """Return an operation that the caller may see. Raises ApiError."""
        number = _number(name)
        bulk: BulkOperation | None = await Later(
            lambda done, failed: self._jobs.ask(ShowBulk(namespace, number), done, failed)
        )
        if bulk is None or not _is_shown(bulk, caller):
            raise _unknown(name)
        return bulk

    def _handle(self, job_id: int) -> str:
        return self._jobs.handle_of(job_id).decode()


def id_of(bulk: BulkOperation) -> str:
    """Return the text that stands for an operation."""
    return f"{PREFIX}{bulk.id}"


def _is_shown(bulk: BulkOperation, caller: Caller) -> bool:
    """Return whether a caller may see an operation. One with a part of the functions sees its own operations alone."""
    return caller.functions(Permission.READ, bulk.namespace) is None or _is_own(bulk, caller)


def _is_own(bulk: BulkOperation, caller: Caller) -> bool:
    return bool(caller.token) and bulk.spec.caller.token == caller.token


def _number(name: str) -> int:
    """Return the number of an operation. Raises ApiError."""
    number = name.removeprefix(PREFIX)
    if number == name or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise _unknown(name)
    return int(number)


def _unknown(name: str) -> ApiError:
    return ApiError(
        Code.OPERATION_NOT_FOUND, f"there is no operation {name}: it never existed here, or is no longer kept"
    )


def operation_info(bulk: BulkOperation) -> OperationInfo:
    """Return an operation as answers show it."""
    spec, progress = bulk.spec, bulk.progress
    return OperationInfo(
        id=id_of(bulk),
        action="unknown" if bulk.unread else spec.action.value,
        state=_STATES[bulk.status],
        matched=spec.matched,
        at_least=spec.is_least,
        done=rules.done(progress),
        outcomes={outcome.value: number for outcome, number in progress.counts.items()},
        created_at=rfc3339(bulk.created_us),
        ended_at=rfc3339(bulk.ended_us),
        created_by=spec.caller.name,
        reason=spec.reason,
        why=f"set aside: {bulk.unread}" if bulk.unread else progress.why or None,
    )


_STATES: Final[dict[Status, StateName]] = {
    Status.RUNNING: "running",
    Status.DONE: "done",
    Status.ABORTED: "aborted",
    Status.STOPPED: "stopped",
}


def without_operations() -> Handlers:
    """Return the answers of a node whose store keeps no operations on many jobs."""

    async def refuse(_: object) -> None:
        raise ApiError(
            Code.UNSUPPORTED,
            "a store on ZooKeeper keeps no operations on many jobs: name the jobs by their handles, one request each",
        )

    return dict.fromkeys((Start, List, Show, Jobs, Abort), refuse)
