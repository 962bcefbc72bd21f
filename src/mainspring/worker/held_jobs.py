"""The jobs that a worker holds: requests, accepts, starts, settles, stops and releases them.

A worker requests one job for each place, and more while jobs are brief. Prefetched jobs hide the round trip to the server. While
jobs are long, prefetching would only keep them from idle workers. Therefore the surplus is the number of jobs that the places can
run within the horizon, by the recent run times of jobs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mainspring.codecs import NO_CODECS
from mainspring.errors import CodecError
from mainspring.namespaces import name_text
from mainspring.worker.current import CurrentJob, JobStopped
from mainspring.worker.delivery import Delivery, Executor, Finished, Origin
from mainspring.worker.execution import (
    CANCELLED,
    RELEASED,
    Settlement,
    codec_failure,
    encoded_settlement,
    failure,
)
from mainspring.worker.executors.in_process import CoroutineExecutor, ThreadExecutor
from mainspring.worker.executors.process import ProcessExecutor
from mainspring.worker.reports import Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.codecs import Codecs
    from mainspring.worker.delivery import Decider
    from mainspring.worker.execution import FailedAttempts
    from mainspring.worker.link import Link
    from mainspring.worker.places import Places, Waits
    from mainspring.worker.registry import Function
    from mainspring.worker.session import Assigned, Key
    from mainspring.worker.settings import WorkerSettings
    from mainspring.worker.supervisor import JobCounters


HORIZON: Final = 0.02
"""Seconds of work that are prefetched."""

BRIEF_JOB: Final = 0.0005
"""Seconds below which a job is brief; the hand-over to a thread takes as long."""

WEIGHT: Final = 0.1
"""The weight of the newest job in the moving average of run times."""

SURPLUS_PER_PLACE: Final = 2
SURPLUS: Final = 256
"""Prefetched jobs, at most: this number, and ``SURPLUS_PER_PLACE`` for each place."""


class PrefetchController:
    """Computes from the run times of ended jobs how many jobs to hold."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._typical: float | None = None

    def observe(self, seconds: float) -> None:
        """Record the run time of a job."""
        self._typical = seconds if self._typical is None else self._typical + WEIGHT * (seconds - self._typical)

    def suspend(self) -> None:
        """Prefetch no more until recent jobs are brief again; called when prefetched jobs had to wait."""
        self._typical = 1.0

    @property
    def brief(self) -> bool:
        """Whether recent jobs are brief."""
        return self._typical is not None and self._typical < BRIEF_JOB

    def target(self) -> int:
        """Return how many jobs to hold, including running ones."""
        if self._typical is None:
            return self._places
        surplus = int(HORIZON * self._places / max(self._typical, 1e-6))
        return self._places + min(surplus, SURPLUS_PER_PLACE * self._places + SURPLUS)


def _prepares(delivery: Delivery, ready: bool) -> None:
    """Report that a delivery waits for the start of a process, or that this is ready."""
    delivery.link.session.prepares(delivery.key, ready=ready)
    delivery.link.flush()


class HeldJobs:
    """The jobs that a worker holds from all its servers.

    Processes import the App by its ``selector``; ``task_process`` is the command that starts one. ``ended`` is called on the
    loop after jobs have ended. ``ends_orderly`` is that of ``ProcessExecutor``. ``codecs`` decode arguments and encode results.
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
        decider: Decider | None = None,
        ends_orderly: bool = False,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self._codecs = codecs
        self._ends_orderly = ends_orderly
        self._functions = functions
        self._places = places
        self._waits = waits
        self._prefetch = prefetch
        self._settings = settings
        self._selector = selector
        self._task_process = task_process
        self._counters = counters
        self._ended = ended
        self._decider = decider
        self._reports = Reports(waits, codecs)
        self._executors: dict[str, Executor] = {}
        self._held: dict[tuple[Link, Key], Delivery] = {}
        self._waiting: deque[Delivery] = deque()
        self.done = 0
        """The number of jobs that have run to their end."""

    def attach(self, failures: FailedAttempts) -> None:
        """Create the executors on the running loop; failures are logged with ``failures``."""
        self._failures = failures
        self._reports.attach()
        kept, most = self._settings.concurrency, self._settings.concurrency + self._settings.waiting_places
        self._executors = {
            "thread": ThreadExecutor(kept, self._finish, most=most),
            "coroutine": CoroutineExecutor(self._finish),
            "process": ProcessExecutor(
                kept,
                self._selector,
                self._finish,
                most=most,
                max_rss=self._settings.max_rss,
                command=self._task_process,
                prepares=_prepares,
                ends_orderly=self._ends_orderly,
            ),
        }

    async def close(self) -> None:
        """End threads and processes."""
        for executor in self._executors.values():
            await executor.close()

    def shrink(self) -> None:
        """End the threads and processes that only extra places needed."""
        for executor in self._executors.values():
            executor.shrink()

    # Counts.

    def __len__(self) -> int:
        return len(self._held)

    @property
    def outside_extra_places(self) -> int:
        """The number of held jobs that are not in extra places."""
        return len(self._held) - self._places.extra

    def deliveries(self) -> list[Delivery]:
        """Return all held deliveries."""
        return list(self._held.values())

    # From assignment to settlement.

    def accept(self, link: Link, assigned: Assigned, now: float) -> CurrentJob | None:
        """Hold a job that a server has assigned at a monotonic time; return None if it is settled at once."""
        handle, token, name, unique, info, payload = assigned
        key = (handle, token)
        function = self._functions.get(name)
        if function is None:
            job = CurrentJob(handle, unique, name_text(name), info, self._reports)
            settlement = failure("UsageError", f"this worker has no function {name!r}", final=True)
            self._failures.failed(job, None, settlement)
            link.session.settle(key, settlement)
            return None
        if self._places.closed:
            link.session.settle(key, RELEASED)
            return None
        job = CurrentJob(handle, unique, function.name, info, self._reports, Origin(link, key))
        try:
            if not function.from_node:
                payload = self._codecs.decode(payload, "arguments", function.name)
        except CodecError as error:
            settlement = codec_failure(error)
            self._failures.failed(job, function, settlement)
            link.session.settle(key, settlement)
            return None
        isolated = self._selector is not None and b'"alone"' in info
        delivery = Delivery(link, key, function, payload, job, now, isolated=isolated)
        self._held[link, key] = delivery
        if self._decider is not None:
            self._decider.accepted(delivery)
        if not link.extra:
            self._waiting.append(delivery)
        elif self._places.extra < self._places.most_extra:
            self._places.occupy(0, extra=1)
            delivery.running = True
            if self._counters is not None:
                self._counters.begun([delivery])
            self._executors[delivery.executor].start([delivery], brief=False)
        else:
            self._release(delivery)  # several servers have assigned a job to the same place
        return job

    def start(self) -> None:
        """Start waiting jobs in the free places."""
        free = self._places.free
        if not self._waiting or free <= 0 or self._places.closed:
            return
        batches: dict[str, list[Delivery]] = {}
        while self._waiting and free:
            delivery = self._waiting.popleft()
            delivery.running = True
            batches.setdefault(delivery.executor, []).append(delivery)
            free -= 1
        self._places.occupy(self._places.free - free)
        for kind, batch in batches.items():
            if self._counters is not None:
                self._counters.begun(batch)
            self._executors[kind].start(batch, brief=self._prefetch.brief)

    def _finish(self, finished: Sequence[Finished]) -> None:
        """Settle finished deliveries."""
        self.done += len(finished)
        extra = 0
        self._reports.send()
        logged = self._reports.has_logs
        for delivery, settlement, seconds in finished:
            if self._reports.progress_waits:
                self._reports.send_last(delivery.link, delivery.key)
            self._prefetch.observe(seconds)
            extra += delivery.link.extra
            session = delivery.link.session
            if settlement.data and self._codecs and not delivery.function.from_node:
                settlement = encoded_settlement(settlement, self._codecs, delivery.function.name)
            if settlement.outcome == b"failed" and delivery.key in session.running:  # the server logs the others
                self._failures.failed(delivery.job, delivery.function, settlement)
            if self._reports.has_streams:
                self._reports.close_streams(delivery.link, delivery.key)
            if self._decider is None or not self._decider.ended(delivery, settlement):
                session.settle(delivery.key, settlement)
            self._held.pop((delivery.link, delivery.key), None)
            if logged:
                self._reports.ended(delivery.link, delivery.key)
        if self._counters is not None:
            self._counters.ended([one.delivery for one in finished])
        self._places.vacate(len(finished) - extra, extra)
        self._ended()

    def stop(self, link: Link, key: Key, reason: str) -> None:
        """End a delivery because it is ``cancelled``, ``lost`` or at its ``timeout``; do nothing if it is not held."""
        delivery = self._held.get((link, key))
        if delivery is None:
            return
        if reason in {"timeout", "lost"}:
            self._reports.send()  # its last lines show where the time went
            link.session.drop(key)  # the delivery is over and must not be settled
        if delivery.running:
            self._stop_running(delivery, reason, at_once=reason != "cancelled")
        else:
            self._waiting.remove(delivery)
            self._release(delivery, CANCELLED if reason == "cancelled" else RELEASED)

    def _stop_running(self, delivery: Delivery, reason: str, *, at_once: bool) -> None:
        """Stop a running job. A thread cannot be stopped by force, but its waits for other jobs are ended."""
        delivery.job.ask_to_stop(reason)
        self._executors[delivery.executor].stop(delivery, at_once=at_once)
        if delivery.executor == "thread":
            for awaited in self._waits.of(delivery.job):
                awaited.refuse(JobStopped(reason))

    # Release.

    def release_waiting(self, before: float | None = None) -> bool:
        """Release the prefetched jobs, or those that arrived before a monotonic time; return whether there were any."""
        released = False
        while self._waiting and (before is None or self._waiting[0].arrived < before):
            self._release(self._waiting.popleft())
            released = True
        return released

    def stop_all(self, reason: str) -> None:
        """Stop all running jobs, by force where possible."""
        for delivery in self.deliveries():
            self._stop_running(delivery, reason, at_once=True)

    def release_all(self) -> None:
        """Release all held jobs; threads that do not stop end with the process."""
        for delivery in self.deliveries():
            self._release(delivery)

    def _release(self, delivery: Delivery, settlement: Settlement = RELEASED) -> None:
        """Settle a delivery without a result of its function."""
        del self._held[delivery.link, delivery.key]
        if self._decider is not None:
            self._decider.ended(delivery, None)
        delivery.link.session.settle(delivery.key, settlement)
        delivery.link.flush()


class JobRequests:
    """Requests as many jobs from the servers as the worker can hold."""

    def __init__(self, links: Sequence[Link], prefetch: PrefetchController, held_jobs: HeldJobs) -> None:
        self._links = links
        self._prefetch = prefetch
        self._held_jobs = held_jobs

    def send(self) -> None:
        """Request the jobs that are missing.

        Each server may assign all of them, because the worker cannot know which servers have jobs. While jobs are long, an
        assignment of one server reduces the requests to the others.
        """
        target = self._prefetch.target()
        capacity = max(0, target - self._held_jobs.outside_extra_places)
        for link in self._links:
            session = link.session
            if not session.agreed:
                continue
            missing = capacity - session.credit
            if missing < 0 and not session.pausing and not self._prefetch.brief:
                session.pause()
                missing = capacity
            # Combine several requests in one packet while the server has enough credit.
            if missing > 0 and (missing * 4 >= target or session.credit <= missing):
                session.ready(missing)
            link.flush()
