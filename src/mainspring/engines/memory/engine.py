"""The store without persistence: dictionaries of jobs, under the same rules and the same contract as the other stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.audit import recorded_acts
from mainspring.access.idempotency import KeyedGroup, has_keys
from mainspring.engines.memory import (
    access,
    claiming,
    jobs,
    queries,
)
from mainspring.engines.memory.tables import Tables
from mainspring.engines.memory.transaction import Transaction
from mainspring.errors import StoreError
from mainspring.ids import Term
from mainspring.jobs.slices import Units, concerns
from mainspring.storage.engine import Meter, Opened, Phase, Probe, plan_of, run_synchronously, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.features import Feature
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle, Slice
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query

_HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    **jobs.HANDLERS,
    **claiming.HANDLERS,
    **jobs.READING_HANDLERS,
    **claiming.RESOURCE_HANDLERS,
    **access.LOG_HANDLERS,
    **access.HANDLERS,
    **access.REPLY_HANDLERS,
    **access.SERIES_HANDLERS,
    Probe: lambda _, __: None,
}


class MemoryEngine:
    """An engine whose content ends with the process. It may be opened again in the same process, as tests do."""

    durable = False
    max_value = 2**32 - 1
    shared = False
    whole = True
    lacks: frozenset[Feature] = frozenset()

    def __init__(self, slices: Sequence[Slice[Transaction]] = ()) -> None:
        self._lifecycle: JobLifecycle | None = None
        self.slices = slices
        self._runner = Runner(slices)
        self._tables = Tables()
        self._terms: dict[int, str] = {}

    @property
    def tables(self) -> Tables:
        """The content. Only tests read it outside of a transaction."""
        return self._tables

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Begin the node's next term; never fails."""
        del deliver
        self._lifecycle = lifecycle
        term = len(self._terms) + 1
        self._terms[term] = node
        return Opened(Term(term), self._terms)

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        del answer
        committed(self._runner.run(group, self._tables, self._lifecycle, self._terms, len(self._terms)))

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        try:
            answer = self._runner.read(query, budget, self._tables)
        except StoreError as refusal:
            answer = refusal
        answered(answer)

    async def close(self) -> None:
        """Release nothing; the content stays for the next ``open``."""


class Runner:
    """Runs groups on tables."""

    def __init__(self, slices: Sequence[Slice[Transaction]] = ()) -> None:
        self._slices = slices
        self._handlers = dict(_HANDLERS)
        self._readers = {**queries.READERS, **access.LOG_READERS, **access.READERS, **access.SERIES_READERS}
        for one in slices:
            self._handlers |= one.handlers
            self._readers |= one.readers
        self._kinds = self._handlers.keys() | {kind for one in slices for kind in one.writes}

    def run(
        self,
        group: Sequence[Operation],
        tables: Tables,
        lifecycle: JobLifecycle | None,
        nodes: Mapping[int, str],
        term: int,
    ) -> list[Any]:
        """Run a group of the node that has the term, in the order of the phases, and return its outcomes."""
        tables.nodes = nodes
        plan = plan_of(group)
        if not self._kinds >= plan.keys():
            raise unknown("the memory engine", plan.keys() - self._kinds)
        outcomes: list[Any] = [None] * len(group)
        keyed = KeyedGroup(plan, access.ReplyRows(tables), outcomes) if has_keys(plan) else None
        if keyed is not None:
            plan = run_synchronously(keyed.reserve(plan))

        def handle(kind: type[Operation]) -> None:
            handler = self._handlers[kind]
            for place, operation in plan[kind]:
                outcomes[place] = handler(tables, operation)

        for kind in plan:
            if kind.phase < Phase.SLICES:
                handle(kind)
        tx = Transaction(tables, lifecycle, nodes, term)
        if concerns(plan, tables.notices):
            run_synchronously(Units(self._slices, tx).run(plan, tables.notices, outcomes))
        for kind in plan:
            if kind.phase > Phase.SLICES:
                handle(kind)
        if acts := recorded_acts(plan, outcomes):
            access.record(tables, acts)
        if keyed is not None:
            run_synchronously(keyed.keep())
        for function in tx.commits:
            function()
        return outcomes

    def read(self, query: Query[Any], budget: Budget, tables: Tables) -> Any:
        reader = self._readers.get(type(query))
        if reader is None:
            raise unknown("the memory engine", [type(query)])
        return run_synchronously(reader(tables, query, Meter(budget)))
