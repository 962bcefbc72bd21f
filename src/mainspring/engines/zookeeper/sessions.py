"""The session of one term of a node, which its handlers share: the tree, the committer and caches.

The nodes of terms never change, so each is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import RETRY_DELAY, Committer, Conflict, Entry, Fenced, Verdict
from mainspring.engines.zookeeper.tree import (
    Change,
    Check,
    Create,
    Delete,
    Node,
    Refusal,
    SessionEndedError,
    Tree,
    Watch,
    Write,
)
from mainspring.errors import StoreCorruptError, StoreError, StoreFencedError, StoreUnavailableError
from mainspring.ids import TERM_SPAN
from mainspring.storage.engine import Meter, Operation, Query

if TYPE_CHECKING:
    from mainspring.events import Message
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.slices import JobLifecycle, SliceWork
    from mainspring.jobs.store import ClaimRequest


Handler = Callable[["Session", Sequence[Any]], Awaitable[Sequence[Any]]]
"""Gets all operations of its kind in a group, in their order, and returns their outcomes."""
Handlers = Mapping[type[Operation], Handler]
Reader = Callable[["Session", Any, Meter], Awaitable[Any]]
"""Answers a query, within its budget."""
Readers = Mapping[type[Query[Any]], Reader]

M = TypeVar("M")
T = TypeVar("T")

MAX_PARENTS: Final = 50_000
"""Existing parents in the cache. New ones come every minute; beyond this number the cache is cleared."""


def one_by_one(handle: Callable[[Session, Any], Awaitable[Any]]) -> Handler:
    """Return a handler that runs operations one after the other; the error of one does not affect the others."""

    async def run(session: Session, operations: Sequence[Any]) -> list[Any]:
        outcomes: list[Any] = []
        for operation in operations:
            try:
                outcomes.append(await handle(session, operation))
            except StoreFencedError:
                raise
            except StoreError as error:
                outcomes.append(error)
        return outcomes

    return run


class Completion(NamedTuple):
    """A completed task, with the data that the master needs to publish it."""

    task: str
    job: Job
    """Ended."""
    handle: str
    data: bytes
    """The record in ``completed_tasks``, which becomes the result."""

    @property
    def result(self) -> str:
        """The path of its result."""
        return f"{paths.block(self.job.id)}/{self.handle}"


class Waiting(NamedTuple):
    """A task that this node has left pending, with the data that the master needs to assign it."""

    task: str
    job: Job
    data: bytes
    """The record in ``pending_tasks``, as it was created."""


class LocalMaster(NamedTuple):
    """The callbacks of the master on this node: reports in memory replace its reads of the tree."""

    completions: Callable[[Sequence[Completion]], None]
    """Called with this node's completions."""
    waiting: Callable[[Sequence[Waiting]], None]
    """Called with the tasks that this node has left pending."""
    claim: Callable[[Mapping[bytes, Sequence[ClaimRequest]], int], Awaitable[bool]]
    """Called with this node's requests for some functions and the number of the claim; assigns the tasks of its index. False:
    there may be more, and ``Claims.answered`` is called with the number."""


async def _at_once() -> None:
    pass


class Slice(Protocol):
    """A slice on this engine; see ``jobs.slices.Slice``. All of its operations have handlers."""

    @property
    def kind(self) -> str:
        """The kind of the owners of its jobs."""

    @property
    def follows(self) -> Collection[type[Notice]]:
        """The notices that it gets."""

    @property
    def handlers(self) -> Handlers:
        """The handlers of its operations, by kind."""

    @property
    def readers(self) -> Readers:
        """The readers of its queries, by kind."""

    async def turns(self, session: Session, keys: Sequence[Any]) -> Sequence[Hashable]:
        """Return a group for each of some owners' keys. Transactions of one group run one after the other, since they conflict.

        None: it runs on its own.
        """

    def ground(self, session: Session) -> Any:
        """Return an attempt of a transaction."""

    def unit(self, ground: Any) -> SliceWork:
        """Return its unit of work."""


class Session:
    """One term of one node: its tree, and its caches."""

    def __init__(
        self,
        tree: Tree,
        node: str,
        term: int,
        nodes: dict[int, str],
        *,
        arrived: Callable[[bytes], None] = lambda _: None,
        flush_progress: Callable[[], Awaitable[None]] = _at_once,
        lifecycle: JobLifecycle | None = None,
        slices: Sequence[Slice] = (),
    ) -> None:
        """``nodes`` are the nodes by terms, as far as loaded: `meet` adds to them.

        ``arrived`` is called with a function if tasks of it were assigned to this node and no claim waits for them.
        ``flush_progress`` waits until other nodes can read the progress of jobs that this node has sent. ``slices`` get notices
        about their jobs.
        """
        self.tree = tree
        self.node = node
        self.term = term
        self.who = paths.worker_name(node, term)
        self.committer = Committer(tree, self.who)
        self.nodes = nodes
        self.arrived = arrived
        self.flush_progress = flush_progress
        self.lifecycle = lifecycle
        self.slices = {one.kind: one for one in slices}
        """By the kinds of owners."""
        self.assignments: dict[int, int] = {}
        """The versions of the assignments of the jobs that this node holds, by job ids: a task's name may soon belong to
        another job."""
        self.new: set[int] = set()
        """The jobs that were assigned to this node since the current group began: its operations are about earlier deliveries."""
        self.late: dict[str, int] = {}
        """Held or tried tasks that are past their expiry, by `paths.expiring`, with the time at which that was read."""
        self._master: LocalMaster | None = None
        self._parents: set[str] = set()
        self._parents_lock = asyncio.Lock()
        self._memory: dict[Callable[[Session], Any], Any] = {}

    # ---- the master, if it is this node ----

    @property
    def master(self) -> LocalMaster | None:
        """The local master; None while another node is the master."""
        return self._master

    def elect(self, master: LocalMaster | None) -> None:
        """Set the local master; None: this node is no longer the master."""
        self._master = master

    def completions(self, completed: Sequence[Completion]) -> None:
        """Report this node's completions to the local master."""
        if self._master is not None and completed:
            self._master.completions(completed)

    def waiting(self, tasks: Sequence[Waiting]) -> None:
        """Report the tasks that this node has left pending to the local master."""
        if self._master is not None and tasks:
            self._master.waiting(tasks)

    # ---- caches ----

    def memory(self, kind: Callable[[Session], M]) -> M:
        """Return the object of a class that lives as long as this term; the first call creates it."""
        found: M | None = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind(self)
        return found

    def handle(self, job_id: int) -> str:
        """Return the handle of a job; its term must be loaded."""
        return f"H:{self.nodes[job_id // TERM_SPAN]}:{job_id}"

    def result(self, job_id: int) -> str:
        """Return the path of a job's result; its term must be loaded."""
        return paths.result(job_id, self.nodes[job_id // TERM_SPAN])

    async def meet(self, ids: Iterable[int]) -> None:
        """Load the nodes of some jobs' terms, but for terms that never existed. Raises StoreFencedError."""
        unknown = {job_id // TERM_SPAN for job_id in ids} - self.nodes.keys()
        if unknown:
            await self.retry_reads(lambda: meet(self.tree, self.nodes, unknown))

    def worker_of(self, term: int) -> str:
        """Return the worker of a term, which must be loaded."""
        node = self.nodes.get(term)
        if node is None:
            raise StoreCorruptError(f"term {term} has no node")
        return paths.worker_name(node, term)

    # ---- reading: retried while the ensemble is away; raises StoreFencedError if this node may no longer write ----

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node; None if there is none."""
        return await self.retry_reads(lambda: self.tree.get(path, watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return several nodes. Without paths nothing is sent."""
        return await self.retry_reads(lambda: self.tree.get_many(paths)) if paths else []

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children; none if there is no such node."""
        return await self.retry_reads(lambda: self.tree.children(path, watch)) or []

    async def catch_up(self) -> None:
        """Wait until all writes so far, of all nodes, can be read here."""
        await self.retry_reads(self.tree.sync)

    async def retry_reads(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Run reads, and repeat all of them if the ensemble is away in one of them."""
        while True:
            try:
                return await ask()
            except StoreUnavailableError:
                is_over = self.committer.fenced
            except SessionEndedError:
                is_over = True
            if is_over:
                raise self.over()
            await asyncio.sleep(RETRY_DELAY)

    # ---- writing ----

    def over(self) -> StoreFencedError:
        """Return the error of a term that may no longer write."""
        return StoreFencedError(f"term {self.term} has ended, and writes nothing more")

    async def write(self, *changes: Change) -> Conflict | None:
        """Write one entry; return the conflict if it was refused. Raises StoreFencedError."""
        (verdict,) = await self.committer.commit([Entry(changes)])
        if isinstance(verdict, Fenced):
            raise self.over()
        return verdict

    async def ensure(self, parents: Collection[str]) -> None:
        """Create missing parents, each once, however many callers need it. Call `forget` if one turns out to be deleted."""
        if self._parents.issuperset(parents):
            return
        async with self._parents_lock:
            for path in sorted(set(parents) - self._parents):
                refused = await self.write(Create(path))
                assert refused is None or refused.why is Refusal.EXISTS, refused
                if len(self._parents) > MAX_PARENTS:
                    self._parents.clear()
                self._parents.add(path)

    def forget(self, path: str) -> None:
        """Remove a deleted parent from the cache: the next `ensure` creates it again."""
        self._parents.discard(path)


async def read_all(tree: Tree) -> dict[int, str]:
    """Return the nodes of all terms."""
    nodes: dict[int, str] = {}
    await meet(tree, nodes, paths.numbers_of(await tree.children(paths.TERMS)))
    return nodes


async def meet(tree: Tree, nodes: dict[int, str], terms: Iterable[int]) -> None:
    """Load the nodes of some terms into ``nodes``, but for terms that never existed."""
    unknown = sorted(set(terms) - nodes.keys())
    if unknown:
        found = await tree.get_many([f"{paths.TERMS}/{term}" for term in unknown])
        nodes.update({term: node.data.decode() for term, node in zip(unknown, found, strict=True) if node})


async def worker_of(tree: Tree, nodes: dict[int, str], term: int) -> str | None:
    """Return the worker of a term; None if there was no such term."""
    await meet(tree, nodes, [term])
    node = nodes.get(term)
    return None if node is None else paths.worker_name(node, term)


class DeposedError(Exception):
    """This node is not the master any more: another one is, or will be."""


class Leadership:
    """One node's time as the master."""

    def __init__(self, session: Session, version: int, send: Callable[[int, Message], None]) -> None:
        """``version`` is that of ``/master_term`` since this node was elected."""
        self.session = session
        self.tree = session.tree
        self.version = version
        self.guard = Check(paths.MASTER_TERM, version)
        self.send = send

    async def commit(self, entries: Sequence[Entry], guards: Sequence[Check] = ()) -> list[Verdict]:
        """Write entries as the master, and return the verdicts. While the ensemble is away, it waits.

        A Fenced among them is due to one of ``guards``. Raises DeposedError if another master may be at work already.
        """
        verdicts = await self.session.committer.commit(entries, (self.guard, *guards))
        for verdict in verdicts:
            if isinstance(verdict, Fenced) and verdict.path in {self.guard.path, paths.worker(self.session.who)}:
                raise DeposedError(f"the version of {verdict.path} is not this master's")
        return verdicts


async def await_election(session: Session, send: Callable[[int, Message], None]) -> Leadership:
    """Wait until this node is the master.

    Raises DeposedError or StoreFencedError if its term is over.
    """
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is not None and node.owner == session.tree.session:
            # This node's last term has ended, but its session goes on, so the node would stay.
            await session.write(Delete(paths.MASTER, node.version))
            continue
        if node is not None:
            await changed.wait()
            continue
        term = await session.get(paths.MASTER_TERM)
        assert term is not None, "the roots are there"
        who = records.encode({"worker": session.who})
        changes: list[Change] = [Create(paths.MASTER, who, ephemeral=True), Write(paths.MASTER_TERM, who, term.version)]
        (verdict,) = await session.committer.commit([Entry(changes)])
        if isinstance(verdict, Fenced):
            raise DeposedError(f"the term of {session.who} is over")
        if verdict is None:
            return Leadership(session, term.version + 1, send)


async def resign(leadership: Leadership) -> None:
    """Delete ``/master``, so that another node is elected. Raises StoreFencedError if the term is over."""
    session = leadership.session
    node = await session.get(paths.MASTER)
    if node is not None and node.owner == session.tree.session:
        await session.write(Check(paths.MASTER_TERM, leadership.version), Delete(paths.MASTER, node.version))


async def until_deposed(leadership: Leadership) -> None:
    """Watch ``/master``, and raise DeposedError once it is deleted or belongs to another node.

    An end that is noticed too late does no harm: the master's writes are refused. Raises StoreFencedError if the term is over.
    """
    session = leadership.session
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is None or node.owner != session.tree.session or records.decode(node.data)["worker"] != session.who:
            raise DeposedError("/master is gone, or another node's")
        await changed.wait()
