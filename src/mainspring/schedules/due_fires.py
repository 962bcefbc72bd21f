"""The due schedules of one node, on their way into operations that fire them: in turns over their namespaces, at a pace.

Every operation of a group waits for the fires in it. So while clients give the node other work, one operation fires so few
schedules that its group takes little longer. Fires then have a third of the node's time or less, and a schedule that is due more
often than that is late. Its namespace bears that alone: due schedules of other namespaces take turns with it. A node without
other work belongs to the fires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.namespaces import Turns, split_text
from mainspring.schedules.store import FireSchedules
from mainspring.storage.agenda import Pace, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.schedules.store import Due, Fired
    from mainspring.storage.agenda import Timers
    from mainspring.storage.commit_queue import CommitQueue

BESIDE: Final = Steps(first=2, smallest=1, largest=1000, aim=500)
"""Fire times of one operation beside other work."""
ALONE: Final = Steps(first=1000, smallest=100, largest=1000, aim=1, shortest=1.0, longest=1.0)
"""Without other work. The first request of a client after that waits for such an operation."""
QUIET: Final = 5.0
"""Seconds after the last request of a client until the node counts as without other work: a client that sends one request after
the other must not meet a long operation each time."""


class DueFires:
    """Fires schedules that are due; one operation at a time waits for the store.

    ``fired`` receives the outcome of an operation, ``not_fired`` the schedules of one that failed. ``next_turn`` is called when
    ``fire`` may begin the next operation after a pause.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        timers: Timers,
        now_us: Callable[[], int],
        fired: Callable[[dict[str, Fired]], None],
        not_fired: Callable[[Sequence[Due]], None],
        next_turn: Callable[[], None],
    ) -> None:
        self._commits = commits
        self._clock = clock
        self._timers = timers
        self._now_us = now_us
        self._ended, self._failed, self._next_turn = fired, not_fired, next_turn
        self._due: Turns[Due] = Turns()
        """Due schedules that are in no operation yet."""
        self._operation: FireSchedules | None = None
        """The operation that waits for the store; schedules are added until it is part of a group."""
        self._size = 0
        """The most fire times of that operation."""
        self._is_pausing = False
        self._beside, self._alone = Pace(BESIDE), Pace(ALONE)
        self._is_alone = True
        self._requests = commits.requests
        self._busy_until = clock.monotonic()

    def add(self, due: Due) -> None:
        """Add a schedule to those of its namespace. Call ``fire`` afterwards."""
        self._due.add(split_text(due.name)[0], due)

    def clear(self) -> list[str]:
        """Drop the schedules that are in no operation yet; return their names."""
        return [one.name for one in self._due.clear()]

    def fire(self) -> None:
        """Put due schedules into the next operation, as far as it has room."""
        operation = self._operation
        if self._is_pausing or not self._due or (operation is not None and not operation.open):
            return
        if operation is None:
            operation = self._begin()
        while self._due and len(operation.due) < self._size:
            operation.due.append(self._due.pop())
        operation.rows = len(operation.due)
        operation.limit = max(self._size // operation.rows, 1)
        operation.now_us = self._now_us()
        # Those that are late by the pace do not begin a group: they go with the next one of a client.
        operation.urgent = self._is_alone or not self._due
        if operation is not self._operation:
            self._operation = operation
            self._commits.put(operation, self._fired, self._not_fired)

    def _begin(self) -> FireSchedules:
        now, requests = self._clock.monotonic(), self._commits.requests
        if requests != self._requests:
            self._requests, self._busy_until = requests, now + QUIET
        self._is_alone = now >= self._busy_until
        pace = self._alone if self._is_alone else self._beside
        pace.begin(now, self._commits.groups)
        self._size = pace.size
        return FireSchedules([], 0)

    def _fired(self, outcome: dict[str, Fired]) -> None:
        operation = self._operation
        assert operation is not None, "it has just ended"
        self._operation = None
        now, groups = self._clock.monotonic(), self._commits.groups
        if self._is_alone:
            self._alone.after(operation.fires, operation.seconds, now, groups)
        else:
            pause = self._beside.after(operation.fires, operation.seconds, now, groups)
            self._is_pausing = True
            self._timers.at(now + pause.shared, self._resume)
        self._ended(outcome)

    def _not_fired(self, error: StoreError) -> None:
        del error  # the next fetch finds its schedules again
        operation = self._operation
        assert operation is not None, "it has just failed"
        self._operation = None
        self._failed(operation.due)

    def _resume(self) -> None:
        self._is_pausing = False
        self._next_turn()
