"""Calls about operations on many jobs: start, list, show, follow and abort them. A backfill of a schedule starts one.

The stream of an operation has its progress until it ends, whichever node works on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import asdict, replace

from mainspring.access.caller import Permission
from mainspring.access.idempotency import act_if_new
from mainspring.api.handlers.job_records import filter_of, info_of
from mainspring.api.handlers.pages import number_of, rfc3339
from mainspring.api.operations import (
    AbortOperation,
    Backfill,
    FailureInfo,
    FollowOperation,
    ListOperationJobs,
    ListOperations,
    OperationDetails,
    OperationInfo,
    ShowOperation,
    StartedBackfill,
    StartedOperation,
    StartOperation,
    StateName,
    TouchedJob,
)
from mainspring.api.request import PAGE_LIMIT, ApiError, Code, JobCriteria, Page, Touches
from mainspring.bulk import rules
from mainspring.bulk.rules import PREFIX, Action, Spec, Status
from mainspring.bulk.store import ListBulk, ListTouched, ShowBulk
from mainspring.callbacks import in_slices
from mainspring.clock import to_us
from mainspring.jobs.store import Find
from mainspring.namespaces import key_of_text, split_text
from mainspring.queries import QueryJobs
from mainspring.schedules.rules import past_times
from mainspring.schedules.store import ListSchedules
from mainspring.sizes import PAGE
from mainspring.storage.reads import REMEDY
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from mainspring.access.caller import Caller
    from mainspring.api.handlers.registry import Call, Finder, Followers, Handlers
    from mainspring.api.request import Feed
    from mainspring.bulk.rules import BulkOperation
    from mainspring.bulk.service import BulkService
    from mainspring.errors import StoreError
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.queries import JobFilter
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import ScheduleService
    from mainspring.storage.reads import Reads

COUNT_SECONDS: Final = 1.0
"""Seconds after which the count of matching jobs ends."""
SAMPLE_JOBS: Final = 5
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
            StartOperation: self._start,
            ListOperations: self._list,
            ShowOperation: self._show,
            ListOperationJobs: self._list_jobs,
            AbortOperation: self._abort,
        }
        self.objects: Mapping[Touches, Finder] = {Touches.OPERATION: self._functions_of}

    # ---- starting ----

    async def _start(self, request: StartOperation, call: Call) -> StartedOperation:
        where = None
        if request.filter is not None:
            where = await filter_of(request.filter, request.namespace, self._find_run)
            patterns = call.caller.functions(Permission.OPERATE, request.namespace)
            if patterns is not None:
                where = replace(where, functions=patterns)
        bulk = self._operations.new(
            request.namespace,
            Spec(
                action=Action(request.action),
                where=where,
                ids=tuple(dict.fromkeys(map(self._job_id, request.handles or ()))),
                reason=request.reason,
                caller=call.caller,
                rate=request.rate,
                most=request.expect,
                due_us=None if request.run_at is None else max(to_us(request.run_at.timestamp()), 1),
                criteria=b"" if request.filter is None else _encode(request.filter),
            ),
        )
        matched, is_least, sample = await self._count(bulk, call.caller)
        if request.expect is not None and matched > request.expect:
            raise ApiError(
                Code.CONFLICT,
                f"{'at least ' if is_least else ''}{matched} jobs match, and at most {request.expect} are expected:"
                " narrow the filter, or expect more",
            )
        bulk = replace(bulk, spec=replace(bulk.spec, matched=matched, is_least=is_least))
        shown = [info_of(self._jobs, job) for job in sample]
        answer = StartedOperation(None if request.dry_run else id_of(bulk), matched, is_least, shown)
        if not request.dry_run:
            act = call.act(request.reason, of=id_of(bulk), after=msgspec.to_builtins(request))
            await act_if_new(call.once, partial(self._operations.begin, bulk, act), lambda _: answer)
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
        found: dict[int, Job] = await self._jobs.commits.committed(find)
        permitted = {
            job_id: job
            for job_id, job in found.items()
            if caller.may(Permission.OPERATE, bulk.namespace, function_text(job.function))
        }
        chosen = rules.choose(bulk.spec, ids, permitted, bulk.namespace).ids
        return len(chosen), False, [permitted[job_id] for job_id in chosen[:SAMPLE_JOBS]]

    async def _count_matches(self, where: JobFilter) -> tuple[int, bool, list[Job]]:
        until = self._jobs.clock.monotonic() + COUNT_SECONDS
        query = QueryJobs(where=where, limit=PAGE_LIMIT)
        matched = 0
        sample: list[Job] = []
        while True:
            page = await self._jobs.reads.read(query)
            matched += len(page.items)
            sample += page.items[: SAMPLE_JOBS - len(sample)]
            if page.next is None:
                return matched, False, sample
            if self._jobs.clock.monotonic() >= until:
                return matched, True, sample
            query = replace(query, after=page.next)

    def _job_id(self, handle: str) -> int:
        job_id = self._jobs.handles.parse(handle.encode())
        if job_id is None:
            raise ApiError(Code.INVALID, f"{handle} is no handle of a job")
        return job_id

    # ---- the others ----

    async def _list(self, request: ListOperations, call: Call) -> Page[OperationInfo]:
        before = None if request.cursor is None else _number(request.cursor)
        query = ListBulk(namespace=request.namespace, after=before, limit=request.limit, bytes=PAGE.most)
        page = await self._jobs.reads.read_pages(query)
        following = None if page.next is None or not page.items else id_of(page.items[-1])
        return Page([operation_info(bulk) for bulk in page.items if _is_shown(bulk, call.caller)], following)

    async def _show(self, request: ShowOperation, call: Call) -> OperationDetails:
        bulk = await self.find(request.namespace, request.id, call.caller)
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

    async def _list_jobs(self, request: ListOperationJobs, call: Call) -> Page[TouchedJob]:
        bulk = await self.find(request.namespace, request.id, call.caller)
        # A place has the number of the step before those that are read, and how many of their jobs come before the page.
        after, skipped = map(number_of, (request.cursor or "0:0").partition(":")[::2])
        page = await self._jobs.reads.read_pages(ListTouched(id=bulk.id, after=after or None, limit=STEPS_PER_PAGE))
        jobs = [
            TouchedJob(self._handle(job_id), outcome.value)
            for step in page.items
            for outcome, ids in step.items()
            for job_id in ids
        ]
        end = skipped + request.limit
        if end < len(jobs):
            return Page(jobs[skipped:end], f"{after}:{end}")
        return Page(jobs[skipped:], None if page.next is None else f"{page.next}:0")

    async def _abort(self, request: AbortOperation, call: Call) -> OperationInfo:
        number = (await self.find(request.namespace, request.id, call.caller)).id
        why = f"aborted by {call.caller.name}" + (f": {request.reason}" if request.reason else "")
        bulk = await self._operations.abort(request.namespace, number, why, call.act(request.reason))
        if bulk is None:
            raise call.not_found()
        if bulk.unread:
            raise ApiError(Code.CONFLICT, f"this node cannot read the operation {request.id}: {bulk.unread}; {REMEDY}")
        return operation_info(bulk)

    async def _functions_of(self, request: AbortOperation, caller: Caller) -> list[str] | None:
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
        bulk = await self._jobs.reads.read(ShowBulk(namespace, number))
        if bulk is None or not _is_shown(bulk, caller):
            raise Touches.OPERATION.not_found(name)
        return bulk

    def _handle(self, job_id: int) -> str:
        return self._jobs.handles.of(job_id).decode()


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
        raise Touches.OPERATION.not_found(name)
    return int(number)


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


SAMPLE_TIMES: Final = 10
"""Times in the answer."""


class BackfillCalls:
    """Answers to requests for backfills."""

    def __init__(self, operations: BulkService, schedules: ScheduleService, reads: Reads) -> None:
        self._operations = operations
        self._schedules = schedules
        self._reads = reads
        self.handlers: Handlers = {Backfill: self._backfill}

    async def _backfill(self, request: Backfill, call: Call) -> StartedBackfill:
        stored = await self._schedule(request)
        now_us = self._operations.now_us()
        bulk = self._operations.new(
            request.namespace,
            Spec(
                action=Action.BACKFILL,
                reason=request.reason,
                caller=call.caller,
                rate=request.rate,
                most=request.max,
                schedule=stored.schedule.name,
                from_us=max(to_us(request.from_.timestamp()), 0),
                to_us=now_us if request.to is None else min(to_us(request.to.timestamp()), now_us),
            ),
        )
        matched, is_least, times = await in_slices(
            self._schedules.run_sliced, self._count(stored, bulk.spec, self._operations.monotonic())
        )
        if request.max is not None and (matched > request.max or is_least):
            raise ApiError(
                Code.CONFLICT,
                f"{'at least ' if is_least else ''}{matched} fire times are in the range, and at most {request.max} are"
                " expected: choose a shorter range, or a higher max",
            )
        answer = StartedBackfill(None if request.dry_run else id_of(bulk), matched, is_least, times)
        if not request.dry_run:
            bulk = replace(bulk, spec=replace(bulk.spec, matched=matched, is_least=is_least))
            act = call.act(request.reason, after={"operation": id_of(bulk), **msgspec.to_builtins(request)})
            await act_if_new(call.once, partial(self._operations.begin, bulk, act), lambda _: answer)
        return answer

    async def _schedule(self, request: Backfill) -> Stored:
        """Return the schedule of a request, as it is stored. Raises ApiError."""
        key = key_of_text(request.namespace, request.name)
        query = ListSchedules(limit=1, names=(key,), namespace=request.namespace)
        found = (await self._reads.read_pages(query)).items
        if not found:
            raise Touches.SCHEDULE.not_found(request.name)
        if found[0].schedule.trigger is None:
            raise ApiError(
                Code.INVALID,
                f"schedule {request.name!r} runs after other schedules and has no times of its own: backfill those",
            )
        return found[0]

    def _count(
        self, stored: Stored, spec: Spec, began: float
    ) -> Generator[None, None, tuple[int, bool, list[str | None]]]:
        """Return the number of fire times in the range, whether there may be more, and the first of them."""
        number = 0
        times: list[str | None] = []
        for at in past_times(stored, spec.from_us - 1, spec.to_us):
            if at is not None:
                number += 1
                if len(times) < SAMPLE_TIMES:
                    times.append(rfc3339(at))
            if self._operations.monotonic() - began > COUNT_SECONDS:
                return number, True, times
            yield
        return number, False, times


INTERVAL: Final = 0.5
"""Seconds between two reads of an operation: another node may work on it."""


class OperationStreams:
    """Streams about single operations."""

    def __init__(self, calls: OperationCalls, service: JobService) -> None:
        self._calls = calls
        self._service = service
        self.followers: Followers = {FollowOperation: self._follow}

    async def _follow(self, request: FollowOperation, call: Call, feed: Feed) -> Callable[[], None]:
        """Send the operation now, and after each of its steps."""
        bulk = await self._calls.find(request.namespace, request.id, call.caller)
        watcher = _Watcher(self._service, bulk, feed)
        watcher.send(bulk)
        return watcher.end


class _Watcher:
    """Reads an operation from time to time, until it or its client has ended."""

    def __init__(self, service: JobService, bulk: BulkOperation, feed: Feed) -> None:
        self._service = service
        self._bulk = bulk
        self._feed = feed
        self._is_ended = False

    def send(self, bulk: BulkOperation) -> None:
        """Send the operation; after the last step, end the stream."""
        self._bulk = bulk
        self._feed.replace("operation", operation_info(bulk))
        self._go_on()

    def end(self) -> None:
        """Send no more: the client has left."""
        self._is_ended = True

    def _go_on(self) -> None:
        if self._bulk.status is Status.RUNNING:
            self._service.later(INTERVAL, self._look)
        else:
            self._feed.end()

    def _look(self) -> None:
        if not self._is_ended:
            query = ShowBulk(self._bulk.namespace, self._bulk.id)
            self._service.reads.ask(query, self._found, self._not_found, lambda: not self._is_ended)

    def _found(self, bulk: BulkOperation | None) -> None:
        if self._is_ended:
            return
        if bulk is None:
            self._feed.end()
        elif bulk.revision != self._bulk.revision:
            self.send(bulk)
        else:
            self._go_on()

    def _not_found(self, error: StoreError) -> None:
        del error  # the next read may succeed
        if not self._is_ended:
            self._go_on()
