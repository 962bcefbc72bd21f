"""What waits in a shared store: other nodes put jobs into it, and take them, and so do users' own transactions.

Hints of the relay say so at once, if they arrive; a look every second is what can be relied on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.counting import count_coming
from mainspring.jobs.store import Look, TakeInbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.jobs.footing import Footing
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import Outlook, Taken

LOOK_EVERY = 1.0
"""Seconds between looks at the store's waiting jobs. Nodes that have nothing to do share them: together they look so often."""
LOOK_SHARED: Final = 5
"""Among so many nodes at most."""
COUNTED_FOR: Final = 1.0
"""Seconds after which the counts of jobs are read again before they are shown."""
COUNT_PATIENCE: Final = 1.0
"""Seconds to wait for that at most."""


class Looking:
    """Looks for waiting jobs. ``wake_at`` is called with the time at which a job of the store is due."""

    def __init__(self, footing: Footing, serving: Serving, wake_at: Callable[[int], None]) -> None:
        self._dispatch, self._commits, self._timers = footing.dispatch, footing.commits, footing.timers
        self._clock = footing.clock
        self._serving = serving
        self._wake_at = wake_at
        self._looking = self._taking = False
        self._idle = False
        """Nothing waited in the store at the last look."""
        self._nodes = 1
        """How many there are, with this one."""
        self._looked = self._clock.monotonic()
        self._counted = float("-inf")
        """When the present counts were asked for, by the monotonic clock."""
        self._counting: list[Callable[[], None]] = []
        """Called when newer counts have come."""

    def among(self, nodes: int) -> None:
        """Learn how many nodes have the store, with this one."""
        self._nodes = nodes

    def tick(self, now: float) -> None:
        """Look where it is time."""
        # Where nothing waits, what begins to is hinted at; only a hint that is lost costs the time until this node looks itself.
        every = LOOK_EVERY * (min(self._nodes, LOOK_SHARED) if self._idle else 1)
        if now - self._looked >= every and not self._looking:
            self.look()

    def look(self, then: Callable[[], None] = lambda: None, failed: Callable[[StoreError], None] | None = None) -> None:
        """Count the waiting jobs."""

        def looked(outlook: Outlook) -> None:
            # The rest of the group is counted first: the answer includes it already.
            self._commits.afterwards(lambda: learn(outlook))

        def learn(outlook: Outlook) -> None:
            self._looking = False
            self._counted = asked
            self._learn(outlook, functions)
            self._answer_counts()
            then()

        def not_looked(error: StoreError) -> None:
            self._looking = False
            self._answer_counts()
            if failed is not None:
                failed(error)

        asked = self._looked = self._clock.monotonic()
        self._looking = True
        # Where very many functions have jobs, only those that somebody here has to do with are counted.
        dispatch = self._dispatch
        functions = None if dispatch.complete else list(dispatch.queues)
        self._commits.put(Look(functions), looked, not_looked)

    def counted(self, then: Callable[[], None]) -> None:
        """Call a function when the counts are at most `COUNTED_FOR` old, or after `COUNT_PATIENCE` where the store is slow."""
        now = self._clock.monotonic()
        if now - self._counted <= COUNTED_FOR:
            then()
            return

        def give_up() -> None:
            if waiting in self._counting:
                self._counting.remove(waiting)
                then()

        def waiting() -> None:
            self._timers.cancel(timer)
            then()

        timer = self._timers.at(now + COUNT_PATIENCE, give_up)
        self._counting.append(waiting)
        if not self._looking:
            self.look()

    def _answer_counts(self) -> None:
        counting, self._counting = self._counting, []
        for function in counting:
            function()

    def _learn(self, outlook: Outlook, functions: Sequence[bytes] | None) -> None:
        """Take the counts of some functions; None: of all."""
        self._idle = not outlook.pending and not outlook.inbox
        dispatch = self._dispatch
        for name in outlook.live:
            dispatch.known(name)
        queues = dispatch.queues
        counted = {name: queues[name] for name in functions if name in queues} if functions is not None else queues
        for name, queue in counted.items():
            live = outlook.live.get(name, 0)
            if live or any(queue.backlog) or queue.away:
                for priority in range(3):
                    queue.backlog[priority] = outlook.pending.get((name, priority), 0)
                queue.away = max(live - sum(queue.backlog) - queue.leased, 0)
        count_coming(self._commits.waiting, counted)
        for queue in list(counted.values()):
            if queue.stirs():
                self._serving.serve(queue)
        if outlook.next_us:
            self._wake_at(outlook.next_us)
        if outlook.inbox and not self._taking:
            self._take_inbox()

    def _take_inbox(self) -> None:
        """Move on what users' own transactions have submitted."""

        def taken(outcome: Taken) -> None:
            self._taking = False
            self.add_pending(outcome.pending)
            if outcome.next_us:
                self._wake_at(outcome.next_us)
            if outcome.more:
                self._take_inbox()

        def not_taken(error: StoreError) -> None:
            del error  # the next look finds it again
            self._taking = False

        self._taking = True
        self._commits.put(TakeInbox(), taken, not_taken)

    def add_pending(self, pending: dict[tuple[bytes, int], int]) -> None:
        """Count jobs that have become pending, by function and priority, and have workers here get them."""
        for (function, priority), number in pending.items():
            queue = self._dispatch.known(function)
            if queue is not None:
                queue.backlog[priority] += number
                self._serving.serve(queue)
