"""Counts of stored jobs for functions that this node begins to use.

If there are very many functions, most have no workers: their jobs are only rows of the store, and the store alone counts them.
When a worker registers for such a function, or a client waits for a job of it, the node reads its counts from the store.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.jobs.store import CountLive, Redrive, ShowLive, Submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import Counted
    from mainspring.storage.operation import Operation
    from mainspring.storage.reads import Reads

RETRY_DELAY: Final = 0.25
"""Seconds after which a failed query is repeated."""
FUNCTIONS_PER_COUNT: Final = 250
"""Functions of one query: it takes a few milliseconds."""


class Counting:
    """Reads counts of queues from the store. Until then nothing is claimed for them, and new jobs go behind stored ones."""

    def __init__(self, context: Context, serving: Serving, reads: Reads) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock = context.clock
        self._serving = serving
        self._reads = reads
        self._next: dict[bytes, FunctionQueue] = {}
        """The queues of the next query."""
        self._asking = False

    def begin(self, then: Callable[[], None], failed: Callable[[StoreError], None], after: bytes = b"") -> None:
        """Count the jobs of all functions, or of as many as are kept in memory. Called before anything else is counted."""

        def counted(page: Counted) -> None:
            for (function, state, priority), number in page.counts.items():
                queue = self._dispatch.tracked(function)
                if queue is not None:
                    queue.count(state, priority, number)
            if page.next is not None and self._dispatch.complete:
                self.begin(then, failed, page.next)
            else:
                then()

        self._reads.ask(ShowLive(after), counted, failed)

    def ask(self, queue: FunctionQueue) -> None:
        """Count the stored jobs of a new queue."""
        queue.counted = False
        queue.claiming = True
        self._next[queue.name] = queue
        if not self._asking:
            self._ask()

    def _ask(self) -> None:
        asked = dict(islice(self._next.items(), FUNCTIONS_PER_COUNT))
        self._asking = bool(asked)
        for name in asked:
            del self._next[name]
        if asked:
            self._commits.put(
                CountLive(list(asked)),
                lambda counted: self._commits.after_answers(lambda: self._learn(asked, counted)),
                lambda error: self._not_counted(asked, error),
            )

    def _learn(self, asked: Mapping[bytes, FunctionQueue], counted: Counted) -> None:
        """Set the counts, which include all operations of the same group."""
        self._ask()
        for queue in asked.values():
            queue.backlog[:] = 0, 0, 0
            queue.away = 0
        for (name, state, priority), number in counted.counts.items():
            asked[name].count(state, priority, number)
        for queue in asked.values():
            queue.away = max(queue.away - queue.leased, 0)
        count_in_flight(self._commits.waiting, asked)
        serving = self._serving
        for queue in asked.values():
            queue.counted = True
            queue.claiming = False
            serving.serve(queue)
            serving.answer(queue)

    def _not_counted(self, asked: Mapping[bytes, FunctionQueue], error: StoreError) -> None:
        del error  # every operation with a waiting client reports it to the service
        self._ask()

        def retry() -> None:
            for queue in asked.values():
                if self._dispatch.queues.get(queue.name) is queue:
                    self.ask(queue)

        for queue in asked.values():
            queue.claiming = False
            self._serving.answer(queue)
        self._timers.at(self._clock.monotonic() + RETRY_DELAY, retry)


def count_in_flight(waiting: Iterable[Operation], queues: Mapping[bytes, FunctionQueue]) -> None:
    """Count the jobs of later groups again: they were counted when they came, and the new counts do not include them."""
    for operation in waiting:
        if isinstance(operation, Submit):
            for job in operation.jobs:
                queue = queues.get(job.function)
                if queue is None:
                    continue
                if job.state == State.PENDING:
                    queue.backlog[job.priority] += 1
                elif job.state == State.SCHEDULED:
                    queue.away += 1
        elif isinstance(operation, Redrive):
            queue = queues.get(operation.function)
            if queue is not None:
                queue.away += 1
