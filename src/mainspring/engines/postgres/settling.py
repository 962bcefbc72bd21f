"""Settlements: reported results, jobs that are recovered from lost nodes, and the clients that wait for ends.

Waiting clients, at any node, are notified of ends. Foreground jobs without any are dropped.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mainspring.engines.postgres import submitting, transaction
from mainspring.engines.postgres.claiming import Floors
from mainspring.engines.postgres.lists import look_up, with_results
from mainspring.engines.postgres.transaction import JOBS_SQL
from mainspring.engines.sql import deadlines
from mainspring.engines.sql.completions import CompletionRows
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.job_events import add_hidden, of_settlement
from mainspring.jobs.lateness import moved
from mainspring.jobs.model import Job, State, decode_stop_request, encode_stop_request, read_options
from mainspring.jobs.owners import note, noticed
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.settlement_records import cancel_on_request, note_lost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.completion_rules import Completion

_TARGETS = {event: int(rules.target(event)) for event in Event}
_SUCCEEDED, _LEASED, _PENDING, _SCHEDULED = map(int, (State.SUCCEEDED, State.LEASED, State.PENDING, State.SCHEDULED))

JobTerm = ops.JobTerm


async def settle(tx: Transaction, operations: Sequence[ops.Settle]) -> list[set[int]]:
    """Settle jobs; see ``Settle``."""
    first, repeated = ops.each_once(operations)
    accepted = await _settle(tx, first)
    if len(accepted) == len(first) and not any(repeated):
        return repeated
    stale = first.keys() - accepted
    outcomes = [
        duplicates | {one.job.id for one in operation.settlements if (one.job.id, one.job.term) in stale}
        for operation, duplicates in zip(operations, repeated, strict=True)
    ]
    recorded = [one for job_term, one in first.items() if job_term in accepted]
    for operation, outcome in zip(operations, outcomes, strict=True):
        if outcome:
            of_operation = set(map(id, operation.settlements))
            add_hidden(tx.events, [one for one in recorded if id(one) in of_operation], outcome)
    return outcomes


async def _settle(tx: Transaction, settlements: dict[JobTerm, Settlement]) -> set[JobTerm]:
    """Settle jobs, without duplicates; return those whose guard held."""
    succeeded: list[Settlement] = []
    dead: list[Settlement] = []
    back: list[Settlement] = []
    forgotten: list[Settlement] = []
    for (job_id, term), settlement in sorted(settlements.items(), key=_by_job_term):
        if term <= 0 or not 0 < job_id <= transaction.LARGEST_ID:
            continue
        after = _TARGETS[settlement.event]
        if after < _SUCCEEDED:
            back.append(settlement)
        else:
            (forgotten if forgets(settlement.job) else succeeded if after == _SUCCEEDED else dead).append(settlement)
    accepted: set[JobTerm] = set()
    if back:
        accepted, cancelled = await _requeue(tx, back)
        for settlement in cancelled:
            (forgotten if forgets(settlement.job) else dead).append(settlement)
    if succeeded:
        accepted |= await _succeed(tx, succeeded)
    if dead:
        accepted |= await _end_unsuccessful(tx, dead)
    await count(tx, [settlements[job_term] for job_term in accepted])
    if forgotten:
        accepted |= await _forget(tx, forgotten)
    for job_term in sorted(accepted):
        settlement = settlements[job_term]
        if settlement.job.options is not None:
            note(tx.notices, noticed(settlement, _TARGETS[settlement.event]))
    return accepted


class PostgresCompletions(CompletionRows):
    """The rows of completion tokens."""

    _tx: Transaction

    async def job(self, job_id: int) -> Job | None:
        return (await look_up(self._tx, [job_id])).get(job_id)

    async def take(self, completion: Completion, term: int) -> bytes | None:
        row = await self._sql.first("take_completed", completion.job, completion.due_us, completion.attempt, term)
        if row is None:
            return None
        function, priority, payload = row
        self._tx.count(function, _SCHEDULED, priority, -1)
        self._tx.count(function, _LEASED, priority, 1)
        return payload or b""


def forgets(job: Job) -> bool:
    """Return whether the row of a job is deleted when it ends."""
    return job.options is not None and job.options.forget


def _by_job_term(item: tuple[JobTerm, Settlement]) -> JobTerm:
    return item[0]


async def _succeed(tx: Transaction, settlements: list[Settlement]) -> set[JobTerm]:
    accepted: set[JobTerm] = set()
    for portion in transaction.portions(settlements, _size):
        ((number, waited, ids, terms),) = await tx.connection.fetch(
            JOBS_SQL["succeed"], *columns_of(portion), *remembered(portion)
        )
        if waited:
            await notify_waiters(tx, waited)
        if number == len(portion):
            accepted.update((settlement.job.id, settlement.job.term) for settlement in portion)
        else:
            accepted.update(zip(ids or (), terms or (), strict=True))
    return accepted


def columns_of(settlements: Sequence[Settlement]) -> transaction.Columns:
    """Return the columns of the statement ``succeed`` up to the errors."""
    results = transaction.sparse([settlement.result or None for settlement in settlements])
    return [*transaction.settled_columns(settlements), _due(settlements), results, _errors(settlements)]


def remembered(settlements: Sequence[Settlement]) -> transaction.Columns:
    """Return its last columns: what is kept of the payloads, and the records of the attempts."""
    return [transaction.sparse([settlement.payload for settlement in settlements]), _records(settlements)]


def _records(settlements: Sequence[Settlement]) -> list[bytes | None]:
    return transaction.sparse([settlement.record or None for settlement in settlements])


def _size(settlement: Settlement) -> int:
    return len(settlement.result)


async def _end_unsuccessful(tx: Transaction, settlements: list[Settlement]) -> set[JobTerm]:
    states = [_TARGETS[settlement.event] for settlement in settlements]
    gone = await tx.connection.fetch(
        JOBS_SQL["end_unsuccessful"],
        *transaction.settled_columns(settlements),
        _due(settlements),
        states,
        _errors(settlements),
        _records(settlements),
    )
    await notify_waiters(tx, (job_id for job_id, _, waited in gone if waited))
    return {(job_id, term) for job_id, term, _ in gone}


async def _forget(tx: Transaction, settlements: list[Settlement]) -> set[JobTerm]:
    job_terms = {(one.job.id, one.job.term): one for one in settlements}
    gone = await tx.connection.fetch(JOBS_SQL["forget"], *_job_terms(settlements))
    await notify_waiters(tx, (job_id for job_id, _, waited in gone if waited))
    accepted = {(job_id, term) for job_id, term, _ in gone}
    await _load_functions(tx, settlements)
    for job_term in accepted:
        job = job_terms[job_term].job
        tx.count(tx.functions.numbers[job.function], _LEASED, job.priority, -1)
    return accepted


def _job_terms(settlements: Sequence[Settlement]) -> transaction.Columns:
    ordered = sorted((one.job.id, one.job.term) for one in settlements)
    return [[job_term[at] for job_term in ordered] for at in range(2)]


async def request_stop(tx: Transaction, operations: Sequence[ops.RequestStop]) -> list[set[int]]:
    """Store requests to cancel held jobs; see ``RequestStop``."""
    outcomes = []
    for operation in operations:
        held = {one for one in operation.jobs if 0 < one[0] <= transaction.LARGEST_ID}
        ordered = sorted(held, key=lambda one: (one[0], one[1] or 0))
        columns = [one[0] for one in ordered], [one[1] for one in ordered]
        found = await tx.connection.fetch(JOBS_SQL["request_stop"], *columns, encode_stop_request(operation.request))
        outcomes.append({job_id for (job_id,) in found})
    return outcomes


async def _requeue(tx: Transaction, settlements: list[Settlement]) -> tuple[set[JobTerm], list[Settlement]]:
    """Give jobs back; return whose guard held, and the settlements that a request has turned into cancels."""
    states = [_TARGETS[settlement.event] for settlement in settlements]
    due = [
        settlement.due_us or (0 if state == _SCHEDULED else None)
        for settlement, state in zip(settlements, states, strict=True)
    ]
    places = {
        (job_id, term): place
        for job_id, term, place in await tx.connection.fetch(
            JOBS_SQL["give_back"],
            *transaction.settled_columns(settlements),
            transaction.sparse(due),
            states,
            _errors(settlements),
            _records(settlements),
        )
    }
    floors = tx.memory(Floors)
    await move_deadlines(tx, [one for one in settlements if one.postponed_us and (one.job.id, one.job.term) in places])
    await _load_functions(tx, settlements)
    for settlement, state in zip(settlements, states, strict=True):
        job = settlement.job
        place = places.get((job.id, job.term))
        if place is None:
            continue
        if state == _SCHEDULED:
            floors.due.lower(settlement.due_us)
        else:
            floors.note_returned(tx.functions.numbers[job.function], job.priority, place)
            tx.pending(job.function)
        if job.expires_us:
            floors.expiring.lower(job.expires_us)
    missed = [settlement for settlement in settlements if (settlement.job.id, settlement.job.term) not in places]
    return set(places), await _cancel_on_request(tx, missed) if missed else []


async def move_deadlines(tx: Transaction, postponed: Sequence[Settlement]) -> None:
    """Move the times of postponed jobs; they are read again, because a request may have changed them meanwhile."""
    if postponed:
        found = await look_up(tx, [one.job.id for one in postponed])
        for one in postponed:
            if one.event is Event.SNOOZE and one.job.id in found:
                job, by_us = found[one.job.id], one.postponed_us
                await deadlines.redate(tx, job, moved(job, by_us, one.due_us - by_us), transaction.stored_options)


async def _cancel_on_request(tx: Transaction, settlements: list[Settlement]) -> list[Settlement]:
    """Turn settlements that give jobs back into cancels if that was requested; return these."""
    found = await tx.connection.fetch(JOBS_SQL["stopping"], *_job_terms(settlements))
    requests = {(job_id, term): request for job_id, term, request in found}
    requested = [one for one in settlements if (one.job.id, one.job.term) in requests]
    for one in requested:
        cancel_on_request(one, decode_stop_request(requests[one.job.id, one.job.term]))
    return requested


def _due(settlements: Sequence[Settlement]) -> list[int | None]:
    return transaction.sparse([settlement.due_us or None for settlement in settlements])


def _errors(settlements: Sequence[Settlement]) -> list[bytes | None]:
    return transaction.sparse([settlement.error or None for settlement in settlements])


async def _load_functions(tx: Transaction, settlements: Iterable[Settlement]) -> None:
    await tx.functions.load({settlement.job.function for settlement in settlements})


async def count(tx: Transaction, settlements: Iterable[Settlement]) -> None:
    """Count the settled jobs."""
    numbers = Counter([(one.job.function, one.job.priority, _TARGETS[one.event]) for one in settlements])
    if not numbers:
        return
    await tx.functions.load({key[0] for key in numbers})
    for (key, priority, after), number in numbers.items():
        function = tx.functions.numbers[key]
        tx.count(function, _LEASED, priority, -number)
        tx.count(function, after, priority, number)


# ---- nodes that are gone ----


async def recover(tx: Transaction, operations: Sequence[ops.Recover]) -> list[ops.Recovered]:
    """Recover the jobs of other terms; see ``Recover``."""
    return [await _recover(tx, operation) for operation in operations]


async def _recover(tx: Transaction, operation: ops.Recover) -> ops.Recovered:
    if operation.of is None:
        found = await tx.connection.fetch(JOBS_SQL["held_elsewhere"], operation.term, None)
    else:
        found = await tx.connection.fetch(JOBS_SQL["held_by"], list(operation.of), operation.rows)
    held: list[Job] = []
    await tx.functions.load_keys({row[2] for row in found})
    for job_id, state, function, priority, attempt, suspects, term, foreground, options in found:
        key = tx.functions.keys[function]
        job = Job(job_id, key, b"", state=state, priority=priority, foreground=bool(foreground))
        job.attempt, job.suspects, job.term = attempt, suspects, term
        if options is not None:
            job.options, job.key = transaction.decode_stored_options(options, read_options)
        held.append(job)
    settlements = rules.recovered(held)
    await tx.nodes.load_terms({job.term for job in held})
    note_lost(settlements, lambda term: tx.nodes.get(term, ""), operation.now_us)
    accepted = await _settle(tx, {(one.job.id, one.job.term): one for one in settlements})
    assert len(accepted) == len(held), "their rows are locked"
    for one in settlements:
        tx.events.add(of_settlement(one))
    given_back = [one.job for one in settlements if one.event is Event.LOSE]
    lost, pending = ops.lost_attempts(settlements), ops.tally(given_back)
    if operation.of is None:
        return ops.Recovered(len(given_back), pending, lost=lost)
    waited = await tx.connection.fetch(JOBS_SQL["waited_by"], list(operation.of), operation.rows)
    # Also jobs that ran when the last client left: they were kept for their worker, which is gone.
    left = {row[0] for row in waited} | {job.id for job in held if job.foreground}
    await drop(tx, ((job_id, term) for job_id in left for term in operation.of))
    more = len(held) == operation.rows or len(waited) == operation.rows
    return ops.Recovered(len(given_back), pending, more, lost)


async def wait(tx: Transaction, operations: Sequence[ops.Subscribe]) -> list[dict[int, Job]]:
    """Record waiters, and return the jobs; see ``Subscribe``.

    This locks the jobs' rows: a concurrent settlement comes before, and then the job is found ended here, or after, and then it
    finds the record.
    """
    wanted = [job_id for operation in operations for job_id in operation.ids]
    await submitting.admit(tx, wanted)
    aliases = await submitting.aliases(tx, wanted)
    pairs: dict[str, set[tuple[int, int]]] = {}
    for operation in operations:
        for job_id in operation.ids:
            stored = aliases.get(job_id, job_id)
            if 0 < stored <= transaction.LARGEST_ID:
                pairs.setdefault(operation.namespace, set()).add((stored, operation.term))
    for namespace, found in sorted(pairs.items()):
        columns = zip(*sorted(found), strict=True)
        await tx.connection.fetch(JOBS_SQL["wait"], *map(list, columns), namespace)
    return await with_results(tx, operations)


async def leave(tx: Transaction, operations: Sequence[ops.Unsubscribe]) -> list[set[int]]:
    """Remove waiters; see ``Unsubscribe``."""
    wanted = [job_id for operation in operations for job_id in operation.ids]
    aliases = await submitting.aliases(tx, wanted)
    pairs = [(aliases.get(job_id, job_id), operation.term) for operation in operations for job_id in operation.ids]
    dropped = await drop(tx, pairs)
    return [{job_id for job_id in operation.ids if aliases.get(job_id, job_id) in dropped} for operation in operations]


async def drop(tx: Transaction, pairs: Iterable[tuple[int, int]]) -> set[int]:
    """Remove waiters, given as pairs of job and term; return the foreground jobs that are dropped because none is left."""
    pairs = sorted({pair for pair in pairs if 0 < pair[0] <= transaction.LARGEST_ID})
    if not pairs:
        return set()
    ids, terms = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    await tx.connection.fetch(JOBS_SQL["leave"], ids, terms)
    locked = {row[0] for row in await tx.connection.fetch(JOBS_SQL["lock_foreground"], transaction.known_ids(ids))}
    pairs = [pair for pair in pairs if pair[0] in locked]
    if not pairs:
        return set()
    dropped = set()
    for job_id, function, state, priority in await tx.connection.fetch(
        JOBS_SQL["drop_foreground"], [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ):
        dropped.add(job_id)
        tx.count(function, state, priority, -1)
    return dropped


async def find_subscribers(tx: Transaction, operations: Sequence[ops.FindSubscribers]) -> list[dict[int, list[int]]]:
    """Return the nodes of other waiters; see ``FindSubscribers``."""
    ids = transaction.known_ids(job_id for operation in operations for job_id in operation.ids)
    waits: dict[int, list[int]] = {}
    for job_id, term in await tx.connection.fetch(JOBS_SQL["subscribers"], ids) if ids else ():
        waits.setdefault(job_id, []).append(term)
    outcomes = []
    for operation in operations:
        elsewhere = {
            job_id: [term for term in waits.get(job_id, ()) if term != operation.term] for job_id in operation.ids
        }
        outcomes.append({job_id: terms for job_id, terms in elsewhere.items() if terms})
    return outcomes


async def notify_waiters(tx: Transaction, ids: Iterable[int]) -> None:
    """Notify the nodes of clients that wait for ended jobs, and remove these waiters."""
    wanted = transaction.known_ids(ids)
    if wanted:
        for job_id, term in await tx.connection.fetch(JOBS_SQL["end_waiting"], wanted):
            if term != tx.term:
                tx.settled(term, job_id)
