"""The executor of plain functions, in threads.

The hand-over of a job to a thread and of its outcome to the loop takes longer than a short function. Therefore jobs are handed
over in batches, each thread fetches its next job itself, and one call to the loop returns all outcomes so far. While
functions are brief, one thread is woken per batch instead of one per job, because the others would only contend for the
interpreter's lock. If that thread is blocked, a timer wakes others.
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

WAKE_OTHERS_AFTER: Final = 0.002
"""Seconds after which other threads are woken for a batch of brief jobs."""


class ThreadExecutor:
    """Runs functions in at most ``most`` threads, which start when they are needed; `shrink` keeps at least ``kept``."""

    def __init__(self, kept: int, finish: Finish, *, most: int) -> None:
        self._kept = kept
        self._limit = most
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._todo: deque[Delivery] = deque()
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._notified = False
        self._started = 0
        self._held = 0  # deliveries handed to the threads and not yet finished
        self._rescue: asyncio.TimerHandle | None = None

    def start(self, deliveries: Sequence[Delivery], *, brief: bool) -> None:
        """Queue deliveries for the threads."""
        self._todo.extend(deliveries)
        self._held += len(deliveries)
        if brief:
            self._wake(1, threads=1)
            if self._held > 1 and self._rescue is None:
                self._rescue = self._loop.call_later(WAKE_OTHERS_AFTER, self._wake_more)
        else:
            self._wake(len(deliveries), threads=self._held)

    def stop(self, delivery: Delivery, *, at_once: bool) -> None:
        """Do nothing: a thread cannot be stopped by force, and the job has the request to stop."""

    def shrink(self) -> None:
        """End the idle threads beyond the number to keep."""
        kept = max(self._kept, self._held)
        for _ in range(self._started - kept):  # at least this many threads are idle; each ends with one False
            self._wake_ups.put(False)
        self._started = min(self._started, kept)

    async def close(self) -> None:
        """Make the threads end after their current job."""
        if self._rescue is not None:
            self._rescue.cancel()
        for _ in range(self._started):
            self._wake_ups.put(False)

    def _wake_more(self) -> None:
        self._rescue = None
        if self._todo:
            self._wake(len(self._todo), threads=self._held)

    def _wake(self, count: int, *, threads: int) -> None:
        """Wake ``count`` threads, and start threads until there are ``threads`` of them, up to the limit.

        With one thread for each held job, every waiting job has a free thread, even if the others run for a long time.
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
                # A fresh context, so that the next job on this thread does not inherit variables of this one.
                settlement = Context().run(execute, delivery.function, delivery.payload, delivery.job)
                if getpid() != pid:
                    os._exit(0)  # a fork of the task that has returned from it
                finished.append(Finished(delivery, settlement, clock() - begun))
                del delivery, settlement  # an idle thread keeps nothing of its last job
                if not self._notified:
                    self._notified = True
                    try:
                        self._loop.call_soon_threadsafe(self._deliver)
                    except RuntimeError:
                        return  # the loop is closed: the worker did not wait for this job

    def _deliver(self) -> None:
        self._notified = False  # first, so that later outcomes call again
        batch: list[Finished] = []
        while self._finished:
            batch.append(self._finished.popleft())
        self._held -= len(batch)
        if batch:
            self._finish(batch)
