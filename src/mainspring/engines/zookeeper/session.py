"""What the handlers of one term of a node share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from mainspring.engines.zookeeper import paths, terms
from mainspring.engines.zookeeper.committer import RETRY_DELAY, Committer, Entry, Fenced
from mainspring.engines.zookeeper.tree import Create, Refusal, SessionEndedError
from mainspring.errors import StoreCorruptError, StoreFencedError, StoreUnavailableError
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.committer import Conflict
    from mainspring.engines.zookeeper.tree import Change, Node, Tree, Watch
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.slices import JobLifecycle, Unit
    from mainspring.jobs.store import ClaimRequest
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Query

    Handler = Callable[["Session", Sequence[Any]], Awaitable[Sequence[Any]]]
    """Takes all operations of its kind that a group has, in their order, and returns their outcomes."""
    Handlers = Mapping[type[Operation], Handler]
    Reader = Callable[["Session", Any, Meter], Awaitable[Any]]
    """Answers a query, within its budget."""
    Readers = Mapping[type[Query[Any]], Reader]


M = TypeVar("M")
T = TypeVar("T")

REMEMBERED: Final = 50_000
"""Parents that are known to be there: there are new ones every minute, so that after so many all are forgotten."""


class Completion(NamedTuple):
    """A task that this node has completed, as the master needs it for the publication."""

    task: str
    job: Job
    """Ended."""
    data: bytes
    """The record in ``completed_tasks``."""


class Waiting(NamedTuple):
    """A task that this node has left pending, as the master needs it for the assignment."""

    task: str
    job: Job
    data: bytes
    """The record in ``pending_tasks``, as it was created."""


class LocalMaster(NamedTuple):
    """What a master that is this node itself takes from it in memory, in place of a look at the tree."""

    completions: Callable[[Sequence[Completion]], None]
    """Takes what was completed here."""
    waiting: Callable[[Sequence[Waiting]], None]
    """Takes what was left pending here."""
    claim: Callable[[Mapping[bytes, Sequence[ClaimRequest]], int], Awaitable[bool]]
    """Takes what this node wants now of some functions, with the number of the claim, and assigns what it knows of. False: there
    may be more, and ``Claims.answered`` is called with the number."""


async def _at_once() -> None:
    pass


class Slice(Protocol):
    """A slice on this engine; see ``jobs.slices.Slice``. All of its operations have handlers."""

    @property
    def kind(self) -> str:
        """The kind of the owners of its jobs."""

    @property
    def follows(self) -> Collection[type[Notice]]:
        """What it is told of."""

    @property
    def handlers(self) -> Handlers:
        """Take all operations of their kind that a group has."""

    @property
    def readers(self) -> Readers:
        """Answer its queries."""

    async def turns(self, session: Session, keys: Sequence[Any]) -> Sequence[Hashable]:
        """Say for each of some owners' keys with which others it takes turns: who would write the same at once is overtaken.

        None: with no others.
        """

    def ground(self, session: Session) -> Any:
        """Begin an attempt of a transaction."""

    def unit(self, ground: Any) -> Unit:
        """Begin its unit of work."""


class Session:
    """One term of one node: its way to the tree, and what it remembers of it."""

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
        """``nodes`` are the terms whose nodes are known: `meet` adds to them.

        ``arrived`` is called with a function of which tasks were assigned to this node that no claim waits for; ``told`` waits
        until what this node has told others of the progress of jobs can be read by them. ``slices`` follow what happens to their
        jobs.
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
        """The jobs that this node holds, by their ids (a task may be of another job the next moment), with the versions of
        their assignments."""
        self.late: dict[str, int] = {}
        """Tasks that are held or were tried although their time to expire is over, by `paths.expiring`, and when that was
        seen."""
        self._master: LocalMaster | None = None
        self._known: set[str] = set()
        self._memory: dict[Callable[[Session], Any], Any] = {}

    # ---- the master, where it is this node ----

    @property
    def master(self) -> LocalMaster | None:
        """The master, while this node is it."""
        return self._master

    def elect(self, master: LocalMaster | None) -> None:
        """From now on this node is the master; None: no longer."""
        self._master = master

    def completions(self, completed: Sequence[Completion]) -> None:
        """Say what this node has completed."""
        if self._master is not None and completed:
            self._master.completions(completed)

    def waiting(self, tasks: Sequence[Waiting]) -> None:
        """Say what this node has left pending."""
        if self._master is not None and tasks:
            self._master.waiting(tasks)

    # ---- what is remembered ----

    def memory(self, kind: Callable[[Session], M]) -> M:
        """Return what one part of the handlers remembers for this term: made when it is asked for first."""
        found: M | None = self._memory.get(kind)
        if found is None:
            found = self._memory[kind] = kind(self)
        return found

    def handle(self, job_id: int) -> str:
        """Return the handle of a job of a known term."""
        return f"H:{self.nodes[job_id // TERM_SPAN]}:{job_id}"

    def result(self, job_id: int) -> str:
        """Return where the result of a job of a known term is."""
        return paths.result(job_id, self.nodes[job_id // TERM_SPAN])

    async def meet(self, ids: Iterable[int]) -> None:
        """Learn the nodes of some jobs' terms; those of terms that never were stay unknown. Raises StoreFencedError."""
        unknown = {job_id // TERM_SPAN for job_id in ids} - self.nodes.keys()
        if unknown:
            await self.patiently(lambda: terms.meet(self.tree, self.nodes, unknown))

    def worker_of(self, term: int) -> str:
        """Return the worker that had a term that is known."""
        node = self.nodes.get(term)
        if node is None:
            raise StoreCorruptError(f"nobody knows who had term {term}")
        return paths.worker_name(node, term)

    # ---- reading, however long the ensemble is away; raises StoreFencedError where this node may not write any more ----

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a node; None where there is none."""
        return await self.patiently(lambda: self.tree.get(path, watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read several nodes. Without paths nothing is sent."""
        return await self.patiently(lambda: self.tree.get_many(paths)) if paths else []

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of a node's children; none where there is no such node."""
        return await self.patiently(lambda: self.tree.children(path, watch)) or []

    async def catch_up(self) -> None:
        """Wait until what anybody has written so far can be read here."""
        await self.patiently(self.tree.sync)

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Read something by several steps, all of them again where one of them finds the ensemble away."""
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
        """Return what is raised where this term may write nothing more."""
        return StoreFencedError(f"term {self.term} was ended by another node")

    async def write(self, *changes: Change) -> Conflict | None:
        """Write one entry; returns why nothing of it has happened. Raises StoreFencedError."""
        (verdict,) = await self.committer.commit([Entry(changes)])
        if isinstance(verdict, Fenced):
            raise self.over()
        return verdict

    async def ensure(self, path: str) -> None:
        """See to it that a parent is there; `forget` it where it turns out to have gone."""
        if path in self._known:
            return
        refused = await self.write(Create(path))
        assert refused is None or refused.why is Refusal.EXISTS, refused
        if len(self._known) > REMEMBERED:
            self._known.clear()
        self._known.add(path)

    def forget(self, path: str) -> None:
        """A parent has gone: it is created again by the next `ensure`."""
        self._known.discard(path)
