"""Submits: new jobs, and joins of jobs with the same unique; also those of users' transactions.

Users' transactions insert rows into the inbox, and nodes move them into the queue. The inbox has no index on uniques, so no
node ever waits for a user's open transaction. Uniques are resolved when a row is moved; a row that joins another job leaves an
alias, by which its id leads to that job.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg
import structlog
from msgspec.structs import replace

from mainspring import namespaces
from mainspring.engines.postgres import transaction
from mainspring.engines.postgres.claiming import Floors
from mainspring.engines.postgres.new_leases import NewLeases
from mainspring.engines.postgres.transaction import JOBS_SQL, PORTION_BYTES, columns, decode_stored_options, key_of
from mainspring.engines.sql import deadlines
from mainspring.errors import StoreError, UsageError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.lateness import rows_of, timed
from mainspring.jobs.model import MAX_WAIT, MOST_DEPTH, NO_UNIQUE, WEBHOOK, Job, Options, State, check_retry
from mainspring.jobs.store.nodes import REFUSED_REMEDY
from mainspring.jobs.user_data import check_tags, indexed_tags
from mainspring.namespaces import SEPARATOR, namespace_of
from mainspring.resources.rules import MAX_CONCURRENCY_KEY_BYTES
from mainspring.sizes import CANNOT_READ
from mainspring.workflows.model import check_stated_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction

_PENDING, _SCHEDULED, _SUCCEEDED = int(State.PENDING), int(State.SCHEDULED), int(State.SUCCEEDED)
RACE_ROUNDS = 20
"""Rounds of a lost race for a unique. Each further round needs another job of that unique to be stored and to end within a
statement."""


class New(NamedTuple):
    """A job to be stored."""

    job: Job
    rank: int
    """Its rank by age in the group."""
    function: int
    waiter: int
    """The term of the node whose client waits for it, or 0."""


Key = tuple[int, bytes]
"""A function and a unique."""


class _Race:
    """The new jobs of one unique."""

    __slots__ = ("candidate", "kept", "new_jobs")

    def __init__(self) -> None:
        self.new_jobs: list[New] = []
        self.kept: tuple[ops.Found, int] | None = None
        """The last success, and when it ended."""
        self.candidate: New | None = None
        """The first job that does not join the last success: the one to store if none is live."""

    def choose(self) -> None:
        """Choose the candidate."""
        self.candidate = next((new for new in self.new_jobs if not self.satisfied(new)), None)

    def satisfied(self, new: New) -> bool:
        """Return whether a job joins the last success if no other job is live."""
        keep = transaction.keeps(new.job)
        return keep is not None and self.kept is not None and self.kept[1] > rules.kept_since(new.job.created_us, keep)


async def submit(tx: Transaction, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found]]:
    """Store new jobs; see ``Submit``."""
    jobs = [job for operation in operations for job in operation.jobs]
    waiters = [operation.waiter for operation in operations for _ in operation.jobs]
    joined = await store(tx, jobs, waiters)
    await tx.tables(NewLeases).fill()
    if not joined:
        return [{} for _ in operations]
    return [{job.id: joined[job.id] for job in operation.jobs if job.id in joined} for operation in operations]


async def store(tx: Transaction, jobs: Sequence[Job], waiters: Sequence[int]) -> dict[int, ops.Found]:
    """Store new jobs, oldest first; ``waiters`` are the terms of the nodes whose clients wait for each job, or 0.

    Returns the jobs that were joined, by the ids of the jobs that were not stored.
    """
    await tx.functions.ensure({job.function for job in jobs})
    new_jobs = new_jobs_of(tx, jobs, waiters)
    plain = [new for new in new_jobs if not new.job.unique]
    if plain:
        fresh = True
        for portion in transaction.portions(plain, _size):
            await tx.connection.fetch(JOBS_SQL["submit"], *columns_of(tx, portion), fresh)
            fresh = False
        await note_stored(tx, plain)
    if len(plain) == len(new_jobs):
        return {}
    joined = await _store_uniques(tx, [new for new in new_jobs if new.job.unique], fresh=not plain)
    await tx.nodes.load(found.id for found in joined.values())
    return joined


def new_jobs_of(tx: Transaction, jobs: Sequence[Job], waiters: Sequence[int]) -> list[New]:
    """Return new jobs, oldest first; the numbers of their functions are loaded."""
    numbers = tx.functions.numbers
    functions = [numbers[job.function] for job in jobs]
    stored = tx.tables(NewLeases).lease(jobs, functions)
    order = sorted(range(len(jobs)), key=lambda at: jobs[at].id)
    return [New(stored[at], rank, functions[at], waiters[at]) for rank, at in enumerate(order)]


def _size(new: New) -> int:
    return len(new.job.payload)


def columns_of(tx: Transaction, new_jobs: Sequence[New]) -> transaction.Columns:
    """Return the columns of the statement ``submit``."""
    return transaction.submitted_columns(
        [new.job for new in new_jobs],
        [new.rank for new in new_jobs],
        [new.function for new in new_jobs],
        transaction.sparse([True if new.waiter else None for new in new_jobs]),
        tx.memory(transaction.Keyed),
    )


async def note_stored(tx: Transaction, new_jobs: Sequence[New]) -> None:
    """Count stored jobs, and record their waiters and tags."""
    numbers = Counter([(new.function, new.job.state, new.job.priority) for new in new_jobs])
    for (function, state, priority), number in numbers.items():
        tx.count(function, state, priority, number)
        if state == _PENDING:
            tx.pending(tx.functions.keys[function])
    leases = tx.tables(NewLeases)
    floors = tx.memory(Floors)
    if leases.open_requests:
        for new in new_jobs:
            leases.stored(new.job, new.function)
    for new in new_jobs:
        if new.job.state == _SCHEDULED:
            floors.due.lower(new.job.due_us)
        if new.job.expires_us:
            floors.expiring.lower(new.job.expires_us)
    await note_waiting(tx, [(new.job.id, new.waiter) for new in new_jobs if new.waiter])
    with_options = [new.job for new in new_jobs if new.job.options is not None]  # most jobs have none
    tagged = [job for job in with_options if job.options is not None and job.options.tags]
    if tagged:
        await _store_tags(tx, tagged)
    if rows := rows_of(with_options):
        await deadlines.put(tx, rows)


async def _store_tags(tx: Transaction, jobs: Sequence[Job]) -> None:
    found = [(namespace_of(job.function), tag, job.id, job.created_us) for job in jobs for tag in indexed_tags(job)]
    await tx.connection.fetch(JOBS_SQL["tag"], *([row[at] for row in found] for at in range(4)))


async def note_waiting(tx: Transaction, pairs: Iterable[tuple[int, int]]) -> None:
    """Record jobs and the terms of the nodes whose clients wait for them; the jobs' rows are locked."""
    pairs = sorted(set(pairs))
    if pairs:
        await tx.connection.fetch(JOBS_SQL["note_waiting"], [pair[0] for pair in pairs], [pair[1] for pair in pairs])


# ---- uniques ----


async def _store_uniques(tx: Transaction, new_jobs: list[New], *, fresh: bool) -> dict[int, ops.Found]:
    separate = independent(new_jobs)
    if separate is not None:
        ids = await _store_free(tx, separate, None, fresh=fresh)
        if len(ids) == len(separate):
            await note_stored(tx, separate)
            return {}
        await note_stored(tx, [new for new in separate if new.job.id in ids])
        new_jobs = [new for new in new_jobs if new.job.id not in ids]
    races: dict[Key, _Race] = {}
    for new in new_jobs:
        races.setdefault((new.function, new.job.unique), _Race()).new_jobs.append(new)
    await _look_up_kept(tx, races)
    joined: dict[int, ops.Found] = {}
    for tries in range(RACE_ROUNDS):
        if tries or separate is None:
            await _store_candidates(tx, races, joined, fresh=fresh)
            fresh = False
        if races:
            await _join_live(tx, races, joined)
        if not races:
            return joined
    raise StoreError(f"jobs of {len(races)} uniques came and went too fast to be joined")


def independent(new_jobs: list[New]) -> list[New] | None:
    """Return new jobs sorted by their uniques, if none can join another one or a kept success; None otherwise.

    Nearly every group qualifies, and saves a third of the time that a unique costs this process.
    """
    found = {(new.function, new.job.unique): new for new in new_jobs}
    if len(found) < len(new_jobs) or any(
        new.job.options is not None and transaction.keeps(new.job) is not None for new in new_jobs
    ):
        return None
    return [found[key] for key in sorted(found)]


async def _look_up_kept(tx: Transaction, races: dict[Key, _Race]) -> None:
    """Find the last success of each unique that a new job would join."""
    since: dict[Key, int] = {}
    for key, race in races.items():
        times = [
            rules.kept_since(new.job.created_us, keep)
            for new in race.new_jobs
            if (keep := transaction.keeps(new.job)) is not None
        ]
        if times:
            since[key] = min(times)
    if since:
        columns = [key[0] for key in since], [key[1] for key in since], list(since.values())
        for function, unique, job_id, attempt, ended_us in await tx.connection.fetch(JOBS_SQL["kept"], *columns):
            races[function, unique].kept = ops.Found(job_id, _SUCCEEDED, attempt), ended_us
    for race in races.values():
        race.choose()


async def _store_candidates(
    tx: Transaction, races: dict[Key, _Race], joined: dict[int, ops.Found], *, fresh: bool
) -> None:
    """Store the candidates whose unique is free, and let the other jobs of that unique join them; those races are over."""
    candidates = [race.candidate for _, race in sorted(races.items()) if race.candidate is not None]
    if not candidates:
        return
    stored = await _store_free(tx, candidates, races, fresh=fresh)
    won = [new for new in candidates if new.job.id in stored]
    waiting = []
    for new in won:
        race = races.pop((new.function, new.job.unique))
        found = ops.Found.of(new.job)
        for other in race.new_jobs:
            if other is new:
                continue
            if race.satisfied(other) and other.rank < new.rank:
                assert race.kept is not None
                joined[other.job.id] = race.kept[0]
            else:
                joined[other.job.id] = found
                if other.waiter:
                    waiting.append((new.job.id, other.waiter))
    await note_stored(tx, won)
    await note_waiting(tx, waiting)


async def _store_free(
    tx: Transaction, candidates: list[New], races: dict[Key, _Race] | None, *, fresh: bool
) -> set[int]:
    """Store the candidates whose unique is free, and return their ids; ``races`` has the jobs that will join them, if any."""
    stored: set[int] = set()
    for portion in transaction.portions(candidates, _size):
        columns = columns_of(tx, portion)
        if races is not None:
            for at, new in enumerate(portion):
                _apply_joins(races[new.function, new.job.unique], new, at, columns)
        extra = transaction.uniques([new.job for new in portion])
        records = await tx.connection.fetch(JOBS_SQL["submit_unique"], *columns, *extra, fresh)
        stored.update(record[0] for record in records)
        fresh = False
    return stored


_FOREGROUND, _WAITED = 11, 12
"""The indexes of these columns among those of ``submit``."""


def _apply_joins(race: _Race, new: New, at: int, columns: transaction.Columns) -> None:
    """Adjust a candidate's columns for the jobs of its group that will join it."""
    later = [other for other in race.new_jobs if other.rank > new.rank]
    if new.job.foreground and not all(other.job.foreground for other in later):
        columns[_FOREGROUND][at] = None
    if not new.waiter and any(other.waiter for other in later):
        if not columns[_WAITED]:
            columns[_WAITED] = [None] * len(columns[0])
        columns[_WAITED][at] = True


async def _join_live(tx: Transaction, races: dict[Key, _Race], joined: dict[int, ops.Found]) -> None:
    """Join the live jobs that have the uniques; if such a job has ended in between, its race continues."""
    keys = sorted(races)
    live = {
        (function, unique): (ops.Found(job_id, state, attempt), foreground)
        for function, unique, job_id, state, attempt, foreground in await tx.connection.fetch(
            JOBS_SQL["live"], [key[0] for key in keys], [key[1] for key in keys]
        )
    }
    changes: list[tuple[int, bool, bool, Key]] = []
    for key, (found, foreground) in live.items():
        new_jobs = races[key].new_jobs
        background = bool(foreground) and not all(new.job.foreground for new in new_jobs)
        waited = any(new.waiter for new in new_jobs)
        if background or waited:
            changes.append((found.id, background, waited, key))
    if changes:
        changes.sort()
        columns = [[change[at] for change in changes] for at in range(3)]
        locked = {row[0] for row in await tx.connection.fetch(JOBS_SQL["join"], *columns)}
        for job_id, _, _, key in changes:
            if job_id not in locked:
                del live[key]
    waiting = []
    for key in keys:
        race = races[key]
        if key in live:
            found = live[key][0]
            waiting += [(found.id, new.waiter) for new in race.new_jobs if new.waiter]
        elif race.candidate is None:
            assert race.kept is not None
            found = race.kept[0]
        else:
            continue
        joined.update((new.job.id, found) for new in race.new_jobs)
        del races[key]
    await note_waiting(tx, waiting)


log = structlog.get_logger("mainspring.postgres")
_DAY_US: Final = 86_400_000_000
LATEST_US: Final = int(MAX_WAIT * 1_000_000) + _DAY_US
"""Microseconds from now within which a job may become due or expire. The inbox refuses later times, by the server's clock."""
REFUSED_INTERVAL: Final = 10.0
"""Seconds between two counts of the refused rows."""
REFUSED_US: Final = 30 * _DAY_US
"""Microseconds for which refused rows are kept."""
FORGED: Final = "they have fields that only nodes set, such as the run or the schedule of a job"
_FAULTS: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.InterfaceError,
    ValueError,
    OverflowError,
)
"""Errors of a value. Others, such as a lost connection or a lock, have nothing to do with the row."""


async def drain_inbox(tx: Transaction, operations: Sequence[ops.DrainInbox]) -> list[ops.DrainedInbox]:
    """Move committed submissions into the queue; see ``DrainInbox``."""
    return [await _drain(tx, operation.rows) for operation in operations]


async def _drain(tx: Transaction, limit: int) -> ops.DrainedInbox:
    floors = tx.memory(Floors)
    floor = floors.inbox
    now = floors.clock()
    whole, (place,) = floor.begin(now)
    records = await tx.connection.fetch(JOBS_SQL["take_inbox"], limit, place, PORTION_BYTES)
    if whole:
        floor.scans.note_cost(now, floors.clock() - now)
    if floor.scans.slow and records:
        # Ids are allocated before their transactions commit; a full scan finds late ones.
        floor.rise(max(record[0] for record in records) + 1 - limit)
        tx.after_rollback(floor.forget)
    stored = await _move(tx, records)
    pending = Counter((job.function, job.priority) for job in stored if job.state == _PENDING)
    next_us = min((job.due_us for job in stored if job.state == _SCHEDULED), default=0)
    # The first row of those that follow may be too large for this portion.
    more = len(records) == limit or sum(len(record[9]) for record in records) > PORTION_BYTES // 2
    return ops.DrainedInbox(dict(pending), next_us, more)


async def admit(tx: Transaction, ids: Iterable[int]) -> None:
    """Move those of these submissions that are in the inbox into the queue now."""
    wanted = _submitted(ids)
    if wanted:
        await _move(tx, await tx.connection.fetch(JOBS_SQL["take_from_inbox"], wanted))


async def _move(tx: Transaction, records: Sequence[Record]) -> list[Job]:
    """Store rows of the inbox as jobs; return the stored jobs, without those that joined others.

    A row that cannot be stored is refused alone: the savepoint is one of all rows, and only if one fails, of each.
    """
    if not records:
        return []
    jobs, refused = await _inbox_jobs(tx, records)
    await tx.functions.ensure({job.function for job in jobs})  # numbers from before the savepoint stay
    try:
        stored = await _store_or_undo(tx, jobs)
    except _FAULTS:
        stored = []
        for job in jobs:
            try:
                stored += await _store_or_undo(tx, [job])
            except _FAULTS as error:
                refused[job.id] = str(error) or type(error).__name__
    if refused:
        await _refuse(tx, [record for record in records if record[0] in refused], refused)
    return stored


async def _store_or_undo(tx: Transaction, jobs: Sequence[Job]) -> list[Job]:
    """Store jobs, or nothing of them. Raises what the store raises."""
    if not jobs:
        return []
    deltas, pendings = tx.deltas.copy(), tx.pendings.copy()
    await tx.connection.execute("SAVEPOINT inbox")
    try:
        joined = await store(tx, jobs, [0] * len(jobs))
        if joined:
            aliases = [(job.id, joined[job.id].id, job.created_us) for job in jobs if job.id in joined]
            await tx.connection.fetch(JOBS_SQL["alias"], *(list(column) for column in zip(*aliases, strict=True)))
    except _FAULTS:
        await tx.connection.execute("ROLLBACK TO SAVEPOINT inbox; RELEASE SAVEPOINT inbox")
        tx.deltas, tx.pendings = deltas, pendings
        raise
    await tx.connection.execute("RELEASE SAVEPOINT inbox")
    return [job for job in jobs if job.id not in joined]


async def _refuse(tx: Transaction, records: Sequence[Record], reasons: dict[int, str]) -> None:
    """Put rows aside, with the reasons: they are out of the inbox, and their jobs are lost."""
    floors = tx.memory(Floors)
    ids = [record[0] for record in records]
    values = [[record[at] for record in records] for at in range(10)]
    await tx.connection.fetch(JOBS_SQL["refuse_submissions"], *values, [reasons[job_id][:1000] for job_id in ids])

    def warn() -> None:
        floors.look_for_refused_at = 0.0
        log.error(
            "submissions of the inbox cannot become jobs and are set aside, the others go on",
            ids=ids[:10],
            number=len(ids),
            reason=reasons[ids[0]],
            remedy=REFUSED_REMEDY,
        )

    tx.after_commit(warn)


async def refused(tx: Transaction, floors: Floors) -> ops.RefusedSubmissions | None:
    """Count the rows that were put aside, from time to time, and delete those of `REFUSED_US` ago; None: not this time."""
    now = floors.clock()
    if now < floors.look_for_refused_at:
        return None
    ((number, since_us, reason),) = await tx.connection.fetch(JOBS_SQL["read_refused"], REFUSED_US)
    floors.look_for_refused_at = now + REFUSED_INTERVAL
    return ops.RefusedSubmissions(number, since_us or 0, reason or "")


async def _inbox_jobs(tx: Transaction, records: Sequence[Record]) -> tuple[list[Job], dict[int, str]]:
    """Return the jobs of rows, oldest first, and the reasons why others have none, by their ids."""
    now_us = await tx.connection.fetchval(JOBS_SQL["now"])
    jobs, refused = [], {}
    names: dict[tuple[str, bytes], bytes] = {}
    options_faults: list[tuple[int, str]] = []
    for record in sorted(records, key=itemgetter(0)):
        job_id, namespace, function, unique, priority, created, due, expires, options, payload, *size = record
        if not 0 < job_id < TERM_SPAN:
            refused[job_id] = f"{job_id} is no id of a submission"
            continue
        if (
            not 0 <= created <= now_us + _DAY_US
            or not 0 <= max(due, expires) <= now_us + LATEST_US
            or min(due, expires) < 0
        ):
            refused[job_id] = "a time lies before 1970 or more than a century from now"
            continue
        name = names.get((namespace, function), b"")
        if not name:
            name = names[namespace, function] = _inbox_key(namespace, function)
        if (SEPARATOR in name and key_of(*columns(name)) != name) or namespaces.name_of(name).startswith(WEBHOOK):
            refused[job_id] = "its function is one of a node's own"
            continue
        job_options, key, fault = _inbox_options(options, name)
        if fault:
            options_faults.append((job_id, fault))
        jobs.append(
            Job(
                job_id,
                name,
                payload,
                unique or NO_UNIQUE,
                priority,
                _SCHEDULED if due > now_us else _PENDING,
                created,
                due,
                expires,
                None if job_options is None else timed(job_options, due or created),
                input_size=size[0] if size else len(payload),
                key=key,
            )
        )
    if options_faults:
        job_id, fault = options_faults[0]
        log.warning(
            "the options of submissions cannot be used: their jobs run without them",
            id=job_id,
            number=len(options_faults),
            error=fault,
        )
    return jobs, refused


def _inbox_key(namespace: str, function: bytes) -> bytes:
    """Return the key of a row's function, which is always one of the row's namespace.

    The inbox has checked both. Rows of before, and those of a store whose check was removed, may have anything.
    """
    try:
        name = function.removeprefix(namespaces.prefix(namespaces.check(namespace)))
    except UsageError:  # in the default namespace, then, under a name that no worker can have
        return _outside(namespace.encode() + SEPARATOR + function)
    return namespace.encode() + SEPARATOR + name if SEPARATOR in name else namespaces.key(namespace, name)


def _outside(name: bytes) -> bytes:
    return namespaces.DEFAULT.encode() + SEPARATOR + name


def _inbox_options(data: bytes | None, function: bytes) -> tuple[Options | None, bytes, str]:
    """Decode a submission's options, and its key; the last part is the fault of invalid ones, which are left out.

    A user sets options and nothing else: only nodes record that a job is part of a schedule, of a run or of an operation.
    """
    if data is None:
        return None, b"", ""
    try:
        given, key = decode_stored_options(data)
        if given is None:
            return None, _checked_key(key), ""
        if given.retry is not None:
            check_retry(given.retry)
        for name in ("timeout", "heartbeat", "keep_unique", "start_within", "deadline"):
            seconds = getattr(given, name)
            if seconds is not None and (not 0 <= seconds < MAX_WAIT or (not seconds and name != "keep_unique")):
                raise UsageError(f"{name} is {seconds}, and takes a number of seconds up to a century")  # noqa: TRY301
        if given.version:
            check_stated_version(function, given.version)
        options = Options(
            given.retry,
            given.timeout,
            given.heartbeat,
            given.keep_unique,
            version=given.version,
            tags=check_tags(given.tags),
            depth=min(max(given.depth, 0), MOST_DEPTH),
            start_within=given.start_within,
            deadline=given.deadline,
        )
        return options, _checked_key(key), "" if options == replace(given, tags=options.tags) else FORGED
    except (*CANNOT_READ, UsageError) as error:
        return None, b"", str(error)


def _checked_key(key: bytes) -> bytes:
    if len(key) > MAX_CONCURRENCY_KEY_BYTES:
        raise UsageError(f"a concurrency_key has at most {MAX_CONCURRENCY_KEY_BYTES} bytes, not {len(key)}")
    key.decode()
    return key


async def peek(tx: Transaction, ids: Iterable[int], namespace: str) -> list[Job]:
    """Return submissions of a namespace that are still in the inbox as the jobs that they become, without payloads."""
    wanted = _submitted(ids)
    records = await tx.connection.fetch(JOBS_SQL["peek_inbox"], wanted, namespace) if wanted else ()
    if not records:
        return []
    jobs, _ = await _inbox_jobs(tx, records)
    await tx.nodes.load(wanted)
    return jobs


async def aliases(tx: Transaction, ids: Iterable[int]) -> dict[int, int]:
    """Return the jobs that submissions of the inbox have joined, by the submissions' ids."""
    wanted = _submitted(ids)
    found = await tx.connection.fetch(JOBS_SQL["aliases"], wanted) if wanted else ()
    return {row[0]: row[1] for row in found}


def _submitted(ids: Iterable[int]) -> list[int]:
    """Return those of some ids that the inbox has allocated."""
    return sorted({job_id for job_id in ids if 0 < job_id < TERM_SPAN})
