"""Groups as nearly all are: jobs that have succeeded, and new ones. They go to the server in one statement, which commits them.

The statement does what the handlers would do, if every guard holds and no unique conflicts: each job is still held under its
term, no client waits at another node, each unique is free. Outcomes and counts follow from that. Otherwise it writes nothing; the
group runs step by step, and so do the groups of the next second, since joins come in series (`FastPathBackoff`).

A function of the schema does it (`migrations/0008.sql`). Only an error undoes what was written before the group turned out to be
otherwise, and an error that ends a statement stands in the database's log; so the function catches its own. To ask first would
be another trip for each group, as would be a ROLLBACK in place of the error, and could be overtaken; to keep what held of a
group would need counts that depend on it.
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
PAUSE: Final = 1.0
"""Seconds for which groups are run step by step after one that was not as usual."""


class FastPathBackoff:
    """Whether it is worth trying. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0

    def tries(self, now: float) -> bool:
        """Return whether a group is tried."""
        return now >= self._until

    def missed(self, now: float) -> None:
        """A group was not as usual."""
        self._until = now + PAUSE


class FastPath(NamedTuple):
    """A group on its way: the arguments of the statement ``fast_path``, and what becomes of its operations."""

    arguments: list[Any]
    outcomes: list[Any]


async def compose(tx: Transaction, plan: Plan, size: int, number: int) -> FastPath | None:
    """Return a group as one statement, with its counts noted in ``tx``; None where it may be none of these."""
    if not KINDS.issuperset(plan):
        return None
    settlements = _settlements(tx, plan)
    news = None if settlements is None else _news(tx, plan)
    if settlements is None or news is None:
        return None
    if sum(len(new.job.payload) for new in news) + sum(len(one.result) for one in settlements) > rows.PORTION:
        return None
    await settling.count(tx, settlements)
    await submitting.note_stored(tx, news)
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    arguments = [
        tx.term,
        number,
        *settling.columns_of(settlements),
        *submitting.columns_of(tx, news),
        *rows.uniques([new.job for new in news]),
        *([delta[at] for delta in deltas] for at in range(4)),
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
            if (job.namespace, job.function) not in tx.functions.numbers or owner(job.options) is not None:
                return None
            found[job.id, job.term] = one
    return [found[job_term] for job_term in sorted(found)] if len(found) == number else None


def _news(tx: Transaction, plan: Plan) -> list[New] | None:
    jobs = []
    for _, operation in plan.get(ops.Submit, ()):
        assert isinstance(operation, ops.Submit)
        if operation.waiter:
            return None
        jobs += operation.jobs
    if not all((job.namespace, job.function) in tx.functions.numbers for job in jobs):
        return None
    news = submitting.news_of(tx, jobs, [0] * len(jobs))
    apart = submitting.apart([new for new in news if new.job.unique])
    return None if apart is None else [*(new for new in news if not new.job.unique), *apart]
