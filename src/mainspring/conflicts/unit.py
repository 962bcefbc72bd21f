"""The unit of work of submits by a rule in one transaction, and of the release of successors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.conflicts.rules import REPLACED, Step, decide, has_begun
from mainspring.conflicts.store import CANCELLED, Placed, Released, ReleaseSuccessors, SubmitByRule, Successor
from mainspring.errors import StoreError
from mainspring.jobs.model import RUNS, Job, State, StopRequest
from mainspring.jobs.store import Cancel, Reschedule
from mainspring.jobs.successors import NEVER_US, awaited_unique, successor_unique
from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.conflicts.rules import Rule
    from mainspring.conflicts.store import ConflictTables
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.store import Cancelled, Found, Rescheduled
    from mainspring.storage.engine import Operation, Plan

KIND: Final = "conflicts"
FOLLOWS: Final[frozenset[type[Notice]]] = frozenset()
WRITES: Final[frozenset[type[Operation]]] = frozenset({SubmitByRule, ReleaseSuccessors})
ROUNDS: Final = 20
"""Rounds of a submit. Each further one needs another transaction that takes or frees the unique in between."""
MOST_STOPPING: Final = 100
"""Predecessors whose cancellation one look repeats."""


class ConflictUnit:
    """``jobs.slices.SliceWork``."""

    def __init__(self, tables: ConflictTables) -> None:
        self._tables = tables

    async def lock(self, plan: Plan) -> None:
        """Lock nothing: each operation locks the job of its unique, then the successor."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Follow no jobs: a look compares successors with their predecessors."""

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation; return a function that returns its outcome."""
        outcome: Any = None
        match operation:
            case SubmitByRule():
                outcome = await self._submit(operation)
            case ReleaseSuccessors():
                outcome = await self._release(operation)
            case _:
                raise TypeError(f"{type(operation).__name__} is not an operation on uniques")
        return lambda: outcome

    async def flush(self) -> None:
        """Do nothing: each operation has written what it changes."""

    # ---- submits ----

    async def _submit(self, operation: SubmitByRule) -> Placed:
        job, rule, now_us = operation.job, operation.rule, operation.now_us
        cancelled: Cancelled | None = None
        wake_us = 0
        for _ in range(ROUNDS):
            live = await self._tables.live(job.function, job.unique)
            if live is None:
                live = await self._last_successor(job, now_us)
                wake_us = 0 if live is None else live.due_us
            step = None if live is None else decide(rule, has_begun=has_begun(live))
            if live is not None and step is Step.CANCEL:
                outcome = await self._tables.cancel(Cancel(live.id, CANCELLED, now_us, ANY))
                if outcome.job is not None and outcome.before <= State.PENDING:
                    cancelled = outcome
                continue
            placed = await self._place(operation, live, step)
            if placed is not None:
                return placed._replace(cancelled=cancelled, wake_us=wake_us)
        raise StoreError(f"jobs of the unique {job.unique!r} came and went too fast; try again")

    async def _place(self, operation: SubmitByRule, live: Job | None, step: Step | None) -> Placed | None:
        """Do a step about the live job; return None if another transaction has been faster."""
        job, rule, now_us = operation.job, operation.rule, operation.now_us
        if live is None:
            due_us = max(job.due_us, rule.due_us(now_us, now_us)) if rule.debounce_us else job.due_us
            return await self._store(_due(job, due_us))
        if step is Step.REPLACE:
            return Placed(live.id, rescheduled=await self._replace(live, job, rule, now_us))
        if step is Step.FOLLOW or step is Step.STOP:
            return await self._follow(live, job, rule, now_us, stops=step is Step.STOP)
        return Placed(live.id, skipped=step is Step.SKIP)

    async def _last_successor(self, job: Job, now_us: int) -> Job | None:
        """Release the successor of a unique that no live job has, and return it; None if there is none."""
        tables = self._tables
        waiting = await tables.live(job.function, successor_unique(job.unique))
        row = None if waiting is None else await tables.successor(waiting.id)
        if waiting is None or row is None:
            return None
        due_us = max(row.due_us, now_us)
        if not await tables.release(waiting.id, job.unique, due_us):
            return await tables.live(job.function, job.unique)
        await tables.delete(waiting.id)
        waiting.unique, waiting.due_us = job.unique, due_us
        return waiting

    async def _store(self, job: Job) -> Placed | None:
        """Store a new job; return None if another transaction has taken its unique meanwhile."""
        tables = self._tables
        lifecycle = tables.lifecycle
        if not lifecycle.reserve(job, tables.term):
            return Placed(0, in_memory=True)
        settled: list[bool] = []

        def drop() -> None:
            if not settled:
                lifecycle.dropped([job])

        tables.after_rollback(drop)
        joined: dict[int, Found] = await tables.submit([job])
        if not joined:
            tables.after_commit(lambda: lifecycle.stored([job]))
            return Placed(job.id, is_new=True)
        settled.append(True)
        lifecycle.dropped([job])
        other = joined[job.id]
        return Placed(other.id) if State(other.state).ended else None

    async def _replace(self, live: Job, job: Job, rule: Rule, now_us: int) -> Rescheduled | None:
        """Give a waiting job the input of a new one; with a debounce, another time."""
        await self._tables.replace(live.id, job.payload)
        if not rule.debounce_us:
            return None
        due_us = rule.due_us(live.created_us, now_us)
        if due_us <= live.due_us and (live.state == State.PENDING or live.due_us <= now_us):
            return None
        return await self._tables.reschedule(Reschedule(live.id, now_us, due_us=due_us, namespace=ANY))

    async def _follow(self, live: Job, job: Job, rule: Rule, now_us: int, *, stops: bool) -> Placed | None:
        """Let a new job wait for the end of a live one, or give the one that waits already the new input."""
        tables = self._tables
        unique = successor_unique(job.unique)
        waiting = await tables.live(job.function, unique)
        row = None if waiting is None else await tables.successor(waiting.id)
        first_us = now_us if waiting is None else waiting.created_us
        due_us = rule.due_us(first_us, now_us) if rule.debounce_us else job.due_us
        is_new = waiting is None
        if waiting is not None:
            await tables.replace(waiting.id, job.payload)
            if row is not None and not rule.debounce_us:
                due_us = row.due_us
        else:
            waiting = replace(job, unique=unique, state=int(State.SCHEDULED), due_us=NEVER_US)
            placed = await self._store(waiting)
            if placed is None or placed.in_memory:
                return placed
        stops = stops or (row is not None and row.stops > 0)
        await tables.put(Successor(waiting.id, live.id, due_us, int(stops)))
        is_root = live.term == RUNS
        if stops and live.state > State.PENDING and not is_root:
            await tables.stop(live.id, StopRequest(now_us, CANCELLED))
            tables.after_commit(lambda: tables.lifecycle.stop([live.id], REPLACED))
        return Placed(waiting.id, is_new=is_new, predecessor=live.id, is_root=stops and is_root)

    # ---- the release ----

    async def _release(self, operation: ReleaseSuccessors) -> Released:
        tables, now_us = self._tables, operation.now_us
        ripe = await tables.ripe(operation.limit)
        jobs = await tables.look_up([row.job for row in ripe]) if ripe else {}
        due: list[int] = []
        for row in ripe:
            job = jobs.get(row.job)
            unique = b"" if job is None else awaited_unique(job.unique)
            if job is None or job.state != State.SCHEDULED or not unique:
                await tables.delete(row.job)
                continue
            due_us = max(row.due_us, now_us)
            if await tables.release(row.job, unique, due_us):
                await tables.delete(row.job)
                due.append(due_us)
                continue
            # A plain submit has taken the unique meanwhile: the successor waits for that job too.
            live = await tables.live(job.function, unique)
            if live is not None:
                await tables.put(row._replace(predecessor=live.id))
        stopping = await tables.look_up(await tables.stopping(MOST_STOPPING))
        return Released(
            due,
            len(ripe) >= operation.limit,
            await tables.is_any(),
            [(job.id, job.function) for job in stopping.values() if not State(job.state).ended and job.term == RUNS],
        )


def _due(job: Job, due_us: int) -> Job:
    """Return a new job with a due time, SCHEDULED if there is one."""
    return replace(job, due_us=due_us, state=int(State.SCHEDULED)) if due_us else replace(job)
