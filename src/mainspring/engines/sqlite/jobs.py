"""The jobs slice on SQLite: a handler for each kind of operation, called with all of a group's operations of that kind.

Lookups and counts of a group come first. Submits store new jobs, or join jobs with the same unique. Then come the changes of
stored jobs; `claiming` has the leases.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mainspring.engines.sql import deadlines
from mainspring.engines.sqlite import claiming, transaction
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.job_events import add_hidden, of_settlement
from mainspring.jobs.lateness import is_dated, moved, redated, rows_of
from mainspring.jobs.model import (
    RUNS,
    Job,
    State,
    decode_stop_request,
    encode_options,
    encode_stop_request,
    read_options,
)
from mainspring.jobs.owners import Ended, note, noticed
from mainspring.jobs.rules import Event
from mainspring.jobs.settlement_records import cancel_on_request, note_lost
from mainspring.jobs.user_data import indexed_tags
from mainspring.namespaces import ANY, namespace_of
from mainspring.storage.engine import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.completion_rules import Completion
    from mainspring.storage.engine import Operation

SMALL_RESULT = 65_536
"""Bytes up to which results are read with the group. The engine's thread reads larger ones, which wait for the disk and not for
the interpreter."""


def first_found(tx: Transaction, statement: str, values: tuple[object, ...]) -> ops.Found | None:
    """Return the first job in the rows of a statement."""
    for row in tx.cursor.execute(statement, values):
        return ops.Found(*row)
    return None


def find_job(tx: Transaction, job_id: int, namespace: str = ANY) -> Job | None:
    """Return a job of a namespace, without its result."""
    if job_id > transaction.LARGEST_ID:
        return None
    statement, values = ("find", (job_id,)) if namespace == ANY else ("find_of", (job_id, namespace))
    jobs = transaction.stored_jobs(tx.cursor.execute(SQL[statement], values), tx.functions, read_options)
    return jobs[0] if jobs else None


def find_short(tx: Transaction, job_id: int, namespace: str) -> Job | None:
    """Return a job of a namespace, without its result, or None if it is long or not there."""
    if job_id > transaction.LARGEST_ID:
        return None
    jobs = transaction.stored_jobs(
        tx.cursor.execute(SQL["find_short"], (job_id, namespace)), tx.functions, read_options
    )
    return jobs[0] if jobs else None


def find(tx: Transaction, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Return jobs by their ids; see ``Find``. A group has one copy of each result."""
    outcomes = []
    results: dict[int, bytes] = {}
    large: dict[int, list[Job]] = {}
    for operation in operations:
        looked_up = (find_job(tx, job_id, operation.namespace) for job_id in operation.ids)
        found = {job.id: job for job in looked_up if job is not None}
        for job in ops.fitting(found, operation.room):
            if job.output_size > SMALL_RESULT:
                large.setdefault(job.id, []).append(job)
                continue
            if job.id not in results:
                ((results[job.id],),) = tx.cursor.execute(SQL["result"], (job.id,))
            job.result = results[job.id]
        outcomes.append(found)
    tx.large.extend(large.values())
    return outcomes


def read_large(tx: Transaction) -> None:
    """Read the large results that the group needs: without the interpreter lock, and one copy of each."""
    jobs, tx.large = tx.large, []
    for same in jobs:
        with tx.cursor.connection.blob_open("main", "jobs", "result", same[0].id, False) as blob:
            result = blob.read()
        for job in same:
            job.result = result


def find_unique(tx: Transaction, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    return [[_find_unique(tx, *key) for key in operation.keys] for operation in operations]


def _find_unique(tx: Transaction, function: bytes | ops.InNamespace, unique: bytes) -> ops.Found | None:
    if isinstance(function, ops.InNamespace):
        return first_found(tx, SQL["live_anywhere"], (unique, function.namespace))
    number = tx.functions.find(function)
    return None if number is None else first_found(tx, SQL["live"], (number, unique))


def count(tx: Transaction, operations: Sequence[ops.Count]) -> list[dict[tuple[bytes, int, int], int]]:
    """Return the counts; see ``Count``."""
    tx.write_counts()
    return [_counts_of(tx, operation.functions) for operation in operations]


def _counts_of(tx: Transaction, functions: Sequence[bytes] | None) -> dict[tuple[bytes, int, int], int]:
    if functions is None:
        return {
            (tx.functions.key(function), state, priority): number
            for function, state, priority, number in tx.cursor.execute(SQL["counts"])
        }
    counts = {}
    for name in functions:
        function = tx.functions.find(name)
        if function is not None:
            for state, priority, number in tx.cursor.execute(SQL["counts_of"], (function,)):
                counts[name, state, priority] = number
    return counts


def submit(tx: Transaction, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found]]:
    """Store new jobs; see ``Submit``. Jobs without a unique cannot conflict and are stored in one batch."""
    plain: list[transaction.Row] = []
    named: list[Job] = []
    tagged: list[Job] = []
    number = tx.functions.number
    numbers: dict[tuple[int, int, int], int] = {}
    for operation in operations:
        for job in operation.jobs:
            if job.unique:
                named.append(job)
            else:
                function = number(job.function)
                plain.append(transaction.submitted_row(job, function))
                key = (function, job.state, job.priority)
                numbers[key] = numbers.get(key, 0) + 1
                if job.options is not None and (job.options.tags or is_dated(job)):
                    tagged.append(job)
    for (function, state, priority), count in numbers.items():
        tx.count(function, state, priority, count)
    if plain:
        tx.cursor.executemany(SQL["submit"], plain)
        if tagged:
            _index(tx, tagged)
    joined = _submit_named(tx, named) if named else {}
    if not joined:
        return [{} for _ in operations]
    return [{job.id: joined[job.id] for job in operation.jobs if job.id in joined} for operation in operations]


def _submit_named(tx: Transaction, named: list[Job]) -> dict[int, ops.Found]:
    joined: dict[int, ops.Found] = {}
    fresh: list[Job] = []
    for job in named:
        kept = _kept(tx, job)
        if kept is None:
            fresh.append(job)
        else:
            # A live job takes precedence over an ended one, even if this group has just submitted it.
            _store_named(tx, fresh, joined)
            fresh = []
            function = tx.functions.number(job.function)
            joined[job.id] = first_found(tx, SQL["live"], (function, job.unique)) or kept
    _store_named(tx, fresh, joined)
    return joined


def _store_named(tx: Transaction, fresh: list[Job], joined: dict[int, ops.Found]) -> None:
    numbered = [(job, tx.functions.number(job.function)) for job in fresh]
    connection = tx.cursor.connection
    before = connection.total_changes()
    tx.cursor.executemany(
        SQL["submit_unique"], [transaction.submitted_row(job, function) for job, function in numbered]
    )
    all_stored = connection.total_changes() - before == len(fresh)
    for job, function in numbered:
        if not all_stored:
            (live,) = tx.cursor.execute(SQL["live"], (function, job.unique))
            if live[0] != job.id:
                joined[job.id] = ops.Found(*live)
                continue
        tx.count(function, job.state, job.priority, 1)
        if job.options is not None and (job.options.tags or is_dated(job)):
            _index(tx, [job])


def _index(tx: Transaction, stored: list[Job]) -> None:
    """Store the tags of new jobs, and the times by which they should have begun and ended."""
    tx.cursor.executemany(
        SQL["tag"], [(namespace_of(job.function), tag, job.id) for job in stored for tag in indexed_tags(job)]
    )
    if rows := rows_of(stored):
        run_synchronously(deadlines.put(tx, rows))


def _kept(tx: Transaction, job: Job) -> ops.Found | None:
    keep = job.options.keep_unique if job.options is not None else None
    if keep is None:
        return None
    function = tx.functions.number(job.function)
    return first_found(tx, SQL["kept"], (function, job.unique, rules.kept_since(job.created_us, keep)))


_TARGETS = {event: int(rules.target(event)) for event in Event}
_SUCCEED = Event.SUCCEED
_SUCCEEDED = int(State.SUCCEEDED)
_PENDING = int(State.PENDING)
_LEASED = int(State.LEASED)


def settle(tx: Transaction, operations: Sequence[ops.Settle]) -> list[set[int]]:
    """Settle jobs; see ``Settle``."""
    if _settle_all(tx, [settlement for operation in operations for settlement in operation.settlements]):
        return [set() for _ in operations]
    return [_settle_singly(tx, operation) for operation in operations]


def _settle_singly(tx: Transaction, operation: ops.Settle) -> set[int]:
    recorded: list[rules.Settlement] = []
    stale: set[int] = set()
    for one in operation.settlements:
        if _settle_all(tx, [one]):
            recorded.append(one)
        else:
            stale.add(one.job.id)
    add_hidden(tx.events, recorded, stale)
    return stale


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
            if settlement.postponed_us and settlement.event is Event.SNOOZE:
                _move_deadlines(tx, settlement)
            note(tx.notices, noticed(settlement, _TARGETS[settlement.event]))
        if tx.stopping:
            tx.no_longer_stopping([settlement.job.id for settlement in settlements])
    return accepted


def _move_deadlines(tx: Transaction, settlement: rules.Settlement) -> None:
    """Move the times of a job that was postponed; they are read again, because a request may have changed them meanwhile."""
    job = find_job(tx, settlement.job.id)
    if job is not None:
        by_us = settlement.postponed_us
        run_synchronously(deadlines.redate(tx, job, moved(job, by_us, settlement.due_us - by_us), _encoded))


def _encoded(job: Job) -> bytes | None:
    return None if job.options is None else encode_options(job.options)


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


def _typical(settlement: rules.Settlement) -> transaction.Row:
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


def _settled(settlement: rules.Settlement) -> transaction.Row:
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


def take_completed(tx: Transaction, completion: Completion, term: int) -> bytes | None:
    """Take the job that awaits a completion, as a claim does; return its payload, or None if no job awaits it."""
    values = (completion.job, completion.due_us, completion.attempt, term)
    for function, priority, payload in list(tx.cursor.execute(SQL["take_completed"], values)):
        tx.count(function, State.SCHEDULED, priority, -1)
        tx.count(function, _LEASED, priority, 1)
        return payload or b""
    return None


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
    for settlement in settlements:
        tx.events.add(of_settlement(settlement))
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
    if before > State.PENDING or operation.is_too_soon(job):
        return ops.Rescheduled(job, max(before, State.LEASED), priority)
    after = rules.rescheduled(before, operation.due_us, operation.now_us)
    run_synchronously(deadlines.redate(tx, job, operation.redated(job), _encoded))
    tx.cursor.execute(
        SQL["reschedule"], (operation.id, after, operation.due_us, operation.priority, operation.expires_us)
    )
    changed = find_job(tx, operation.id)
    assert changed is not None, "its row is in this transaction"
    function = tx.functions.number(job.function)
    tx.count(function, before, priority, -1)
    tx.count(function, changed.state, changed.priority, 1)
    return ops.Rescheduled(changed, before, priority)


def redate(tx: Transaction, operations: Sequence[ops.Redate]) -> list[Job | None]:
    """Change by when jobs should have begun and ended; see ``Redate``."""
    return [_redate(tx, find_job(tx, one.id, one.namespace), one) for one in operations]


def _redate(tx: Transaction, job: Job | None, operation: ops.Redate) -> Job | None:
    if job is not None and job.state < State.SUCCEEDED:
        change = redated(job, operation.start_us, operation.deadline_us)
        run_synchronously(deadlines.redate(tx, job, change, _encoded))
    return job


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
    ops.Redate: redate,
    ops.DeleteEnded: delete_ended,
    ops.Sweep: sweep,
    ops.Wake: wake,
    ops.Submit: submit,
    ops.SubmitOnce: submit,
    ops.Claim: claiming.claim,
    ops.Find: find,
    ops.FindUnique: find_unique,
    ops.Count: count,
}

CHANGES: dict[type[Operation], Callable[[Transaction, Job | None, Any], Any]] = {
    ops.Cancel: _cancel,
    ops.Redrive: _redrive,
    ops.Reschedule: _reschedule,
    ops.DeleteEnded: _delete_ended,
}
"""Functions that run an operation on a job which the transaction has read already; they may change the object."""
