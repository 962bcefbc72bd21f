"""The jobs slice in memory: jobs from their submission to their deletion, their lookups, counts and subscribers.

Claims go by priority and age, or take turns between keys. Functions have limits.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from mainspring.engines.memory import deadlines
from mainspring.engines.memory.tables import Pending
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.job_events import add_hidden, of_settlement
from mainspring.jobs.lateness import is_dated, moved, redated, rows_of
from mainspring.jobs.model import NO_UNIQUE, RUNS, Job, Priority, State
from mainspring.jobs.owners import AttemptEnded, Ended, Started, note
from mainspring.jobs.rules import Event
from mainspring.jobs.settlement_records import append_record, cancel_on_request, note_lost
from mainspring.jobs.user_data import indexed_tags
from mainspring.namespaces import ANY, namespace_of
from mainspring.resources import rules as token_rules
from mainspring.resources import store as token_ops
from mainspring.resources.rules import FunctionLimits, pool_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.engine import Operation


copy: Callable[[Job], Job] = Job.__copy__  # type: ignore[attr-defined]
"""Arguments and results are copied: a caller may change its own."""
PENDING, _SCHEDULED = int(State.PENDING), int(State.SCHEDULED)


def submit(tables: Tables, operation: ops.Submit) -> dict[int, ops.Found]:
    """Store new jobs; see ``Submit``."""
    joined: dict[int, ops.Found] = {}
    jobs, counts, waiter = tables.jobs, tables.counts, operation.waiter
    for job in operation.jobs:
        if job.unique != NO_UNIQUE:
            other = _joins(tables, job)
            if other is not None:
                joined[job.id] = ops.Found.of(other)
                other.foreground = other.foreground and job.foreground
                if waiter and not State(other.state).ended:
                    tables.waits.setdefault(other.id, set()).add(waiter)
                continue
            tables.live[job.function, job.unique] = job.id
        job = jobs[job.id] = copy(job)
        state = job.state
        if state == PENDING:
            _put_pending(tables, job)
        elif state == _SCHEDULED:
            heapq.heappush(tables.due, (job.due_us, job.id))
        if job.expires_us:
            heapq.heappush(tables.expiring, (job.expires_us, job.id))
        if waiter:
            tables.waits.setdefault(job.id, set()).add(waiter)
        if job.options is not None:
            for tag in indexed_tags(job):
                tables.tagged.setdefault((namespace_of(job.function), tag), set()).add(job.id)
            if is_dated(job):
                deadlines.put(tables, rows_of([job]))
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


def _put_pending(tables: Tables, job: Job) -> None:
    pending = tables.pending.get(job.function)
    if pending is None:
        pending = tables.pending[job.function] = (Pending(), Pending(), Pending())
    pending[job.priority].push(job.key, job.id)


def enter(tables: Tables, job: Job, event: Event, worker: str = "") -> None:
    """Move a stored job to the state that an event leads to, and update the indexes."""
    before = job.state
    after = rules.step(State(before), event)
    job.state = int(after)
    if tables.stopping and not after.held:
        tables.stopping.pop(job.id, None)
    if after.ended:
        enter_end(tables, job, before, worker)
        return
    tables.counts.move(job.function, job.priority, before, after)
    if after is State.PENDING:
        job.term = 0
        _put_pending(tables, job)
    elif after is State.SCHEDULED:
        job.term = 0
        heapq.heappush(tables.due, (job.due_us, job.id))
    if job.expires_us and after < State.LEASED and State(before).held:
        # The entry may have been dropped while the job was held.
        heapq.heappush(tables.expiring, (job.expires_us, job.id))


def enter_end(tables: Tables, job: Job, before: int, worker: str) -> None:
    """Index a job that has ended, or delete it if its owner keeps the outcome."""
    if job.options is not None:
        note(tables.notices, Ended.of(job, worker))
        if job.options.forget:
            delete(tables, job, before)
            return
    tables.counts.move(job.function, job.priority, before, job.state)
    if job.term != RUNS:  # root jobs stay as long as their runs
        heapq.heappush(tables.dead if job.state == State.FAILED else tables.ended, (job.ended_us, job.id))
    if job.unique != NO_UNIQUE:
        del tables.live[job.function, job.unique]
        if job.state == State.SUCCEEDED:
            _keep(tables, job)


def delete(tables: Tables, job: Job, counted: int) -> None:
    """Delete a live job that is counted under a state."""
    _remove(tables, job)
    tables.waits.pop(job.id, None)
    tables.stopping.pop(job.id, None)
    if job.unique != NO_UNIQUE:
        del tables.live[job.function, job.unique]
    tables.counts.add(job.function, counted, job.priority, -1)


def _keep(tables: Tables, job: Job) -> None:
    """Keep an ended job that others may join: the one that ended last, in whichever order they were settled."""
    if job.options is not None and job.options.keep_unique is not None:
        key = (job.function, job.unique)
        other = tables.jobs.get(tables.kept.get(key, 0))
        if other is None or (other.ended_us, other.id) < (job.ended_us, job.id):
            tables.kept[key] = job.id


def settle(tables: Tables, operation: ops.Settle) -> set[int]:
    """Settle jobs; see ``Settle``."""
    recorded: list[rules.Settlement] = []
    stale: set[int] = set()
    for settlement in operation.settlements:
        job = tables.jobs.get(settlement.job.id)
        if job is None or not State(job.state).held or job.term != settlement.job.term:
            stale.add(settlement.job.id)
        else:
            _settle_one(tables, job, settlement)
            recorded.append(settlement)
    add_hidden(tables.new_events, recorded, stale)
    return stale


def _settle_one(tables: Tables, job: Job, settlement: rules.Settlement) -> None:
    request = tables.stopping.get(job.id)
    if request is not None and settlement.event in rules.GIVES_BACK:
        cancel_on_request(settlement, request)
    if settlement.postponed_us and settlement.event is Event.SNOOZE:
        now_us = settlement.due_us - settlement.postponed_us
        deadlines.redate(
            tables, job, moved(replace(job, started_us=settlement.started_us), settlement.postponed_us, now_us)
        )
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
        job.payload = job.payload if settlement.payload is None else settlement.payload
    if settlement.record:
        tables.attempts[job.id] = append_record(tables.attempts.get(job.id, b""), settlement.record)
    enter(tables, job, settlement.event, settlement.worker)
    if job.options is not None and not State(job.state).ended:
        note(tables.notices, AttemptEnded.by(settlement))


def recover(tables: Tables, operation: ops.Recover) -> ops.Recovered:
    """Recover the jobs of other terms; see ``Recover``."""
    of = operation.of
    held = [
        job
        for job in tables.jobs.values()
        if State(job.state).held and (job.term not in {operation.term, RUNS} if of is None else job.term in of)
    ]
    more = of is not None and len(held) > operation.rows
    if more:
        del held[operation.rows :]
    settlements = rules.recovered(held)
    note_lost(settlements, lambda term: tables.nodes.get(term, ""), operation.now_us)
    for settlement in settlements:
        _settle_one(tables, settlement.job, settlement)
        tables.new_events.add(of_settlement(settlement))
    given_back = [settlement.job for settlement in settlements if settlement.event is Event.LOSE]
    if of is not None:
        waited = [job_id for job_id, terms in tables.waits.items() if not terms.isdisjoint(of)]
        for term in of:
            _leave(tables, waited, term)
    return ops.Recovered(len(given_back), ops.tally(given_back), more, ops.lost_attempts(settlements))


def leave(tables: Tables, operation: ops.Unsubscribe) -> set[int]:
    """Remove waiters; see ``Unsubscribe``."""
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
        if job.state <= PENDING or (job.state == State.LEASED and job.term == term):
            delete(tables, job, job.state)
            dropped.add(job_id)
    return dropped


def assign(tables: Tables, operation: ops.Assign) -> None:
    """Record jobs as running; see ``Assign``."""
    for running in operation.jobs:
        job = tables.jobs.get(running.id)
        if job is not None and State(job.state).held and job.term == running.term:
            job.attempt = running.attempt
            enter(tables, job, Event.ASSIGN)
            if job.options is not None:
                note(tables.notices, Started.of(job))


def find_job(tables: Tables, job_id: int, namespace: str) -> Job | None:
    """Return a job of a namespace."""
    job = tables.jobs.get(job_id)
    return job if job is not None and namespace in {ANY, namespace_of(job.function)} else None


def cancel(tables: Tables, operation: ops.Cancel) -> ops.Cancelled:
    """Cancel a job that no node holds; see ``Cancel``."""
    job = find_job(tables, operation.id, operation.namespace)
    if job is None:
        return ops.Cancelled(None, 0)
    before = job.state
    if before <= PENDING:
        job.ended_us, job.error = operation.now_us, operation.error
        enter(tables, job, Event.CANCEL)
    return ops.Cancelled(copy(job), before)


def request_stop(tables: Tables, operation: ops.RequestStop) -> set[int]:
    """Store requests to cancel held jobs; see ``RequestStop``."""
    held = set()
    for job_id, term in operation.jobs:
        job = tables.jobs.get(job_id)
        if job is not None and State(job.state).held and job.term == (job.term if term is None else term) != RUNS:
            tables.stopping[job_id] = operation.request
            held.add(job_id)
    return held


def redrive(tables: Tables, operation: ops.Redrive) -> ops.Redriven:
    """Redrive an ended job; see ``Redrive``."""
    job = find_job(tables, operation.id, operation.namespace)
    if job is None or State(job.state) not in rules.sources(Event.REDRIVE) or job.term == RUNS:
        return ops.Redriven(job and copy(job), redriven=False)
    if job.unique != NO_UNIQUE:
        rival = tables.live.get((job.function, job.unique))
        if rival is not None:
            return ops.Redriven(copy(job), redriven=False, rival=rival)
        tables.live[job.function, job.unique] = job.id
    job.attempt = job.suspects = job.started_us = job.ended_us = job.expires_us = 0
    job.foreground = False
    if operation.payload is not None:
        job.payload, job.input_size = operation.payload, len(operation.payload)
    if operation.due_us:
        job.due_us = operation.due_us
    enter(tables, job, Event.REDRIVE_LATER if operation.due_us else Event.REDRIVE)
    return ops.Redriven(copy(job), redriven=True)


def reschedule(tables: Tables, operation: ops.Reschedule) -> ops.Rescheduled:
    """Reschedule a waiting job; see ``Reschedule``."""
    job = find_job(tables, operation.id, operation.namespace)
    if job is None:
        return ops.Rescheduled(None, 0, 0)
    before, priority = job.state, job.priority
    if before > PENDING or operation.is_too_soon(job):
        return ops.Rescheduled(copy(job), max(before, int(State.LEASED)), priority)
    tables.counts.add(job.function, before, priority, -1)
    deadlines.redate(tables, job, operation.redated(job))
    if operation.due_us is not None:
        job.due_us = operation.due_us
    if operation.priority is not None:
        job.priority = operation.priority
    if operation.expires_us is not None:
        job.expires_us = operation.expires_us
        if job.expires_us:
            heapq.heappush(tables.expiring, (job.expires_us, job.id))
    job.state = int(rules.rescheduled(State(before), operation.due_us, operation.now_us))
    tables.counts.add(job.function, job.state, job.priority)
    if job.state == _SCHEDULED:
        heapq.heappush(tables.due, (job.due_us, job.id))
    elif (job.state, job.priority) != (before, priority):
        _put_pending(tables, job)
    return ops.Rescheduled(copy(job), before, priority)


def redate(tables: Tables, operation: ops.Redate) -> Job | None:
    """Change by when a job should have begun and ended; see ``Redate``."""
    job = find_job(tables, operation.id, operation.namespace)
    if job is None:
        return None
    if not State(job.state).ended:
        deadlines.redate(tables, job, redated(job, operation.start_us, operation.deadline_us))
    return copy(job)


def delete_ended(tables: Tables, operation: ops.DeleteEnded) -> ops.Deleted:
    """Delete an ended job; see ``DeleteEnded``."""
    job = find_job(tables, operation.id, operation.namespace)
    if job is None or not State(job.state).ended or job.term == RUNS:
        return ops.Deleted(job and copy(job), deleted=False)
    forget_ended(tables, job)
    tables.logs.pop(job.id, None)
    return ops.Deleted(job, deleted=True)


def wake(tables: Tables, operation: ops.Wake) -> ops.Woken:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    due: dict[tuple[bytes, int], int] = {}
    now_us, left = operation.now_us, operation.rows
    expired: list[tuple[Job, int]] = []
    while left and tables.expiring and tables.expiring[0][0] <= now_us:
        expires_us, job_id = heapq.heappop(tables.expiring)
        job = tables.jobs.get(job_id)
        if job is not None and job.expires_us == expires_us and job.state <= PENDING and not rules.was_tried(job):
            before = job.state
            job.ended_us = now_us
            enter(tables, job, Event.EXPIRE)
            expired.append((copy(job), before))
            left -= 1
    left = operation.rows
    while left and tables.due and tables.due[0][0] <= now_us:
        due_us, job_id = heapq.heappop(tables.due)
        job = tables.jobs.get(job_id)
        if job is not None and job.state == _SCHEDULED and job.due_us == due_us:
            enter(tables, job, Event.DUE)
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
                forget_ended(tables, job)
                forgotten += 1
    return forgotten


def _remove(tables: Tables, job: Job) -> None:
    del tables.jobs[job.id]
    tables.attempts.pop(job.id, None)
    for tag in indexed_tags(job):
        key = (namespace_of(job.function), tag)
        tagged = tables.tagged[key]
        tagged.discard(job.id)
        if not tagged:
            del tables.tagged[key]


def forget_ended(tables: Tables, job: Job) -> None:
    """Delete an ended job."""
    _remove(tables, job)
    tables.counts.add(job.function, job.state, job.priority, -1)
    if tables.kept.get((job.function, job.unique)) == job.id:
        del tables.kept[job.function, job.unique]


def find(tables: Tables, operation: ops.Find | ops.Subscribe) -> dict[int, Job]:
    """Return jobs by their ids; see ``Find``."""
    looked_up = {job_id: find_job(tables, job_id, operation.namespace) for job_id in operation.ids}
    found = {job_id: copy(job) for job_id, job in looked_up.items() if job is not None}
    ops.leave_unread(found, operation.room)
    return found


def wait(tables: Tables, operation: ops.Subscribe) -> dict[int, Job]:
    """Record waiters, and return the jobs; see ``Subscribe``."""
    found = find(tables, operation)
    for job in found.values():
        if not State(job.state).ended:
            tables.waits.setdefault(job.id, set()).add(operation.term)
    return found


def find_subscribers(tables: Tables, operation: ops.FindSubscribers) -> dict[int, list[int]]:
    """Return the nodes of other waiters; see ``FindSubscribers``."""
    return {
        job_id: sorted(terms - {operation.term})
        for job_id in operation.ids
        if (terms := tables.waits.get(job_id, set())) - {operation.term}
    }


def find_unique(tables: Tables, operation: ops.FindUnique) -> list[ops.Found | None]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    found: list[ops.Found | None] = []
    for function, unique in operation.keys:
        names = _functions_of(tables, function.namespace) if isinstance(function, ops.InNamespace) else (function,)
        ids = (tables.live.get((name, unique)) for name in names)
        job_id = next((at for at in ids if at is not None), None)
        found.append(None if job_id is None else ops.Found.of(tables.jobs[job_id]))
    return found


def _functions_of(tables: Tables, namespace: str) -> set[bytes]:
    return {function for function, *_ in tables.counts if namespace_of(function) == namespace}


def count(tables: Tables, operation: ops.Count) -> dict[tuple[bytes, int, int], int]:
    """Return the counts; see ``Count``."""
    if operation.functions is not None:
        return counts_of(tables, operation.functions)
    return {key: number for key, number in tables.counts.items() if number}


def counts_of(
    tables: Tables, functions: Iterable[bytes], states: tuple[int, int] = ops.LIVE
) -> dict[tuple[bytes, int, int], int]:
    """Return the numbers of jobs of some functions in the states from the first to the last one."""
    first, last = states
    of = [(state, int(priority)) for state in range(first, last + 1) for priority in Priority]
    keys = ((function, *each) for function in functions for each in of)
    return {key: number for key in keys if (number := tables.counts.get(key, 0))}


def read_backlog(tables: Tables, operation: ops.ReadBacklog) -> ops.Backlog:
    """Return the backlog; see ``ReadBacklog``."""
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    functions = tables.counts.functions if operation.functions is None else operation.functions
    for (function, state, priority), number in counts_of(tables, functions).items():
        if state == PENDING:
            pending[function, priority] = number
        live[function] = live.get(function, 0) + number
    nexts = [heap[0][0] for heap in (tables.due, tables.expiring) if heap]
    return ops.Backlog(pending, live, min(nexts, default=0))


def claim(tables: Tables, operation: ops.Claim) -> list[list[Job]]:
    """Lease due jobs; see ``Claim``."""
    return [_claim(tables, operation.term, want) for want in operation.wants]


def _claim(tables: Tables, term: int, want: ops.ClaimRequest) -> list[Job]:
    claimed: list[Job] = []
    for priority, pending in enumerate(tables.pending.get(want.function, ())):
        most = want.limit - len(claimed)
        claimed += _lease(tables, (priority, pending), pending.pop, most, term, want.slots, want.overdue_us)
    return claimed


def claim_by_key(tables: Tables, operation: ops.ClaimByKey) -> ops.ClaimedByKey:
    """Lease due jobs, taking turns between their keys; see ``ClaimByKey``."""
    claimed: list[Job] = []
    after = list(operation.after)
    skipped: set[bytes] = set()
    function, term, concurrency = operation.want.function, operation.term, operation.concurrency
    more = False
    for priority, pending in enumerate(tables.pending.get(operation.want.function, ())):
        for met, key in enumerate(pending.keys(after[priority])):
            if len(claimed) >= operation.want.limit or met >= ops.KEYS_PER_CLAIM:
                more = True
                break
            if key in operation.enough:
                skipped.add(key)
            elif concurrency is None or not exhausted(tables, function, key, term, concurrency):
                most = min(operation.want.limit - len(claimed), operation.per_key)
                pop, slots = partial(pending.pop_of, key), operation.want.slots
                claimed += _lease(
                    tables, (priority, pending), pop, most, operation.term, slots, operation.want.overdue_us
                )
            pending.forget(key)
            after[priority] = key
    more = more or len(claimed) >= operation.want.limit
    return ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more, frozenset(skipped))


def _lease(
    tables: Tables,
    line: tuple[int, Pending],
    pop: Callable[[], tuple[bytes, int] | None],
    most: int,
    term: int,
    slots: frozenset[int] | None,
    overdue_us: int,
) -> list[Job]:
    """Lease up to ``most`` of the jobs that ``pop`` returns from the queue of a priority; put jobs of other slots back."""
    priority, pending = line
    leased: list[Job] = []
    others = []
    while len(leased) < most and (entry := pop()) is not None:
        job = tables.jobs.get(entry[1])
        if job is None or job.state != PENDING or job.priority != priority:
            continue
        if slots is not None and not _fits(job, slots, overdue_us):
            others.append(entry)
            continue
        job.term = term
        enter(tables, job, Event.CLAIM)
        leased.append(copy(job))
    for key, job_id in others:
        pending.push(key, job_id)
    return leased


def _fits(job: Job, slots: frozenset[int], overdue_us: int) -> bool:
    since_us = max(job.created_us, job.due_us)
    return since_us < overdue_us or rules.slot(job) in slots


def save_limits(tables: Tables, operation: token_ops.SaveLimits) -> FunctionLimits:
    """Write the limits of a function; see ``SaveLimits``."""
    limits = operation.limits
    stored = tables.limits.get(limits.function, FunctionLimits(limits.function))
    if stored.version == limits.version:
        stored = tables.limits[limits.function] = msgspec.structs.replace(limits, version=limits.version + 1)
    return stored


def acquire(tables: Tables, operation: token_ops.Acquire) -> list[token_ops.Grant]:
    """Grant tokens and starts; see ``Acquire``."""
    return [_acquire(tables, operation.term, ask, operation.now_us) for ask in operation.asks]


def _acquire(tables: Tables, term: int, ask: token_ops.TokenRequest, now_us: int) -> token_ops.Grant:
    grant = token_ops.Grant()
    pool = (ask.function, ask.pool)
    if ask.limit:
        holdings = tables.tokens.setdefault(pool, {})
        before = holdings.pop(term, token_rules.Holding(0, 0, 0)).tokens
        own, claimants, short = token_rules.divide(
            holdings.values(), ask.limit, before, ask.tokens, now_us, ask.demand, waits=ask.waits
        )
        if own.wanted:
            holdings[term] = own
        grant = token_ops.Grant(own.tokens, claimants, short)
    if ask.rate is not None:
        rate, bucket = tables.buckets.get(pool, (ask.rate, token_rules.full(ask.rate, now_us)))
        if rate != ask.rate:
            bucket = token_rules.converted(rate, ask.rate, token_rules.refilled(rate, bucket, now_us))
        starts, bucket = token_rules.consume(ask.rate, bucket, now_us, ask.starts)
        tables.buckets[pool] = ask.rate, bucket
        grant = grant._replace(starts=starts, next_us=token_rules.next_us(ask.rate, bucket))
    return grant


def exhausted(tables: Tables, function: bytes, key: bytes, term: int, limit: int) -> bool:
    """Return whether other nodes than that of a term hold all tokens of a key."""
    holdings = tables.tokens.get((function, pool_of(key)), {})
    return sum(holding.tokens for holder, holding in holdings.items() if holder != term) >= limit


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.Recover: recover,
    ops.Settle: settle,
    ops.Assign: assign,
    ops.Cancel: cancel,
    ops.Redrive: redrive,
    ops.RequestStop: request_stop,
    ops.Reschedule: reschedule,
    ops.Redate: redate,
    ops.DeleteEnded: delete_ended,
    ops.Sweep: sweep,
    ops.Wake: wake,
    ops.Submit: submit,
    ops.SubmitOnce: submit,
    ops.Unsubscribe: leave,
    ops.Subscribe: wait,
    ops.Find: find,
    ops.FindUnique: find_unique,
    ops.FindSubscribers: find_subscribers,
    ops.ReadBacklog: read_backlog,
    ops.Count: count,
    ops.Claim: claim,
    ops.ClaimByKey: claim_by_key,
    token_ops.SaveLimits: save_limits,
    token_ops.Acquire: acquire,
}
