"""The store that keeps nothing: dictionaries of jobs, under the same rules and the same contract as the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.memory import jobs, queries
from mainspring.engines.memory.tables import Tables
from mainspring.ids import Term
from mainspring.jobs.store import PHASES
from mainspring.queries.jobs import ListJobs
from mainspring.storage.engine import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.ids import NodeId
    from mainspring.storage.engine import Committed
    from mainspring.storage.operation import Operation

_HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {**jobs.HANDLERS, ListJobs: queries.list_jobs}
_ORDER = {kind: phase for phase, kind in enumerate((*PHASES, ListJobs))}


class MemoryEngine:
    """An engine whose content ends with the process. It may be opened again in the same process, as tests do."""

    durable = False
    max_value = 2**32 - 1
    shared = False

    def __init__(self) -> None:
        self._tables = Tables()
        self._terms: dict[int, str] = {}

    async def open(self, node: NodeId, deliver: Callable[[Callable[[], None]], object]) -> Opened:
        """Begin the node's next term; never fails."""
        del deliver
        term = len(self._terms) + 1
        self._terms[term] = node
        return Opened(Term(term), self._terms)

    def commit(self, group: Sequence[Operation], committed: Committed) -> None:
        """Run the group at once."""
        committed(execute(self._tables, group))

    async def close(self) -> None:
        """Nothing to release; the content stays for the next ``open``."""


def execute(tables: Tables, group: Sequence[Operation]) -> list[Any]:
    """Run a group on some tables, in the order of the phases, and return its outcomes."""
    if len(group) == 1:
        return [_HANDLERS[type(group[0])](tables, group[0])]
    outcomes: list[Any] = [None] * len(group)
    for index in sorted(range(len(group)), key=lambda at: _ORDER[type(group[at])]):
        operation = group[index]
        outcomes[index] = _HANDLERS[type(operation)](tables, operation)
    return outcomes
