"""Pending grabs: requests for jobs of plain workers that found none in memory and wait for the answer.

A request waits for a claim from the store. A worker that has just ended a job also waits for a moment. A job that comes meanwhile
is the answer; otherwise the answer is NO_JOB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.jobs.claiming import Claiming
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import FunctionQueue, Worker

GRAB_WAIT = 0.002
"""Seconds that a worker which has just ended a job waits for the next one before NO_JOB."""
GRAB_WAIT_FUNCTIONS = 8
"""The most functions of such a worker: waiting for more of them would cost more than it saves."""


class PendingGrabs:
    """The workers that wait for an answer; ``worker.grabbing`` is the number of their requests."""

    def __init__(self, context: Context, claiming: Claiming) -> None:
        self._dispatch, self._timers, self._clock = context.dispatch, context.timers, context.clock
        self._claiming = claiming
        self.since: dict[Worker, float] = {}
        """Workers that wait for a moment, with the start of the wait, the longest wait first."""

    def for_the_store(self, worker: Worker) -> bool:
        """Claim jobs for a worker that found none in memory; return True if it waits for a claim."""
        asks = not worker.streams
        if asks:
            # Before the claim: a worker with a request is a place for a job, even if it never sleeps.
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
        """Let a worker that has just ended a job and found no other wait for a moment; return False for other workers.

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
            if now < since + GRAB_WAIT:  # the same expression as the timer's time: rounding could set a timer for now
                self._timers.at(since + GRAB_WAIT, self._end)
                break
            del self.since[worker]
            if worker in self._dispatch.workers:
                self.answer(worker)

    def answer_all(self, queue: FunctionQueue) -> None:
        """Answer the workers that waited for a claim of a function and got no job."""
        for worker in [one for one in queue.takers if one.grabbing]:
            self.answer(worker)

    def answer(self, worker: Worker) -> None:
        """Send NO_JOB to a waiting worker, unless another claim for it is in progress."""
        if worker.grabbing and not any(queue.claiming for queue in worker.abilities):
            asked, worker.grabbing = worker.grabbing, 0
            self._dispatch.withdraw(worker)
            for _ in range(asked):
                worker.connection.no_job()
