"""The requests of clients to runs: signals, cancellation, termination, and letting parked runs go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.namespaces import ANY
from mainspring.storage.set_aside import REMEDY
from mainspring.workflows.gathering import Gathered
from mainspring.workflows.model import Key
from mainspring.workflows.store import MoveRun, RequestCancelRun, SignalRuns, TerminateRun, UnparkRuns
from mainspring.workflows.watch import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from mainspring.access.acts import Act
    from mainspring.clock import Clock
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.workflows.history import ChildPolicy
    from mainspring.workflows.requests import Failed, Reached, Signal
    from mainspring.workflows.store import Moved


class RunRequests:
    """Puts requests into the store. ``tasks`` are the functions that are tasks, ``paused`` those that are paused."""

    def __init__(
        self, commits: CommitQueue, clock: Clock, *, tasks: Container[bytes], paused: Container[bytes]
    ) -> None:
        self._commits = commits
        self._clock = clock
        self._tasks = tasks
        self._paused = paused
        self._signalling: tuple[SignalRuns, Gathered[Signal]] | None = None

    def signal(self, signal: Signal, done: Callable[[Reached], None], failed: Failed) -> None:
        """Record a signal, or store it with a job whose run has not begun; those of one turn of the loop are one operation."""
        if self._signalling is None or not self._signalling[0].open:
            gathered: Gathered[Signal] = Gathered()
            operation = SignalRuns(gathered.items, 0, self._tasks, self._paused)
            self._signalling = operation, gathered

            def reached(outcome: Sequence[Reached]) -> None:
                for (function, _), one in zip(gathered.callers, outcome, strict=True):
                    function(one)

            self._commits.put(operation, reached, gathered.failed)
        operation, gathered = self._signalling
        gathered.add(signal, done, failed)
        operation.now_us = self._now_us()
        operation.rows += 1
        size = len(signal.input) + 200
        operation.size += size
        self._commits.add_bytes(size)

    def request_cancel(
        self,
        key: Key,
        reason: str,
        request: int,
        done: Callable[[Reached], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Ask a run to cancel itself."""
        operation = RequestCancelRun(key, reason, self._now_us(), request, tasks=self._tasks)
        operation.act = act
        self._commits.put(operation, done, failed)

    def terminate(
        self,
        key: Key,
        reason: str,
        children: ChildPolicy | None,
        done: Callable[[Reached], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """End a run at once; ``children`` replaces the policies of its children."""
        operation = TerminateRun(key, reason, self._now_us(), children=children, tasks=self._tasks)
        operation.act = act
        self._commits.put(operation, done, failed)

    def move(
        self, key: Key, version: str, done: Callable[[Moved], None], failed: Failed, act: Act | None = None
    ) -> None:
        """Give a run another version, if its code has recorded nothing."""
        operation = MoveRun(key, version, self._now_us(), tasks=self._tasks)
        operation.act = act
        self._commits.put(operation, done, failed)

    def unpark(
        self,
        key: Key | None,
        namespace: str,
        done: Callable[[int], None],
        failed: Failed,
        act: Act | None = None,
    ) -> None:
        """Let a parked run go on, or all of a namespace."""
        number = 0

        def unparked(outcome: int) -> None:
            nonlocal number
            number += outcome
            if key is None and outcome == BATCH:
                self._commits.put(UnparkRuns(self._now_us(), definition=(namespace,), limit=BATCH), unparked, failed)
            else:
                done(number)

        definition = None if key is not None else (namespace,)
        operation = UnparkRuns(self._now_us(), key=key, definition=definition, limit=BATCH)
        operation.act = act  # of the first step: one act for all of them
        self._commits.put(operation, unparked, failed)

    def cancel(
        self, job_id: int, reason: str, done: Callable[[str], None], failed: Failed, act: Act | None = None
    ) -> None:
        """See ``jobs.roots.Roots``."""

        def reached(outcome: Reached) -> None:
            if outcome.verdict == "unread":
                failed(ConflictError(f"this node cannot read the run: {outcome.fault}; {REMEDY}"))
            elif outcome.verdict == "full":
                failed(
                    ConflictError(
                        "the run's history is full, so that it takes no requests: end it with `mainspring workflows terminate`"
                    )
                )
            elif outcome.verdict in {"recorded", "repeated"}:
                done("running" if outcome.run and outcome.status.open else "cancelled")
            else:
                done("unknown" if outcome.verdict == "unknown" else "ended")

        self.request_cancel(Key(job=job_id, namespace=ANY), reason, 0, reached, failed, act)

    def _now_us(self) -> int:
        return to_us(self._clock.wall())
