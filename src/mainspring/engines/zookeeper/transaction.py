"""Transactions that read first and write later; the multi that writes checks the versions that were read.

They are for rare operations, for those that depend on other writes, and for slices. Hot paths (new tasks, successes) write
blind and rely on version checks.

A transaction of a slice is attempted, from its first read to its write, until it has no conflict. It may have new jobs. The
consequences of a job's end for slices are written with the settlement.
"""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper import paths, queries, records
from mainspring.engines.zookeeper.committer import MAX_ENTRY_BYTES, RETRY_DELAY, Conflict, Count, Entry, Fenced, Verdict
from mainspring.engines.zookeeper.sessions import Session, Slice, Waiting
from mainspring.engines.zookeeper.submitting import NewJob, joining, parents, submission
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Node, Refusal, SessionEndedError, Write
from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.event_log.interests import CurrentInterests, NewEvents
from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import Ended, Notice, Owner, owner
from mainspring.jobs.store import Found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from mainspring.engines.zookeeper.queries import Name
    from mainspring.engines.zookeeper.tree import Change, Tree
    from mainspring.jobs.slices import JobLifecycle

WRITE_ATTEMPTS: Final = 1000
"""Attempts of a transaction; after that a defect is more likely than conflicts with other writers."""


class OvertakenError(Exception):
    """The reads of an attempt are inconsistent because of concurrent writes. The attempt has to be repeated."""


class Transaction:
    """One attempt: it stores the versions of reads, and collects writes.

    For a missing node only its creation is guarded: if another node creates it first, the attempt fails. Children are not
    guarded at all.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._read: dict[str, Node | None] = {}
        self._written: dict[str, Node | None] = {}
        self._unchecked: set[str] = set()
        """Nodes that were read and may change: they are guarded otherwise, or their changes do no harm."""
        self._expected: dict[str, int] = {}
        self._first: dict[str, Change] = {}
        """The change of each path, in the order of the first writes."""
        self._undone: set[str] = set()
        """Nodes that were created and deleted again: both are written, since the creation guards that the node was missing."""
        self._counts: list[Count] = []

    # ---- reading ----

    async def get(self, path: str) -> Node | None:
        """Return a node as this transaction sees it."""
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str], *, check: bool = True) -> list[Node | None]:
        """Return several nodes; without ``check``, other nodes may change those that this transaction does not write."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._written and path not in self._read]
        if missing:
            found = await self.tree.get_many(missing)
            self._read.update(zip(missing, found, strict=True))
            self._unchecked.update(missing)
        if check:
            self._unchecked.difference_update(paths)
        return [self._written[path] if path in self._written else self._read[path] for path in paths]

    def expect(self, path: str, version: int) -> None:
        """Require that a node has a version that was read before."""
        self._expected[path] = version

    # ---- writing ----

    def write(self, path: str, data: bytes) -> None:
        """Create a missing node, or replace the data of a node that was read."""
        before = self._read.get(path)
        self._first[path] = Create(path, data) if before is None else Write(path, data, before.version)
        self._written[path] = Node(data, 0, 0, 0, 0)
        self._undone.discard(path)

    def delete(self, path: str) -> None:
        """Delete an existing node that was read or written."""
        before = self._read.get(path)
        if before is None:
            self._undone.add(path)
        else:
            self._first[path] = Delete(path, before.version)
        self._written[path] = None

    def touch(self, path: str) -> None:
        """Write a node with the data that was read: of two transactions that do so, only one commits."""
        if path not in self._first:
            node = self._read[path]
            assert node is not None, path
            self._first[path] = Write(path, node.data, node.version)

    def include(self, entry: Entry) -> None:
        """Add an entry with nodes that this transaction does not use otherwise."""
        self._first.update((change.path, change) for change in entry.changes)
        self._counts += entry.counts

    def mark(self, path: str) -> None:
        """Create an index node without data for a record that is written too; the index node is not read."""
        if isinstance(self._first.get(path), Delete):
            del self._first[path]
        else:
            self._first[path] = Create(path)

    def unmark(self, path: str) -> None:
        """Delete an index node that `mark` has created, in this transaction or before."""
        if isinstance(self._first.get(path), Create):
            del self._first[path]
        else:
            self._first[path] = Delete(path)

    def entry(self) -> Entry | None:
        """Return the entry to write, with checks of the nodes that were only read; None if there is nothing to write."""
        if not self._first:
            return None
        checks = [
            Check(path, node.version)
            for path, node in self._read.items()
            if node is not None and path not in self._first and path not in self._unchecked
        ]
        checks += [Check(path, version) for path, version in self._expected.items() if path not in self._first]
        return Entry([*checks, *self._first.values(), *map(Delete, sorted(self._undone))], self._counts)


class ZookeeperGround:
    """``jobs.slices.Ground``: the final multi checks the nodes that were read, and writes those that were locked.

    The unit is one job's entry or one operation, not the group: each has a ground and a unit of work of its own.
    """

    kind: ClassVar[str] = "jobs"
    """The kind of its transactions, for error messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.events = NewEvents(CurrentInterests())  # this store keeps none
        self.transaction = Transaction(session.tree)
        self.owners: dict[int, Owner] = {}
        """The owners of jobs that were stored or joined."""
        self._stored: dict[str, Job] = {}
        """The stored jobs, by their tasks."""
        self._ending: Job | None = None
        self._waiting: list[Waiting] = []
        self._commits: list[Callable[[], object]] = [lambda: session.waiting(self._waiting)]
        self._rollbacks: list[Callable[[], object]] = []

    @property
    def lifecycle(self) -> JobLifecycle:
        """The job lifecycle of this node."""
        lifecycle = self._session.lifecycle
        assert lifecycle is not None, "a node with slices has a lifecycle"
        return lifecycle

    @property
    def term(self) -> int:
        """0: jobs are not leased here, but by the entry that assigns them."""
        return 0

    def node(self, term: int) -> str:
        """Return the node of a term; those of ended jobs are loaded."""
        return self._session.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the write."""
        self._commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if this attempt is not written."""
        self._rollbacks.append(function)

    def ends(self, job: Job, key: Any) -> None:
        """Register a job that ends in this transaction, and the key of its owner."""
        del key
        self._ending = job

    # ---- new jobs ----

    async def submit(self, jobs: Sequence[Job]) -> dict[int, Found]:
        """Store new jobs, or join; see ``Submit``."""
        tasks = [paths.task_name(job.function, job.unique, job.id) for job in jobs]
        named = [paths.name(task) for task, job in zip(tasks, jobs, strict=True) if job.unique]
        nodes = dict(zip(named, await self.transaction.get_many(named, check=False), strict=True))
        joined: dict[int, Found] = {}
        for task, job in zip(tasks, jobs, strict=True):
            rival = self._stored.get(task)
            node = nodes.get(paths.name(task))
            name = None if node is None else queries.name_of(node)
            if rival is not None:
                joined[job.id] = Found.of(rival)
            elif name is None or not name.id:
                await self._store(job, task, name)
            elif self._ending is not None and name.id == self._ending.id:
                await self._store(job, task, await self._freed(name, self._ending))
            elif (found := await self._join(job, task)) is not None:
                joined[job.id] = found
        return joined

    async def _store(self, job: Job, task: str, name: Name | None) -> None:
        entry, record = submission(
            NewJob(job, task, job.foreground), self._session.handle(job.id), self._session.who, name
        )
        await self._session.ensure(parents(job))
        self.transaction.include(entry)
        self._stored[task] = job
        self._note_owner(job)
        if job.state == State.PENDING:
            self._waiting.append(Waiting(task, job, record))

    async def _freed(self, name: Name, ended: Job) -> Name:
        """Return a name without its ended job, and touch that job's result: its publisher then reads the name."""
        await self._session.meet([ended.id])
        result = self._session.result(ended.id)
        if await self.transaction.get(result) is None:
            raise OvertakenError
        self.transaction.touch(result)
        data = queries.name_after(name, ended, name.handle)
        return name._replace(kept=None if data is None else records.decode(data)["kept"])

    async def _join(self, job: Job, task: str) -> Found | None:
        """Join the job that has the task, and check its location in the write.

        Return None if that job has ended; then the new one is stored.
        """
        location = (await queries.locate(self._session, [task])).get(task)
        if location is None or not location.path:
            raise OvertakenError
        self.transaction.expect(location.path, location.version)
        other = records.decode_job(location.record)
        if location.state.ended:
            await self._store(job, task, await self._freed(location.name, other))
            return None
        seen = (await queries.read_jobs(self._session, [other.id])).get(other.id)
        if seen is None or seen.location is None or seen.location.path != location.path:
            raise OvertakenError
        entry = joining(NewJob(job, task, job.foreground), seen.path, seen.version, seen.data)
        if entry is not None:
            self.transaction.include(entry)
        self._note_owner(other)
        return Found(other.id, int(location.state), location.attempt)

    def _note_owner(self, job: Job) -> None:
        whose = owner(job.options)
        if whose is not None:
            self.owners[job.id] = whose

    # ---- the attempt ----

    def committed(self) -> None:
        """Run the callbacks after the write."""
        self._rollbacks.clear()
        for function in self._commits:
            function()

    def give_up(self) -> None:
        """Discard the writes: only the result was requested."""
        self.rolled_back()
        self._commits.clear()
        self.transaction = Transaction(self._session.tree)

    def rolled_back(self) -> None:
        """End the attempt: run the rollback callbacks unless it was written."""
        rollbacks, self._rollbacks = self._rollbacks, []
        for function in rollbacks:
            function()

    def overtaken(self, conflict: Conflict | None) -> None:
        """Invalidate caches after a conflict; None: the conflict was found before the write."""


T = TypeVar("T")
G = TypeVar("G", bound="ZookeeperGround")

CONCURRENT_TRANSACTIONS: Final = 100
"""Transactions that run concurrently and are written at once."""


class Transacted(NamedTuple):
    """A transaction to run."""

    begin: Callable[[Session], Any]
    """Creates the ``ZookeeperGround`` of an attempt."""
    work: Callable[[Any], Awaitable[Any]]
    """Its reads and writes. It may run many times, each time on a new ground."""
    first: Entry | None = None
    """An entry that is written with it, before its own changes."""


async def transact(session: Session, begin: Callable[[Session], G], work: Callable[[G], Awaitable[T]]) -> T:
    """Run ``work`` until its write has no conflict, and return its result.

    Raises StoreFencedError if this node may no longer write, StoreError if the write does not fit into one multi, and the
    errors of ``work``.
    """
    (outcome,) = await transact_all(session, [Transacted(begin, work)])
    if isinstance(outcome, Exception):
        raise outcome
    found: T = outcome
    return found


async def transact_all(session: Session, transactions: Sequence[Transacted]) -> list[Any]:
    """Do the same for several transactions, concurrently and independently; return their results or errors.

    The outcome is a Conflict if the first entry was refused. Reads are repeated while the ensemble is away.
    """
    overtaken = StoreUnavailableError(f"{WRITE_ATTEMPTS} attempts to write all had conflicts with other writers")
    outcomes: list[Any] = [overtaken] * len(transactions)
    for start in range(0, len(transactions), CONCURRENT_TRANSACTIONS):
        await _transact(session, list(enumerate(transactions))[start : start + CONCURRENT_TRANSACTIONS], outcomes)
    return outcomes


async def _transact(session: Session, left: Sequence[tuple[int, Transacted]], outcomes: list[Any]) -> None:
    for _ in range(WRITE_ATTEMPTS):
        tried = [_Attempt(session, place, transaction) for place, transaction in left]
        try:
            await asyncio.gather(*(one.run() for one in tried))
            writing = [one for one in tried if one.entry is not None]
            verdicts = await session.committer.commit([one.entry for one in writing if one.entry is not None])
            for one, verdict in zip(writing, verdicts, strict=True):
                one.decide(verdict)
        finally:
            for one in tried:
                one.ground.rolled_back()
        for one in tried:
            if not one.must_repeat:
                outcomes[one.place] = one.outcome
        left = [(one.place, one.transaction) for one in tried if one.must_repeat]
        if not left:
            break


class _Attempt:
    """One attempt of one transaction."""

    def __init__(self, session: Session, place: int, transaction: Transacted) -> None:
        self._session = session
        self.place = place
        self.transaction = transaction
        self.ground: ZookeeperGround = transaction.begin(session)
        self.outcome: Any = None
        """The result of the work, or its error."""
        self.entry: Entry | None = None
        """The entry to write."""
        self.must_repeat = False

    async def run(self) -> None:
        """Run the work, and prepare the entry."""
        try:
            self.outcome = await self.transaction.work(self.ground)
            self._plan()
        except OvertakenError:
            self._overtaken(None)
        except SessionEndedError:
            self.outcome = self._session.over()
        except StoreUnavailableError:
            if self._session.committer.fenced:
                self.outcome = self._session.over()
            else:
                self._overtaken(None)
                await asyncio.sleep(RETRY_DELAY)
        except Exception as error:  # noqa: BLE001 - the caller of the transaction raises it
            self.outcome = error

    def _plan(self) -> None:
        entries = [one for one in (self.transaction.first, self.ground.transaction.entry()) if one is not None]
        if not entries:
            self.ground.committed()
            return
        whole = Entry([at for one in entries for at in one.changes], [at for one in entries for at in one.counts])
        kind = self.ground.kind
        if whole.size > MAX_ENTRY_BYTES:
            self.outcome = StoreError(
                f"a change of {kind} and its consequences have {whole.size} bytes, and ZooKeeper accepts about "
                f"{MAX_ENTRY_BYTES} at once: give {kind} smaller arguments, or change fewer of them in one request"
            )
        else:
            self.entry = whole

    def decide(self, verdict: Verdict) -> None:
        """Apply the verdict on the entry."""
        first = self.transaction.first
        if verdict is None:
            self.ground.committed()
        elif isinstance(verdict, Fenced):
            self.outcome = self._session.over()
        elif first is not None and verdict.at < len(first.changes):
            self.outcome = verdict
        else:
            self._overtaken(verdict)

    def _overtaken(self, conflict: Conflict | None) -> None:
        self.must_repeat = True
        self.ground.overtaken(conflict)
        if conflict is not None and conflict.why is Refusal.NO_NODE:
            self._session.forget(conflict.path.rpartition("/")[0])


FOLLOWING_RETRY_DELAY: Final = 0.02
"""Seconds until the end of a job is retried if its task has another end that is not published yet."""


class Happening(NamedTuple):
    """An entry, and the notice of it to its job's owner, if there may be one; the job has its state after the write."""

    entry: Entry
    job: Job | None = None
    notice: Notice | None = None


def end(entry: Entry, job: Job) -> Happening:
    """Return the end of a job without a holder."""
    return Happening(entry, job, Ended.of(job))


def _follower(session: Session, happening: Happening) -> tuple[Slice, Any] | None:
    """Return the slice that gets the notice, and the key of the job's owner; None if there is none."""
    _, job, notice = happening
    whose = None if job is None or notice is None else owner(job.options)
    one = None if whose is None else session.slices.get(whose.kind)
    return None if whose is None or one is None or type(notice) not in one.follows else (one, whose.key)


async def commit(session: Session, happenings: Sequence[Happening]) -> list[Verdict | StoreError]:
    """Write entries, as ``Committer.commit`` does, each with its consequences.

    A conflict is one of the entry itself. A StoreError is the reason why the consequences, and thus the entry, were not written.
    """
    found = {place: one for place, each in enumerate(happenings) if (one := _follower(session, each)) is not None}
    if not found:
        return [*await session.committer.commit([each.entry for each in happenings])]
    verdicts: list[Verdict | StoreError] = [None] * len(happenings)
    others = [place for place in range(len(happenings)) if place not in found]

    async def commit_others() -> None:
        written = await session.committer.commit([happenings[place].entry for place in others])
        for place, verdict in zip(others, written, strict=True):
            verdicts[place] = verdict

    async def commit_owned(turns: Sequence[Sequence[int]]) -> None:
        for places in zip_longest(*turns):
            some = [place for place in places if place is not None]
            outcomes = await transact_all(session, [_transaction(happenings[place], *found[place]) for place in some])
            for place, outcome in zip(some, outcomes, strict=True):
                verdicts[place] = _verdict(session, outcome)
            if any(isinstance(one, Conflict) and one.path.startswith(paths.COMPLETED) for one in verdicts):
                await asyncio.sleep(FOLLOWING_RETRY_DELAY)

    try:
        await session.meet([job.term * TERM_SPAN for place in found if (job := happenings[place].job) is not None])
        turns = await session.retry_reads(lambda: _turns(session, found))
    except StoreFencedError:
        return [Fenced(paths.worker(session.who))] * len(happenings)
    await asyncio.gather(commit_others(), commit_owned(turns))
    return verdicts


async def _turns(session: Session, found: dict[int, tuple[Slice, Any]]) -> list[list[int]]:
    """Return the places of changes in groups; those of one group are written one after the other."""
    turns: dict[Hashable, list[int]] = {}
    for one in {each.kind: each for each, _ in found.values()}.values():
        keys = {place: key for place, (each, key) in found.items() if each is one}
        for place, name in zip(keys, await one.turns(session, [*keys.values()]), strict=True):
            turns.setdefault(place if name is None else (one.kind, name), []).append(place)
    return list(turns.values())


def _transaction(happening: Happening, one: Slice, key: Any) -> Transacted:
    entry, job, notice = happening
    assert job is not None
    assert notice is not None

    async def follow(ground: ZookeeperGround) -> None:
        if State(job.state).ended:
            ground.ends(job, key)
        unit = one.unit(ground)
        await unit.follow([notice])
        await unit.flush()

    return Transacted(one.ground, follow, entry)


def _verdict(session: Session, outcome: Any) -> Verdict | StoreError:
    match outcome:
        case StoreFencedError():
            return Fenced(paths.worker(session.who))
        case StoreError() | Conflict() | None:
            return outcome
        case Exception():
            raise outcome
        case _:
            raise TypeError(f"{outcome!r} is no outcome of a transaction")
