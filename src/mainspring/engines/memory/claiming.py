"""Claims in memory: by priority and age, or taking turns between keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.jobs import PENDING, copy, enter
from mainspring.engines.memory.resources import exhausted
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.memory.pending import Pending
    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.storage.operation import Operation


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
    function, term, concurrency = operation.function, operation.term, operation.concurrency
    more = False
    for priority, pending in enumerate(tables.pending.get(operation.function, ())):
        for met, key in enumerate(pending.keys(after[priority])):
            if len(claimed) >= operation.limit or met >= ops.KEYS_PER_CLAIM:
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


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.Claim: claim,
    ops.ClaimByKey: claim_by_key,
}
