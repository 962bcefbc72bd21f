"""A store in memory that several nodes of one process share: the fleet's rules without a network, for tests and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.engines.memory.engine import Runner
from mainspring.engines.memory.external import MemoryWorkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.engines.memory.tables import Tables
from mainspring.errors import StoreFencedError
from mainspring.events import Pending, Settled
from mainspring.features import Feature
from mainspring.ids import Term
from mainspring.jobs.model import State
from mainspring.nodes.model import NodeRow
from mainspring.resources.rules import returns
from mainspring.resources.store import Acquire
from mainspring.storage.engine import Opened
from tests.engines import no_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.memory.workflows import MemoryWorkflowSlice
    from mainspring.events import Message
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query

    Carry = Callable[[Callable[[], None]], object]
    """How a message reaches the node that listens: a simulation may lose it, or give it twice."""


def freed_functions(tables: Tables, group: Sequence[Operation]) -> set[bytes]:
    """Return the functions of which a group is about to return tokens that other nodes lack."""
    freed = set()
    for operation in group:
        if not isinstance(operation, Acquire):
            continue
        for ask in operation.asks:
            holdings = tables.tokens.get((ask.function, ask.pool), {})
            own = holdings.get(operation.term)
            others = [holding for term, holding in holdings.items() if term != operation.term]
            if own is not None and returns(own.tokens, ask.tokens, others, announced=ask.announced):
                freed.add(ask.function)
    return freed


def end_places(tables: Tables, term: int) -> None:
    """Free the tokens of a term that has ended."""
    for holdings in tables.tokens.values():
        holdings.pop(term, None)


class SharedTables:
    """The content, and who has it open. ``wall`` is its clock; ``carry`` is called with each message's delivery."""

    def __init__(self, wall: Callable[[], float], carry: Carry = lambda deliver: deliver()) -> None:
        self.wall = wall
        self.tables = Tables()
        self.terms: dict[int, str] = {}
        self.ended: set[int] = set()
        self.rows: dict[int, NodeRow] = {}
        self.drains: set[str] = set()
        """The names of nodes that somebody asked to drain."""
        self.receivers: dict[int, Callable[[Message], None]] = {}
        self.carry = carry

    def tell(self, term: int, message: Message) -> None:
        """Carry a message to the node that has a term."""
        receiver = self.receivers.get(term)
        if receiver is not None:
            self.carry(lambda: receiver(message))


class SharedMemoryEngine:
    """One node's way to shared tables: the engine, the relay and the membership in one."""

    durable = False
    max_value = 2**32 - 1
    step_secret = b""
    shared = True
    whole = True
    lacks: frozenset[Feature] = frozenset({Feature.WORKFLOWS, Feature.OPERATIONS, Feature.EVENTS})
    sessions = None

    def __init__(self, content: SharedTables, runs: MemoryWorkflowSlice | None = None) -> None:
        """``runs`` is this node's slice of workflows, if the store keeps runs (`tests.shared_runs`)."""
        self._lifecycle: JobLifecycle | None = None
        self.slices: list[Any] = [MemoryScheduleSlice(no_time), MemoryWorkSlice()]
        if runs is not None:
            self.slices.insert(0, runs)
            self.lacks = self.lacks - {Feature.WORKFLOWS}
        self._runner = Runner(self.slices)
        self._content = content
        self._term = 0
        self._receiver: Callable[[Message], None] | None = None

    # ---- the engine ----

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Begin the node's next term."""
        del deliver
        self._lifecycle = lifecycle
        content = self._content
        content.receivers.pop(self._term, None)
        self._term = len(content.terms) + 1
        content.terms[self._term] = node
        content.rows[self._term] = NodeRow(term=self._term, name=node, counter=0)  # if it dies now, it is found dead
        if self._receiver is not None:
            content.receivers[self._term] = self._receiver
        return Opened(Term(self._term), content.terms)

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run the group at once, unless the node's term has ended and the group would write."""
        del answer
        content = self._content
        if self._term in content.ended and not all(operation.reads for operation in group):
            committed(StoreFencedError(f"term {self._term} was ended by another node"))
            return
        waits = {job_id: set(terms) for job_id, terms in content.tables.waits.items()}
        pending = self._pending()
        freed = freed_functions(content.tables, group)
        outcomes = self._runner.run(group, content.tables, self._lifecycle, content.terms, self._term)
        for operation in group:
            if isinstance(operation, Acquire) and operation.term in content.ended:
                end_places(content.tables, operation.term)  # it was asked for under the term before
        self._tell(waits, pending)
        for term in content.receivers:
            if freed and term != self._term:
                content.tell(term, Pending(sorted(freed)))
        committed(outcomes)

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query at once, whatever has become of the term."""
        answered(self._runner.read(query, budget, self._content.tables))

    def _pending(self) -> dict[bytes, int]:
        """Return how many jobs of each function are pending."""
        pending: dict[bytes, int] = {}
        for (name, state, _), number in self._content.tables.counts.items():
            if number and state == State.PENDING:
                pending[name] = pending.get(name, 0) + number
        return pending

    def _tell(self, waits: dict[int, set[int]], before: dict[bytes, int]) -> None:
        """Wake those who wait for what has ended, and everybody where more is pending than before.

        Not wherever something is pending: two nodes to which it is forbidden by their shares would wake each other for ever.
        """
        content = self._content
        ended: dict[int, list[int]] = {}
        for job_id, terms in waits.items():
            job = content.tables.jobs.get(job_id)
            if job is not None and State(job.state).ended:
                content.tables.waits.pop(job_id, None)
                for term in terms - {self._term}:
                    ended.setdefault(term, []).append(job_id)
        for term, ids in ended.items():
            content.tell(term, Settled(ids))
        pending = {name for name, number in self._pending().items() if number > before.get(name, 0)}
        if pending:
            for term in content.receivers:
                if term != self._term:
                    content.tell(term, Pending(sorted(pending)))

    async def close(self) -> None:
        """Leave: receive no more messages, and end the term unless it holds jobs."""
        content = self._content
        content.receivers.pop(self._term, None)
        holds = any(job.term == self._term and State(job.state).held for job in content.tables.jobs.values())
        if self._term and not holds:
            await self.end(self._term)
            content.drains.discard(content.terms[self._term])

    # ---- the relay ----

    def listen(self, receiver: Callable[[Message], None]) -> None:
        """Call a function with every message for this node."""
        self._receiver = receiver
        if self._term:
            self._content.receivers[self._term] = receiver

    def send(self, to: int, message: Message) -> None:
        """Tell another node something."""
        self._content.tell(to, message)

    # ---- the membership ----

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        """Write the node's own row and return all."""
        content = self._content
        if row.term in content.ended:
            raise StoreFencedError(f"term {row.term} was ended by another node")
        content.rows[row.term] = row
        return await self.rows()

    async def rows(self) -> Sequence[NodeRow]:
        """Return the rows of all nodes."""
        content = self._content
        return [msgspec.structs.replace(row, draining=row.name in content.drains) for row in content.rows.values()]

    async def now(self) -> float:
        """Return the time of the content's clock."""
        return self._content.wall()

    async def end(self, term: int, counter: int | None = None) -> bool:
        """End a term."""
        content = self._content
        row = content.rows.get(term)
        if counter is not None and row is not None and row.counter != counter:
            return False
        content.rows.pop(term, None)
        content.ended.add(term)
        end_places(content.tables, term)
        return True

    async def abandoned(self) -> Sequence[int]:
        """Return the ended terms that something is left of."""
        tables = self._content.tables
        left = {job.term for job in tables.jobs.values() if State(job.state).held}
        left.update(*tables.waits.values())
        return sorted(left & self._content.ended)

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        """Note that a node shall drain, or no longer."""
        row = self._content.rows.get(term)
        if row is None:
            return False
        (self._content.drains.add if draining else self._content.drains.discard)(row.name)
        return True
