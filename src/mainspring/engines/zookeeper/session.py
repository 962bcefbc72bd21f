"""What the handlers of one term of a node share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.committer import Committer, Entry, Fenced
from mainspring.engines.zookeeper.tree import Create, Refusal
from mainspring.errors import StoreFencedError
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from mainspring.engines.zookeeper.claiming import Claims
    from mainspring.engines.zookeeper.tree import Tree
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Followers, Want


M = TypeVar("M")

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


async def _at_once() -> None:
    pass


class Session:
    """One term of one node: its way to the tree, and what it remembers of it."""

    def __init__(self, tree: Tree, node: str, term: int, nodes: dict[int, str]) -> None:
        self.tree = tree
        self.node = node
        self.term = term
        self.who = paths.worker_name(node, term)
        self.committer = Committer(tree, self.who)
        self.nodes = nodes
        """Terms to nodes; `meet` before jobs of others are returned."""
        self.assignments: dict[int, int] = {}
        """The jobs that this node holds, by their ids (a task may be of another job the next moment), with the versions of
        their assignments."""
        self.late: dict[str, int] = {}
        """Tasks that are held or were tried although their time to expire is over, by `paths.expiring`, and when that was
        seen."""
        self.completions: Callable[[Sequence[Completion]], None] = lambda _: None
        """Set while this node is the master: takes what was completed here, in place of a look at the tree."""
        self.waiting: Callable[[Sequence[Waiting]], None] = lambda _: None
        """Set while this node is the master: takes what was left pending here, in place of a look at the tree."""
        self.assign: Callable[[Mapping[bytes, Sequence[Want]], int], Awaitable[bool]] | None = None
        """Set while this node is the master: takes what this node wants now of some functions, with the number of the claim, and
        assigns what it knows of. False: there may be more, and ``claims.answered`` is called with the number."""
        self.arrived: Callable[[bytes], None] = lambda _: None
        """Set by the engine: tasks of a function were assigned to this node that no claim waits for."""
        self.told: Callable[[], Awaitable[None]] = _at_once
        """Set by the engine: waits until what this node has told others of the progress of jobs can be read by them."""
        self.claims: Claims
        """Set by the master: what this node has asked for, and what has arrived."""
        self.followers: Callable[[], Followers | None] = lambda: None
        self._known: set[str] = set()
        self._memory: dict[Callable[[Session], Any], Any] = {}

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
        """Learn the nodes of some jobs' terms; those of terms that never were stay unknown."""
        unknown = sorted({job_id // TERM_SPAN for job_id in ids} - self.nodes.keys())
        if not unknown:
            return
        found = await self.tree.get_many([f"{paths.TERMS}/{term}" for term in unknown])
        self.nodes.update({term: node.data.decode() for term, node in zip(unknown, found, strict=True) if node})

    async def whose(self, term: int) -> str | None:
        """Return the worker that has or had a term; None where there was no such term."""
        await self.meet([term * TERM_SPAN])
        node = self.nodes.get(term)
        return None if node is None else paths.worker_name(node, term)

    async def ensure(self, path: str) -> None:
        """See to it that a parent is there; `forget` it where it turns out to have gone."""
        if path in self._known:
            return
        (verdict,) = await self.committer.commit([Entry([Create(path)])])
        if isinstance(verdict, Fenced):
            raise StoreFencedError(f"term {self.term} was ended by another node")
        assert verdict is None or verdict.why is Refusal.EXISTS, verdict
        if len(self._known) > REMEMBERED:
            self._known.clear()
        self._known.add(path)

    def forget(self, path: str) -> None:
        """A parent has gone: it is created again by the next `ensure`."""
        self._known.discard(path)
