"""Claims in memory: by priority and age, or taking turns between keys; and the limits of functions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.engines.memory.jobs import PENDING, copy, enter
from mainspring.jobs import rules as job_rules
from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event
from mainspring.resources import rules
from mainspring.resources import store as ops
from mainspring.resources.rules import FunctionLimits, pool_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.memory.tables import Pending, Tables
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Operation


def claim(tables: Tables, operation: job_ops.Claim) -> list[list[Job]]:
    """Lease due jobs; see ``Claim``."""
    return [_claim(tables, operation.term, want) for want in operation.wants]


def _claim(tables: Tables, term: int, want: job_ops.ClaimRequest) -> list[Job]:
    claimed: list[Job] = []
    for priority, pending in enumerate(tables.pending.get(want.function, ())):
        most = want.limit - len(claimed)
        claimed += _lease(tables, (priority, pending), pending.pop, most, term, want.slots, want.overdue_us)
    return claimed


def claim_by_key(tables: Tables, operation: job_ops.ClaimByKey) -> job_ops.ClaimedByKey:
    """Lease due jobs, taking turns between their keys; see ``ClaimByKey``."""
    claimed: list[Job] = []
    after = list(operation.after)
    skipped: set[bytes] = set()
    function, term, concurrency = operation.function, operation.term, operation.concurrency
    more = False
    for priority, pending in enumerate(tables.pending.get(operation.function, ())):
        for met, key in enumerate(pending.keys(after[priority])):
            if len(claimed) >= operation.limit or met >= job_ops.KEYS_PER_CLAIM:
                more = True
                break
            if key in operation.enough:
                skipped.add(key)
            elif concurrency is None or not exhausted(tables, function, key, term, concurrency):
                most = min(operation.limit - len(claimed), operation.per_key)
                pop, slots = partial(pending.pop_of, key), operation.slots
                claimed += _lease(tables, (priority, pending), pop, most, operation.term, slots, operation.overdue_us)
            pending.forget(key)
            after[priority] = key
    more = more or len(claimed) >= operation.limit
    return job_ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more, frozenset(skipped))


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
    return since_us < overdue_us or job_rules.slot(job) in slots


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    job_ops.Claim: claim,
    job_ops.ClaimByKey: claim_by_key,
}


def save_limits(tables: Tables, operation: ops.SaveLimits) -> FunctionLimits:
    """Write the limits of a function; see ``SaveLimits``."""
    limits = operation.limits
    stored = tables.limits.get(limits.function, FunctionLimits(limits.function))
    if stored.version == limits.version:
        stored = tables.limits[limits.function] = msgspec.structs.replace(limits, version=limits.version + 1)
    return stored


def acquire(tables: Tables, operation: ops.Acquire) -> list[ops.Grant]:
    """Grant tokens and starts; see ``Acquire``."""
    return [_acquire(tables, operation.term, ask, operation.now_us) for ask in operation.asks]


def _acquire(tables: Tables, term: int, ask: ops.TokenRequest, now_us: int) -> ops.Grant:
    grant = ops.Grant()
    pool = (ask.function, ask.pool)
    if ask.limit:
        holdings = tables.tokens.setdefault(pool, {})
        before = holdings.pop(term, rules.Holding(0, 0, 0)).tokens
        own, claimants, short = rules.divide(
            holdings.values(), ask.limit, before, ask.tokens, now_us, ask.demand, waits=ask.waits
        )
        if own.wanted:
            holdings[term] = own
        grant = ops.Grant(own.tokens, claimants, short)
    if ask.rate is not None:
        rate, bucket = tables.buckets.get(pool, (ask.rate, rules.full(ask.rate, now_us)))
        if rate != ask.rate:
            bucket = rules.converted(rate, ask.rate, rules.refilled(rate, bucket, now_us))
        starts, bucket = rules.consume(ask.rate, bucket, now_us, ask.starts)
        tables.buckets[pool] = ask.rate, bucket
        grant = grant._replace(starts=starts, next_us=rules.next_us(ask.rate, bucket))
    return grant


def freed_functions(tables: Tables, group: Sequence[Operation]) -> set[bytes]:
    """Return the functions of which a group is about to return tokens that other nodes lack."""
    freed = set()
    for operation in group:
        if not isinstance(operation, ops.Acquire):
            continue
        for ask in operation.asks:
            holdings = tables.tokens.get((ask.function, ask.pool), {})
            own = holdings.get(operation.term)
            others = [holding for term, holding in holdings.items() if term != operation.term]
            if own is not None and rules.returns(own.tokens, ask.tokens, others, announced=ask.announced):
                freed.add(ask.function)
    return freed


def exhausted(tables: Tables, function: bytes, key: bytes, term: int, limit: int) -> bool:
    """Return whether other nodes than that of a term hold all tokens of a key."""
    holdings = tables.tokens.get((function, pool_of(key)), {})
    return sum(holding.tokens for holder, holding in holdings.items() if holder != term) >= limit


def end_places(tables: Tables, term: int) -> None:
    """Free the tokens of a term that has ended."""
    for holdings in tables.tokens.values():
        holdings.pop(term, None)


RESOURCE_HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.SaveLimits: save_limits,
    ops.Acquire: acquire,
}
