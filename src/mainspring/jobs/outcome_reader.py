"""Lookups of outcomes in the store for waiting clients.

Clients may wait for any number of results, of any size, and read none. So only one lookup is in progress at a time. It reads each
job once, however many clients wait for it, and only if a client has room for the outcome. Its results have a limit in bytes,
which is applied before they are read. A single larger result is read alone.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.jobs.failures import exception_of
from mainspring.jobs.model import State
from mainspring.jobs.store import Find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.listeners import Listener
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Subscribe

    FindJobs = Callable[
        [list[int], Callable[[dict[int, Job]], None], Callable[[StoreError], None], int], Find | Subscribe
    ]
    """Puts a lookup of ids with a limit of bytes of results, and returns it."""

RETRY_DELAY: Final = 0.25
"""Seconds after which a failed query is repeated."""
JOBS_PER_LOOKUP: Final = 256
"""Jobs of one lookup."""
RESULTS_BYTES: Final = 16 * 2**20
"""Bytes of the results of one lookup, unless a single result is larger."""


class _Wait(NamedTuple):
    """The functions to call once a job is looked up."""

    unknown: Callable[[], None]
    """Called if the store has no such job."""
    looked_up: Callable[[], None]
    """Called once, when the lookup is done or not needed."""
    of_all: bool
    """Whether ``unknown`` is for all listeners: then it is called after the callbacks of single listeners."""


def _nothing() -> None:
    pass


class OutcomeReader:
    """Looks jobs up, and notifies the listeners of ended ones.

    ``find`` puts the lookups on a shared store, where they also subscribe this node to the jobs.
    """

    def __init__(self, context: Context, find: FindJobs | None = None) -> None:
        self._commits = context.commits
        self._table, self._timers, self._clock = context.table, context.timers, context.clock
        self._handles, self._listeners = context.handles, context.listeners
        self.find = find or self._find
        self._queue: dict[int, list[_Wait]] = {}
        self._under_way: dict[int, list[_Wait]] = {}
        self._open: Find | Subscribe | None = None
        """The lookup in progress, while ids may still be added."""
        self._withheld: dict[int, list[_Wait]] = {}
        """The waits of jobs for which no listener has room now."""
        self._sizes: dict[int, int] = {}
        """The sizes of results that did not fit into a lookup."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._under_way) + len(self._withheld)

    def look(
        self,
        job_id: int,
        unknown: Callable[[], None] = _nothing,
        looked_up: Callable[[], None] = _nothing,
        *,
        of_all: bool = False,
    ) -> None:
        """Look a job up, and notify its listeners if it has ended."""
        self._add(job_id, _Wait(unknown, looked_up, of_all))
        self._go_on()

    def will_look(self, job_id: int) -> bool:
        """Return whether a job will be looked up, at once or when a listener has room."""
        return job_id in self._queue or job_id in self._withheld

    def has_room(self, listener: Listener) -> None:
        """Look up the withheld outcomes of a listener that has room again."""
        jobs = self._listeners.withheld.pop(listener, None)
        if jobs:
            for job_id in jobs:
                self._queue.setdefault(job_id, []).extend(self._withheld.pop(job_id, ()))
            self._go_on()

    def gone(self, listener: Listener) -> None:
        """Cancel the lookups of a departed listener."""
        for job_id in self._listeners.withheld.pop(listener, ()):
            if not self._listeners.of(job_id):
                self._end(self._withheld.pop(job_id, ()))

    def _add(self, job_id: int, wait: _Wait) -> None:
        operation = self._open
        if (
            operation is not None
            and operation.open
            and len(operation.ids) < JOBS_PER_LOOKUP
            and self._is_wanted(job_id)
        ):
            if job_id in self._under_way:
                self._under_way[job_id].append(wait)
                return
            if job_id not in self._queue:
                self._under_way[job_id] = [wait]
                operation.ids.append(job_id)
                operation.rows += 1
                return
        # The store may have answered a lookup in progress before this request: the job is looked up again.
        self._queue.setdefault(job_id, []).append(wait)

    def _is_wanted(self, job_id: int) -> bool:
        return any(listener.has_room() for listener in self._listeners.of(job_id))

    def _go_on(self) -> None:
        while self._queue and not self._under_way:
            room = RESULTS_BYTES
            for job_id in list(islice(self._queue, JOBS_PER_LOOKUP)):
                size = self._sizes.get(job_id, 0)
                if size > RESULTS_BYTES and self._under_way:
                    continue  # it gets its own lookup
                self._sizes.pop(job_id, None)
                self._begin(job_id, self._queue.pop(job_id))
                if size > RESULTS_BYTES and self._under_way:
                    room = size
                    break
            if self._under_way:
                operation = self.find(list(self._under_way), self._found, self._failed, room)
                self._open = operation if room == RESULTS_BYTES else None

    def _begin(self, job_id: int, waits: list[_Wait]) -> None:
        """Add a job to the next lookup, unless no listener has room or its result is in memory."""
        if not self._is_wanted(job_id):
            for listener in self._listeners.of(job_id):
                self._listeners.withhold(job_id, listener)
            if self._listeners.of(job_id):
                self._withheld.setdefault(job_id, []).extend(waits)
            else:
                self._end(waits)
            return
        sent = self._listeners.under_way(job_id)
        if sent is None:
            self._under_way[job_id] = waits
        else:
            self._listeners.notify(sent)
            self._end(waits)

    def _find(
        self,
        ids: list[int],
        found: Callable[[dict[int, Job]], None],
        failed: Callable[[StoreError], None],
        room: int,
    ) -> Find:
        operation = Find(ids, room, self._listeners.namespace)
        self._commits.put(operation, found, failed)
        return operation

    def _found(self, jobs: dict[int, Job]) -> None:
        under_way, self._under_way, self._open = self._under_way, {}, None
        for job_id, waits in under_way.items():
            job = jobs.get(job_id)
            if job is None:
                self._missing(job_id, waits)
            elif State(job.state).ended:
                self._ended(job_id, waits, job)
            else:
                self._end(waits)
        self._go_on()

    def _missing(self, job_id: int, waits: list[_Wait]) -> None:
        self._end(waits)
        handle = self._handles.of(job_id)
        if handle in self._table.held:
            return
        for wait in sorted(waits, key=lambda wait: wait.of_all):
            if wait.of_all and job_id in self._queue:
                self._queue[job_id].append(wait)  # a later request is answered first
            else:
                wait.unknown()
        if not waits:
            # Its outcome was withheld, and has been deleted meanwhile.
            for listener in self._listeners.pop(job_id):
                listener.unknown(handle)

    def _ended(self, job_id: int, waits: list[_Wait], job: Job) -> None:
        if job.unread and self._listeners.under_way(job_id) is None:
            self._sizes[job_id] = job.output_size
            self._queue[job_id] = waits + self._queue.pop(job_id, [])
            return
        self._end(waits)
        self._listeners.notify(self._listeners.under_way(job_id) or job, exception_of(job), asked=job_id)

    def _failed(self, error: StoreError) -> None:
        # A failed lookup does not mean an unknown job: a client would submit that job again.
        del error
        self._open = None
        self._timers.at(self._clock.monotonic() + RETRY_DELAY, self._retry)

    def _retry(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for job_id, waits in under_way.items():
            self._queue[job_id] = waits + self._queue.pop(job_id, [])
        self._go_on()

    @staticmethod
    def _end(waits: Iterable[_Wait]) -> None:
        for wait in waits:
            wait.looked_up()
