"""One node's way to the shared store: slow, and cut off at times."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError, StoreFencedError, StoreUnavailableError
from mainspring.features import Feature
from tests.shared_memory import SharedMemoryEngine
from tests.simulation.store import refuse_separate_answer

from .errand import Moment

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from mainspring.events import Message
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.nodes.model import NodeRow, SessionPort
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Opened, Operation, Query

    from .clocks import MachineClock
    from .content import Content
    from .history import FleetHistory

USABLE = 0.8
"""The fraction of its lease after which a node must have stopped by itself."""


class Way:
    """The engine, the relay and the membership of one life of a node; all their operations take time.

    It computes the end of the node's lease independently: ``is_over``.
    """

    durable = False
    shared = True
    whole = True
    lacks = frozenset({Feature.WORKFLOWS})
    sessions: SessionPort | None = None

    def __init__(
        self,
        content: Content,
        history: FleetHistory,
        name: str,
        clock: MachineClock,
        chance: random.Random,
        lease: float,
        ended: Callable[[int, str], object],
        removed: AbstractSet[int],
    ) -> None:
        self._content = content
        self._history = history
        self._name = name
        self._clock = clock
        self._chance = chance
        self._usable = lease * USABLE
        self._ended = ended
        """Called with each term that this node ends, and with this node's name."""
        self._removed = removed
        self._engine = SharedMemoryEngine(content)
        self.max_value = self._engine.max_value
        self.step_secret = self._engine.step_secret
        self.cut = False
        """Whether the node is cut off from the store, in both directions."""
        self.term = 0
        self.deadlines: dict[int, float] = {}
        """The end of the lease of each of this life's terms, by the node's clock."""
        self._group: Sequence[Operation] | None = None
        self._of = 0
        self._outcomes: Sequence[Any] | StoreError | None = None
        self._committed: Committed | None = None

    def is_over(self, late: float = 0.0) -> bool:
        """Return whether the node's lease ended ``late`` seconds ago by its own clock, or never began.

        A node whose term an operator has ended detects that from the store, at an unknown time.
        """
        if not late and self.term in self._removed:
            return True
        return self._clock.monotonic() >= self.deadlines.get(self.term, -late) + late

    # ---- the engine ----

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        sent_at = self._clock.monotonic()
        await Moment(way=True)
        opened = await self._engine.open(node, deliver, lifecycle)
        await Moment(way=True)
        self.term = opened.term
        self.deadlines[self.term] = sent_at + self._usable
        return opened

    @property
    def busy(self) -> bool:
        return self._group is not None

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        del answer
        assert self._group is None, "one group at a time"
        self._group, self._committed, self._outcomes, self._of = group, committed, None, self.term
        if not self.cut and self._chance.random() < 0.5:
            self._outcomes = self._execute(group)  # the store executes it long before the node is notified

    def finish(self) -> None:
        """Commit the current group, unless that has happened, and notify the node."""
        group, committed, outcomes = self._group, self._committed, self._outcomes
        assert group is not None
        assert committed is not None
        assert not self.cut
        self._group = None
        self._answer(committed, self._execute(group) if outcomes is None else outcomes)

    def _answer(self, committed: Committed, outcomes: Sequence[Any] | StoreError) -> None:
        committed(outcomes)

    def break_off(self) -> bool:
        """Fail the current group, unless it has reached the store. Return whether it has failed."""
        committed = self._committed
        if self._group is None or self._outcomes is not None:
            return False
        assert committed is not None
        self._group = None
        committed(StoreUnavailableError("the simulated store is away"))
        return True

    def _execute(self, group: Sequence[Operation]) -> Sequence[Any] | StoreError:
        """Commit a group under the term that the node had when it sent it."""
        engine, got = self._engine, list[Any]()
        now, engine._term = engine._term, self._of
        try:
            engine.commit(group, got.append, refuse_separate_answer)
        finally:
            engine._term = now
        outcomes: Sequence[Any] | StoreError = got[0]
        if isinstance(outcomes, StoreError):
            assert isinstance(outcomes, StoreFencedError), outcomes
            assert self._of in self._history.ended_terms, "a group of a living term was refused"
        else:
            writes = not all(operation.reads for operation in group)
            assert not writes or self._of not in self._history.ended_terms, "a group of an ended term was committed"
            self._history.note(self._name, group, outcomes)
        return outcomes

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        if self.cut:
            answered(StoreUnavailableError("the simulated store is away"))
        else:
            self._engine.read(query, budget, answered)

    def holds_nothing(self) -> None:
        """Check that a node that is about to leave has released its jobs."""
        held = [job_id for job_id, term in self._history.leases.items() if term == self.term]
        assert not held, f"a graceful stop leaves {held} leased"

    async def close(self) -> None:
        with suppress(StoreError):  # other nodes will detect its end
            await Moment(way=True)
            await self._engine.close()
            if self.term in self._content.ended:
                self._ended(self.term, self._name)
            await Moment(way=True)
        self._content.receivers.pop(self.term, None)

    def crash(self) -> None:
        """End the node: its current group is committed or not, without a notification."""
        self._group = None
        self._content.receivers.pop(self._engine._term, None)

    # ---- the relay ----

    def listen(self, receiver: Callable[[Message], None]) -> None:
        self._engine.listen(receiver)

    def send(self, to: int, message: Message) -> None:
        if not self.cut:
            self._engine.send(to, message)

    # ---- the membership ----

    async def beat(self, row: NodeRow) -> Sequence[NodeRow]:
        sent_at = self._clock.monotonic()
        await Moment(way=True)
        rows = await self._engine.beat(row)
        await Moment(way=True)
        if not self.is_over():
            self.deadlines[row.term] = max(self.deadlines[row.term], sent_at + self._usable)
        return rows

    async def rows(self) -> Sequence[NodeRow]:
        await Moment(way=True)
        rows = await self._engine.rows()
        await Moment(way=True)
        return rows

    async def now(self) -> float:
        await Moment(way=True)
        now = await self._engine.now()
        await Moment(way=True)
        return now

    async def end(self, term: int, counter: int | None = None) -> bool:
        await Moment(way=True)
        ended = await self._engine.end(term, counter)
        if ended:
            self._ended(term, self._name)
        await Moment(way=True)
        return ended

    async def abandoned(self) -> Sequence[int]:
        await Moment(way=True)
        terms = await self._engine.abandoned()
        await Moment(way=True)
        return terms

    async def ask_to_drain(self, term: int, *, draining: bool = True) -> bool:
        await Moment(way=True)
        return await self._engine.ask_to_drain(term, draining=draining)
