"""The jobs slice in memory."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.pending import Pending
from mainspring.ids import slot_of
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Job, Priority, State
from mainspring.jobs.owners import AttemptEnded, Ended, Started, note
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.operation import Operation

_copy: Callable[[Job], Job] = Job.__copy__  # type: ignore[attr-defined]
"""What comes in and what goes out are copies: a caller may change its own."""
_PENDING, _SCHEDULED = int(State.PENDING), int(State.SCHEDULED)
_LIVE = [(int(state), int(priority)) for state in State if not state.ended for priority in Priority]


def submit(tables: Tables, operation: ops.Submit) -> dict[int, ops.Found]:
    """Store new jobs; see ``Submit``."""
    joined: dict[int, ops.Found] = {}
    jobs, counts, waiter = tables.jobs, tables.counts, operation.waiter
    for job in operation.jobs:
        if job.unique != NO_UNIQUE:
            other = _joins(tables, job)
            if other is not None:
                joined[job.id] = _found(other)
                other.foreground = other.foreground and job.foreground
                if waiter and not State(other.state).ended:
                    tables.waits.setdefault(other.id, set()).add(waiter)
                continue
            tables.live[job.function, job.unique] = job.id
        job = jobs[job.id] = _copy(job)
        state = job.state
        if state == _PENDING:
            _put_pending(tables, job)
        elif state == _SCHEDULED:
            heapq.heappush(tables.due, (job.due_us, job.id))
        if job.expires_us:
            heapq.heappush(tables.expiring, (job.expires_us, job.id))
        if waiter:
            tables.waits.setdefault(job.id, set()).add(waiter)
        counts.add(job.function, state, job.priority)
    return joined


def _joins(tables: Tables, job: Job) -> Job | None:
    other = tables.live.get((job.function, job.unique))
    if other is not None:
        return tables.jobs[other]
    keep = job.options.keep_unique if job.options else None
    if keep is not None:
        other = tables.kept.get((job.function, job.unique))
        if other is not None:
            kept = tables.jobs.get(other)
            if kept is not None and kept.ended_us > rules.kept_since(job.created_us, keep):
                return kept
    return None


def _found(job: Job) -> ops.Found:
    return ops.Found(job.id, job.state, job.attempt)


def _put_pending(tables: Tables, job: Job) -> None:
    pending = tables.pending.get(job.function)
    if pending is None:
        pending = tables.pending[job.function] = (Pending(), Pending(), Pending())
    pending[job.priority].push(job.key, job.id)


def _enter(tables: Tables, job: Job, event: Event, worker: str = "") -> None:
    """Take a stored job to the state that an event leads to, and keep the indexes."""
    before = job.state
    after = rules.step(State(before), event)
    job.state = int(after)
    tables.counts.move(job.function, job.priority, before, after)
    if after is State.PENDING:
        job.term = 0
        _put_pending(tables, job)
    elif after is State.SCHEDULED:
        job.term = 0
        heapq.heappush(tables.due, (job.due_us, job.id))
    elif after.ended:
        heapq.heappush(tables.dead if after is State.FAILED else tables.ended, (job.ended_us, job.id))
        if job.unique != NO_UNIQUE:
            del tables.live[job.function, job.unique]
            if after is State.SUCCEEDED:
                _keep(tables, job)
        if job.options is not None:
            note(tables.notices, Ended.of(job, worker))
    if job.expires_us and after < State.LEASED and State(before).held:
        # Whoever looked at the entry while the job was held has dropped it.
        heapq.heappush(tables.expiring, (job.expires_us, job.id))


def _keep(tables: Tables, job: Job) -> None:
    """Remember a job that others may join although it has ended: the last to end, whichever order they were settled in."""
    if job.options is not None and job.options.keep_unique is not None:
        key = (job.function, job.unique)
        other = tables.jobs.get(tables.kept.get(key, 0))
        if other is None or (other.ended_us, other.id) < (job.ended_us, job.id):
            tables.kept[key] = job.id


def settle(tables: Tables, operation: ops.Settle) -> set[int]:
    """End leases; see ``Settle``."""
    stale = set()
    for settlement in operation.settlements:
        job = tables.jobs.get(settlement.job.id)
        if job is None or not State(job.state).held or job.term != settlement.job.term:
            stale.add(settlement.job.id)
        else:
            _settle_one(tables, job, settlement)
    return stale


def _settle_one(tables: Tables, job: Job, settlement: rules.Settlement) -> None:
    job.attempt = settlement.counted
    job.suspects = settlement.job.suspects
    job.due_us = settlement.due_us
    job.started_us = settlement.started_us
    job.ended_us = settlement.ended_us
    if settlement.error or settlement.event is Event.SUCCEED:
        job.error = settlement.error
    job.result = settlement.result
    job.output_size = len(settlement.result)
    if settlement.event is Event.SUCCEED:
        job.payload = b""
    _enter(tables, job, settlement.event, settlement.worker)
    if job.options is not None and not State(job.state).ended:
        note(tables.notices, AttemptEnded.by(settlement))


def recover(tables: Tables, operation: ops.Recover) -> ops.Recovered:
    """Give back what other terms hold; see ``Recover``."""
    of = operation.of
    held = [
        job
        for job in tables.jobs.values()
        if State(job.state).held and (job.term != operation.term if of is None else job.term in of)
    ]
    more = of is not None and len(held) > operation.rows
    if more:
        del held[operation.rows :]
    settlements = rules.recovered(held)
    lost, pending = ops.lost_attempts(settlements), ops.tally(held)
    for settlement in settlements:
        job = settlement.job
        _settle_one(tables, job, settlement)
    if of is not None:
        waited = [job_id for job_id, terms in tables.waits.items() if not terms.isdisjoint(of)]
        for term in of:
            _leave(tables, waited, term)
    return ops.Recovered(len(held), pending, more, lost)


def claim(tables: Tables, operation: ops.Claim) -> list[list[Job]]:
    """Lease due jobs; see ``Claim``."""
    return [_claim_one(tables, operation.term, want) for want in operation.wants]


def _claim_one(tables: Tables, term: int, want: ops.Want) -> list[Job]:
    claimed: list[Job] = []
    for pending in tables.pending.get(want.function, ()):
        others = []
        while len(claimed) < want.limit and (oldest := pending.pop()) is not None:
            job = tables.jobs.get(oldest[1])
            if job is not None and job.state == _PENDING:
                if want.slots is not None and not _fits(job, want.slots, want.overdue_us):
                    others.append(oldest)
                    continue
                job.term = term
                _enter(tables, job, Event.CLAIM)
                claimed.append(_copy(job))
        for key, job_id in others:
            pending.push(key, job_id)
    return claimed


def claim_by_key(tables: Tables, operation: ops.ClaimByKey) -> ops.ClaimedByKey:
    """Lease due jobs in turns of their keys; see ``ClaimByKey``."""
    claimed: list[Job] = []
    after = list(operation.after)
    more = False
    for priority, pending in enumerate(tables.pending.get(operation.function, ())):
        for met, key in enumerate(pending.keys(after[priority])):
            if len(claimed) >= operation.limit or met >= ops.KEYS_AT_MOST:
                more = True
                break
            if key not in operation.enough:
                most = min(operation.limit - len(claimed), operation.per_key)
                claimed += _claim_of_key(tables, operation, pending.of(key), most)
            if not pending.of(key):
                pending.drop(key)
            after[priority] = key
    more = more or len(claimed) >= operation.limit
    return ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more)


def _claim_of_key(tables: Tables, operation: ops.ClaimByKey, heap: list[int], most: int) -> list[Job]:
    claimed: list[Job] = []
    others = []
    while heap and len(claimed) < most:
        job = tables.jobs.get(heapq.heappop(heap))
        if job is None or job.state != _PENDING:
            continue
        if operation.slots is not None and not _fits(job, operation.slots, operation.overdue_us):
            others.append(job.id)
            continue
        job.term = operation.term
        _enter(tables, job, Event.CLAIM)
        claimed.append(_copy(job))
    for job_id in others:
        heapq.heappush(heap, job_id)
    return claimed


def _fits(job: Job, slots: frozenset[int], overdue_us: int) -> bool:
    since_us = max(job.created_us, job.due_us)
    return since_us < overdue_us or slot_of(job.namespace, job.function, job.unique, job.id) in slots


def wait(tables: Tables, operation: ops.Wait) -> dict[int, Job]:
    """Note who waits, and look the jobs up; see ``Wait``."""
    found = _look_up(tables, operation)
    for job in found.values():
        if not State(job.state).ended:
            tables.waits.setdefault(job.id, set()).add(operation.term)
    return found


def leave(tables: Tables, operation: ops.Leave) -> set[int]:
    """Nobody waits here any more; see ``Leave``."""
    return _leave(tables, operation.ids, operation.term)


def _leave(tables: Tables, ids: Iterable[int], term: int) -> set[int]:
    dropped = set()
    for job_id in ids:
        waits = tables.waits.get(job_id)
        if waits is not None:
            waits.discard(term)
            if waits:
                continue
            del tables.waits[job_id]
        job = tables.jobs.get(job_id)
        if job is None or not job.foreground:
            continue
        if job.state <= _PENDING or (job.state == State.LEASED and job.term == term):
            del tables.jobs[job_id]
            if job.unique != NO_UNIQUE:
                del tables.live[job.function, job.unique]
            tables.counts.add(job.function, job.state, job.priority, -1)
            dropped.add(job_id)
    return dropped


def watchers(tables: Tables, operation: ops.Watchers) -> dict[int, list[int]]:
    """Look up who waits elsewhere; see ``Watchers``."""
    return {
        job_id: sorted(terms - {operation.term})
        for job_id in operation.ids
        if (terms := tables.waits.get(job_id, set())) - {operation.term}
    }


def look(tables: Tables, operation: ops.Look) -> ops.Outlook:
    """Look at what waits; see ``Look``."""
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    functions = tables.counts.functions if operation.functions is None else operation.functions
    for (function, state, priority), number in live_of(tables, functions).items():
        if state == _PENDING:
            pending[function, priority] = number
        live[function] = live.get(function, 0) + number
    nexts = [heap[0][0] for heap in (tables.due, tables.expiring) if heap]
    return ops.Outlook(pending, live, min(nexts, default=0))


def assign(tables: Tables, operation: ops.Assign) -> None:
    """Record what runs; see ``Assign``."""
    for running in operation.jobs:
        job = tables.jobs.get(running.id)
        if job is not None and State(job.state).held and job.term == running.term:
            job.attempt = running.attempt
            _enter(tables, job, Event.ASSIGN)
            if job.options is not None:
                note(tables.notices, Started.of(job))


def cancel(tables: Tables, operation: ops.Cancel) -> ops.Cancelled:
    """Cancel what waits; see ``Cancel``."""
    job = tables.jobs.get(operation.id)
    if job is None:
        return ops.Cancelled(None, 0)
    before = job.state
    if before <= _PENDING:
        job.ended_us, job.error = operation.now_us, operation.error
        _enter(tables, job, Event.CANCEL)
    return ops.Cancelled(_copy(job), before)


def redrive(tables: Tables, operation: ops.Redrive) -> ops.Redriven:
    """Put an ended job back; see ``Redrive``."""
    job = tables.jobs.get(operation.id)
    if job is None or State(job.state) not in rules.sources(Event.REDRIVE):
        return ops.Redriven(job and _copy(job), redriven=False)
    if job.unique != NO_UNIQUE:
        rival = tables.live.get((job.function, job.unique))
        if rival is not None:
            return ops.Redriven(_copy(job), redriven=False, rival=rival)
        tables.live[job.function, job.unique] = job.id
    job.attempt = job.suspects = job.started_us = job.ended_us = job.expires_us = 0
    job.foreground = False
    _enter(tables, job, Event.REDRIVE)
    return ops.Redriven(_copy(job), redriven=True)


def wake(tables: Tables, operation: ops.Wake) -> ops.Woken:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    due: dict[tuple[bytes, int], int] = {}
    now_us, left = operation.now_us, operation.rows
    expired: list[tuple[Job, int]] = []
    while left and tables.expiring and tables.expiring[0][0] <= now_us:
        expires_us, job_id = heapq.heappop(tables.expiring)
        job = tables.jobs.get(job_id)
        if job is not None and job.expires_us == expires_us and job.state <= _PENDING and not rules.was_tried(job):
            before = job.state
            job.ended_us = now_us
            _enter(tables, job, Event.EXPIRE)
            expired.append((_copy(job), before))
            left -= 1
    left = operation.rows
    while left and tables.due and tables.due[0][0] <= now_us:
        due_us, job_id = heapq.heappop(tables.due)
        job = tables.jobs.get(job_id)
        if job is not None and job.state == _SCHEDULED and job.due_us == due_us:
            _enter(tables, job, Event.DUE)
            key = (job.function, job.priority)
            due[key] = due.get(key, 0) + 1
            left -= 1
    nexts = [heap[0][0] for heap in (tables.due, tables.expiring) if heap]
    return ops.Woken(due, expired, min(nexts, default=0))


def sweep(tables: Tables, operation: ops.Sweep) -> int:
    """Forget ended jobs; see ``Sweep``."""
    forgotten = 0
    for heap, dead, before_us in (
        (tables.ended, False, operation.ended_before_us),
        (tables.dead, True, operation.dead_before_us),
    ):
        while heap and heap[0][0] < before_us and forgotten < operation.rows:
            ended_us, job_id = heapq.heappop(heap)
            job = tables.jobs.get(job_id)
            if job is None or job.ended_us != ended_us:
                continue
            if State(job.state).ended and dead == (job.state == State.FAILED):
                del tables.jobs[job_id]
                tables.counts.add(job.function, job.state, job.priority, -1)
                if tables.kept.get((job.function, job.unique)) == job_id:
                    del tables.kept[job.function, job.unique]
                forgotten += 1
    return forgotten


def find(tables: Tables, operation: ops.Find) -> dict[int, Job]:
    """Look jobs up; see ``Find``."""
    return _look_up(tables, operation)


def _look_up(tables: Tables, operation: ops.Find | ops.Wait) -> dict[int, Job]:
    found = {job_id: _copy(tables.jobs[job_id]) for job_id in operation.ids if job_id in tables.jobs}
    ops.leave_unread(found, operation.room)
    return found


def find_unique(tables: Tables, operation: ops.FindUnique) -> list[ops.Found | None]:
    """Look live jobs up; see ``FindUnique``."""
    found: list[ops.Found | None] = []
    for function, unique in operation.keys:
        names = {key[0] for key in tables.counts} if function is None else (function,)
        ids = (tables.live.get((name, unique)) for name in names)
        job_id = next((at for at in ids if at is not None), None)
        found.append(None if job_id is None else _found(tables.jobs[job_id]))
    return found


def count(tables: Tables, operation: ops.Count) -> dict[tuple[bytes, int, int], int]:
    """Read the counts; see ``Count``."""
    del operation
    return {key: number for key, number in tables.counts.items() if number}


def count_live(tables: Tables, operation: ops.CountLive) -> ops.Counted:
    """Read the counts of some functions; see ``CountLive``."""
    return ops.Counted(live_of(tables, operation.functions))


def live_of(tables: Tables, functions: Iterable[bytes]) -> dict[tuple[bytes, int, int], int]:
    """Return how many jobs of some functions have not ended."""
    keys = ((function, *of) for function in functions for of in _LIVE)
    return {key: number for key in keys if (number := tables.counts.get(key, 0))}


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.Recover: recover,
    ops.Settle: settle,
    ops.Assign: assign,
    ops.Cancel: cancel,
    ops.Redrive: redrive,
    ops.Sweep: sweep,
    ops.Wake: wake,
    ops.Submit: submit,
    ops.Leave: leave,
    ops.Claim: claim,
    ops.ClaimByKey: claim_by_key,
    ops.Wait: wait,
    ops.Find: find,
    ops.FindUnique: find_unique,
    ops.Watchers: watchers,
    ops.Look: look,
    ops.Count: count,
    ops.CountLive: count_live,
}
