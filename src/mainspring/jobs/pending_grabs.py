"""Plain workers that have asked for a job where none is in memory, and wait for the answer.

They wait while the store is looked at, and who has just ended a job waits for a moment without that. A job that comes meanwhile
is handed over as the answer; otherwise they are told that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.jobs.claiming import Claiming
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import FunctionQueue, Worker

GRAB_WAIT = 0.002
"""Seconds that a worker which has just ended a job waits for the next one before it is told that there is none."""
GRAB_WAIT_FUNCTIONS = 8
"""A worker of more functions is told at once: waiting for each of them would cost more than it saves."""


class PendingGrabs:
    """The workers that wait for an answer: ``worker.grabbing`` says for how many."""

    def __init__(self, context: Context, claiming: Claiming) -> None:
        self._dispatch, self._timers, self._clock = context.dispatch, context.timers, context.clock
        self._claiming = claiming
        self.since: dict[Worker, float] = {}
        """Workers that wait a moment, and since when, the longest first."""

    def for_the_store(self, worker: Worker) -> bool:
        """Have the store looked at for a worker that found nothing in memory; True where it waits for that."""
        asks = not worker.streams
        if asks:
            # Before the look: whoever asks is a place for a job, also where he never sleeps and is one at no other time.
            self._wait(worker)
        for queue in worker.abilities:
            self._claiming.refill(queue)
        waits = asks and any(queue.claiming for queue in worker.abilities)
        if asks and not waits:
            worker.grabbing -= 1
            worker.credit -= 1
            if not worker.credit:
                self._dispatch.withdraw(worker)
        return waits

    def for_a_moment(self, worker: Worker) -> bool:
        """Let a worker that has just ended a job, and found no other one, wait a moment for its answer; False for others.

        A client that waited for that job often sends its next one at once: it is then handed over as the answer, without the
        four packets by which the worker would go to sleep and be woken.
        """
        if not worker.ended or worker.streams or self._dispatch.paused or len(worker.abilities) > GRAB_WAIT_FUNCTIONS:
            return False
        worker.ended = False
        now = self._clock.monotonic()
        if not self.since:
            self._timers.at(now + GRAB_WAIT, self._end)
        self.since.pop(worker, None)
        self.since[worker] = now
        self._wait(worker)
        return True

    def _wait(self, worker: Worker) -> None:
        worker.grabbing += 1
        worker.credit += 1
        self._dispatch.offer(worker)

    def _end(self) -> None:
        now = self._clock.monotonic()
        for worker, since in list(self.since.items()):
            if now < since + GRAB_WAIT:  # in the same words as the timer's time, or rounding makes it ask for now again
                self._timers.at(since + GRAB_WAIT, self._end)
                break
            del self.since[worker]
            if worker in self._dispatch.workers:
                self.answer(worker)

    def answer_all(self, queue: FunctionQueue) -> None:
        """Answer those who asked while the store was being looked at for a function, where nothing was found for them."""
        for worker in [one for one in queue.takers if one.grabbing]:
            self.answer(worker)

    def answer(self, worker: Worker) -> None:
        """Tell a worker that there is no job for it, unless a look at the store is still under way."""
        if worker.grabbing and not any(queue.claiming for queue in worker.abilities):
            asked, worker.grabbing = worker.grabbing, 0
            self._dispatch.withdraw(worker)
            for _ in range(asked):
                worker.connection.no_job()
