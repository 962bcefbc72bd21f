"""Claims: this node's open requests for jobs, which the master reads, and the jobs that it assigns some time later.

A claim is answered at once from jobs that have arrived already. If this node is the master itself, it assigns within the group.
Otherwise the requests are written, and the claim is answered after the master's answer, or after a time-out. A request stays
open after that, so that later tasks are assigned without another claim. Jobs that arrive while no claim waits are reported to
the node, whose next claim gets them at once; if none comes, they go back to pending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Conflict, Entry, Verdict, moved
from mainspring.engines.zookeeper.records import MAX_RECORD, UNMARKED, Notice, decode_notice, encode_requests, mark_of
from mainspring.engines.zookeeper.sessions import Handlers, Session, Waiting
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Refusal, Write, wait_or_timeout
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.records import Mark
    from mainspring.errors import StoreError


CLAIM_TIMEOUT: Final = 1.5
"""Seconds that a claim waits for a master, and that an arrived job waits for a claim before it goes back to pending."""
READ_AT_ONCE: Final = 500


class OpenClaim:
    """A claim that waits for the master's answer: the placeholder of an outcome in a handler's outcomes."""

    def __init__(self, operation: ops.Claim, asked: int, until: float) -> None:
        self.operation = operation
        self.asked = asked
        self.until = until
        """The loop's time of its time-out."""
        self._outcome: Any = None
        self._then: Callable[[Any], None] | None = None

    def answer(self, outcome: list[list[Job]] | StoreError) -> None:
        """Set the outcome or an error, once."""
        self._outcome = outcome
        if self._then is not None:
            self._then(outcome)

    def then(self, call: Callable[[Any], None]) -> None:
        """Call a function once with the outcome, at once if it is set already."""
        self._then = call
        if self._outcome is not None:
            call(self._outcome)


class _Arrival(NamedTuple):
    job: Job
    task: str
    at: float


class _Return(NamedTuple):
    """A task to put back to pending, and the version of its assignment."""

    task: Waiting
    version: int


class Claims:
    """The open requests of one term of a node, and the jobs that have arrived for it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.requests: dict[bytes, list[ops.ClaimRequest]] = {}
        """The open requests of this node, minus the jobs that have arrived."""
        self._arrived: dict[bytes, deque[_Arrival]] = {}
        self._open: list[OpenClaim] = []
        self.asked = 0
        """The number of the last claim that was not answered at once."""
        self._notice = Notice()
        self._must_write = False
        self._wake = asyncio.Event()
        self._must_read = True
        """Whether the queue has changed, or is not watched."""
        self._wake.set()
        self._is_over = False
        self._marks: dict[int, Mark] = {}
        """The assignment of each job that this node holds."""
        self._last_marks: dict[int, Mark] = {}
        """The last assignment of each job that this node has held since it began to read its queue."""
        self._must_relist = False
        """Whether an assignment was read whose predecessor has just ended or is about to: the queue is listed again."""
        self._is_answering = False
        """Whether a claim is being answered: jobs that remain after it are reported to the node."""

    @property
    def waiting(self) -> int:
        """The number of tasks that have arrived and were not claimed."""
        return sum(map(len, self._arrived.values()))

    # ---- claims ----

    async def claim(self, operations: Sequence[ops.Claim]) -> list[Any]:
        """Answer claims, now or later."""
        session = self._session
        self._check_term()
        new: dict[bytes, list[ops.ClaimRequest]] = {}
        for request in [request for operation in operations for request in operation.wants]:
            new.setdefault(request.function, []).append(request)
        self.requests.update(new)
        outcomes: list[Any] = [self._answer(operation, counted=True) for operation in operations]
        self.asked += None in outcomes
        if session.master is not None:
            self._is_answering = True
            try:
                complete = await session.master.claim(
                    new, self.asked
                )  # it is this node, and assigns the tasks of its index
            finally:
                self._is_answering = False
            self._check_term()  # `_fence` may have answered the open claims, and would not answer these
            for at, operation in enumerate(operations):
                # Fewer jobs than requested would mean that no task is left.
                outcomes[at] = self._answer(operation, outcomes[at]) or (self._empty(operation) if complete else None)
            for function in self._arrived:
                session.arrived(function)
        until = asyncio.get_running_loop().time() + CLAIM_TIMEOUT
        for at, operation in enumerate(operations):
            if outcomes[at] is None:
                outcomes[at] = opened = OpenClaim(operation, self.asked, until)
                self._open.append(opened)
        self._must_write = True
        self._wake.set()
        return outcomes

    def _check_term(self) -> None:
        """Raise StoreFencedError if the term is over."""
        if self._is_over or self._session.committer.fenced:
            raise self._session.over()

    def answered(self, asked: int) -> None:
        """Answer the claims up to a number, which the master has processed, with the jobs that have arrived or none."""
        self._close(lambda claim: claim.asked <= asked)

    def _answer(
        self, operation: ops.Claim, before: list[list[Job]] | None = None, *, counted: bool = False
    ) -> list[list[Job]] | None:
        """Return the outcome of a claim: its jobs from ``before``, and those that have arrived; None if there are none.

        ``counted``: the jobs were assigned on earlier requests, and reduce the present ones.
        """
        jobs = before or self._empty(operation)
        for request, some in zip(operation.wants, jobs, strict=True):
            some += self._pop_arrived(request, request.limit - len(some), counted=counted)
        return jobs if any(jobs) else None

    @staticmethod
    def _empty(operation: ops.Claim) -> list[list[Job]]:
        return [[] for _ in operation.wants]

    def _pop_arrived(self, request: ops.ClaimRequest, limit: int, *, counted: bool) -> list[Job]:
        arrived = self._arrived.get(request.function)
        jobs: list[Job] = []
        while arrived and len(jobs) < limit:
            job = arrived.popleft().job
            if job.id not in self._session.assignments:
                continue  # no client waited for it any more, and it was dropped
            jobs.append(job)
            if counted:
                self._count_down(request.function)
        if arrived is not None and not arrived:
            del self._arrived[request.function]
        return jobs

    # ---- arrivals ----

    def arrive(self, tasks: Iterable[tuple[str, Job, Mark]]) -> None:
        """Add tasks that were assigned to this node."""
        now = asyncio.get_running_loop().time()
        functions = set()
        for task, job, mark in tasks:
            if job.id in self._session.assignments:
                continue  # the queue was read before the master, which is this node, reported it
            self._session.assignments[job.id] = 0
            self._session.new.add(job.id)
            self._marks[job.id] = self._last_marks[job.id] = mark
            self._arrived.setdefault(job.function, deque()).append(_Arrival(job, task, now))
            functions.add(job.function)
            self._count_down(job.function)
        unanswered = []
        for claim in self._open:
            outcome = self._answer(claim.operation)
            if outcome is None:
                unanswered.append(claim)
            else:
                claim.answer(outcome)
        self._open = unanswered
        for function in functions & self._arrived.keys() if not self._is_answering else ():
            self._session.arrived(function)
        if self._arrived:
            self._wake.set()

    def _count_down(self, function: bytes) -> None:
        """Reduce the requests for a function by one task."""
        requests = self.requests.get(function, [])
        for at, request in enumerate(requests):
            if request.limit > 0:
                requests[at] = request._replace(limit=request.limit - 1)
                break

    # ---- exchange with the master ----

    async def catch_up(self) -> None:
        """As the new master, read the tasks that the last master assigned to this node without a notice."""
        tasks = await self._session.children(paths.queue(self._session.who))
        await self._fetch(tasks)
        if self._must_relist:
            self._on_change()

    def rewrite(self) -> None:
        """Write the requests for the next master: until now this node was the master itself."""
        self._must_write = True
        self._must_read = True
        self._wake.set()

    async def run(self) -> None:
        """Write requests and read assignments, until cancelled or the term has ended."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                timeout = self._next(loop.time())
                await wait_or_timeout(self._wake, timeout)
                self._wake.clear()
                await self._step(loop.time())
        finally:
            self._fence()

    def _next(self, now: float) -> float | None:
        """Return the seconds until the next time-out; None if there is none."""
        times = [claim.until for claim in self._open[:1]]
        times += [arrived[0].at + CLAIM_TIMEOUT for arrived in self._arrived.values()]
        return max(min(times) - now, 0.0) if times else None

    async def _step(self, now: float) -> None:
        if self._must_write and self._session.master is None:
            await self._write()
        if self._must_read:
            await self._read()  # also if this node is the master by now: the last one may have assigned tasks to it
        self._close(lambda claim: claim.until <= now)
        await self._return_unclaimed(now - CLAIM_TIMEOUT)

    async def _write(self) -> None:
        path = paths.wants(self._session.who)
        self._must_write = False
        await self._session.write(Write(path, self._record()))

    def _record(self) -> bytes:
        """Return the record of the open requests. If there are too many for a node of the tree, each claim has another part."""
        requests, parts = self.requests, 1
        while len(data := encode_requests(self.asked, requests)) > MAX_RECORD:
            parts *= 2
            names = [name for name, some in self.requests.items() if any(request.limit for request in some)]
            requests = {name: self.requests[name] for name in names[self.asked % parts :: parts]}
        return data

    async def _read(self) -> None:
        """Read the master's notice, and the new tasks."""
        session, queue = self._session, paths.queue(self._session.who)
        self._must_read = False
        self._marks = {job_id: self._marks.get(job_id, UNMARKED) for job_id in self._session.assignments}
        self._last_marks = dict(self._marks)
        node = await session.get(queue, self._on_change)
        if node is None or not node.data:
            return
        notice = decode_notice(node.data)
        tasks = notice.since(self._notice)
        if tasks is None:
            tasks = await session.children(queue)
        await self._fetch(tasks)
        self._notice = notice
        if self._must_relist:
            self._must_relist = False
            self._notice = Notice()  # the whole queue is listed
            self._on_change()
        self.answered(notice.answered)

    def _on_change(self) -> None:
        self._must_read = True
        self._wake.set()

    async def _fetch(self, tasks: Sequence[str]) -> None:
        for start in range(0, len(tasks), READ_AT_ONCE):
            await self._fetch_some(tasks[start : start + READ_AT_ONCE])

    async def _fetch_some(self, tasks: Sequence[str]) -> None:
        session = self._session
        arrivals = []
        for task, node in zip(tasks, await session.get_many([*map(paths.running, tasks)]), strict=True):
            if node is None:
                continue
            record = records.decode(node.data)
            # Jobs that this node leased at their submission are in its queue too, but no master has assigned them.
            if record.get("term") != session.term or "master" not in record:
                continue
            mark = mark_of(record)
            if self._is_new(record["id"], mark):
                arrivals.append((task, records.decode_job(record), mark))
        await session.meet(job.id for _, job, _ in arrivals)
        arrivals.sort(key=lambda arrival: (arrival[1].priority, arrival[1].id))  # a list of names has no order
        # In the meantime a job may have arrived and ended, and the record that was read is older.
        self.arrive([(task, job, mark) for task, job, mark in arrivals if self._is_new(job.id, mark)])

    def _is_new(self, job_id: int, mark: Mark) -> bool:
        """Return whether an assignment that was read is new; if that is uncertain, the queue is listed again."""
        last = self._last_marks.get(job_id)
        is_held = job_id in self._session.assignments
        if last is not None and mark[1] == 0:
            # It looks like the last one, which was returned or has ended if the job is no longer held.
            self._must_relist = self._must_relist or not is_held
            return False
        if last is not None and mark <= last:
            return False
        # If the job is still held, it was returned, and the answer to that has not been processed yet.
        self._must_relist = self._must_relist or is_held
        return not is_held

    def _close(self, over: Callable[[OpenClaim], bool]) -> None:
        """Answer claims with the jobs that have arrived, or none."""
        closed = [claim for claim in self._open if over(claim)]
        self._open = [claim for claim in self._open if not over(claim)]
        for claim in closed:
            claim.answer(self._answer(claim.operation) or self._empty(claim.operation))

    def _fence(self) -> None:
        self._is_over = True
        opened, self._open = self._open, []
        for claim in opened:
            claim.answer(self._session.over())

    # ---- unclaimed jobs ----

    async def _return_unclaimed(self, before: float) -> None:
        """Return jobs that arrived before a time and were not claimed to pending."""
        released: list[_Return] = []
        withdrawn: dict[bytes, list[ops.ClaimRequest]] = {}
        for function, arrived in list(self._arrived.items()):
            if arrived[0].at > before:
                continue
            withdrawn[function] = []  # the request is withdrawn as well
            while arrived and arrived[0].at <= before:
                job, task, _ = arrived.popleft()
                version = self._session.assignments.pop(job.id, None)
                if version is None:
                    continue  # no client waited for it any more, and it was dropped
                job.state, job.term = int(State.PENDING), 0
                data = records.encode_job(job, self._session.handle(job.id))
                released.append(_Return(Waiting(task, job, data), version))
            if not arrived:
                del self._arrived[function]
        if not released:
            return
        session = self._session
        self.requests.update(withdrawn)
        if session.master is None:
            await self._write()
        else:
            await session.master.claim(withdrawn, 0)
        while released:
            verdicts = await session.committer.commit([_released(session, *one) for one in released])
            session.waiting([one.task for one, verdict in zip(released, verdicts, strict=True) if verdict is None])
            released = await self._changed(released, verdicts)

    async def _changed(self, released: Sequence[_Return], verdicts: Sequence[Verdict]) -> list[_Return]:
        """Return the tasks that are still assigned to this node, with another version, and have to be returned with that one."""
        session = self._session
        conflicts = [
            one
            for one, verdict in zip(released, verdicts, strict=True)
            if isinstance(verdict, Conflict) and verdict.at == 1 and verdict.why is Refusal.VERSION
        ]
        places = [paths.assignment(session.who, one.task.task) for one in conflicts]
        return [
            one._replace(version=node.version)
            for one, node in zip(conflicts, await session.get_many(places), strict=True)
            if node is not None and records.decode(node.data)["id"] == one.task.job.id
        ]


def _released(session: Session, one: Waiting, version: int) -> Entry:
    """Return the entry that puts an unclaimed task back to pending."""
    task, job, data = one
    return Entry(
        [
            # If it was dropped in the meantime, another job of its name may have arrived here, and look the same.
            Check(session.result(job.id)),
            Delete(paths.assignment(session.who, task), version),
            Delete(paths.running(task)),
            Create(paths.pending(task), data),
        ],
        moved(job, State.LEASED),
    )


async def _claim(session: Session, operations: Sequence[Any]) -> Sequence[Any]:
    return await session.memory(Claims).claim(operations)


HANDLERS: Handlers = {
    ops.Claim: _claim,
}
