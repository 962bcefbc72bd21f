"""The store that keeps nothing: dictionaries of jobs, under the same rules and the same contract as the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.memory import jobs, queries, resources, schedules
from mainspring.engines.memory.schedules import MemorySchedules
from mainspring.engines.memory.tables import Tables
from mainspring.ids import Term
from mainspring.storage.engine import Opened
from mainspring.storage.operation import Probe, unknown
from mainspring.storage.phases import Phase
from mainspring.storage.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.ids import NodeId
    from mainspring.jobs.store import Ended, Followers
    from mainspring.schedules.store import SchedulesPort
    from mainspring.storage.engine import Answer, Answered, Committed
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Budget, Query

_HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    **jobs.HANDLERS,
    **resources.HANDLERS,
    **schedules.READERS,
    Probe: lambda _, __: None,
}
_WRITING = frozenset(schedules.WRITERS)
_KINDS = _HANDLERS.keys() | _WRITING
_FOLLOW: dict[str, Callable[[MemorySchedules, Sequence[Ended]], None]] = {"schedules": schedules.follow}
"""What follows from the ends of jobs, by their owners."""


class MemoryEngine:
    """An engine whose content ends with the process. It may be opened again in the same process, as tests do."""

    durable = False
    max_value = 2**32 - 1
    shared = False
    limits = True
    lines = True

    def __init__(self) -> None:
        self.followers: Followers | None = None
        self._tables = Tables()
        self._terms: dict[int, str] = {}

    async def open(self, node: NodeId, deliver: Callable[[Callable[[], None]], object]) -> Opened:
        """Begin the node's next term; never fails."""
        del deliver
        term = len(self._terms) + 1
        self._terms[term] = node
        return Opened(Term(term), self._terms)

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run the group at once."""
        del answer
        committed(execute(self._tables, group, self, self._terms))

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query at once."""
        answered(queries.answer(self._tables, query, budget))

    async def close(self) -> None:
        """Nothing to release; the content stays for the next ``open``."""


def execute(tables: Tables, group: Sequence[Operation], port: SchedulesPort, nodes: Mapping[int, str]) -> list[Any]:
    """Run a node's group on some tables, in the order of the phases, and return its outcomes."""
    plan = plan_of(group)
    if not plan.keys() <= _KINDS:
        raise unknown("the memory engine", plan.keys() - _KINDS)
    outcomes: list[Any] = [None] * len(group)
    side = MemorySchedules(tables, port, nodes)
    for kind, placed in plan.items():
        if tables.ended_now and kind.phase >= Phase.SLICES:
            _follow(tables, side)
        for place, operation in placed:
            outcomes[place] = schedules.run(side, operation) if kind in _WRITING else _HANDLERS[kind](tables, operation)
    if tables.ended_now:
        _follow(tables, side)
    for function in side.commits:
        function()
    return outcomes


def _follow(tables: Tables, side: MemorySchedules) -> None:
    ended, tables.ended_now = tables.ended_now, {}
    for owner, jobs_of_it in ended.items():
        _FOLLOW[owner](side, jobs_of_it)
