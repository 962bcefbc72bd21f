"""The unit of work of submissions in one transaction: it begins and ends them, and makes the jobs that cancel them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.external.store import (
    SHOWN_FOR,
    BeginWork,
    EndWork,
    LookAtWork,
    Looked,
    RecordWork,
    Status,
    Verdict,
    Work,
    verdict,
)
from mainspring.jobs.model import Job, Options, Priority, Retry, State
from mainspring.jobs.slices import submit_new

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.external.store import WorkTables
    from mainspring.jobs.owners import Notice
    from mainspring.storage.engine import Operation, Plan

KIND: Final = "external"
FOLLOWS: Final[frozenset[type[Notice]]] = frozenset()
WRITES: Final[frozenset[type[Operation]]] = frozenset({BeginWork, RecordWork, EndWork, LookAtWork})

CANCEL: Final = b".cancel"
"""Behind the name of a function that runs elsewhere: the function whose jobs cancel its work."""
CANCEL_OPTIONS: Final = Options(
    retry=Retry(max_attempts=1_000_000, initial=0.5, factor=1.5, maximum=300.0), timeout=120.0
)
"""A cancellation is repeated until it is answered: these attempts take years."""


class Cancellation(msgspec.Struct, frozen=True):
    """The arguments of a job that cancels a submission."""

    key: str
    meta: msgspec.Raw | None
    args: msgspec.Raw | None
    """The arguments of the job whose work it is; None if there is a ``meta``, or if they are no JSON."""
    number: int


_encode: Final = msgspec.json.Encoder().encode


def payload_of(work: Work) -> bytes:
    """Return the payload of the job that cancels a submission."""
    meta = msgspec.Raw(work.meta.encode()) if work.meta else None
    args = msgspec.Raw(work.payload) if meta is None and _is_json(work.payload) else None
    return _encode(Cancellation(work.key, meta, args, work.number))


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class WorkUnit:
    """``jobs.slices.SliceWork``."""

    def __init__(self, tables: WorkTables) -> None:
        self._tables = tables
        self._new: list[Job] = []

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: each operation locks its rows, in their order."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Follow no jobs: a look compares rows with jobs."""

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation; return a function that returns its outcome."""
        outcome: Any = None
        match operation:
            case BeginWork():
                outcome = await self._begin(operation)
            case RecordWork():
                outcome = await self._tables.record(sorted(operation.records))
            case EndWork():
                await self._tables.end(sorted(operation.ends))
            case LookAtWork():
                outcome = await self._look(operation)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation on work elsewhere")
        return lambda: outcome

    async def _begin(self, operation: BeginWork) -> list[Work]:
        last: dict[int, Work] = {}
        for work in await self._tables.works({one.job for one in operation.starting}):
            last[work.job] = work
        new, over = [], []
        for one in operation.starting:
            before = last.get(one.job)
            if before is not None and before.status <= Status.DONE:
                continue
            if before is not None and before.status == Status.OVER:
                over.append((before.job, before.number))
            number = 1 if before is None else before.number + 1
            work = Work(one.job, number, one.function, int(Status.OPEN), one.key, "", one.payload, one.attempt)
            last[one.job] = work._replace(since_us=operation.now_us)
            new.append(last[one.job])
        if over:
            await self._tables.delete(over)
        if new:
            await self._tables.add(sorted(new))
        return [last[one.job] for one in operation.starting]

    async def _look(self, operation: LookAtWork) -> Looked:
        tables, now_us = self._tables, operation.now_us
        ripe = await tables.ripe(operation.limit, now_us - round(SHOWN_FOR * 1_000_000))
        jobs = await tables.look_up({one for work in ripe for one in (work.job, work.canceller) if one}) if ripe else {}
        changed: list[Work] = []
        gone: list[tuple[int, int]] = []
        for work in ripe:
            canceller = jobs.get(work.canceller) if work.canceller else None
            decision = verdict(work, jobs.get(work.job), canceller)
            if decision is Verdict.CANCEL:
                job = self._job(work, now_us)
                changed.append(work._replace(status=int(Status.CANCELLING), canceller=job.id))
            elif decision is Verdict.NOTE:
                answered = canceller is not None and canceller.state == State.SUCCEEDED
                status = Status.ANSWERED if answered else Status.GIVEN_UP
                changed.append(work._replace(status=int(status), ended_us=now_us))
            elif decision is Verdict.DELETE or work.status > Status.CANCELLING:
                gone.append((work.job, work.number))
        if changed:
            await tables.change(changed)
        if gone:
            await tables.delete(gone)
        return Looked(len(self._new), len(ripe) >= operation.limit, await tables.is_any())

    def _job(self, work: Work, now_us: int) -> Job:
        payload = payload_of(work)
        job = Job(
            self._tables.lifecycle.next_id(),
            work.function + CANCEL,
            payload,
            priority=int(Priority.HIGH),
            state=int(State.PENDING),
            created_us=now_us,
            options=CANCEL_OPTIONS,
            input_size=len(payload),
        )
        self._new.append(job)
        return job

    async def flush(self) -> None:
        """Store the jobs that cancel submissions."""
        new, self._new = self._new, []
        if new:
            await submit_new(self._tables, new)
