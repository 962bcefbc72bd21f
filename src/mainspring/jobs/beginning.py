"""The start of a node: jobs that an earlier run held go back, and waiting jobs are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.jobs.store import Recover, ShowLive

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.footing import Footing
    from mainspring.jobs.functions import Functions
    from mainspring.jobs.looking import Looking
    from mainspring.jobs.store import Counted, Recovered
    from mainspring.jobs.waking import Waking
    from mainspring.storage.reads import Reads


class Beginning:
    """Learns what a store has. ``looking`` is given where other nodes have it too."""

    def __init__(
        self,
        footing: Footing,
        reads: Reads,
        functions: Functions,
        waking: Waking,
        ends: Ends,
        looking: Looking | None,
    ) -> None:
        self._table, self._dispatch, self._commits = footing.table, footing.dispatch, footing.commits
        self._reads = reads
        self._functions = functions
        self._waking = waking
        self._ends = ends
        self._looking = looking

    def begin(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back what an earlier run of this node held, and count the waiting jobs; then call ``ready`` with how many.

        On a shared store nothing is given back here: who gives back what, and when, is for the nodes to agree on.
        """
        looking = self._looking
        if looking is not None:
            self._functions.load(lambda: looking.look(lambda: ready(0), failed), failed)
            return

        def recovered(outcome: Recovered) -> None:
            self._ends.recovered(outcome.lost)
            self._count(lambda: ready(outcome.number), failed)

        self._functions.load(lambda: self._commits.put(Recover(self._table.term), recovered, failed), failed)

    def _count(self, then: Callable[[], None], failed: Callable[[StoreError], None], after: bytes = b"") -> None:
        """Count the jobs of all functions, or of as many as are kept in memory."""

        def counted(page: Counted) -> None:
            for (function, state, priority), number in page.counts.items():
                queue = self._dispatch.known(function)
                if queue is None:
                    pass  # the store alone counts it
                elif state == State.PENDING:
                    queue.backlog[priority] = number
                else:
                    queue.away += number
            if page.next is not None and self._dispatch.complete:
                self._count(then, failed, page.next)
                return
            self._waking.wake()
            then()

        self._reads.ask(ShowLive(after), counted, failed)
