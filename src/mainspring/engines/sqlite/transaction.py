"""What the handlers of one transaction share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite.rows import Functions
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.counts import counted_as

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notices
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.schedules.catalogue import Catalogue


class Transaction:
    """A cursor inside an open transaction, the functions' numbers, the deltas of the counts, and what follows from the group."""

    def __init__(self, cursor: apsw.Cursor, term: int, nodes: dict[int, str], lifecycle: JobLifecycle | None) -> None:
        self.cursor = cursor
        self.term = term
        self.nodes = nodes
        """Terms to nodes."""
        self.lifecycle = lifecycle
        self.functions = Functions(
            cursor.connection.cursor(), SQL["function_id"], SQL["function_named"], SQL["function_numbered"]
        )
        self._deltas: dict[tuple[int, int, int], int] = {}
        self.notices: Notices = {}
        """What has happened in the group under way and is not yet followed, for the owners of jobs."""
        self.large: list[list[Job]] = []
        """Jobs whose large results are still to be read, those of one id together."""
        self.catalogue: Catalogue | None = None
        """All schedules, once they were needed; changed by the transactions that change them."""
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        """What the node's thread does once it is known how the group under way has ended."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self._deltas[key] = self._deltas.get(key, 0) + number

    def write_counts(self) -> None:
        """Write the deltas, as the last thing before the commit."""
        if self._deltas:
            rows = [(*key, number) for key, number in self._deltas.items() if number]
            self._deltas.clear()
            self.cursor.executemany(SQL["count"], rows)

    def take_calls(self) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
        """Return what is to be called once the group is committed, and where it is not; the next group has its own."""
        taken = self.commits, self.rollbacks
        self.commits, self.rollbacks = [], []
        return taken

    def rolled_back(self) -> None:
        """Forget what the transaction did."""
        self._deltas.clear()
        self.notices.clear()
        self.large.clear()
        self.catalogue = None
        self.functions.forget()
