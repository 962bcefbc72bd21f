"""Jobs that were under way in nodes which were lost: one at a time, for one of them may be what kills nodes.

Each is recorded as running before it is handed out, alone: where the node does not survive it, an attempt of that job is counted,
and of no other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.jobs.store import Assign

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.ground import Ground
    from mainspring.jobs.held import FunctionQueue, Held


class Suspects:
    """The suspects of a node. They are held, and stand in no queue before their turn. ``serve`` hands out what is in a queue."""

    def __init__(self, ground: Ground, serve: Callable[[FunctionQueue], None]) -> None:
        self._dispatch, self._commits = ground.dispatch, ground.commits
        self._serve = serve
        self._waiting: list[Held] = []
        self.alone: Held | None = None
        """The one whose turn it is: it is being recorded, waits for its worker, or runs."""

    def add(self, held: Held) -> None:
        """Let a job wait for its turn; ``next`` begins it."""
        self._waiting.append(held)

    def of(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that wait for their turn."""
        return [held for held in self._waiting if held.queue is queue]

    def next(self) -> None:
        """Record the next one as running, unless one is under way, and hand it out then."""
        if self.alone is None and self._waiting:
            held = self.alone = self._waiting.pop(0)
            held.recorded = True
            self._commits.put(Assign([held.job], lambda _: self._admit(held), lambda _: self._postpone(held)))

    def _admit(self, held: Held) -> None:
        if self.alone is not held:
            return  # it was cancelled or given back meanwhile
        held.job.state = int(State.RUNNING)
        self._dispatch.push(held)
        self._serve(held.queue)

    def _postpone(self, held: Held) -> None:
        """The store could not take the record: upkeep asks for the next one again after a while."""
        if self.alone is held:
            self.alone = None
            held.recorded = False
            self._waiting.insert(0, held)

    def left(self, held: Held) -> None:
        """A job is no longer held; where it was the one that had its turn, the next one has it."""
        if held is self.alone:
            self.alone = None
            self.next()
        elif held in self._waiting:
            self._waiting.remove(held)
