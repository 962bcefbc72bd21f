"""The fast path for most groups: successes and new jobs, sent to the server in one statement that also commits them.

The statement has the effect of the handlers if every guard holds and no unique conflicts: each job is still held under its
term, no client waits at another node, each unique is free. Outcomes and counts follow from that. Otherwise it writes nothing; the
group runs step by step, and so do the groups of the next second, since joins come in series (`FastPathBackoff`).

A function of the schema does it (`migrations/0014.sql`). Only an error undoes the writes that precede a failed guard, and an
error that ends a statement appears in the database's log; so the function catches its own. To check first would cost another
round trip for each group, as would a ROLLBACK in place of the error, and could be overtaken; to keep the valid part of a group
would need counts that depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.postgres import rows, settling, submitting
from mainspring.jobs import store as ops
from mainspring.jobs.owners import owner
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from mainspring.engines.postgres.submitting import New
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.rules import Settlement
    from mainspring.storage.plan import Plan

KINDS: Final = frozenset({ops.Settle, ops.Submit})
BACKOFF: Final = 1.0
"""Seconds for which groups run step by step after a group that the fast path refused."""


class FastPathBackoff:
    """Decides whether to try the fast path. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0

    def tries(self, now: float) -> bool:
        """Return whether to try it for a group."""
        return now >= self._until

    def missed(self, now: float) -> None:
        """Note that it refused a group."""
        self._until = now + BACKOFF


class FastPath(NamedTuple):
    """A group for the fast path: the arguments of the statement ``fast_path``, and the outcomes of its operations."""

    arguments: list[Any]
    outcomes: list[Any]


async def compose(tx: Transaction, plan: Plan, size: int, number: int) -> FastPath | None:
    """Return a group as one statement, with its counts noted in ``tx``; None if the group does not qualify."""
    if not KINDS.issuperset(plan):
        return None
    settlements = _settlements(tx, plan)
    new_jobs = None if settlements is None else _new_jobs(tx, plan)
    if settlements is None or new_jobs is None:
        return None
    if sum(len(new.job.payload) for new in new_jobs) + sum(len(one.result) for one in settlements) > rows.PORTION_BYTES:
        return None
    await settling.count(tx, settlements)
    await submitting.note_stored(tx, new_jobs)
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    arguments = [
        tx.term,
        number,
        *settling.columns_of(settlements),
        *submitting.columns_of(tx, new_jobs),
        *rows.uniques([new.job for new in new_jobs]),
        *([delta[at] for delta in deltas] for at in range(4)),
        *settling.remembered(settlements),
    ]
    outcomes: list[Any] = [None] * size
    for index, _ in plan.get(ops.Settle, ()):
        outcomes[index] = set()
    for index, _ in plan.get(ops.Submit, ()):
        outcomes[index] = {}
    return FastPath(arguments, outcomes)


def _settlements(tx: Transaction, plan: Plan) -> list[Settlement] | None:
    found: dict[tuple[int, int], Settlement] = {}
    number = 0
    for _, operation in plan.get(ops.Settle, ()):
        assert isinstance(operation, ops.Settle)
        number += len(operation.settlements)
        for one in operation.settlements:
            job = one.job
            if one.event is not Event.SUCCEED or job.term <= 0 or not 0 < job.id <= rows.LARGEST_ID:
                return None
            if job.function not in tx.functions.numbers or owner(job.options) is not None:
                return None
            found[job.id, job.term] = one
    return [found[job_term] for job_term in sorted(found)] if len(found) == number else None


def _new_jobs(tx: Transaction, plan: Plan) -> list[New] | None:
    jobs = []
    for _, operation in plan.get(ops.Submit, ()):
        assert isinstance(operation, ops.Submit)
        if operation.waiter:
            return None
        jobs += operation.jobs
    if any(job.options is not None and job.options.tags for job in jobs):
        return None
    if not all(job.function in tx.functions.numbers for job in jobs):
        return None
    new_jobs = submitting.new_jobs_of(tx, jobs, [0] * len(jobs))
    independent = submitting.independent([new for new in new_jobs if new.job.unique])
    return None if independent is None else [*(new for new in new_jobs if not new.job.unique), *independent]
