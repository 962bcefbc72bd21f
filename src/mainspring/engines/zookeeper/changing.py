"""Changes of jobs that no node holds: requests of clients, due times and expiry, and the deletion of old jobs.

Any node may make timed changes, and several at once do no harm: a node that has a conflict stops and reads again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper import paths, queries, records, submitting, transaction
from mainspring.engines.zookeeper.committer import Entry, Fenced, moved
from mainspring.engines.zookeeper.sessions import Completion, Handlers, Session, Waiting, one_by_one
from mainspring.engines.zookeeper.submitting import live_result
from mainspring.engines.zookeeper.transaction import Happening, end
from mainspring.engines.zookeeper.tree import Change, Check, Create, Delete, Node, Refusal, Write
from mainspring.errors import StoreError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Job, State
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.paths import Timed
    from mainspring.engines.zookeeper.queries import LocatedJob, TaskLocation


RECORDS_AT_ONCE: Final = 100
"""Records read and written at once: they may be large."""
LATE_US: Final = 30_000_000
"""Microseconds after which a late task that was held or had been tried is read again: it may be pending again."""
MAX_READ: Final = 5000
"""The most results that one sweep reads."""
SWEEPS_REMEMBERED: Final = 50
"""Sweeps of the whole tree after which the cache of blocks is cleared: other nodes redrive jobs, too."""
_SCHEDULED, _PENDING, _EXPIRED = map(int, (State.SCHEDULED, State.PENDING, State.EXPIRED))


T = TypeVar("T")

Plan = tuple[Entry | None, T]
"""The entry to write, if any, and the outcome once it is written."""


# ---- optimistic transactions on single jobs ----


async def decide(
    session: Session,
    ids: Iterable[int],
    plan: Callable[[int, LocatedJob | None, TaskLocation | None], Plan[T]],
    *,
    named: bool = False,
    ended: Callable[[T], Job | None] = lambda _: None,
    failed: dict[int, StoreError] | None = None,
) -> dict[int, T]:
    """Read jobs, call their plans and write the entries, until none has a conflict; return the outcomes of all.

    A plan is pure: it gets an id and the located job; with ``named``, for a published job also the location of the task that has
    its name. It returns the entry to write, with the versions that were read. After a conflict it is called again.

    ``ended`` returns the job that ends with an outcome, if one does: the consequences of its end are written with it, or their
    error goes into ``failed``. Raises StoreFencedError if this node may no longer write.
    """
    outcomes: dict[int, T] = {}
    left = list(dict.fromkeys(ids))
    unmarked: set[str] = set()
    """Missing index nodes of expiries: their deletion is left out, since the job's end does not need it."""
    while left:
        seen = await queries.read_jobs(session, left)
        locations = await _namesakes(session, seen) if named else {}
        planned: list[tuple[int, T]] = []
        happenings: list[Happening] = []
        for job_id in left:
            entry, outcome = plan(job_id, seen.get(job_id), locations.get(job_id))
            if entry is None:
                outcomes[job_id] = outcome
                continue
            if unmarked:
                entry = Entry([change for change in entry.changes if change.path not in unmarked], entry.counts)
            planned.append((job_id, outcome))
            happenings.append(end(entry, job) if (job := ended(outcome)) is not None else Happening(entry))
        left = []
        verdicts = await transaction.commit(session, happenings)
        for (job_id, outcome), verdict in zip(planned, verdicts, strict=True):
            if verdict is None:
                outcomes[job_id] = outcome
            elif isinstance(verdict, Fenced):
                raise session.over()
            elif isinstance(verdict, StoreError):
                assert failed is not None, "only the consequences of an end have errors"
                failed[job_id] = verdict
            else:
                left.append(job_id)
                if verdict.why is Refusal.NO_NODE and verdict.path.startswith(f"{paths.EXPIRING}/"):
                    unmarked.add(verdict.path)
    return outcomes


async def _namesakes(session: Session, seen: dict[int, LocatedJob]) -> dict[int, TaskLocation]:
    """Return the locations of the tasks that have the names of published jobs now."""
    tasks = {}
    for one in seen.values():
        if one.location is None:
            job = one.job()
            tasks[job.id] = paths.task_name(job.function, job.unique, job.id)
    locations = await queries.locate(session, tasks.values())
    return {job_id: locations[task] for job_id, task in tasks.items() if task in locations}


def note(seen: LocatedJob, waiters: Iterable[int]) -> Entry:
    """Return the entry that stores the waiters of a job that has not ended."""
    foreground = seen.data.get("foreground", False)
    return Entry(
        [Write(seen.path, live_result(seen.id, seen.data["task"], list(waiters), foreground=foreground), seen.version)]
    )


def unmark(job: Job, task: str) -> list[Change]:
    """Return the deletion of the index node of a job's expiry, if there is one."""
    return [Delete(paths.expiring(task, job.expires_us, job.id))] if job.expires_us else []


def end_of_waiting(seen: LocatedJob, job: Job, who: str) -> tuple[Entry, Completion]:
    """Return the entry that ends a job without a holder, and its completion; ``job`` has its final state."""
    location = seen.location
    assert location is not None
    record = records.encode_job(job, seen.handle, worker=who)
    changes: list[Change] = [
        # Another job of the same name may replace it with the same version; the check of its result shows that.
        Check(seen.path, seen.version),
        Delete(location.path, location.version),
        *unmark(job, location.task),
        Create(paths.completed(location.task), record),
    ]
    return Entry(changes, moved(job, location.state)), Completion(location.task, job, seen.handle, record)


# ---- Wake ----


async def wake(session: Session, operation: ops.Wake) -> ops.Woken:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    now_us = operation.now_us
    for path, seen_us in list(session.late.items()):
        if not 0 <= now_us - seen_us < LATE_US:
            del session.late[path]
    expired = await _expire(session, now_us, operation.rows)
    due = await _due(session, now_us, operation.rows)
    await _tidy(session, now_us)
    return ops.Woken(due, expired, await queries.next_us(session))


async def due_entries(session: Session, root: str, now_us: int, limit: int) -> list[Timed]:
    """Return the first timed entries whose time is over, in order, up to ``limit``."""
    last = f"{now_us // paths.MINUTE_US:012d}"
    found: list[Timed] = []
    for minute in paths.minutes_of(await session.tree.children(root)):
        if minute > last or len(found) >= limit:
            break
        parent = f"{root}/{minute}"
        timed = paths.timed_of(parent, await session.tree.children(parent))
        found += sorted(one for one in timed if one.time_us <= now_us and one.path not in session.late)
    return found[:limit]


class Expiring(NamedTuple):
    """The outcome of a job that is past its expiry."""

    late: bool = False
    """It is held, or was tried, and so does not expire."""
    before: int = 0
    completion: Completion | None = None


def expired(seen: LocatedJob | None, timed: Timed, now_us: int, who: str) -> Plan[Expiring]:
    """Plan to expire a job; guard: SCHEDULED or PENDING, and no attempt was counted."""
    if seen is None or seen.location is None or seen.state.ended:
        return None, Expiring()
    job = seen.job(whole=True)
    if job.expires_us != timed.time_us:
        return None, Expiring()
    before = job.state
    if before > _PENDING or rules.was_tried(job):
        return None, Expiring(late=True)
    job.state, job.ended_us = _EXPIRED, now_us
    entry, completion = end_of_waiting(seen, job, who)
    return entry, Expiring(before=before, completion=completion)


async def _expire(session: Session, now_us: int, limit: int) -> list[tuple[Job, int]]:
    found: list[tuple[Job, int]] = []
    while len(found) < limit:
        late = {
            one.id: one
            for one in await due_entries(session, paths.EXPIRING, now_us, min(limit - len(found), RECORDS_AT_ONCE))
        }
        if not late:
            break

        def plan(job_id: int, seen: LocatedJob | None, _: object, late: dict[int, Timed] = late) -> Plan[Expiring]:
            return expired(seen, late[job_id], now_us, session.who)

        failed: dict[int, StoreError] = {}
        decided = await decide(session, late, plan, ended=_ended, failed=failed)
        completions = []
        over_anyway = []
        for job_id, timed in late.items():
            one = decided.get(job_id)
            if one is None or one.late:
                session.late[timed.path] = now_us
            elif one.completion is not None:
                completions.append(one.completion)
                found.append((one.completion.job, one.before))
            else:
                over_anyway.append(Entry([Delete(timed.path)]))
        session.completions(completions)
        _hold(session, await session.committer.commit(over_anyway))  # or another node was faster
    return found


def woken(timed: Timed, node: Node) -> tuple[Entry, Waiting]:
    """Return the entry that makes a delayed task pending, and the task."""
    record = records.decode(node.data)
    record["state"] = "pending"
    data = records.encode(record)
    job = records.decode_job(record)
    changes: list[Change] = [Delete(timed.path, node.version), Create(paths.pending(timed.task), data)]
    return Entry(changes, moved(job, _SCHEDULED)), Waiting(timed.task, job, data)


async def _due(session: Session, now_us: int, limit: int) -> dict[tuple[bytes, int], int]:
    due: dict[tuple[bytes, int], int] = {}
    left = limit
    while left:
        timed = await due_entries(session, paths.DELAYED, now_us, min(left, RECORDS_AT_ONCE))
        if not timed:
            break
        nodes = await session.get_many([one.path for one in timed])
        planned = [woken(one, node) for one, node in zip(timed, nodes, strict=True) if node is not None]
        verdicts = await session.committer.commit_until_conflict([entry for entry, _ in planned])
        awake = [waiting for (_, waiting), verdict in zip(planned, verdicts, strict=True) if verdict is None]
        for one in awake:
            key = (one.job.function, one.job.priority)
            due[key] = due.get(key, 0) + 1
        session.waiting(awake)
        left -= len(awake)
        _hold(session, verdicts)
    return due


async def _tidy(session: Session, now_us: int) -> None:
    """Delete empty past minutes."""
    last = f"{now_us // paths.MINUTE_US - 1:012d}"
    for root in (paths.DELAYED, paths.EXPIRING):
        past = [f"{root}/{minute}" for minute in paths.minutes_of(await session.tree.children(root)) if minute < last]
        for path, node in zip(past, await session.tree.get_many(past), strict=True):
            if node is not None and not node.children:
                session.forget(path)
                await session.committer.commit([Entry([Delete(path)])])  # refused if it has got a child


def _hold(session: Session, verdicts: Iterable[object]) -> None:
    if any(isinstance(verdict, Fenced) for verdict in verdicts):
        raise session.over()


# ---- Sweep ----


class Swept:
    """A cache of blocks of results whose jobs have all ended, so that sweeps need not read them each time."""

    def __init__(self, session: Session) -> None:
        del session
        self.blocks: dict[str, tuple[int, int]] = {}
        """The times of the first end and of the first failure in each such block."""
        self.sweeps = 0
        self.at = ""
        """The block at which the next sweep starts: the last one stopped at its limit."""

    def forget(self, job_id: int) -> None:
        """Remove the block of a job that is live again."""
        self.blocks.pop(paths.block(job_id).rpartition("/")[2], None)


def is_over(record: dict[str, Any], operation: ops.Sweep) -> bool:
    """Return whether an outcome is past its retention."""
    before_us = operation.dead_before_us if record["state"] == "failed" else operation.ended_before_us
    ended_us: int = record.get("ended_us", 0)
    return ended_us < before_us


def forgetting(path: str, version: int, job: Job, name: tuple[str, queries.Name] | None) -> Entry:
    """Return the entry that deletes an ended job; ``name`` is the name of its task, if others may join it."""
    changes: list[Change] = [Delete(path, version)]
    if name is not None and name[1].kept is not None and name[1].kept["id"] == job.id:
        place, found = name
        if found.id:
            changes.append(Write(place, queries.name_data(found.id, found.handle, None, found.due_us), found.version))
        else:
            changes.append(Delete(place, found.version))
    return Entry(changes, ((job.function, job.state, job.priority, -1),))


async def sweep(session: Session, operation: ops.Sweep) -> int:
    """Delete ended jobs; see ``Sweep``."""
    memory = session.memory(Swept)
    blocks = sorted(paths.blocks_of(await session.tree.children(paths.RESULTS)), key=paths.first_of_block)
    newest = {paths.first_of_block(block) // TERM_SPAN: block for block in blocks}
    living = {paths.term_of(who) for who in paths.workers_of(await session.tree.children(paths.WORKERS))}
    growing = {block for term, block in newest.items() if term in living}
    if memory.at in blocks:
        blocks = blocks[blocks.index(memory.at) :]
    forgotten = read = 0
    for block in blocks:
        memory.at = block
        ended_us, dead_us = memory.blocks.get(block, (-1, -1))
        if ended_us >= operation.ended_before_us and dead_us >= operation.dead_before_us:
            continue
        if read >= MAX_READ or forgotten >= operation.rows:
            return forgotten
        number, gone, times = await _sweep_block(session, operation, block, operation.rows - forgotten)
        read += number
        forgotten += gone
        if block in growing:
            continue
        if number == gone:
            path = f"{paths.RESULTS}/{block}"
            session.forget(path)
            await session.committer.commit([Entry([Delete(path)])])  # refused if it has got a child
        elif times is not None:
            memory.blocks[block] = times
    memory.at = ""
    memory.sweeps += 1
    if memory.sweeps % SWEEPS_REMEMBERED == 0:
        memory.blocks.clear()
    return forgotten


async def _sweep_block(
    session: Session, operation: ops.Sweep, block: str, limit: int
) -> tuple[int, int, tuple[int, int] | None]:
    """Delete jobs of a block that are past their retention, up to ``limit``.

    Return the number of jobs, the number of deleted ones, and the first ends of the others, as in `Swept`; None if some have
    not ended, or are past their retention and were left.
    """
    parent = f"{paths.RESULTS}/{block}"
    handles = paths.handles_of(await session.tree.children(parent))
    first = {True: 2**63, False: 2**63}
    settled, gone = True, 0
    for start in range(0, len(handles), RECORDS_AT_ONCE):
        at = [f"{parent}/{handle}" for handle in handles[start : start + RECORDS_AT_ONCE]]
        leaving: list[tuple[str, int, Job]] = []
        for path, node in zip(at, await session.get_many(at), strict=True):
            record = {} if node is None else records.decode(node.data)
            if node is None or not records.is_published(record):
                settled = settled and node is None
            elif not is_over(record, operation):
                dead = record["state"] == "failed"
                first[dead] = min(first[dead], record.get("ended_us", 0))
            elif gone + len(leaving) < limit:
                leaving.append((path, node.version, records.decode_job(record)))
            else:
                settled = False
        done = await _forget(session, leaving)
        settled = settled and done == len(leaving)
        gone += done
    return len(handles), gone, (first[False], first[True]) if settled else None


async def _forget(session: Session, leaving: list[tuple[str, int, Job]]) -> int:
    names: dict[int, str] = {}
    for _, _, job in leaving:
        if job.state == State.SUCCEEDED and job.unique != NO_UNIQUE and job.options is not None:
            names[job.id] = paths.name(paths.task_name(job.function, job.unique, job.id))
    nodes = dict(zip(names, await session.get_many(list(names.values())), strict=True)) if names else {}
    entries = []
    for path, version, job in leaving:
        node = nodes.get(job.id)
        name = None if node is None else (names[job.id], queries.name_of(node))
        entries.append(forgetting(path, version, job, name))
    verdicts = await session.committer.commit_until_conflict(entries)
    _hold(session, verdicts)
    return sum(verdict is None for verdict in verdicts)


# ---- requests of clients ----


def rounds(ids: Sequence[int]) -> list[dict[int, int]]:
    """Split operations into rounds in which each job occurs once: its id and the place of its operation."""
    parted: list[dict[int, int]] = []
    for place, job_id in enumerate(ids):
        for one in parted:
            if job_id not in one:
                one[job_id] = place
                break
        else:
            parted.append({job_id: place})
    return parted


async def _each_job(
    operations: Sequence[Any],
    change: Callable[[dict[int, Any]], Awaitable[Mapping[int, tuple[Any, TaskLocation | None]]]],
    session: Session,
) -> list[Any]:
    """Change the jobs of operations, and return the outcomes.

    ``change`` gets operations by their jobs. It returns their outcomes, each with the ended task, if any, after whose publication
    the job is changed again.
    """
    outcomes: dict[int, Any] = {}
    now = asyncio.get_running_loop().time
    until = now() + submitting.PUBLICATION_TIMEOUT
    for places in rounds([operation.id for operation in operations]):
        left = list(places)
        while left:
            changed = await change({job_id: operations[places[job_id]] for job_id in left})
            left = []
            for job_id, (outcome, unpublished) in changed.items():
                outcomes[places[job_id]] = outcome
                if unpublished is not None and await submitting.published(session, unpublished, until - now()):
                    left.append(job_id)
    return [outcomes[place] for place in range(len(operations))]


class Cancelling(NamedTuple):
    """The outcome of a cancellation, and the completion of the job."""

    outcome: ops.Cancelled
    completion: Completion | None = None


def cancelled(seen: LocatedJob | None, operation: ops.Cancel, who: str) -> Plan[Cancelling]:
    """Plan to cancel a job; guard: SCHEDULED or PENDING."""
    if seen is None:
        return None, Cancelling(ops.Cancelled(None, 0))
    before = seen.state
    if before >= State.LEASED:
        return None, Cancelling(ops.Cancelled(seen.job(), int(before)))
    job = seen.job(whole=True)
    job.state = int(rules.step(before, Event.CANCEL))
    job.ended_us, job.error = operation.now_us, operation.error
    entry, completion = end_of_waiting(seen, job, who)
    return entry, Cancelling(ops.Cancelled(job, int(before)), completion)


def _ended(one: Cancelling | Expiring) -> Job | None:
    return None if one.completion is None else one.completion.job


async def _cancel(session: Session, operations: Sequence[ops.Cancel]) -> list[ops.Cancelled | StoreError]:
    async def change(asked: dict[int, ops.Cancel]) -> dict[int, tuple[ops.Cancelled | StoreError, None]]:
        failed: dict[int, StoreError] = {}
        decided = await decide(
            session,
            asked,
            lambda job_id, seen, _: cancelled(seen, asked[job_id], session.who),
            ended=_ended,
            failed=failed,
        )
        session.completions([one.completion for one in decided.values() if one.completion])
        outcomes = {job_id: one.outcome for job_id, one in decided.items()} | failed
        return {job_id: (outcome, None) for job_id, outcome in outcomes.items()}

    return await _each_job(operations, change, session)


class Redriving(NamedTuple):
    """The outcome of a redrive, and the task that is pending."""

    outcome: ops.Redriven
    waiting: Waiting | None = None
    rival: TaskLocation | None = None
    """An ended task that is not published yet: of a rival, or of the job itself."""


def redriven(seen: LocatedJob | None, location: TaskLocation | None) -> Plan[Redriving]:
    """Plan the redrive of an ended job; ``location`` is the location of the task that has its name, if any."""
    if seen is None or seen.state not in rules.sources(Event.REDRIVE):
        return None, Redriving(ops.Redriven(None if seen is None else seen.job(), redriven=False))
    if seen.location is not None and seen.location.name.id != seen.id:
        # Another job got its name before its own publication.
        return None, Redriving(
            ops.Redriven(seen.job(), redriven=False, rival=seen.location.name.id or None), rival=seen.location
        )
    if location is not None and location.path:
        refused = ops.Redriven(seen.job(), redriven=False, rival=location.name.id)
        return None, Redriving(refused, rival=location if location.state.ended else None)
    job = seen.job(whole=True)
    before = job.state
    job.attempt = job.suspects = job.started_us = job.ended_us = job.expires_us = job.term = 0
    job.state = int(State.PENDING)
    job.foreground = False
    task = paths.task_name(job.function, job.unique, job.id)
    record = records.encode_job(job, seen.handle)
    changes: list[Change]
    if seen.location is not None:
        # It is not published yet, so it still has its name. Its result is written even if that changes nothing: the job may
        # end again before a master publishes this end from memory, and the version then refuses that.
        live = live_result(job.id, task, seen.waiters, foreground=False)
        changes = [Write(seen.path, live, seen.version), Delete(seen.location.path, seen.location.version)]
    else:
        result = live_result(job.id, task, (), foreground=False)
        name_record = queries.name_data(job.id, seen.handle, None if location is None else location.name.kept)
        path = paths.name(task)
        name = Create(path, name_record) if location is None else Write(path, name_record, location.name.version)
        changes = [name, Write(seen.path, result, seen.version)]
    changes.append(Create(paths.pending(task), record))
    return Entry(changes, moved(job, before)), Redriving(ops.Redriven(job, redriven=True), Waiting(task, job, record))


async def _redrive(session: Session, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    async def change(asked: dict[int, ops.Redrive]) -> dict[int, tuple[ops.Redriven, TaskLocation | None]]:
        decided = await decide(session, asked, lambda _, seen, location: redriven(seen, location), named=True)
        session.waiting([one.waiting for one in decided.values() if one.waiting is not None])
        for job_id in decided:
            session.memory(Swept).forget(job_id)
        return {job_id: (one.outcome, one.rival) for job_id, one in decided.items()}

    return await _each_job(operations, change, session)


class Deleting(NamedTuple):
    """The outcome of a deletion."""

    outcome: ops.Deleted
    unpublished: TaskLocation | None = None
    """The ended task, if it is not published yet."""


def deleted(seen: LocatedJob | None, location: TaskLocation | None) -> Plan[Deleting]:
    """Plan the deletion of an ended job; ``location`` is the location of the task that has its name, if any."""
    if seen is None:
        return None, Deleting(ops.Deleted(None, deleted=False))
    job = seen.job()
    if seen.location is not None:
        return None, Deleting(ops.Deleted(job, deleted=False), seen.location if seen.location.state.ended else None)
    name = None if location is None else (paths.name(location.task), location.name)
    return forgetting(seen.path, seen.version, job, name), Deleting(ops.Deleted(job, deleted=True))


async def _delete_ended(session: Session, operations: Sequence[ops.DeleteEnded]) -> list[ops.Deleted]:
    """Delete ended jobs; see ``DeleteEnded``. One that is not published yet is awaited: its end has to reach its submitters."""

    async def change(asked: dict[int, ops.DeleteEnded]) -> dict[int, Deleting]:
        return await decide(session, asked, lambda _, seen, location: deleted(seen, location), named=True)

    return await _each_job(operations, change, session)


HANDLERS: Handlers = {
    ops.Wake: one_by_one(wake),
    ops.Sweep: one_by_one(sweep),
    ops.Cancel: _cancel,
    ops.Redrive: _redrive,
    ops.DeleteEnded: _delete_ended,
}
