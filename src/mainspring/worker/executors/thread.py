"""Plain functions, in threads.

To hand a job to a thread and its outcome back costs more than a short function does. So jobs are handed over in
batches, a thread takes the next one itself, and all outcomes that have gathered go back in one call to the loop. While
functions are brief, one thread is woken for a batch instead of one for each job: under the interpreter's lock the others
would only get into its way. Should it be held up, a timer wakes them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from mainspring.worker.delivery import Delivery, Finish, Finished
from mainspring.worker.execution import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

RESCUE_AFTER: Final = 0.002


class ThreadExecutor:
    """Runs functions in at most ``most`` threads, which start when they are needed; ``usual`` of them stay."""

    def __init__(self, usual: int, finish: Finish, *, most: int) -> None:
        self._usual = usual
        self._limit = most
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._todo: deque[Delivery] = deque()
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._told = False
        self._started = 0
        self._held = 0  # what has been handed over and not delivered back: it waits, runs or has just ended
        self._rescue: asyncio.TimerHandle | None = None

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:
        """Hand deliveries to the threads."""
        self._todo.extend(deliveries)
        self._held += len(deliveries)
        if brief:
            self._wake(1, threads=1)
            if self._held > 1 and self._rescue is None:
                self._rescue = self._loop.call_later(RESCUE_AFTER, self._wake_more)
        else:
            self._wake(len(deliveries), threads=self._held)

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Do nothing: a thread can only be asked, and the job has been."""

    def shrink(self) -> None:
        """End the idle threads beyond the usual number."""
        kept = max(self._usual, self._held)
        for _ in range(self._started - kept):  # there are at least so many idle ones: each takes one, and ends
            self._wake_ups.put(False)
        self._started = min(self._started, kept)

    async def close(self) -> None:
        """Let the threads end when they have finished what they run."""
        if self._rescue is not None:
            self._rescue.cancel()
        for _ in range(self._started):
            self._wake_ups.put(False)

    def _wake_more(self) -> None:
        self._rescue = None
        if self._todo:
            self._wake(len(self._todo), threads=self._held)

    def _wake(self, count: int, *, threads: int) -> None:
        """Wake so many threads, of at least so many that there are to be, as far as the limit allows.

        With one for each job that is held, a free one is left for each that waits, however long the others run.
        """
        for _ in range(min(count, self._limit)):
            self._wake_ups.put(True)
        while self._started < min(self._limit, threads):
            self._started += 1
            threading.Thread(target=self._work, name=f"mainspring-task-{self._started}", daemon=True).start()

    def _work(self) -> None:
        take, clock, finished = self._todo.popleft, time.perf_counter, self._finished
        getpid, pid = os.getpid, os.getpid()
        while self._wake_ups.get():
            while True:
                try:
                    delivery = take()
                except IndexError:
                    break
                begun = clock()
                # A fresh context: what one job sets, the next on this thread must not see.
                settlement = Context().run(execute, delivery.function, delivery.payload, delivery.job)
                if getpid() != pid:
                    os._exit(0)  # a fork of the task that came back from it, too
                finished.append(Finished(delivery, settlement, clock() - begun))
                if not self._told:
                    self._told = True
                    try:
                        self._loop.call_soon_threadsafe(self._deliver)
                    except RuntimeError:
                        return  # the loop is closed: the worker did not wait for this job

    def _deliver(self) -> None:
        self._told = False  # before looking: what comes from now on calls again
        batch: list[Finished] = []
        while self._finished:
            batch.append(self._finished.popleft())
        self._held -= len(batch)
        if batch:
            self._finish(batch)
