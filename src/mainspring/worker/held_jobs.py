"""The jobs that a worker holds: taken, started in its places, settled, stopped, or handed back."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mainspring.worker.current import CurrentJob, JobStopped
from mainspring.worker.delivery import Delivery, Executor, Finished
from mainspring.worker.execution import CANCELLED, RELEASED, Settlement, failure
from mainspring.worker.executors.aio import CoroutineExecutor
from mainspring.worker.executors.process import ProcessExecutor
from mainspring.worker.executors.thread import ThreadExecutor
from mainspring.worker.reports import Origin, Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.worker.failed_attempts import FailedAttempts
    from mainspring.worker.job_counters import JobCounters
    from mainspring.worker.link import Link
    from mainspring.worker.places import Places
    from mainspring.worker.prefetch import PrefetchController
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Assigned, Key
    from mainspring.worker.settings import WorkerSettings
    from mainspring.worker.waits import Waits


class HeldJobs:
    """What a worker holds of all its servers.

    ``selector`` names the App for processes, and ``task_process`` is the command that starts one. ``ended`` is called after jobs
    have ended, on the loop.
    """

    def __init__(
        self,
        functions: Mapping[bytes, Function],
        places: Places,
        waits: Waits,
        prefetch: PrefetchController,
        settings: WorkerSettings,
        *,
        selector: str | None,
        task_process: Sequence[str],
        counters: JobCounters | None,
        ended: Callable[[], None],
    ) -> None:
        self._functions = functions
        self._places = places
        self._waits = waits
        self._prefetch = prefetch
        self._settings = settings
        self._selector = selector
        self._task_process = task_process
        self._counters = counters
        self._ended = ended
        self._reports = Reports(waits)
        self._executors: dict[str, Executor] = {}
        self._held: dict[tuple[Link, Key], Delivery] = {}
        self._waiting: deque[Delivery] = deque()
        self.done = 0
        """The number of jobs that were run to their end."""

    def attach(self, failures: FailedAttempts) -> None:
        """Run jobs on and beside the running loop from now on, and log their failures."""
        self._failures = failures
        self._reports.attach()
        usual, most = self._settings.concurrency, self._settings.concurrency + self._settings.waiting_places
        self._executors = {
            "thread": ThreadExecutor(usual, self._finish, most=most),
            "coroutine": CoroutineExecutor(self._finish),
            "process": ProcessExecutor(
                usual,
                self._selector,
                self._finish,
                most=most,
                max_rss=self._settings.max_rss,
                command=self._task_process,
            ),
        }

    async def close(self) -> None:
        """End threads and processes."""
        for executor in self._executors.values():
            await executor.close()

    def shrink(self) -> None:
        """End the threads and processes that only extra places have needed."""
        for executor in self._executors.values():
            executor.shrink()

    # What is held.

    def __len__(self) -> int:
        return len(self._held)

    @property
    def usual(self) -> int:
        """The number of jobs that are held, but for those in extra places."""
        return len(self._held) - self._places.extra

    def deliveries(self) -> list[Delivery]:
        """Return all that is held."""
        return list(self._held.values())

    # A job's way.

    def accept(self, link: Link, assigned: Assigned, now: float) -> CurrentJob | None:
        """Take a job that a server has handed over at a monotonic time; return None where it is given back at once."""
        handle, token, name, unique, info, payload = assigned
        key = (handle, token)
        function = self._functions.get(name)
        if function is None:
            job = CurrentJob(handle, unique, name.decode("utf-8", "backslashreplace"), info, self._reports)
            settlement = failure("UsageError", f"this worker has no function {name!r}", final=True)
            self._failures.failed(job, None, settlement)
            link.session.settle(key, settlement)
            return None
        if self._places.closed:
            link.session.settle(key, RELEASED)
            return None
        job = CurrentJob(handle, unique, function.name, info, self._reports, Origin(link, key))
        isolated = self._selector is not None and b'"alone"' in info
        delivery = Delivery(link, key, function, payload, job, now, isolated=isolated)
        self._held[link, key] = delivery
        if not link.extra:
            self._waiting.append(delivery)
        elif self._places.extra < self._places.most_extra:
            self._places.take(0, extra=1)
            delivery.running = True
            if self._counters is not None:
                self._counters.begun([delivery])
            self._executors[delivery.executor].start([delivery], brief=False)
        else:
            self._hand_back(delivery)  # several servers had one for the same place
        return job

    def start(self) -> None:
        """Start what waits in the free places."""
        free = self._places.free
        if not self._waiting or free <= 0 or self._places.closed:
            return
        batches: dict[str, list[Delivery]] = {}
        while self._waiting and free:
            delivery = self._waiting.popleft()
            delivery.running = True
            batches.setdefault(delivery.executor, []).append(delivery)
            free -= 1
        self._places.take(self._places.free - free)
        for kind, batch in batches.items():
            if self._counters is not None:
                self._counters.begun(batch)
            self._executors[kind].start(batch, brief=self._prefetch.brief)

    def _finish(self, finished: Sequence[Finished]) -> None:
        """Settle what executors are done with."""
        self.done += len(finished)
        extra = 0
        self._reports.send()
        for delivery, settlement, seconds in finished:
            self._prefetch.saw(seconds)
            extra += delivery.link.extra
            session = delivery.link.session
            if settlement.outcome == b"failed" and delivery.key in session.running:  # others are the server's to log
                self._failures.failed(delivery.job, delivery.function, settlement)
            session.settle(delivery.key, settlement)
            self._held.pop((delivery.link, delivery.key), None)
        if self._counters is not None:
            self._counters.ended([one.delivery for one in finished])
        self._places.leave(len(finished) - extra, extra)
        self._ended()

    def stop(self, link: Link, key: Key, reason: str) -> None:
        """End a delivery that is ``cancelled``, over by ``timeout`` or ``lost``; does nothing for one that is not held."""
        delivery = self._held.get((link, key))
        if delivery is None:
            return
        if reason in {"timeout", "lost"}:
            link.session.drop(key)  # the delivery is over: nothing is to be settled
        if delivery.running:
            self._stop_running(delivery, reason, at_once=reason != "cancelled")
        else:
            self._waiting.remove(delivery)
            self._hand_back(delivery, CANCELLED if reason == "cancelled" else RELEASED)

    def _stop_running(self, delivery: Delivery, reason: str, *, at_once: bool) -> None:
        """Stop what runs. A thread can only be asked, but while it waits for another job, that wait can be ended."""
        delivery.job.ask_to_stop(reason)
        self._executors[delivery.executor].stop(delivery, at_once=at_once)
        if delivery.executor == "thread":
            for awaited in self._waits.of(delivery.job):
                awaited.refuse(JobStopped(reason))

    # Handing back.

    def hand_back_waiting(self, before: float | None = None) -> bool:
        """Hand back what was taken in advance, or of that what came before a monotonic time; say whether there was any."""
        waited = False
        while self._waiting and (before is None or self._waiting[0].arrived < before):
            self._hand_back(self._waiting.popleft())
            waited = True
        return waited

    def stop_all(self, reason: str) -> None:
        """Stop all that runs, by force where that can be."""
        for delivery in self.deliveries():
            self._stop_running(delivery, reason, at_once=True)

    def give_up(self) -> None:
        """Hand back all that is held: threads that do not stop end with the process."""
        for delivery in self.deliveries():
            self._hand_back(delivery)

    def _hand_back(self, delivery: Delivery, settlement: Settlement = RELEASED) -> None:
        """End a delivery without its function."""
        del self._held[delivery.link, delivery.key]
        delivery.link.session.settle(delivery.key, settlement)
        delivery.link.flush()
