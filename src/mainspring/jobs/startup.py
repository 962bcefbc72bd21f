"""The start of a node's jobs: its earlier run's jobs are given back, and the waiting jobs are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us
from mainspring.jobs.store import Recover

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.counting import Counting
    from mainspring.jobs.due_jobs import DueJobs
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.functions import Functions
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.sharing import Sharing
    from mainspring.jobs.store import Recovered


class Startup:
    """Runs once, before the node takes requests. ``sharing`` is given if the store is shared."""

    def __init__(
        self,
        context: Context,
        functions: Functions,
        ends: Ends,
        counting: Counting,
        due_jobs: DueJobs,
        roots: RootJobs,
        sharing: Sharing | None,
    ) -> None:
        self._table, self._commits, self._clock = context.table, context.commits, context.clock
        self._functions = functions
        self._ends = ends
        self._counting = counting
        self._due_jobs = due_jobs
        self._roots = roots
        self._sharing = sharing

    def run(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back the jobs that an earlier run of this node held, and count the waiting jobs; then call ``ready``.

        ``ready`` takes the number of jobs given back. On a shared store it is 0: the nodes agree on who recovers jobs, and when.
        """

        def loaded() -> None:
            if self._sharing is not None:
                self._sharing.look(lambda: ready(0), failed)
            else:
                self._commits.put(Recover(self._table.term, now_us=to_us(self._clock.wall())), recovered, failed)

        def recovered(outcome: Recovered) -> None:
            self._ends.recovered(outcome.lost)
            self._counting.begin(lambda: counted(outcome.number), failed)

        def counted(number: int) -> None:
            self._due_jobs.wake()
            self._roots.begin_counted()
            ready(number)

        self._functions.load(loaded, failed)
