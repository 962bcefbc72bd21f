"""The jobs slice on SQLite: a handler for each kind of operation, called with all of a group's operations of that kind.

This module changes stored jobs.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mainspring.engines.sqlite import claiming, finding, rows, submitting
from mainspring.engines.sqlite.finding import find_job
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.attempt_records import cancel_on_request, note_lost
from mainspring.jobs.model import RUNS, Job, State, decode_stop_request, encode_stop_request, read_options
from mainspring.jobs.owners import Ended, note, noticed
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Operation

_TARGETS = {event: int(rules.target(event)) for event in Event}
_SUCCEED = Event.SUCCEED
_SUCCEEDED = int(State.SUCCEEDED)
_PENDING = int(State.PENDING)
_LEASED = int(State.LEASED)


def settle(tx: Transaction, operations: Sequence[ops.Settle]) -> list[set[int]]:
    """Settle jobs; see ``Settle``."""
    if _settle_all(tx, [settlement for operation in operations for settlement in operation.settlements]):
        return [set() for _ in operations]
    return [
        {settlement.job.id for settlement in operation.settlements if not _settle_all(tx, [settlement])}
        for operation in operations
    ]


def _settle_all(tx: Transaction, settlements: Sequence[rules.Settlement]) -> bool:
    """Settle jobs in one batch, all or none; return whether every guard held.

    Stale settlements are rare. Returning the accepted ids (RETURNING) every time takes twice as long as counting the changes.
    """
    if tx.stopping:
        _cancel_on_request(tx, settlements)
    owned = [settlement for settlement in settlements if settlement.job.options is not None]
    forgotten = [settlement for settlement in owned if _forgets(settlement)]
    kept = settlements
    if forgotten:
        kept = [settlement for settlement in settlements if settlement.job.options is None or not _forgets(settlement)]
    cursor = tx.cursor
    connection = cursor.connection
    before = connection.total_changes()
    if len(settlements) > 1:
        cursor.execute("SAVEPOINT settle")
    for is_typical, alike in groupby(kept, _is_typical):
        statement, values = ("settle_typical", _typical) if is_typical else ("settle", _settled)
        cursor.executemany(SQL[statement], map(values, alike))
    if forgotten:
        cursor.executemany(SQL["settle_forgotten"], [(one.job.id, one.job.term) for one in forgotten])
    accepted = connection.total_changes() - before == len(settlements)
    if len(settlements) > 1:
        cursor.execute("RELEASE settle" if accepted else "ROLLBACK TO settle; RELEASE settle")
    if accepted:
        for (function, priority, event), number in _numbers(tx, kept).items():
            tx.count(function, _LEASED, priority, -number)
            tx.count(function, _TARGETS[event], priority, number)
        if forgotten:
            for (function, priority, _), number in _numbers(tx, forgotten).items():
                tx.count(function, _LEASED, priority, -number)
        for settlement in owned:
            note(tx.notices, noticed(settlement, _TARGETS[settlement.event]))
        if tx.stopping:
            tx.no_longer_stopping([settlement.job.id for settlement in settlements])
    return accepted


def _cancel_on_request(tx: Transaction, settlements: Sequence[rules.Settlement]) -> None:
    """Turn settlements that give jobs back into cancels if that was requested."""
    given_back = {
        settlement.job.id: settlement
        for settlement in settlements
        if settlement.job.id in tx.stopping and settlement.event in rules.GIVES_BACK
    }
    for job_id, request in tx.cursor.execute(SQL["stopping"], (json.dumps([*given_back]),)):
        cancel_on_request(given_back[job_id], decode_stop_request(request))


def _numbers(tx: Transaction, settlements: Sequence[rules.Settlement]) -> dict[tuple[int, int, Event], int]:
    """Return the numbers of settlements by function, priority and event."""
    numbers: dict[tuple[bytes, int, Event], int] = {}
    for settlement in settlements:
        job = settlement.job
        key = (job.function, job.priority, settlement.event)
        numbers[key] = numbers.get(key, 0) + 1
    return {
        (tx.functions.number(function), priority, event): number
        for (function, priority, event), number in numbers.items()
    }


def _forgets(settlement: rules.Settlement) -> bool:
    """Return whether a settlement of a job with options deletes the row."""
    options = settlement.job.options
    return options is not None and options.forget and _TARGETS[settlement.event] >= _SUCCEEDED


def _is_typical(settlement: rules.Settlement) -> bool:
    """Return whether a settlement is a success that leaves the payload and has no record, as most have."""
    return settlement.payload is None and settlement.event is _SUCCEED and not settlement.record


def _typical(settlement: rules.Settlement) -> rows.Row:
    """Return the values of the statement ``settle_typical``."""
    job, result = settlement.job, settlement.result
    return (
        settlement.counted,
        job.suspects,
        settlement.due_us,
        settlement.started_us,
        settlement.ended_us,
        len(result),
        result or None,
        job.id,
        job.term,
    )


def _settled(settlement: rules.Settlement) -> rows.Row:
    """Return the values of the statement ``settle``."""
    job, state = settlement.job, _TARGETS[settlement.event]
    return (
        state,
        settlement.counted,
        job.suspects,
        settlement.due_us,
        settlement.started_us,
        settlement.ended_us,
        len(settlement.result),
        settlement.result or None,
        settlement.error or None,
        job.term if state > _LEASED else 0,
        job.id,
        job.term,
        settlement.payload,
        settlement.record.decode() if settlement.record else None,
    )


def recover(tx: Transaction, operations: Sequence[ops.Recover]) -> list[ops.Recovered]:
    """Recover the jobs of other terms; see ``Recover``."""
    return [_recover(tx, operation.term, operation.now_us) for operation in operations]


def _recover(tx: Transaction, own_term: int, now_us: int) -> ops.Recovered:
    held = []
    for job_id, state, function, priority, attempt, suspects, term, options, stopping in tx.cursor.execute(
        SQL["held_elsewhere"], (own_term,)
    ):
        if stopping:
            tx.stopping.add(job_id)
        job = Job(job_id, tx.functions.key(function), b"", state=state, priority=priority)
        job.attempt, job.suspects, job.term = attempt, suspects, term
        job.options = None if options is None else read_options(options)
        held.append(job)
    settlements = rules.recovered(held)
    note_lost(settlements, lambda term: tx.nodes.get(term, ""), now_us)
    recovered = _settle_all(tx, settlements)
    assert recovered, "nothing else writes in this transaction"
    given_back = [settlement.job for settlement in settlements if settlement.event is Event.LOSE]
    return ops.Recovered(len(given_back), ops.tally(given_back), lost=ops.lost_attempts(settlements))


def cancel(tx: Transaction, operations: Sequence[ops.Cancel]) -> list[ops.Cancelled]:
    """Cancel jobs that no node holds; see ``Cancel``."""
    return [_cancel(tx, find_job(tx, one.id, one.namespace), one) for one in operations]


def _cancel(tx: Transaction, job: Job | None, operation: ops.Cancel) -> ops.Cancelled:
    if job is None:
        return ops.Cancelled(None, 0)
    before = job.state
    if before <= State.PENDING:
        if not _forget(tx, job):
            tx.cursor.execute(SQL["cancel"], (operation.now_us, operation.error, operation.id))
            _count_move(tx, job, State.CANCELLED)
        job.state, job.ended_us, job.error = int(State.CANCELLED), operation.now_us, operation.error
        note(tx.notices, Ended.of(job)._replace(term=0))  # no node held it
    return ops.Cancelled(job, before)


def _forget(tx: Transaction, job: Job) -> bool:
    """Delete a waiting job that ends, if its owner keeps the outcome; return whether it was deleted."""
    if job.options is None or not job.options.forget:
        return False
    delete(tx, job)
    return True


def delete(tx: Transaction, job: Job) -> None:
    """Delete a job, and subtract it from the counts."""
    tx.cursor.execute(SQL["delete"], (job.id,))
    tx.count(tx.functions.number(job.function), job.state, job.priority, -1)


def _count_move(tx: Transaction, job: Job, after: State) -> None:
    function = tx.functions.number(job.function)
    tx.count(function, job.state, job.priority, -1)
    tx.count(function, after, job.priority, 1)


def request_stop(tx: Transaction, operations: Sequence[ops.RequestStop]) -> list[set[int]]:
    """Store requests to cancel held jobs; see ``RequestStop``."""
    outcomes = []
    for operation in operations:
        request = encode_stop_request(operation.request)
        held: set[int] = set()
        for job_id, term in operation.jobs:
            held.update(found for (found,) in tx.cursor.execute(SQL["request_stop"], (request, job_id, term)))
        tx.stopping |= held
        outcomes.append(held)
    return outcomes


def redrive(tx: Transaction, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    """Redrive ended jobs; see ``Redrive``."""
    return [_redrive(tx, find_job(tx, one.id, one.namespace), one) for one in operations]


def _redrive(tx: Transaction, job: Job | None, operation: ops.Redrive) -> ops.Redriven:
    job_id, payload = operation.id, operation.payload
    if job is None or State(job.state) not in rules.sources(Event.REDRIVE) or job.term == RUNS:
        return ops.Redriven(job, redriven=False)
    after = rules.redriven(State(job.state), operation.due_us)
    values = (job_id, after, operation.due_us, payload, 0 if payload is None else len(payload))
    if not list(tx.cursor.execute(SQL["redrive"], values)):
        function = tx.functions.number(job.function)
        (rival,) = tx.cursor.execute(SQL["live"], (function, job.unique))
        return ops.Redriven(job, redriven=False, rival=rival[0])
    _count_move(tx, job, after)
    job.state, job.attempt, job.suspects, job.term = int(after), 0, 0, 0
    job.started_us = job.ended_us = job.expires_us = 0
    job.due_us = operation.due_us or job.due_us
    if payload is not None:
        job.input_size = len(payload)
    return ops.Redriven(job, redriven=True)  # as its row is now: a second look at it would cost as much as the change


def reschedule(tx: Transaction, operations: Sequence[ops.Reschedule]) -> list[ops.Rescheduled]:
    """Reschedule waiting jobs; see ``Reschedule``."""
    return [_reschedule(tx, find_job(tx, one.id, one.namespace), one) for one in operations]


def _reschedule(tx: Transaction, job: Job | None, operation: ops.Reschedule) -> ops.Rescheduled:
    if job is None:
        return ops.Rescheduled(None, 0, 0)
    before, priority = State(job.state), job.priority
    if before > State.PENDING:
        return ops.Rescheduled(job, before, priority)
    after = rules.rescheduled(before, operation.due_us, operation.now_us)
    tx.cursor.execute(
        SQL["reschedule"], (operation.id, after, operation.due_us, operation.priority, operation.expires_us)
    )
    changed = find_job(tx, operation.id)
    assert changed is not None, "its row is in this transaction"
    function = tx.functions.number(job.function)
    tx.count(function, before, priority, -1)
    tx.count(function, changed.state, changed.priority, 1)
    return ops.Rescheduled(changed, before, priority)


def delete_ended(tx: Transaction, operations: Sequence[ops.DeleteEnded]) -> list[ops.Deleted]:
    """Delete ended jobs; see ``DeleteEnded``."""
    return [_delete_ended(tx, find_job(tx, one.id, one.namespace), one) for one in operations]


def _delete_ended(tx: Transaction, job: Job | None, _: ops.DeleteEnded) -> ops.Deleted:
    if job is None or not State(job.state).ended or job.term == RUNS:
        return ops.Deleted(job, deleted=False)
    delete(tx, job)
    tx.cursor.execute(SQL["delete_log"], (job.id,))
    return ops.Deleted(job, deleted=True)


def wake(tx: Transaction, operations: Sequence[ops.Wake]) -> list[ops.Woken]:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    return [_wake(tx, operation) for operation in operations]


def _wake(tx: Transaction, operation: ops.Wake) -> ops.Woken:
    now_us, limit = operation.now_us, operation.rows
    late = list(tx.cursor.execute(SQL["late"], (now_us, limit)))
    expired = []
    for job_id, before in late:
        job = find_job(tx, job_id)
        assert job is not None
        if not _forget(tx, job):
            tx.cursor.execute(SQL["expire"], (now_us, job_id))
            _count_move(tx, job, State.EXPIRED)
        job.state, job.ended_us = int(State.EXPIRED), now_us
        expired.append((job, before))
        note(tx.notices, Ended.of(job)._replace(term=0))  # no node held it
    due: dict[tuple[bytes, int], int] = {}
    for function, priority in tx.cursor.execute(SQL["due"], (now_us, limit)):
        key = (tx.functions.key(function), priority)
        due[key] = due.get(key, 0) + 1
        tx.count(function, State.SCHEDULED, priority, -1)
        tx.count(function, State.PENDING, priority, 1)
    nexts = [row[0] for name in ("next_due", "next_expiry") for row in tx.cursor.execute(SQL[name]) if row[0]]
    return ops.Woken(due, expired, min(nexts, default=0))


def sweep(tx: Transaction, operations: Sequence[ops.Sweep]) -> list[int]:
    """Forget ended jobs; see ``Sweep``."""
    return [_sweep(tx, operation) for operation in operations]


def _sweep(tx: Transaction, operation: ops.Sweep) -> int:
    ended_us, dead_us, limit = operation.ended_before_us, operation.dead_before_us, operation.rows
    left = limit
    for name, values in (
        ("sweep_succeeded", (ended_us,)),
        ("sweep_unsuccessful", (int(State.CANCELLED), ended_us)),
        ("sweep_unsuccessful", (int(State.EXPIRED), ended_us)),
        ("sweep_unsuccessful", (int(State.FAILED), dead_us)),
    ):
        if left:
            for function, state, priority in tx.cursor.execute(SQL[name], (*values, left)):
                tx.count(function, state, priority, -1)
                left -= 1
    return limit - left


HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], list[Any]]] = {
    ops.Recover: recover,
    ops.Settle: settle,
    ops.Assign: claiming.assign,
    ops.Cancel: cancel,
    ops.Redrive: redrive,
    ops.RequestStop: request_stop,
    ops.Reschedule: reschedule,
    ops.DeleteEnded: delete_ended,
    ops.Sweep: sweep,
    ops.Wake: wake,
    ops.Submit: submitting.submit,
    ops.SubmitOnce: submitting.submit,
    ops.Claim: claiming.claim,
    ops.Find: finding.find,
    ops.FindUnique: finding.find_unique,
    ops.Count: finding.count,
    ops.CountLive: finding.count_live,
}

CHANGES: dict[type[Operation], Callable[[Transaction, Job | None, Any], Any]] = {
    ops.Cancel: _cancel,
    ops.Redrive: _redrive,
    ops.Reschedule: _reschedule,
    ops.DeleteEnded: _delete_ended,
}
"""Functions that run an operation on a job which the transaction has read already; they may change the object."""
