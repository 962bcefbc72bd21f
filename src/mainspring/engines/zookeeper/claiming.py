"""Claims: what this node would take is written down for the master, and what it assigns arrives some time later.

A claim is answered at once from what has arrived already. Where this node is the master itself, it assigns within the group.
Otherwise the wants are written, and the claim is answered when the master has answered, or after a while without one. A want
stays open after that, so that later tasks are assigned without being asked for again; what arrives while no claim waits is told
to the node, whose next claim has it at once, and given back where none comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.cancellation import wait_or_timeout
from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.records import UNMARKED, Notice, decode_notice, encode_wants, mark_of
from mainspring.engines.zookeeper.session import Waiting
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Write
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.records import Mark
    from mainspring.engines.zookeeper.session import Handlers, LocalMaster, Session
    from mainspring.errors import StoreError


PATIENCE: Final = 1.5
"""Seconds that a claim waits for a master; and that arrivals wait for a claim, before others may have them."""
READ_AT_ONCE: Final = 500


class OpenClaim:
    """A claim that waits for the master's answer. It stands among a handler's outcomes for the one that comes later."""

    def __init__(self, operation: ops.Claim, asked: int, until: float) -> None:
        self.operation = operation
        self.asked = asked
        self.until = until
        """The loop's time at which it is answered with what there is."""
        self._outcome: Any = None
        self._then: Callable[[Any], None] | None = None

    def answer(self, outcome: list[list[Job]] | StoreError) -> None:
        """Give the outcome, or the error that takes its place: once."""
        self._outcome = outcome
        if self._then is not None:
            self._then(outcome)

    def then(self, call: Callable[[Any], None]) -> None:
        """Call a function with the outcome, at once where it is there already: once."""
        self._then = call
        if self._outcome is not None:
            call(self._outcome)


class _Arrival(NamedTuple):
    job: Job
    task: str
    at: float


class Claims:
    """What one term of a node has asked for, and what has arrived."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.wants: dict[bytes, list[ops.ClaimRequest]] = {}
        """What this node would take, as far as it has not been given it."""
        self._arrived: dict[bytes, deque[_Arrival]] = {}
        self._open: list[OpenClaim] = []
        self.asked = 0
        """The number of the last claim that had to wait."""
        self._notice = Notice()
        self._unwritten = False
        self._news = asyncio.Event()
        self._changed = True
        """The queue has changed, or is not watched."""
        self._news.set()
        self._is_over = False
        self._marks: dict[int, Mark] = {}
        """Which assignments have arrived, of the jobs that this node holds."""
        self._passed: dict[int, Mark] = {}
        """The jobs that this node has held since it began to read its queue, each with its last assignment."""
        self._is_doubtful = False
        """An assignment was read of a job whose last one has just ended, or is about to be known to have: it is read again."""
        self._quiet = False
        """A claim is being answered: what is left after it is told to the node."""

    @property
    def waiting(self) -> int:
        """How many tasks have arrived that no claim has taken."""
        return sum(map(len, self._arrived.values()))

    # ---- claims ----

    async def claim(self, operations: Sequence[ops.Claim]) -> list[Any]:
        """Answer claims, now or later."""
        session = self._session
        if self._is_over or session.committer.fenced:
            raise session.over()
        outcomes: list[Any] = [None] * len(operations)
        unanswered = []
        new: dict[bytes, list[ops.ClaimRequest]] = {}
        for want in [want for operation in operations for want in operation.wants]:
            new.setdefault(want.function, []).append(want)
        self.wants.update(new)
        for at, operation in enumerate(operations):
            outcomes[at] = self._answer(operation, renewed=True)
            if outcomes[at] is None:
                unanswered.append(at)
        self.asked += bool(unanswered)
        if session.master is not None:
            complete = await self._assign_here(session.master, new)
            unanswered = []
            for at, operation in enumerate(operations):
                # Fewer than were wanted would say that nothing is left.
                outcomes[at] = self._answer(operation, outcomes[at]) or (self._empty(operation) if complete else None)
                if outcomes[at] is None:
                    unanswered.append(at)
            for function in self._arrived:
                session.arrived(function)
        until = asyncio.get_running_loop().time() + PATIENCE
        for at in unanswered:
            outcomes[at] = opened = OpenClaim(operations[at], self.asked, until)
            self._open.append(opened)
        self._unwritten = True
        self._news.set()
        return outcomes

    async def _assign_here(self, master: LocalMaster, new: Mapping[bytes, Sequence[ops.ClaimRequest]]) -> bool:
        """Have this node itself, which is the master, assign what it knows of; says whether that is all there is."""
        self._quiet = True
        try:
            complete = await master.claim(new, self.asked)
        finally:
            self._quiet = False
        if self._session.committer.fenced:
            raise self._session.over()
        return complete

    def answered(self, asked: int) -> None:
        """The master has done what it could for the claims up to a number: those for which nothing has come are answered."""
        self._close(lambda claim: claim.asked <= asked)

    def _answer(
        self, operation: ops.Claim, before: list[list[Job]] | None = None, *, renewed: bool = False
    ) -> list[list[Job]] | None:
        """Return the outcome of a claim: what it has ``before``, and what has arrived; None where nothing has.

        ``renewed``: what has arrived was assigned on the wants before, so less is wanted from now on.
        """
        jobs = before or self._empty(operation)
        for want, some in zip(operation.wants, jobs, strict=True):
            some += self._take(want, want.limit - len(some), renewed=renewed)
        return jobs if any(jobs) else None

    @staticmethod
    def _empty(operation: ops.Claim) -> list[list[Job]]:
        return [[] for _ in operation.wants]

    def _take(self, want: ops.ClaimRequest, limit: int, *, renewed: bool) -> list[Job]:
        arrived = self._arrived.get(want.function)
        jobs: list[Job] = []
        while arrived and len(jobs) < limit:
            job = arrived.popleft().job
            if job.id not in self._session.assignments:
                continue  # nobody waited for it any more, and it was dropped
            jobs.append(job)
            if renewed:
                self._given(want.function)
        if arrived is not None and not arrived:
            del self._arrived[want.function]
        return jobs

    # ---- arrivals ----

    def arrive(self, tasks: Iterable[tuple[str, Job, Mark]]) -> None:
        """Take in what was assigned to this node."""
        now = asyncio.get_running_loop().time()
        functions = set()
        for task, job, mark in tasks:
            if job.id in self._session.assignments:
                continue  # the queue was read while the master, this node itself, was about to say so
            self._session.assignments[job.id] = 0
            self._marks[job.id] = self._passed[job.id] = mark
            self._arrived.setdefault(job.function, deque()).append(_Arrival(job, task, now))
            functions.add(job.function)
            self._given(job.function)
        still = []
        for claim in self._open:
            outcome = self._answer(claim.operation)
            if outcome is None:
                still.append(claim)
            else:
                claim.answer(outcome)
        self._open = still
        for function in functions & self._arrived.keys() if not self._quiet else ():
            self._session.arrived(function)
        if self._arrived:
            self._news.set()

    def _given(self, function: bytes) -> None:
        """One task less is wanted of a function."""
        wants = self.wants.get(function, [])
        for at, want in enumerate(wants):
            if want.limit > 0:
                wants[at] = want._replace(limit=want.limit - 1)
                break

    # ---- the master is elsewhere ----

    async def catch_up(self) -> None:
        """Take in what the last master has assigned to this node and not told: this one is the master now."""
        tasks = await self._session.children(paths.queue(self._session.who))
        for start in range(0, len(tasks), READ_AT_ONCE):
            await self._fetch(tasks[start : start + READ_AT_ONCE])
        if self._is_doubtful:
            self._on_change()

    def rewrite(self) -> None:
        """Tell the next master what this node wants: it was the master itself until now."""
        self._unwritten = True
        self._changed = True
        self._news.set()

    async def run(self) -> None:
        """Write what is wanted and read what arrives, until cancelled, or until the term has ended."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                timeout = self._next(loop.time())
                await wait_or_timeout(self._news, timeout)
                self._news.clear()
                await self._step(loop.time())
        finally:
            self._fence()

    def _next(self, now: float) -> float | None:
        """Return the seconds after which there is something to do, whatever happens; None: nothing."""
        times = [claim.until for claim in self._open[:1]]
        times += [arrived[0].at + PATIENCE for arrived in self._arrived.values()]
        return max(min(times) - now, 0.0) if times else None

    async def _step(self, now: float) -> None:
        if self._unwritten and self._session.master is None:
            await self._write()
        if self._changed:
            await self._read()  # also where this node is the master by now: the last one may have assigned it something
        self._close(lambda claim: claim.until <= now)
        await self._give_back(now - PATIENCE)

    async def _write(self) -> None:
        path = paths.wants(self._session.who)
        self._unwritten = False
        await self._session.write(Write(path, encode_wants(self.asked, self.wants)))

    async def _read(self) -> None:
        """Read what the master has said, and the tasks that are new."""
        session, queue = self._session, paths.queue(self._session.who)
        self._changed = False
        self._marks = {job_id: self._marks.get(job_id, UNMARKED) for job_id in self._session.assignments}
        self._passed = dict(self._marks)
        node = await session.get(queue, self._on_change)
        if node is None or not node.data:
            return
        notice = decode_notice(node.data)
        tasks = notice.since(self._notice)
        if tasks is None:
            tasks = await session.children(queue)
        for start in range(0, len(tasks), READ_AT_ONCE):
            await self._fetch(tasks[start : start + READ_AT_ONCE])
        self._notice = notice
        if self._is_doubtful:
            self._is_doubtful = False
            self._notice = Notice()  # the whole queue is listed
            self._on_change()
        self.answered(notice.answered)

    def _on_change(self) -> None:
        self._changed = True
        self._news.set()

    async def _fetch(self, tasks: Sequence[str]) -> None:
        session = self._session
        arrivals = []
        for task, node in zip(tasks, await session.get_many([*map(paths.running, tasks)]), strict=True):
            if node is None:
                continue
            record = records.decode(node.data)
            # What this node has leased as it submitted it is in its queue too, but no master has assigned it.
            if record.get("term") != session.term or "master" not in record:
                continue
            mark = mark_of(record)
            if self._is_new(record["id"], mark):
                arrivals.append((task, records.decode_job(record), mark))
        await session.meet(job.id for _, job, _ in arrivals)
        arrivals.sort(key=lambda arrival: (arrival[1].priority, arrival[1].id))  # a list of names is in no order
        # What it has held meanwhile may have ended meanwhile, and what was read is older.
        self.arrive([(task, job, mark) for task, job, mark in arrivals if self._is_new(job.id, mark)])

    def _is_new(self, job_id: int, mark: Mark) -> bool:
        """Return whether an assignment that was read may arrive now; the queue is read again where that is not sure."""
        last = self._passed.get(job_id)
        is_held = job_id in self._session.assignments
        if last is not None and mark[1] == 0:
            # Nothing tells it from the last one, which was given back or has ended since if it is not held any more.
            self._is_doubtful = self._is_doubtful or not is_held
            return False
        if last is not None and mark <= last:
            return False
        # Where the job is held still, it was given back, and the answer to that is on its way to those who hold it.
        self._is_doubtful = self._is_doubtful or is_held
        return not is_held

    def _close(self, over: Callable[[OpenClaim], bool]) -> None:
        """Answer the claims for which nothing has come."""
        closed = [claim for claim in self._open if over(claim)]
        self._open = [claim for claim in self._open if not over(claim)]
        for claim in closed:
            claim.answer(self._answer(claim.operation) or self._empty(claim.operation))

    def _fence(self) -> None:
        self._is_over = True
        opened, self._open = self._open, []
        for claim in opened:
            claim.answer(self._session.over())

    # ---- what nobody here takes ----

    async def _give_back(self, before: float) -> None:
        """Put back to pending what has arrived before a time and was not claimed."""
        given: list[Waiting] = []
        withdrawn: dict[bytes, list[ops.ClaimRequest]] = {}
        for function, arrived in list(self._arrived.items()):
            if arrived[0].at > before:
                continue
            withdrawn[function] = []  # it does not want what it does not take
            while arrived and arrived[0].at <= before:
                job, task, _ = arrived.popleft()
                self._session.assignments.pop(job.id, None)
                job.state, job.term = int(State.PENDING), 0
                given.append(Waiting(task, job, records.encode_job(job, self._session.handle(job.id))))
            if not arrived:
                del self._arrived[function]
        if not given:
            return
        session = self._session
        self.wants.update(withdrawn)
        if session.master is None:
            await self._write()
        else:
            await session.master.claim(withdrawn, 0)
        verdicts = await session.committer.commit([_released(session, one) for one in given])
        back = [one for one, verdict in zip(given, verdicts, strict=True) if verdict is None]
        session.waiting(back)


def _released(session: Session, one: Waiting) -> Entry:
    """Return what puts a task that nobody here has begun back to pending."""
    task, job, data = one
    return Entry(
        [
            # Where it was dropped meanwhile, another job of its name may have come to this node, and look the same.
            Check(session.result(job.id)),
            Delete(paths.assignment(session.who, task), 0),
            Delete(paths.running(task)),
            Create(paths.pending(task), data),
        ],
        [(job.function, State.LEASED, job.priority, -1), (job.function, State.PENDING, job.priority, 1)],
    )


async def claim(session: Session, operations: Sequence[Any]) -> Sequence[Any]:
    """Lease due jobs; see ``Claim``."""
    return await session.memory(Claims).claim(operations)


HANDLERS: Handlers = {
    ops.Claim: claim,
}
