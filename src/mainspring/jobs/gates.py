"""The gates of functions: made where a function has limits or a pause, or its jobs have keys, and taken away afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.jobs.accounts import OpenAccount
    from mainspring.jobs.held import FunctionQueue, Held


class Gates:
    """Puts gates in front of queues. ``accounts`` says how a function's tokens are come by."""

    def __init__(self, clock: Clock, accounts: Callable[[FunctionQueue], OpenAccount]) -> None:
        self._clock = clock
        self._accounts = accounts

    def of(self, queue: FunctionQueue) -> Gate[Held]:
        """Return a function's gate; the jobs that are here pass through it from now on."""
        gate = queue.gate
        if gate is None:
            gate = Gate(self._clock, self._accounts(queue))
            waiting = queue.queued()
            for ready in queue.ready:
                ready.clear()
            queue.dropped = 0
            for worker in queue.workers:
                for held in worker.running.values():
                    if held.queue is queue:
                        gate.count(held.job.key)
                        held.gate = gate
            for held in waiting:
                gate.push(held)
            queue.gate = gate
        return gate

    @staticmethod
    def remove(queue: FunctionQueue) -> None:
        """Nothing limits a function any more, and its jobs have no keys: they go on without a gate."""
        gate, queue.gate = queue.gate, None
        if gate is not None:
            for held in sorted(gate.queued(), key=lambda held: held.job.id):
                queue.lines()[held.job.priority].append(held)
