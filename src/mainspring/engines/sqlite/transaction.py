"""The transaction of a group: the state that its handlers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite.rows import Functions
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.counts import counted_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notices
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.schedules.catalogue import Catalogue


class Transaction:
    """A cursor in an open transaction, the functions' numbers, the changes of the counts, and the group's notices."""

    def __init__(self, cursor: apsw.Cursor, term: int, nodes: dict[int, str], lifecycle: JobLifecycle | None) -> None:
        self.cursor = cursor
        self.term = term
        self.nodes = nodes
        """Nodes by term."""
        self.lifecycle = lifecycle
        self.functions = Functions(
            cursor.connection.cursor(), SQL["function_id"], SQL["function_named"], SQL["function_numbered"]
        )
        self._deltas: dict[tuple[int, int, int], int] = {}
        self.notices: Notices = {}
        """The events in the group under way that the owners of jobs have not followed yet."""
        self.large: list[list[Job]] = []
        """Jobs whose large results are still to be read, in one list per id."""
        self.stopping: set[int] = set()
        """Held jobs that may have a request to stop them; their rows decide. Most settlements need no lookup: it is empty."""
        self.catalogue: Catalogue | None = None
        """All schedules, once needed; transactions that change schedules keep it current."""
        self.commits: list[Callable[[], object]] = []
        self.rollbacks: list[Callable[[], object]] = []
        """Callbacks on the node's thread once the result of the group is certain."""

    def count(self, function: int, state: int, priority: int, number: int) -> None:
        """Add to a count; both held states are counted as leased."""
        key = (function, counted_as(state), priority)
        self._deltas[key] = self._deltas.get(key, 0) + number

    def write_counts(self) -> None:
        """Write the deltas; the last step before the commit."""
        if self._deltas:
            rows = [(*key, number) for key, number in self._deltas.items() if number]
            self._deltas.clear()
            self.cursor.executemany(SQL["count"], rows)

    def pop_callbacks(self) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
        """Return the callbacks for a commit and those for a rollback, and start with none for the next group."""
        taken = self.commits, self.rollbacks
        self.commits, self.rollbacks = [], []
        return taken

    def no_longer_stopping(self, ids: Sequence[int]) -> None:
        """Forget, with the commit, that jobs may have a request to stop them."""
        self.commits.append(lambda: self.stopping.difference_update(ids))

    def rolled_back(self) -> None:
        """Discard the state of the transaction."""
        self._deltas.clear()
        self.notices.clear()
        self.large.clear()
        self.catalogue = None
        self.functions.forget()
